"""Figures of single episodes: smallest distances, the learning curve, and recorded paths.

Each episode's smallest distance goes into a histogram and a cumulative share; every training
episode stands faintly behind their moving mean and the held-out evaluations; recorded episodes are
still pictures with whole paths, starts, goals and contacts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.proportions import wilson_interval
from cadenza.evaluation.report.analysis import Numbers
from cadenza.evaluation.report.figures.outcomes import (
    Figure,
    LegendEntry,
    condition_legend,
    make_figure,
)
from cadenza.evaluation.report.svg import (
    WIDTH,
    Drawing,
    Scale,
    count,
    nice_ticks,
    number,
    percent,
    plural,
    shorten,
    tick_label,
)
from cadenza.evaluation.report.view import (
    ConditionView,
    EvaluationPoint,
    Extent,
    LearningCurve,
    PartnerView,
    ReportView,
    Rollout,
    condition_css,
    extent_of,
    outcome_text,
    robot_roles,
)

#: Bins of the histogram; at 1000 episodes about 25 fall into each.
BINS: Final = 40

#: Height of the histogram and of the cumulative panel, drawing units.
PANEL_HEIGHT: Final = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Smallest distances under one condition, ascending, m, and the class of its marks."""

    css: str
    values: FloatArray


def distance_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return histogram and cumulative share over all partners, or ``None`` without distances."""
    cells = zip(condition_css(view), numbers.overall.cells, strict=True)
    series = [Series(css=css, values=np.empty(0) if c is None else c.distances) for css, c in cells]
    if not any(s.values.size for s in series):
        return None
    contact = view.contact_distance_m
    limits = _limits(series, contact)
    smallest = "; ".join(
        f"{condition.label}: smallest {number(float(s.values[0]), digits=3, unit='m')}, median "
        f"{number(float(np.median(s.values)), digits=2, unit='m')}"
        for condition, s in zip(view.conditions, series, strict=True)
        if s.values.size
    )
    return make_figure(
        _draw_main(series, limits, contact),
        identity="fig-distance",
        title="How close the robots came",
        caption="Each episode counts once, with its smallest centre distance between the ego and "
        "anyone. Left of the dashed line the robots touch. Above: episodes per bin. Below: share "
        "of episodes that came at least this close.",
        description=smallest + ".",
        legend=tuple(e for e in condition_legend(view, seeds=False) if e.css != "interval"),
    )


def _limits(series: Sequence[Series], contact: float | None) -> tuple[float, float]:
    """Return the ends of the distance axis: round, and with the contact distance inside."""
    values = np.concatenate([s.values for s in series])
    low = min(float(values.min()), contact if contact is not None else np.inf)
    high = max(float(values.max()), contact if contact is not None else 0.0)
    margin = 0.05 * (high - low) or 0.1
    return max(0.0, low - margin), high + margin


def histogram_edges(limits: tuple[float, float], contact: float | None) -> FloatArray:
    """Return about `BINS` + 1 ascending bin edges that cover ``limits``, m.

    The contact distance is one of them, so no bin mixes episodes with contact and without.
    """
    width = (limits[1] - limits[0]) / BINS
    origin = limits[0] if contact is None else contact
    first = math.floor((limits[0] - origin) / width)
    last = math.ceil((limits[1] - origin) / width)
    return np.array([origin + width * index for index in range(first, last + 1)])


def _draw_main(
    series: Sequence[Series],
    limits: tuple[float, float],
    contact: float | None,
) -> Drawing:
    """Return histogram above, cumulative share below, on one distance axis."""
    left, right = 54.0, WIDTH - 12
    drawing = Drawing(height=2 * PANEL_HEIGHT + 96)
    x = Scale(low=limits[0], high=limits[1], start=left, end=right)
    top, middle = 22.0, 22.0 + PANEL_HEIGHT
    bottom = middle + 26 + PANEL_HEIGHT
    if contact is not None:
        for start, end in ((top, middle), (middle + 26, bottom)):
            drawing.rect(left, start, max(0.0, x(contact) - left), end - start, "danger-zone")
    _draw_histogram(drawing, series, histogram_edges(limits, contact), x, top, middle)
    _draw_cumulative(drawing, series, x, middle + 26, bottom)
    _draw_distance_axis(drawing, x, bottom)
    if contact is not None:
        drawing.line(x(contact), top - 4, x(contact), bottom, "limit")
        text = f"contact below {number(contact, digits=2, unit='m')}"
        near_right = x(contact) > (left + right) / 2
        drawing.text(
            x(contact) + (-6 if near_right else 6),
            top - 8,
            text,
            "hint danger",
            "end" if near_right else "start",
        )
    return drawing


def _draw_histogram(
    drawing: Drawing,
    series: Sequence[Series],
    edges: FloatArray,
    x: Scale,
    top: float,
    bottom: float,
) -> None:
    """Draw step outlines of the counts."""
    counts = [np.histogram(s.values, bins=edges)[0] for s in series]
    most = max(int(c.max()) for c in counts)
    y = Scale(low=0.0, high=max(most, 1) * 1.06, start=bottom, end=top)
    for tick in nice_ticks(0.0, max(most, 1), 3):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 7, y(tick) + 4, tick_label(tick), "tick", "end")
    for s, heights in zip(series, counts, strict=True):
        corners = [min(max(x(edge), x.start), x.end) for edge in edges.tolist()]
        outline: list[tuple[float, float]] = [(corners[0], y(0))]
        for index, value in enumerate(heights.tolist()):
            outline += [(corners[index], y(value)), (corners[index + 1], y(value))]
        outline.append((corners[-1], y(0)))
        drawing.polygon(outline, f"area {s.css}")
        drawing.polyline(outline, f"step {s.css}")
    drawing.text(x.end, top + 12, "episodes per bin", "hint", "end")


def _draw_cumulative(
    drawing: Drawing,
    series: Sequence[Series],
    x: Scale,
    top: float,
    bottom: float,
) -> None:
    """Draw the cumulative share of each series."""
    y = Scale(low=0.0, high=1.0, start=bottom, end=top)
    for tick in (0.0, 0.5, 1.0):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 7, y(tick) + 4, f"{100 * tick:.0f}%", "tick", "end")
    for s in series:
        drawing.polyline(_steps(s.values, x, y), f"step {s.css}")
    drawing.text(x.end, bottom - 8, "share of episodes", "hint", "end")


def _steps(values: FloatArray, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Return the staircase of the cumulative share; at most a few hundred corners."""
    if values.size == 0:
        return []
    distinct, counts = np.unique(np.round(values, 3), return_counts=True)
    shares = np.cumsum(counts) / values.size
    points = [(x.start, y(0.0))]
    height = 0.0
    for value, share in zip(distinct.tolist(), shares.tolist(), strict=True):
        points += [(x(value), y(height)), (x(value), y(share))]
        height = share
    points.append((x.end, y(1.0)))
    return points


def _draw_distance_axis(drawing: Drawing, x: Scale, bottom: float) -> None:
    """Draw ticks and label of the distance axis."""
    drawing.line(x.start, bottom, x.end, bottom, "axis")
    for tick in nice_ticks(x.low, x.high, 10):
        drawing.line(x(tick), bottom, x(tick), bottom + 4, "axis")
        drawing.text(x(tick), bottom + 18, tick_label(tick), "tick", "middle")
    middle = (x.start + x.end) / 2
    drawing.text(
        middle, bottom + 38, "Smallest centre distance in the episode (m)", "axis-label", "middle"
    )


#: Most dots and line corners drawn; more cannot be told apart at this width.
MAX_POINTS: Final = 400

#: Heights of the return panel and of the evaluation panel, drawing units.
RETURN_HEIGHT: Final = 200.0
EVALUATION_HEIGHT: Final = 110.0


def moving_mean(values: Sequence[float], window: int) -> FloatArray:
    """Return the mean of the last ``window`` values at each position, fewer at the start, (N,)."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return array
    total = np.concatenate([[0.0], np.cumsum(array)])
    ends = np.arange(1, array.size + 1)
    starts = np.maximum(ends - window, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def learning_figure(curve: LearningCurve) -> Figure | None:
    """Return the learning curve, or ``None`` when there is nothing to draw."""
    if not curve.returns and not curve.evaluations:
        return None
    scored = [e for e in curve.evaluations if e.n_success is not None]
    last = scored[-1] if scored else None
    description = f"{plural(len(curve.returns), 'training episode')}"
    if curve.returns:
        mean = moving_mean(curve.returns, curve.window)
        first = mean[min(curve.window, mean.size) - 1]
        description += (
            f"; the moving mean of the return goes from {number(float(first))} to "
            f"{number(float(mean[-1]))}"
        )
    if last is not None and last.n_success is not None:
        description += f"; last held-out success {percent(last.n_success / last.n_episodes)}"
    legend = [
        LegendEntry(css="episode", label="one training episode"),
        LegendEntry(css="mean", label=f"mean of the last {curve.window}"),
    ]
    if curve.evaluations:
        legend.append(LegendEntry(css="held-out", label="held-out evaluation, 95 % interval"))
    return make_figure(
        _draw_curve(curve, scored),
        identity="fig-learning",
        title="How the ego learned",
        caption=_caption(curve),
        description=description + ".",
        legend=tuple(legend),
    )


def _caption(curve: LearningCurve) -> str:
    """Return what was trained and how to read the dots."""
    label = f"{curve.label[0].upper()}{curve.label[1:].rstrip('.')}. " if curve.label else ""
    exploring = "Training returns include exploration"
    if not curve.evaluations:
        return f"{label}{exploring}."
    return (
        f"{label}{exploring}; held-out episodes are played without it, on starts that training "
        "never sees."
    )


def _draw_curve(curve: LearningCurve, scored: Sequence[EvaluationPoint]) -> Drawing:
    """Return the return panel and, if there are any, the evaluation panel under it."""
    left, right = 54.0, WIDTH - 14
    height = RETURN_HEIGHT + 70 + (EVALUATION_HEIGHT + 30 if scored else 0)
    drawing = Drawing(height=height)
    last = max([*curve.steps, *(e.step for e in curve.evaluations), 1])
    x = Scale(low=0.0, high=float(last), start=left, end=right)
    bottom = 16.0 + RETURN_HEIGHT
    _draw_returns(drawing, curve, x, 16.0, bottom)
    if scored:
        _draw_evaluations(drawing, scored, x, bottom + 30, bottom + 30 + EVALUATION_HEIGHT)
        bottom += 30 + EVALUATION_HEIGHT
    drawing.line(left, bottom, right, bottom, "axis")
    for tick in nice_ticks(0.0, float(last), 8):
        drawing.text(x(tick), bottom + 18, tick_label(tick), "tick", "middle")
    drawing.text((left + right) / 2, bottom + 38, "Environment steps", "axis-label", "middle")
    return drawing


def _draw_returns(
    drawing: Drawing, curve: LearningCurve, x: Scale, top: float, bottom: float
) -> None:
    """Draw episode returns, their moving mean and held-out mean returns."""
    held_out = [(e.step, e.mean_return) for e in curve.evaluations if e.mean_return is not None]
    values = [*curve.returns, *(value for _, value in held_out)] or [0.0]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.5
    y = Scale(low=low - margin, high=high + margin, start=bottom, end=top)
    for tick in nice_ticks(y.low, y.high, 5):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 7, y(tick) + 4, tick_label(tick), "tick", "end")
    shown = _thinned(len(curve.returns))
    for index in shown:
        drawing.circle(x(curve.steps[index]), y(curve.returns[index]), 1.6, "episode")
    mean = moving_mean(curve.returns, curve.window)
    full = curve.window - 1 if len(curve.returns) > curve.window else 0
    line = [(x(curve.steps[i]), y(float(mean[i]))) for i in shown if i >= full]
    drawing.polyline(line, "mean-line")
    for step, value in held_out:
        drawing.diamond(x(step), y(value), 5, "mark held-out", f"{count(step)} steps: {value:.2f}")
    drawing.text(x.start + 4, top + 12, "episode return", "hint")


def _draw_evaluations(
    drawing: Drawing, points: Sequence[EvaluationPoint], x: Scale, top: float, bottom: float
) -> None:
    """Draw held-out success rates with Wilson intervals."""
    y = Scale(low=0.0, high=1.0, start=bottom, end=top)
    for tick in (0.0, 0.5, 1.0):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 7, y(tick) + 4, f"{100 * tick:.0f}%", "tick", "end")
    line: list[tuple[float, float]] = []
    for point in points:
        successes = point.n_success or 0
        rate = successes / point.n_episodes
        low, high = wilson_interval(successes, point.n_episodes)
        drawing.line(x(point.step), y(low), x(point.step), y(high), "interval held-out")
        line.append((x(point.step), y(rate)))
    drawing.polyline(line, "held-out-line")
    for point, (px, py) in zip(points, line, strict=True):
        tip = f"{count(point.step)} steps: {point.n_success} of {point.n_episodes} solved"
        drawing.diamond(px, py, 5, "mark held-out", tip)
    drawing.text(x.start + 4, top + 12, "held-out success", "hint")


def _thinned(length: int) -> list[int]:
    """Return at most `MAX_POINTS` evenly spaced positions, both ends included."""
    if length <= MAX_POINTS:
        return list(range(length))
    return sorted({round(i * (length - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})


#: Most corners of one path; at this size more cannot be seen.
MAX_CORNERS: Final = 60

#: Most pictures side by side.
MAX_COLUMNS: Final = 5


def trajectory_figure(view: ReportView, pick: str) -> Figure | None:
    """Return one picture per recorded episode of ``pick``, or ``None`` when there is none."""
    runs = {(r.partner_id, r.condition_id): r for r in view.rollouts if r.pick == pick}
    if not runs:
        return None
    partners = [p for p in view.partners if any(p.partner_id == key[0] for key in runs)]
    extent = extent_of(list(runs.values()))
    words = "; ".join(
        f"{p.label}, {c.label}: {outcome_text(runs[p.partner_id, c.condition_id])}"
        for p in partners
        for c in view.conditions
        if (p.partner_id, c.condition_id) in runs
    )
    return make_figure(
        _draw(partners, view.conditions, runs, extent, view.ego_uid),
        identity=f"fig-trajectories-{list(view.picks).index(pick)}",
        title=f"The {pick} recordings at a glance",
        caption="Open circle: start. Disc: last position, drawn at true size. Cross: goal. "
        "Both conditions of a partner begin from the same state. Under the name: how many starts "
        "with this partner end like the one shown.",
        description=words + ".",
        legend=(
            LegendEntry(css="ego", label="ego"),
            LegendEntry(css="partner", label="partner"),
            LegendEntry(css="hit", label="contact"),
        ),
    )


def _draw(
    partners: Sequence[PartnerView],
    conditions: Sequence[ConditionView],
    runs: dict[tuple[str, str], Rollout],
    extent: Extent,
    ego_uid: str,
) -> Drawing:
    """Return the grid: partners side by side, their conditions below one another."""
    columns = min(len(partners), MAX_COLUMNS)
    size = min((WIDTH - 12.0 * (columns - 1)) / columns, 240.0)
    bands = -(-len(partners) // columns)
    band_height = 38.0 + len(conditions) * (size + 42.0)
    drawing = Drawing(height=bands * band_height)
    for index, partner in enumerate(partners):
        x = (index % columns) * (size + 12.0)
        y = (index // columns) * band_height
        drawing.text(x, y + 14, shorten(partner.label, limit=20), "label strong")
        alike = next(run.alike for (p, _), run in runs.items() if p == partner.partner_id)
        drawing.text(x, y + 29, f"like {alike}", "note")
        for row, condition in enumerate(conditions):
            run = runs.get((partner.partner_id, condition.condition_id))
            top = y + 38.0 + row * (size + 42.0)
            if run is not None:
                _draw_picture(drawing, run, extent, ego_uid, x, top, size)
                drawing.text(x, top + size + 16, condition.label, "note")
                drawing.text(x, top + size + 31, outcome_text(run), "label small")
    return drawing


def _draw_picture(
    drawing: Drawing,
    run: Rollout,
    extent: Extent,
    ego_uid: str,
    left: float,
    top: float,
    size: float,
) -> None:
    """Draw one episode into a square."""
    x = Scale(low=extent.x_low, high=extent.x_high, start=left, end=left + size)
    y = Scale(low=extent.y_low, high=extent.y_high, start=top + size, end=top)
    unit = size / (extent.x_high - extent.x_low)
    drawing.rect(left, top, size, size, "floor")
    roles = robot_roles(run, ego_uid)
    for uid, role in reversed(roles.items()):
        if uid in run.goals:
            gx, gy = x(run.goals[uid][0]), y(run.goals[uid][1])
            drawing.line(gx - 5, gy - 5, gx + 5, gy + 5, f"goal {role}")
            drawing.line(gx - 5, gy + 5, gx + 5, gy - 5, f"goal {role}")
        path = [(x(frame[uid][0]), y(frame[uid][1])) for frame in _thin(run)]
        drawing.circle(*path[0], run.radii[uid] * unit, f"start {role}")
        drawing.polyline(path, f"trail {role}")
        drawing.circle(*path[-1], run.radii[uid] * unit, f"robot {role}")
    if run.contact_index is not None:
        px, py = run.frames[run.contact_index][ego_uid]
        drawing.circle(x(px), y(py), run.radii[ego_uid] * unit + 4, "hit")


def _thin(run: Rollout) -> list[dict[str, tuple[float, float]]]:
    """Return at most `MAX_CORNERS` frames, both ends included."""
    frames = [dict(frame) for frame in run.frames]
    if len(frames) <= MAX_CORNERS:
        return frames
    last = len(frames) - 1
    return [frames[round(i * last / (MAX_CORNERS - 1))] for i in range(MAX_CORNERS)]

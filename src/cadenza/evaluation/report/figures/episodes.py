"""Figures of single episodes: distances and forces, the learning curve, and recorded paths.

Each episode's smallest distance and peak force go into a cumulative share; every training episode
stands faintly behind their moving mean and the held-out evaluations; recorded episodes are still
pictures with whole paths, starts, goals and contacts.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.proportions import wilson_interval
from cadenza.evaluation.report.analysis import Numbers
from cadenza.evaluation.report.figures.outcomes import condition_legend
from cadenza.evaluation.report.svg import (
    LEFT,
    RIGHT,
    SHARES,
    WIDTH,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    count,
    draw_baseline,
    draw_grid,
    make_figure,
    number,
    percent,
    plural,
    shorten,
    widened,
)
from cadenza.evaluation.report.view import (
    EvaluationPoint,
    LearningCurve,
    PartnerView,
    ReportView,
    Rollout,
    condition_css,
    extent_of,
    outcome_text,
    robot_roles,
)
from cadenza.safety.maps import outlines

#: Height of a cumulative figure, drawing units.
PANEL_HEIGHT: Final = 200.0


def distance_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return the smallest distances over all partners, or ``None`` without distances."""
    return _cumulative_figure(
        view,
        [np.empty(0) if cell is None else cell.distances for cell in numbers.overall.cells],
        limit=view.contact_distance_m,
        limit_text="contact below",
        danger_below=True,
        unit="m",
        identity="fig-distance",
        title="How close the robots came",
        label="Smallest centre distance in the episode (m)",
        caption="Each episode counts once, with its smallest centre distance between the ego and "
        "anyone: share of episodes that came at least this close. Left of the dashed line the "
        "robots touch.",
    )


def wall_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return the smallest gaps to walls over all partners, or ``None`` without walls."""
    return _cumulative_figure(
        view,
        [np.empty(0) if cell is None else cell.wall_gaps for cell in numbers.overall.cells],
        limit=0.0,
        limit_text="wall touched below",
        danger_below=True,
        unit="m",
        identity="fig-walls",
        title="How close the ego came to walls",
        label="Smallest gap to a wall in the episode (m)",
        caption="Share of episodes in which the ego's edge came at least this close to a wall, "
        "or to another obstacle that stands still. Left of the dashed line it touches one.",
    )


def stress_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return the peak forces over all partners, or ``None`` where none were recorded."""
    return _cumulative_figure(
        view,
        [np.empty(0) if cell is None else cell.forces for cell in numbers.overall.cells],
        limit=view.stress_limit,
        limit_text="limit",
        danger_below=False,
        unit="N",
        identity="fig-stress",
        title="How much force the coupling had to take",
        label="Peak force in the episode (N)",
        caption="Share of episodes whose peak force stayed at or below the value on the axis. "
        "Right of the dashed line the task's limit is broken.",
    )


def _cumulative_figure(
    view: ReportView,
    samples: Sequence[FloatArray],
    *,
    limit: float | None,
    limit_text: str,
    danger_below: bool,
    unit: str,
    identity: str,
    title: str,
    label: str,
    caption: str,
) -> Figure | None:
    """Return the cumulative share of ascending ``samples``, one array per condition."""
    pooled = np.concatenate(samples)
    if not pooled.size:
        return None
    ends = [float(pooled.min()), float(pooled.max()), *([] if limit is None else [limit])]
    margin = 0.05 * (max(ends) - min(ends)) or 0.1
    drawing = Drawing(height=PANEL_HEIGHT + 78)
    lowest = min(ends)
    low = max(0.0, lowest - margin) if lowest > 0.0 else lowest - margin
    x = Scale(low=low, high=max(ends) + margin, start=LEFT, end=RIGHT)
    top, bottom = 24.0, 24.0 + PANEL_HEIGHT
    y = Scale(low=0.0, high=1.0, start=bottom, end=top)
    if limit is not None:
        left, right = (x.start, x(limit)) if danger_below else (x(limit), x.end)
        drawing.rect(left, top, right - left, bottom - top, "danger-zone")
    draw_grid(drawing, x, y, SHARES)
    for css, values in zip(condition_css(view), samples, strict=True):
        drawing.polyline(_steps(values, x, y), f"step {css}")
    drawing.text(x.end, bottom - 8, "share of episodes", "hint", "end")
    draw_baseline(drawing, x, bottom, label)
    if limit is not None:
        drawing.line(x(limit), top - 4, x(limit), bottom, "limit")
        near_right = x(limit) > (x.start + x.end) / 2
        words = f"{limit_text} {number(limit, digits=2, unit=unit)}"
        place = (-6, "end") if near_right else (6, "start")
        drawing.text(x(limit) + place[0], top - 8, words, "hint danger", place[1])
    told = "; ".join(
        f"{condition.label}: smallest {number(float(v[0]), digits=3, unit=unit)}, median "
        f"{number(float(np.median(v)), unit=unit)}, largest {number(float(v[-1]), unit=unit)}"
        for condition, v in zip(view.conditions, samples, strict=True)
        if v.size
    )
    return make_figure(
        drawing,
        identity=identity,
        title=title,
        caption=caption,
        description=f"{told}.",
        legend=condition_legend(view),
    )


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


def learning_figure(curve: LearningCurve, index: int = 0) -> Figure | None:
    """Return the ``index``-th learning curve, or ``None`` when there is nothing to draw."""
    if not curve.returns and not curve.evaluations:
        return None
    scored = [e for e in curve.evaluations if e.n_success is not None]
    description = f"{plural(len(curve.returns), 'training episode')}"
    if curve.returns:
        mean = moving_mean(curve.returns, curve.window)
        first = mean[min(curve.window, mean.size) - 1]
        description += (
            f"; the moving mean of the return goes from {number(float(first))} to "
            f"{number(float(mean[-1]))}"
        )
    if scored:
        rate = (scored[-1].n_success or 0) / scored[-1].n_episodes
        description += f"; last held-out success {percent(rate)}"
    legend = [
        LegendEntry(css="episode", label="one training episode"),
        LegendEntry(css="mean", label=f"mean of the last {curve.window}"),
    ]
    if curve.evaluations:
        legend.append(
            LegendEntry(css="held-out", label="held-out evaluation, 95 % (one seed: Wilson)")
        )
    return make_figure(
        _draw_curve(curve, scored),
        identity=f"fig-learning-{index}" if index else "fig-learning",
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
    height = RETURN_HEIGHT + 70 + (EVALUATION_HEIGHT + 30 if scored else 0)
    drawing = Drawing(height=height)
    last = max([*curve.steps, *(e.step for e in curve.evaluations), 1])
    x = Scale(low=0.0, high=float(last), start=LEFT, end=RIGHT)
    bottom = 16.0 + RETURN_HEIGHT
    _draw_returns(drawing, curve, x, 16.0, bottom)
    if scored:
        _draw_evaluations(drawing, scored, x, bottom + 30, bottom + 30 + EVALUATION_HEIGHT)
        bottom += 30 + EVALUATION_HEIGHT
    draw_baseline(drawing, x, bottom, "Environment steps")
    return drawing


def _draw_returns(
    drawing: Drawing, curve: LearningCurve, x: Scale, top: float, bottom: float
) -> None:
    """Draw episode returns, their moving mean and held-out mean returns."""
    held_out = [(e.step, e.mean_return) for e in curve.evaluations if e.mean_return is not None]
    values = [*curve.returns, *(value for _, value in held_out)] or [0.0]
    low, high = widened(values, share=0.05)
    y = Scale(low=low, high=high, start=bottom, end=top)
    draw_grid(drawing, x, y)
    shown = _thinned(len(curve.returns), MAX_POINTS)
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
    draw_grid(drawing, x, y, (0.0, 0.5, 1.0))
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


class SeedSeries(NamedTuple):
    """One figure of one training over its environment steps, ascending."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]


def seeds_figure(
    title: str, series: Sequence[SeedSeries], *, identity: str, rate: bool = False
) -> Figure | None:
    """Return one line per training seed, their mean and range; ``None`` without two steps."""
    series = [one for one in series if one.steps]
    last = max((one.steps[-1] for one in series), default=0.0)
    if last <= 0.0:
        return None
    values = [value for one in series for value in one.values]
    low, high = (0.0, 1.0) if rate else widened(values, share=0.05)
    drawing = Drawing(height=RETURN_HEIGHT + 70)
    x = Scale(low=0.0, high=last, start=LEFT, end=RIGHT)
    y = Scale(low=low, high=high, start=16.0 + RETURN_HEIGHT, end=16.0)
    draw_grid(drawing, x, y, SHARES if rate else ())
    legend = [LegendEntry(css="seed", label="one training seed")]
    description = f"{plural(len(series), 'seed')}, {count(round(last))} steps"
    grid, mean, lowest, highest = _over_seeds(series)
    if grid.size and len(series) > 1:
        edge = [*zip(grid, highest, strict=True), *zip(grid[::-1], lowest[::-1], strict=True)]
        drawing.polygon([(x(a), y(b)) for a, b in edge], "area on")
        legend.append(LegendEntry(css="mean", label="mean of the seeds; shaded: their range"))
    for one in series:
        for k in _thinned(len(one.steps), MAX_POINTS):
            tip = f"{one.label}, {count(round(one.steps[k]))} steps: {one.values[k]:.4g}"
            drawing.circle(x(one.steps[k]), y(one.values[k]), 1.8, "seed on", tip)
    if grid.size:
        description += f"; mean at the last common step {number(float(mean[-1]))}"
        drawing.polyline([(x(a), y(b)) for a, b in zip(grid, mean, strict=True)], "mean-line")
    draw_baseline(drawing, x, y.start, "Environment steps")
    return make_figure(
        drawing,
        identity=identity,
        title=title,
        caption="",
        description=f"{description}.",
        legend=tuple(legend),
    )


def learning_figures(curves: Sequence[LearningCurve]) -> list[Figure]:
    """Return the curve of one training; of several seeds, each figure with their mean and range."""
    if len(curves) == 1:
        figures = [learning_figure(curves[0])]
    else:
        # of episodes that end at one step, side by side, the last mean has them all
        returns: list[SeedSeries] = []
        for curve in curves:
            means = moving_mean(curve.returns, curve.window)
            ends = dict(zip(curve.steps, means.tolist(), strict=True))
            returns.append(SeedSeries(curve.label, [*ends], [*ends.values()]))
        held_out = _held_out(curves, lambda point: point.mean_return)
        success = _held_out(curves, lambda point: point.success_rate)
        figures = [
            seeds_figure(
                f"Training return, mean of the last {curves[0].window}", returns, identity="returns"
            ),
            seeds_figure("Held-out return", held_out, identity="held-out-return"),
            seeds_figure("Held-out success", success, identity="held-out-success", rate=True),
        ]
    return [figure for figure in figures if figure is not None]


def _held_out(
    curves: Sequence[LearningCurve], value: Callable[[EvaluationPoint], float | None]
) -> list[SeedSeries]:
    """Return one figure of each curve's evaluations, where it was measured."""
    series: list[SeedSeries] = []
    for curve in curves:
        found = [(e.step, v) for e in curve.evaluations if (v := value(e)) is not None]
        series.append(SeedSeries(curve.label, [s for s, _ in found], [v for _, v in found]))
    return series


def _over_seeds(series: Sequence[SeedSeries]) -> tuple[FloatArray, ...]:
    """Return common steps, and mean, least and largest value of the seeds at them."""
    first, last = max(one.steps[0] for one in series), min(one.steps[-1] for one in series)
    steps = np.unique([step for one in series for step in one.steps])
    steps = steps[(steps >= first) & (steps <= last)]
    steps = steps[_thinned(len(steps), MAX_POINTS)]
    at = np.array([np.interp(steps, one.steps, one.values) for one in series])
    return steps, at.mean(axis=0), at.min(axis=0), at.max(axis=0)


def _thinned(length: int, most: int) -> list[int]:
    """Return at most ``most`` evenly spaced positions, both ends included."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


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
    words = "; ".join(
        f"{p.label}, {c.label}: {outcome_text(runs[p.partner_id, c.condition_id])}"
        for p in partners
        for c in view.conditions
        if (p.partner_id, c.condition_id) in runs
    )
    return make_figure(
        _draw(view, partners, runs),
        identity=f"fig-trajectories-{list(view.picks).index(pick)}",
        title=f"The {pick} recordings at a glance",
        caption="Open circle: start. Disc: last position, drawn at true size. Cross: goal. "
        "All conditions of a partner begin from the same state. Under the name: how many starts "
        "with this partner end like the one shown.",
        description=words + ".",
        legend=(
            LegendEntry(css="ego", label="ego"),
            LegendEntry(css="partner", label="partner"),
            LegendEntry(css="hit", label="contact"),
            *([LegendEntry(css="wall", label="wall")] if view.has_walls else ()),
        ),
    )


def _draw(
    view: ReportView, partners: Sequence[PartnerView], runs: dict[tuple[str, str], Rollout]
) -> Drawing:
    """Return the grid: partners side by side, their conditions below one another."""
    extent = extent_of(list(runs.values()))
    columns = min(len(partners), MAX_COLUMNS)
    size = min((WIDTH - 12.0 * (columns - 1)) / columns, 240.0)
    bands = -(-len(partners) // columns)
    band_height = 38.0 + len(view.conditions) * (size + 42.0)
    drawing = Drawing(height=bands * band_height)
    for index, partner in enumerate(partners):
        x = (index % columns) * (size + 12.0)
        y = (index // columns) * band_height
        drawing.text(x, y + 14, shorten(partner.label, limit=20), "label strong")
        alike = next(run.alike for (p, _), run in runs.items() if p == partner.partner_id)
        drawing.text(x, y + 29, f"like {alike}", "note")
        for row, condition in enumerate(view.conditions):
            run = runs.get((partner.partner_id, condition.condition_id))
            top = y + 38.0 + row * (size + 42.0)
            if run is not None:
                across = Scale(low=extent.x_low, high=extent.x_high, start=x, end=x + size)
                up = Scale(low=extent.y_low, high=extent.y_high, start=top + size, end=top)
                _draw_picture(drawing, run, view.ego_uid, across, up)
                drawing.text(x, top + size + 16, condition.label, "note")
                drawing.text(x, top + size + 31, outcome_text(run), "label small")
    return drawing


def _draw_picture(drawing: Drawing, run: Rollout, ego_uid: str, x: Scale, y: Scale) -> None:
    """Draw one episode into the square of two scales."""
    size = x.end - x.start
    unit = size / (x.high - x.low)
    drawing.rect(x.start, y.end, size, size, "floor")
    for corners in outlines(run.walls(), (x.low, y.low, x.high, y.high)):
        drawing.polygon([(x(a), y(b)) for a, b in corners.tolist()], "wall")
    roles = robot_roles(run, ego_uid)
    frames = [run.frames[i] for i in _thinned(len(run.frames), MAX_CORNERS)]
    for uid, role in reversed(roles.items()):
        if uid in run.goals:
            gx, gy = x(run.goals[uid][0]), y(run.goals[uid][1])
            drawing.line(gx - 5, gy - 5, gx + 5, gy + 5, f"goal {role}")
            drawing.line(gx - 5, gy + 5, gx + 5, gy - 5, f"goal {role}")
        path = [(x(frame[uid][0]), y(frame[uid][1])) for frame in frames]
        drawing.circle(*path[0], run.radii[uid] * unit, f"start {role}")
        drawing.polyline(path, f"trail {role}")
        drawing.circle(*path[-1], run.radii[uid] * unit, f"robot {role}")
    if run.contact_index is not None:
        px, py = run.frames[run.contact_index][ego_uid]
        drawing.circle(x(px), y(py), run.radii[ego_uid] * unit + 4, "hit")

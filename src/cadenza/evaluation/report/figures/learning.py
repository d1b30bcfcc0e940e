"""Learning curve: every training episode faintly, their moving mean, and held-out evaluations."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.proportions import wilson_interval
from cadenza.evaluation.report.figures.figure import Figure, LegendEntry, make_figure
from cadenza.evaluation.report.formatting import count, number, percent, plural
from cadenza.evaluation.report.svg import Drawing, Layout, Scale, nice_ticks, tick_label
from cadenza.evaluation.report.view import EvaluationPoint, LearningCurve

#: Most dots and line corners drawn; more cannot be told apart at this width.
MAX_POINTS: Final = 400

#: Heights of the return panel and of the evaluation panel, drawing units.
RETURN_HEIGHT: Final = 200.0
EVALUATION_HEIGHT: Final = 110.0


def moving_mean(values: Sequence[float], window: int) -> FloatArray:
    """Return the mean of the last ``window`` values at each position, fewer at the start.

    Args:
        values: Shape (N,).
        window: Length, >= 1.

    Returns:
        Shape (N,).
    """
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
        lambda layout: _draw(curve, scored, layout),
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


def _draw(curve: LearningCurve, scored: Sequence[EvaluationPoint], layout: Layout) -> Drawing:
    """Return the return panel and, if there are any, the evaluation panel under it."""
    left, right = (40.0, layout.width - 10) if layout.narrow else (54.0, layout.width - 14)
    height = RETURN_HEIGHT + 70 + (EVALUATION_HEIGHT + 30 if scored else 0)
    drawing = Drawing(width=layout.width, height=height)
    last = max([*curve.steps, *(e.step for e in curve.evaluations), 1])
    x = Scale(low=0.0, high=float(last), start=left, end=right)
    bottom = 16.0 + RETURN_HEIGHT
    _draw_returns(drawing, curve, x, 16.0, bottom)
    if scored:
        _draw_evaluations(drawing, scored, x, bottom + 30, bottom + 30 + EVALUATION_HEIGHT)
        bottom += 30 + EVALUATION_HEIGHT
    drawing.line(left, bottom, right, bottom, "axis")
    for tick in nice_ticks(0.0, float(last), 4 if layout.narrow else 8):
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
    shown = _thin(len(curve.returns))
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


def _thin(length: int) -> list[int]:
    """Return at most `MAX_POINTS` evenly spaced positions, both ends included."""
    if length <= MAX_POINTS:
        return list(range(length))
    return sorted({round(i * (length - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})

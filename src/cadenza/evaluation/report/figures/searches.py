"""Figures of a search: how it went, which settings mattered, and where each of them was good.

Axes: a trial is a point; its value, the higher the better, is None unless it went to its end.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from cadenza.evaluation.report.svg import (
    WIDTH,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    make_figure,
    nice_ticks,
    percent,
    shorten,
    tick_label,
)

#: Drawing units.
_HEIGHT: Final = 250.0
_LEFT: Final = 58.0
_BAR: Final = 30.0
_BAR_LABEL: Final = 250.0
#: Panels of settings in a row, their height with labels, and the gap between them.
_COLUMNS: Final = 3
_PANEL: Final = 196.0
_GAP: Final = 26.0


class Point(NamedTuple):
    """One trial: its number, its value, and the last value it had where it was pruned."""

    number: int
    value: float | None
    last: float | None = None


class Axis(NamedTuple):
    """One setting over all trials: its values, as numbers or as words of the choices."""

    name: str
    values: tuple[float | str, ...]
    choices: tuple[str, ...] = ()
    log: bool = False


def history_figure(points: Sequence[Point], what: str) -> Figure:
    """Return the value of every trial in order, and the best so far as a line."""
    drawing = Drawing(height=_HEIGHT)
    known = [v for p in points for v in (p.value, p.last) if v is not None]
    y = _values_scale(drawing, known, top=14.0, bottom=_HEIGHT - 40, left=_LEFT, right=WIDTH - 12)
    x = Scale(low=-0.5, high=len(points) - 0.5, start=_LEFT, end=WIDTH - 12)
    for tick in nice_ticks(0.0, max(1.0, len(points) - 1.0), 8):
        if tick == round(tick):
            drawing.text(x(tick), _HEIGHT - 20, tick_label(tick), "tick", "middle")
    drawing.text((_LEFT + WIDTH) / 2, _HEIGHT - 4, "trial", "axis-label", "middle")
    complete = [(p.number, p.value) for p in points if p.value is not None]
    best = list(accumulate((value for _, value in complete), max))
    corners: list[tuple[float, float]] = []
    for (number, _), value in zip(complete, best, strict=True):
        if corners:
            corners.append((x(number), corners[-1][1]))
        corners.append((x(number), y(value)))
    if corners:
        corners.append((x(len(points) - 0.5), corners[-1][1]))
    drawing.polyline(corners, "mean-line")
    for point in points:
        if point.value is not None:
            tip = f"trial {point.number}: {point.value:.4g}"
            drawing.circle(x(point.number), y(point.value), 4.4, "mark m m0", tip)
        elif point.last is not None:
            tip = f"trial {point.number}: pruned at {point.last:.4g}"
            drawing.diamond(x(point.number), y(point.last), 4.4, "mark held-out", tip)
    return make_figure(
        drawing,
        identity="fig-history",
        title="Every trial, and the best so far",
        caption=f"Value: {what}. A trial that failed has no mark.",
        description=f"{len(complete)} of {len(points)} trials went to their end",
        legend=(
            LegendEntry(css="m m0", label="went to its end"),
            LegendEntry(css="held-out", label="pruned, at the value it had then"),
            LegendEntry(css="mean", label="best so far"),
        ),
    )


def importance_figure(shares: Mapping[str, float]) -> Figure:
    """Return the share of the values' spread that each setting explains, the largest first."""
    rows = sorted(shares.items(), key=lambda item: -item[1])
    drawing = Drawing(height=_BAR * len(rows) + 12)
    x = Scale(low=0.0, high=1.0, start=_BAR_LABEL, end=WIDTH - 70)
    for index, (name, share) in enumerate(rows):
        top = 6 + index * _BAR
        drawing.text(_BAR_LABEL - 10, top + 19, shorten(name, limit=34), "label", "end")
        drawing.rect(x(0.0), top + 6, x(share) - x(0.0), _BAR - 12, "cell")
        drawing.text(x(share) + 7, top + 19, percent(share, digits=0), "value")
    return make_figure(
        drawing,
        identity="fig-importance",
        title="Which settings mattered",
        caption="Share of what tells the better half of the trials from all of them (PED-ANOVA, "
        "Watanabe et al. 2023), within the ranges that were searched. Few trials give a hint, not "
        "a measurement.",
        description=", ".join(f"{name} {percent(share, digits=0)}" for name, share in rows),
    )


def settings_figure(axes: Sequence[Axis], values: Sequence[float], what: str) -> Figure:
    """Return one panel for each setting: its value in every complete trial against the result."""
    rows = math.ceil(len(axes) / _COLUMNS)
    drawing = Drawing(height=rows * _PANEL)
    width = (WIDTH - _LEFT - _GAP * (_COLUMNS - 1)) / _COLUMNS
    for index, axis in enumerate(axes):
        row, column = divmod(index, _COLUMNS)
        left = _LEFT + column * (width + _GAP)
        top = row * _PANEL + 12
        y = _values_scale(
            drawing,
            values,
            top=top,
            bottom=top + _PANEL - 62,
            left=left,
            right=left + width,
            labels=column == 0,
        )
        places = _places(drawing, axis, left + 10, left + width - 10, top + _PANEL - 46)
        for place, value in zip(places, values, strict=True):
            drawing.circle(place, y(value), 3.6, "mark m m0", f"{value:.4g}")
        title = shorten(axis.name, limit=34)
        drawing.text(left + width / 2, top + _PANEL - 28, title, "axis-label", "middle")
    return make_figure(
        drawing,
        identity="fig-settings",
        title="Where each setting was good",
        caption=f"One mark for each trial that went to its end; up: {what}. The search draws more "
        "often where earlier trials were good, so marks are no even sample.",
        description=f"{len(values)} trials, {len(axes)} settings",
    )


def _values_scale(
    drawing: Drawing,
    values: Sequence[float],
    *,
    top: float,
    bottom: float,
    left: float,
    right: float,
    labels: bool = True,
) -> Scale:
    """Draw the grid of the values from ``left`` to ``right`` and return their vertical scale."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.5
    y = Scale(low=low - margin, high=high + margin, start=bottom, end=top)
    for tick in nice_ticks(y.low, y.high, 5):
        drawing.line(left, y(tick), right, y(tick), "grid")
        if labels:
            drawing.text(left - 7, y(tick) + 4, tick_label(tick), "tick", "end")
    return y


def _places(
    drawing: Drawing, axis: Axis, left: float, right: float, baseline: float
) -> list[float]:
    """Label one setting's axis and return where its values lie on it."""
    if axis.choices:
        step = (right - left) / len(axis.choices)
        middles = {name: left + (i + 0.5) * step for i, name in enumerate(axis.choices)}
        for name, place in middles.items():
            drawing.text(place, baseline, shorten(name, limit=11), "tick", "middle")
        return [middles[str(value)] for value in axis.values]
    numbers = [float(value) for value in axis.values]
    scaled = [math.log10(value) for value in numbers] if axis.log else numbers
    low, high = min(scaled), max(scaled)
    margin = 0.04 * (high - low) or 0.5
    x = Scale(low=low - margin, high=high + margin, start=left, end=right)
    for end in dict.fromkeys((min(numbers), max(numbers))):
        place = x(math.log10(end) if axis.log else end)
        drawing.text(place, baseline, f"{end:.3g}".replace("e-0", "e−"), "tick", "middle")
    return [x(value) for value in scaled]

"""How close the robots come: histogram and cumulative share of each episode's smallest distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.evaluation.report.analysis import Numbers, Row
from cadenza.evaluation.report.figures.figure import Figure, make_figure
from cadenza.evaluation.report.figures.outcomes import condition_legend
from cadenza.evaluation.report.formatting import number
from cadenza.evaluation.report.svg import Drawing, Layout, Scale, nice_ticks, shorten, tick_label
from cadenza.evaluation.report.view import ReportView, condition_css

#: Bins of the histogram; at 1000 episodes about 25 fall into each.
BINS: Final = 40

#: Height of the histogram and of the cumulative panel, drawing units.
PANEL_HEIGHT: Final = 150.0
SMALL_HEIGHT: Final = 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Smallest distances under one condition.

    Attributes:
        css: Class of its marks.
        values: Ascending, m.
    """

    css: str
    values: FloatArray


def distance_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return histogram and cumulative share over all partners, or ``None`` without distances."""
    series = _series(view, numbers.overall)
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
        lambda layout: _draw_main(series, limits, contact, layout),
        identity="fig-distance",
        title="How close the robots came",
        caption="Each episode counts once, with its smallest centre distance between the ego and "
        "anyone. Left of the dashed line the robots touch. Above: episodes per bin. Below: share "
        "of episodes that came at least this close.",
        description=smallest + ".",
        legend=tuple(e for e in condition_legend(view, seeds=False) if e.css != "interval"),
    )


def partner_distance_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return one cumulative panel per partner, or ``None`` without distances."""
    panels = [(row.label, _series(view, row)) for row in numbers.partners]
    panels = [(label, series) for label, series in panels if any(s.values.size for s in series)]
    if len(panels) < 2:
        return None
    limits = _limits([s for _, series in panels for s in series], view.contact_distance_m)
    return make_figure(
        lambda layout: _draw_panels(panels, limits, view.contact_distance_m, layout),
        identity="fig-distance-partners",
        title="The same, partner by partner",
        caption="Share of episodes that came at least this close.",
        description="Cumulative shares of the smallest distance for "
        + ", ".join(label for label, _ in panels)
        + ".",
        legend=tuple(e for e in condition_legend(view, seeds=False) if e.css != "interval"),
    )


def _series(view: ReportView, row: Row) -> list[Series]:
    """Return the distances of one row, one entry per condition."""
    empty = np.empty(0)
    return [
        Series(css=css, values=empty if cell is None else cell.distances)
        for css, cell in zip(condition_css(view), row.cells, strict=True)
    ]


def _limits(series: Sequence[Series], contact: float | None) -> tuple[float, float]:
    """Return the ends of the distance axis: round, and with the contact distance inside."""
    values = np.concatenate([s.values for s in series])
    low = min(float(values.min()), contact if contact is not None else np.inf)
    high = max(float(values.max()), contact if contact is not None else 0.0)
    margin = 0.05 * (high - low) or 0.1
    return max(0.0, low - margin), high + margin


def histogram_edges(limits: tuple[float, float], contact: float | None) -> FloatArray:
    """Return bin edges that cover ``limits``; the contact distance is one of them.

    So no bin mixes episodes with contact and without.

    Args:
        limits: Ends of the axis, m.
        contact: Contact distance, m, if the task has one.

    Returns:
        Ascending edges, about `BINS` + 1 of them, m.
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
    layout: Layout,
) -> Drawing:
    """Return histogram above, cumulative share below, on one distance axis."""
    left, right = (34.0, layout.width - 8) if layout.narrow else (54.0, layout.width - 12)
    drawing = Drawing(width=layout.width, height=2 * PANEL_HEIGHT + 96)
    x = Scale(low=limits[0], high=limits[1], start=left, end=right)
    top, middle = 22.0, 22.0 + PANEL_HEIGHT
    bottom = middle + 26 + PANEL_HEIGHT
    if contact is not None:
        for start, end in ((top, middle), (middle + 26, bottom)):
            drawing.rect(left, start, max(0.0, x(contact) - left), end - start, "danger-zone")
    _draw_histogram(drawing, series, histogram_edges(limits, contact), x, top, middle)
    _draw_cumulative(drawing, series, x, middle + 26, bottom)
    _draw_distance_axis(drawing, x, bottom, layout)
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
    for s, count in zip(series, counts, strict=True):
        corners = [min(max(x(edge), x.start), x.end) for edge in edges.tolist()]
        outline: list[tuple[float, float]] = [(corners[0], y(0))]
        for index, value in enumerate(count.tolist()):
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
    *,
    label: str = "share of episodes",
) -> None:
    """Draw the cumulative share of each series."""
    y = Scale(low=0.0, high=1.0, start=bottom, end=top)
    for tick in (0.0, 0.5, 1.0):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 7, y(tick) + 4, f"{100 * tick:.0f}%", "tick", "end")
    for s in series:
        drawing.polyline(_steps(s.values, x, y), f"step {s.css}")
    if label:
        drawing.text(x.end, bottom - 8, label, "hint", "end")


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


def _draw_distance_axis(drawing: Drawing, x: Scale, bottom: float, layout: Layout) -> None:
    """Draw ticks and label of the distance axis."""
    drawing.line(x.start, bottom, x.end, bottom, "axis")
    for tick in nice_ticks(x.low, x.high, 5 if layout.narrow else 10):
        drawing.line(x(tick), bottom, x(tick), bottom + 4, "axis")
        drawing.text(x(tick), bottom + 18, tick_label(tick), "tick", "middle")
    middle = (x.start + x.end) / 2
    drawing.text(
        middle, bottom + 38, "Smallest centre distance in the episode (m)", "axis-label", "middle"
    )


def _draw_panels(
    panels: Sequence[tuple[str, Sequence[Series]]],
    limits: tuple[float, float],
    contact: float | None,
    layout: Layout,
) -> Drawing:
    """Return one small cumulative panel per partner, in a grid."""
    columns = 2 if layout.narrow else 3
    rows = -(-len(panels) // columns)
    gap, left = 14.0, 36.0
    width = (layout.width - gap * (columns - 1)) / columns
    height = SMALL_HEIGHT + 64
    drawing = Drawing(width=layout.width, height=rows * height)
    for index, (label, series) in enumerate(panels):
        x0 = (index % columns) * (width + gap)
        top = (index // columns) * height + 28
        bottom = top + SMALL_HEIGHT
        x = Scale(low=limits[0], high=limits[1], start=x0 + left, end=x0 + width - 4)
        drawing.text(x0, top - 13, shorten(label, limit=24), "label strong small")
        if contact is not None:
            drawing.rect(x.start, top, max(0.0, x(contact) - x.start), SMALL_HEIGHT, "danger-zone")
            drawing.line(x(contact), top, x(contact), bottom, "limit")
        _draw_cumulative(drawing, series, x, top, bottom, label="")
        drawing.line(x.start, bottom, x.end, bottom, "axis")
        for tick in nice_ticks(x.low, x.high, 3):
            drawing.text(x(tick), bottom + 16, f"{tick_label(tick)} m", "tick", "middle")
    return drawing

"""Points with intervals in labelled rows, and one faint dot per seed under each point."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.evaluation.report.svg import Drawing, Layout, Scale, nice_ticks, shorten
from cadenza.evaluation.statistics.estimate import Estimate

#: Drawing units.
LANE_HEIGHT: Final = 24.0
ROW_PADDING: Final = 12.0
AXIS_HEIGHT: Final = 44.0
HEADER_HEIGHT: Final = 24.0
LABEL_WIDTH: Final = 222.0
VALUE_WIDTH: Final = 172.0
NARROW_VALUE_WIDTH: Final = 130.0
MARK_RADIUS: Final = 4.4
SEED_RADIUS: Final = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One point with its interval.

    Attributes:
        css: ``"on"`` (filled circle), ``"off"`` (hollow diamond) or ``"diff"`` (filled square).
        estimate: The point and its bounds.
        seeds: One value per seed, drawn as faint dots.
        text: The numbers, printed beside it.
        tip: Shown on hovering.
    """

    css: str
    estimate: Estimate
    seeds: tuple[float, ...]
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DotRow:
    """One labelled row.

    Attributes:
        label: Its name.
        note: A second, quieter line.
        lanes: One lane per condition; ``None`` leaves it empty.
        group: Whether it pools other rows; groups stand under a rule.
    """

    label: str
    note: str
    lanes: tuple[Lane | None, ...]
    group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The horizontal axis.

    Attributes:
        label: What it measures, with its unit.
        short: The same for phones.
        low: Left end.
        high: Right end, > ``low``.
        tick: Text of a tick.
        reference: Value of a vertical rule, e.g. no difference.
        left: Meaning of the side left of the rule, printed over the plot.
        right: Meaning of the right side.
    """

    label: str
    short: str
    low: float
    high: float
    tick: Callable[[float], str]
    reference: float | None = None
    left: str = ""
    right: str = ""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where things stand in one layout."""

    drawing: Drawing
    layout: Layout
    scale: Scale
    top: float


def dot_plot(rows: Sequence[DotRow], axis: Axis, layout: Layout) -> Drawing:
    """Return the plot of ``rows``.

    Args:
        rows: At least one row; groups last.
        axis: The common axis.
        layout: Wide puts labels and numbers in columns; narrow puts labels over the lanes.
    """
    header = HEADER_HEIGHT if axis.reference is not None else 6.0
    heights = [_row_height(row, layout) for row in rows]
    drawing = Drawing(width=layout.width, height=header + sum(heights) + AXIS_HEIGHT)
    left, right = _plot_range(layout)
    frame = _Frame(
        drawing, layout, Scale(low=axis.low, high=axis.high, start=left, end=right), header
    )
    _draw_axis(frame, axis, bottom=header + sum(heights))
    y = header
    previous_group = False
    for index, (row, height) in enumerate(zip(rows, heights, strict=True)):
        if row.group and not previous_group and index:
            drawing.line(0, y, layout.width, y, "rule")
        elif index:
            drawing.line(0, y, layout.width, y, "hair")
        _draw_row(frame, row, y)
        previous_group = row.group
        y += height
    return drawing


def _plot_range(layout: Layout) -> tuple[float, float]:
    """Return the left and right end of the plot area."""
    if layout.narrow:
        return 8.0, layout.width - NARROW_VALUE_WIDTH
    return LABEL_WIDTH, layout.width - VALUE_WIDTH


def _row_height(row: DotRow, layout: Layout) -> float:
    """Return the height of a row."""
    lanes = max(len(row.lanes), 1) * LANE_HEIGHT
    if layout.narrow:
        return lanes + ROW_PADDING + 20.0
    return max(lanes + ROW_PADDING, 46.0)


def _draw_axis(frame: _Frame, axis: Axis, *, bottom: float) -> None:
    """Draw grid, ticks, axis label and reference rule."""
    drawing, scale = frame.drawing, frame.scale
    for tick in nice_ticks(axis.low, axis.high, 4 if frame.layout.narrow else 6):
        drawing.line(scale(tick), frame.top, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 17, axis.tick(tick), "tick", "middle")
    middle = (scale.start + scale.end) / 2
    label = axis.short if frame.layout.narrow else axis.label
    drawing.text(middle, bottom + 36, label, "axis-label", "middle")
    if axis.reference is not None:
        x = scale(axis.reference)
        drawing.line(x, frame.top - 4, x, bottom, "reference")
        if frame.layout.narrow:
            drawing.text(0, frame.top - 9, f"← {axis.left}", "hint", "start")
            drawing.text(scale.end, frame.top - 9, f"{axis.right} →", "hint", "end")
        else:
            drawing.text(x - 8, frame.top - 9, f"← {axis.left}", "hint", "end")
            drawing.text(x + 8, frame.top - 9, f"{axis.right} →", "hint", "start")


def _draw_row(frame: _Frame, row: DotRow, y: float) -> None:
    """Draw labels and lanes of one row whose top is ``y``."""
    drawing, narrow = frame.drawing, frame.layout.narrow
    name = "label strong"
    if narrow:
        drawing.text(0, y + 16, shorten(row.label), name)
        drawing.text(frame.layout.width, y + 16, row.note, "note", "end")
        first = y + 20.0 + ROW_PADDING / 2
    else:
        height = _row_height(row, frame.layout)
        drawing.text(0, y + height / 2 - 2, shorten(row.label), name)
        drawing.text(0, y + height / 2 + 14, row.note, "note")
        first = y + (height - len(row.lanes) * LANE_HEIGHT) / 2
    for index, lane in enumerate(row.lanes):
        if lane is not None:
            _draw_lane(frame, lane, first + (index + 0.5) * LANE_HEIGHT, grouped=row.group)


def _draw_lane(frame: _Frame, lane: Lane, y: float, *, grouped: bool) -> None:
    """Draw seed dots, interval, mark and numbers of one lane centred on ``y``."""
    drawing, scale, estimate = frame.drawing, frame.scale, lane.estimate
    mark_y = y - 3 if lane.seeds else y
    for value, count in sorted(Counter(round(seed, 6) for seed in lane.seeds).items()):
        drawing.circle(scale(value), y + 7, SEED_RADIUS * count**0.5, f"seed {lane.css}")
    if estimate.low is not None and estimate.high is not None:
        low, high = _clip(scale, estimate.low), _clip(scale, estimate.high)
        drawing.line(low, mark_y, high, mark_y, f"interval {lane.css}")
    if estimate.value is not None:
        x = _clip(scale, estimate.value)
        radius = MARK_RADIUS + (0.8 if grouped else 0.0)
        if lane.css == "off":
            drawing.diamond(x, mark_y, radius + 1, "mark off", lane.tip)
        elif lane.css == "diff":
            corners = ((-1, -1), (1, -1), (1, 1), (-1, 1))
            square = [(x + 0.85 * radius * dx, mark_y + 0.85 * radius * dy) for dx, dy in corners]
            drawing.polygon(square, "mark diff", lane.tip)
        else:
            drawing.circle(x, mark_y, radius, "mark on", lane.tip)
    if frame.layout.narrow:
        drawing.text(frame.layout.width, mark_y + 4, lane.text, f"value small {lane.css}", "end")
    else:
        drawing.text(scale.end + 18, mark_y + 4, lane.text, f"value {lane.css}")


def _clip(scale: Scale, value: float) -> float:
    """Return the drawing unit of ``value``, kept inside the plot."""
    low, high = min(scale.low, scale.high), max(scale.low, scale.high)
    return scale(min(max(value, low), high))

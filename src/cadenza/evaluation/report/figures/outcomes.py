"""Figures of outcomes: success by partner, paired differences, and the frame of all figures."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cadenza.evaluation.leaderboard import GATE_PP
from cadenza.evaluation.report.analysis import Cell, MetricName, Numbers, Row, score_of
from cadenza.evaluation.report.svg import (
    NBSP,
    WIDTH,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    make_figure,
    nice_ticks,
    score_change,
    score_text,
    shorten,
    signed,
    tick_label,
    widened,
)
from cadenza.evaluation.report.view import ReportView, condition_css
from cadenza.evaluation.statistics.estimate import Estimate

#: Drawing units.
LANE_HEIGHT: Final = 24.0
ROW_PADDING: Final = 12.0
AXIS_HEIGHT: Final = 44.0
HEADER_HEIGHT: Final = 24.0
LABEL_WIDTH: Final = 222.0
VALUE_WIDTH: Final = 172.0
#: Gap before the numbers, and the widest that one of their characters is on average.
_GAP, _CHARACTER = 18.0, 6.9
MARK_RADIUS: Final = 4.4
SEED_RADIUS: Final = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One point with its interval, a faint dot per seed, and the numbers beside it.

    ``css`` is ``"on"`` (filled circle), ``"off"`` (hollow diamond) or ``"diff"`` (filled square).
    """

    css: str
    estimate: Estimate
    seeds: tuple[float, ...]
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DotRow:
    """One labelled row with a quieter note and a lane per condition; None leaves one empty.

    A group, which pools other rows, stands under a rule.
    """

    label: str
    note: str
    lanes: tuple[Lane | None, ...]
    group: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis; ``reference`` is a vertical rule, e.g. no difference.

    ``left`` and ``right`` say over the plot what the sides of the rule mean; ``guide`` is a dashed
    rule.
    """

    label: str
    low: float
    high: float
    tick: Callable[[float], str]
    reference: float | None = None
    left: str = ""
    right: str = ""
    guide: float | None = None


def dot_figure(rows: Sequence[DotRow], axis: Axis, **texts: Any) -> Figure:
    """Return the plot of ``rows``, groups last: labels and numbers stand in columns beside it.

    ``texts`` are those of `make_figure`, but for the description.
    """
    header = HEADER_HEIGHT if axis.reference is not None else 6.0
    heights = [_row_height(row) for row in rows]
    drawing = Drawing(height=header + sum(heights) + AXIS_HEIGHT)
    longest = max((len(lane.text) for row in rows for lane in row.lanes if lane), default=0)
    values = max(VALUE_WIDTH, _GAP + _CHARACTER * longest)
    scale = Scale(low=axis.low, high=axis.high, start=LABEL_WIDTH, end=WIDTH - values)
    _draw_axis(drawing, scale, axis, top=header, bottom=header + sum(heights))
    y = header
    previous_group = False
    for index, (row, height) in enumerate(zip(rows, heights, strict=True)):
        if index:
            css = "rule" if row.group and not previous_group else "hair"
            drawing.line(0, y, WIDTH, y, css)
        _draw_row(drawing, scale, row, y)
        previous_group = row.group
        y += height
    return make_figure(drawing, description=_describe(rows), **texts)


def _row_height(row: DotRow) -> float:
    return max(max(len(row.lanes), 1) * LANE_HEIGHT + ROW_PADDING, 46.0)


def _draw_axis(drawing: Drawing, scale: Scale, axis: Axis, *, top: float, bottom: float) -> None:
    """Draw grid, ticks, axis label and reference rule."""
    for tick in nice_ticks(axis.low, axis.high, 6):
        drawing.line(scale(tick), top, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 17, axis.tick(tick), "tick", "middle")
    drawing.text((scale.start + scale.end) / 2, bottom + 36, axis.label, "axis-label", "middle")
    if axis.guide is not None:
        drawing.line(scale(axis.guide), top, scale(axis.guide), bottom, "limit")
    if axis.reference is not None:
        x = scale(axis.reference)
        drawing.line(x, top - 4, x, bottom, "reference")
        drawing.text(x - 8, top - 9, f"← {axis.left}", "hint", "end")
        drawing.text(x + 8, top - 9, f"{axis.right} →", "hint", "start")


def _draw_row(drawing: Drawing, scale: Scale, row: DotRow, y: float) -> None:
    """Draw labels and lanes of one row whose top is ``y``."""
    height = _row_height(row)
    drawing.text(0, y + height / 2 - 2, shorten(row.label), "label strong")
    drawing.text(0, y + height / 2 + 14, row.note, "note")
    first = y + (height - len(row.lanes) * LANE_HEIGHT) / 2
    for index, lane in enumerate(row.lanes):
        if lane is not None:
            middle = first + (index + 0.5) * LANE_HEIGHT
            _draw_lane(drawing, scale, lane, middle, grouped=row.group)


def _draw_lane(drawing: Drawing, scale: Scale, lane: Lane, y: float, *, grouped: bool) -> None:
    """Draw seed dots, interval, mark and numbers of one lane centred on ``y``."""
    estimate = lane.estimate
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
            drawing.circle(x, mark_y, radius, f"mark {lane.css}", lane.tip)
    drawing.text(scale.end + _GAP, mark_y + 4, lane.text, f"value {lane.css}")


def _clip(scale: Scale, value: float) -> float:
    """Return the drawing unit of ``value``, kept inside the plot."""
    low, high = min(scale.low, scale.high), max(scale.low, scale.high)
    return scale(min(max(value, low), high))


#: Legend of every interval.
_INTERVAL: Final = LegendEntry(css="interval", label="95 % interval")


def condition_legend(view: ReportView) -> tuple[LegendEntry, ...]:
    """Return the marks of the conditions."""
    marks = zip(condition_css(view), view.conditions, strict=True)
    return tuple(LegendEntry(css=css, label=condition.label) for css, condition in marks)


def outcome_figure(view: ReportView, numbers: Numbers) -> Figure:
    """Return success, or return, by partner, conditions side by side."""
    rate = view.has_success
    rows = [
        _dots(
            row,
            *(
                _outcome_lane(view, css, cell)
                for css, cell in zip(condition_css(view), row.cells, strict=True)
            ),
        )
        for row in (*numbers.partners, *numbers.groups)
    ]
    return dot_figure(
        rows,
        score_axis(view, rows),
        identity="fig-success" if rate else "fig-return",
        title="Success by partner" if rate else "Return by partner",
        caption=f"Point: {'share of episodes solved' if rate else 'mean undiscounted return'}. "
        "Line: 95 % interval that respects seeds.",
        legend=(
            *condition_legend(view),
            _INTERVAL,
            LegendEntry(css="seed", label="one seed (larger: several)"),
        ),
    )


def score_axis(view: ReportView, rows: Sequence[DotRow]) -> Axis:
    """Return the axis of success rates, or of returns that hold those of ``rows``."""
    if view.has_success:
        return Axis("Episodes solved (%)", 0.0, 1.0, lambda value: f"{100 * value:.3g}")
    return Axis("Mean episode return", *data_range(rows), tick_label)


def _outcome_lane(view: ReportView, css: str, cell: Cell | None) -> Lane | None:
    """Return the score of one cell."""
    estimate = score_of(view, cell)
    if cell is None or estimate is None:
        return None
    rate = view.has_success
    text = score_text(estimate, rate)
    return Lane(
        css=css,
        estimate=estimate,
        seeds=cell.seed_success if rate else cell.seed_return,
        text=text,
        tip=f"{text}, {cell.n} episodes, {estimate.n_clusters} seeds",
    )


def difference_figure(numbers: Numbers, metric: MetricName, *, better_high: bool) -> Figure | None:
    """Return the paired differences of one metric, or ``None`` when nothing was paired."""
    rows = [
        _dots(row, lane)
        for row in (*numbers.partners, *numbers.groups)
        if (lane := _difference_lane(row, metric)) is not None
    ]
    if not rows:
        return None
    rates = metric != "return"
    nouns = {"success": "success", "contact": "contacts", "return": "return"}
    unit = " (percentage points)" if rates else ""
    axis = difference_axis(
        rows,
        f"Change in {nouns[metric]}{unit}, with filter minus without",
        rates=rates,
        sides=("filter worse", "filter better"),
        better_high=better_high,
    )
    return dot_figure(
        rows,
        axis,
        identity=f"fig-difference-{metric}",
        title=f"What the filter changes: {nouns[metric]}",
        caption="Each pair is one initial state played twice with the same partner. Square: mean "
        "difference. Line: 95 % interval over seeds; one that crosses zero shows no clear change."
        + (f" Dashed: {GATE_PP:.0f} points." if rates else ""),
        legend=(LegendEntry(css="diff", label="mean paired difference"), _INTERVAL),
    )


def _dots(row: Row, *lanes: Lane | None) -> DotRow:
    return DotRow(label=row.label, note=row.note, group=row.partner is None, lanes=lanes)


def _difference_lane(row: Row, metric: MetricName) -> Lane | None:
    """Return the paired difference of one row."""
    comparison = row.comparisons.get(metric)
    if comparison is None or comparison.difference.value is None:
        return None
    estimate = comparison.difference
    text = score_change(estimate, is_rate=metric != "return")
    return Lane(
        css="diff",
        estimate=estimate,
        seeds=(),
        text=text,
        tip=f"{row.label}: {text}; higher with filter in {comparison.n_higher}, lower in "
        f"{comparison.n_lower}, equal in {comparison.n_equal} of {estimate.n} pairs",
    )


def _values(rows: Sequence[DotRow]) -> list[float]:
    """Return every number that must be visible."""
    values: list[float] = []
    for row in rows:
        for lane in row.lanes:
            if lane is not None:
                ends = (lane.estimate.value, lane.estimate.low, lane.estimate.high)
                values += [value for value in ends if value is not None]
                values += lane.seeds
    return values


def data_range(rows: Sequence[DotRow], *others: float) -> tuple[float, float]:
    """Return ends that hold every number of ``rows`` and the others."""
    return widened([*_values(rows), *others] or [0.0, 1.0])


def difference_axis(
    rows: Sequence[DotRow],
    label: str,
    *,
    rates: bool,
    sides: tuple[str, str],
    better_high: bool = True,
) -> Axis:
    """Return an axis about zero, ``sides`` say worse and better; of rates with the gap that counts.

    Differences of rates are shown in percentage points.
    """
    guide = GATE_PP / 100.0 * (1 if better_high else -1) if rates else None
    left, right = sides if better_high else sides[::-1]
    return Axis(
        label,
        *data_range(rows, 0.0, guide or 0.0),
        tick=(lambda value: signed(100 * value, digits=0)) if rates else tick_label,
        reference=0.0,
        left=left,
        right=right,
        guide=guide,
    )


def _describe(rows: Sequence[DotRow]) -> str:
    """Return the rows in words."""
    parts: list[str] = []
    for row in rows:
        numbers = " and ".join(lane.text for lane in row.lanes if lane is not None)
        parts.append(f"{row.label}{row.note and f' ({row.note})'}: {numbers or 'nothing'}")
    return "; ".join(parts).replace(NBSP, " ") + "."

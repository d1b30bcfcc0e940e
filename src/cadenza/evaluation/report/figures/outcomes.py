"""Success by partner, paired differences, and how often the filter acts."""

from collections.abc import Callable, Sequence

from cadenza.evaluation.report.analysis import Cell, MetricName, Numbers, Row
from cadenza.evaluation.report.figures.dots import Axis, DotRow, Lane, dot_plot
from cadenza.evaluation.report.figures.figure import Figure, LegendEntry, make_figure
from cadenza.evaluation.report.formatting import (
    NBSP,
    number,
    number_interval,
    percent,
    percent_interval,
    points,
    points_interval,
    signed,
)
from cadenza.evaluation.report.svg import tick_label
from cadenza.evaluation.report.view import ReportView, condition_css


def condition_legend(view: ReportView, *, seeds: bool = True) -> tuple[LegendEntry, ...]:
    """Return the legend of the conditions, and of the seed dots."""
    marks = tuple(
        LegendEntry(css=css, label=c.label)
        for css, c in zip(condition_css(view), view.conditions, strict=True)
    )
    extra = (LegendEntry(css="seed", label="one seed (larger: several)"),) if seeds else ()
    return (*marks, LegendEntry(css="interval", label="95 % interval"), *extra)


def success_figure(view: ReportView, numbers: Numbers) -> Figure:
    """Return success by partner, conditions side by side."""
    rows = _by_condition(view, numbers, _rate_lane)
    axis = Axis(
        label="Episodes solved (%)",
        short="Episodes solved (%)",
        low=0.0,
        high=1.0,
        tick=_percent_tick,
    )
    return make_figure(
        lambda layout: dot_plot(rows, axis, layout),
        identity="fig-success",
        title="Success by partner",
        caption="Point: share of episodes solved. Line: 95 % interval that respects seeds. "
        "Partners the ego never met are what the evaluation is about.",
        description=_describe(rows),
        legend=condition_legend(view),
    )


def return_figure(view: ReportView, numbers: Numbers) -> Figure:
    """Return mean episode return by partner, for tasks without a success predicate."""
    rows = _by_condition(view, numbers, lambda css, cell, _: _value_lane(css, cell))
    low, high = _data_range(rows)
    axis = Axis(
        label="Mean episode return",
        short="Mean episode return",
        low=low,
        high=high,
        tick=tick_label,
    )
    return make_figure(
        lambda layout: dot_plot(rows, axis, layout),
        identity="fig-return",
        title="Return by partner",
        caption="Point: mean undiscounted return. Line: 95 % interval over seeds.",
        description=_describe(rows),
        legend=condition_legend(view),
    )


def difference_figure(numbers: Numbers, metric: MetricName, *, better_high: bool) -> Figure | None:
    """Return the paired differences of one metric, or ``None`` when nothing was paired."""
    rows = [
        _dots(row, lane)
        for row in _all_rows(numbers)
        if (lane := _difference_lane(row, metric)) is not None
    ]
    if not rows:
        return None
    low, high = _symmetric_range(rows)
    rates = metric != "return"
    nouns = {"success": "success", "contact": "contacts", "return": "return"}
    unit = " (percentage points)" if rates else ""
    axis = Axis(
        label=f"Change in {nouns[metric]}{unit}, with filter minus without",
        short=f"Change in {nouns[metric]}{', points' if rates else ''}",
        low=low,
        high=high,
        tick=(lambda value: signed(100 * value, digits=0)) if rates else tick_label,
        reference=0.0,
        left="filter worse" if better_high else "filter better",
        right="filter better" if better_high else "filter worse",
    )
    return make_figure(
        lambda layout: dot_plot(rows, axis, layout),
        identity=f"fig-difference-{metric}",
        title=f"What the filter changes: {nouns[metric]}",
        caption="Each pair is one initial state played twice with the same partner. Square: mean "
        "difference. Line: 95 % interval over seeds; one that crosses zero shows no clear change.",
        description=_describe(rows),
        legend=(
            LegendEntry(css="diff", label="mean paired difference"),
            LegendEntry(css="interval", label="95 % interval"),
        ),
    )


def intervention_figure(numbers: Numbers) -> Figure | None:
    """Return the share of steps on which the filter acts, or ``None`` when not recorded."""
    rows: list[DotRow] = []
    for row in _all_rows(numbers):
        lanes = [_intervention_lane(cell) for cell in row.cells if cell]
        known = [lane for lane in lanes if lane is not None]
        if known:
            rows.append(_dots(row, known[0]))
    if not rows:
        return None
    _, high = _data_range(rows)
    axis = Axis(
        label="Steps on which the filter changed the action (%)",
        short="Steps changed (%)",
        low=0.0,
        high=min(1.0, max(high, 0.05)),
        tick=_percent_tick,
    )
    return make_figure(
        lambda layout: dot_plot(rows, axis, layout),
        identity="fig-intervention",
        title="How often the filter acts",
        caption="Point: mean share of steps per episode. On all other steps the ego's own action "
        "passes through unchanged.",
        description=_describe(rows),
        legend=(
            LegendEntry(css="on", label="mean share of steps"),
            LegendEntry(css="interval", label="95 % interval"),
            LegendEntry(css="seed", label="one seed (larger: several)"),
        ),
    )


def _by_condition(
    view: ReportView, numbers: Numbers, lane: Callable[[str, Cell | None, Row], Lane | None]
) -> list[DotRow]:
    """Return every row with a lane per condition."""
    css = condition_css(view)
    return [
        _dots(row, *(lane(one, cell, row) for one, cell in zip(css, row.cells, strict=True)))
        for row in _all_rows(numbers)
    ]


def _dots(row: Row, *lanes: Lane | None) -> DotRow:
    return DotRow(label=row.label, note=row.note, group=row.partner is None, lanes=lanes)


def _all_rows(numbers: Numbers) -> tuple[Row, ...]:
    """Return partners, then groups."""
    return (*numbers.partners, *numbers.groups)


def _rate_lane(css: str, cell: Cell | None, row: Row) -> Lane | None:
    """Return the success of one cell."""
    if cell is None:
        return None
    numbers = f"{percent(cell.success.value)} {percent_interval(cell.success)}"
    return Lane(
        css=css,
        estimate=cell.success,
        seeds=cell.seed_success,
        text=numbers,
        tip=f"{row.label}: {numbers}, {cell.n} episodes, {cell.success.n_clusters} seeds",
    )


def _value_lane(css: str, cell: Cell | None) -> Lane | None:
    """Return the mean return of one cell."""
    if cell is None or cell.episode_return is None:
        return None
    numbers = f"{number(cell.episode_return.value)} {number_interval(cell.episode_return)}"
    return Lane(
        css=css,
        estimate=cell.episode_return,
        seeds=cell.seed_return,
        text=numbers,
        tip=f"{numbers}, {cell.n} episodes, {cell.episode_return.n_clusters} seeds",
    )


def _difference_lane(row: Row, metric: MetricName) -> Lane | None:
    """Return the paired difference of one row."""
    comparison = row.comparisons.get(metric)
    if comparison is None or comparison.difference.value is None:
        return None
    estimate = comparison.difference
    if metric == "return":
        text = f"{signed(estimate.value or 0.0, digits=2)} {number_interval(estimate)}"
    else:
        text = f"{points(estimate.value)} {points_interval(estimate)}"
    return Lane(
        css="diff",
        estimate=estimate,
        seeds=(),
        text=text,
        tip=f"{row.label}: {text}; higher with filter in {comparison.n_higher}, lower in "
        f"{comparison.n_lower}, equal in {comparison.n_equal} of {estimate.n} pairs",
    )


def _intervention_lane(cell: Cell) -> Lane | None:
    """Return the share of filtered steps of one cell."""
    estimate = cell.intervention_share
    if estimate is None:
        return None
    text = f"{percent(estimate.value)} {percent_interval(estimate)}"
    return Lane(css="on", estimate=estimate, seeds=cell.seed_intervention, text=text, tip=text)


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


def _data_range(rows: Sequence[DotRow]) -> tuple[float, float]:
    """Return round ends that hold every number."""
    values = _values(rows) or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _symmetric_range(rows: Sequence[DotRow]) -> tuple[float, float]:
    """Return ends that hold every number and zero, reaching a little beyond on both sides."""
    values = [*_values(rows), 0.0]
    reach = max(max(values) - min(values), 0.02)
    return min(values) - 0.14 * reach, max(values) + 0.14 * reach


def _percent_tick(value: float) -> str:
    """Return a rate as a tick."""
    return f"{100 * value:.3g}"


def _describe(rows: Sequence[DotRow]) -> str:
    """Return the rows in words."""
    parts: list[str] = []
    for row in rows:
        numbers = " and ".join(lane.text for lane in row.lanes if lane is not None)
        parts.append(f"{row.label} ({row.note}): {numbers or 'nothing'}")
    return "; ".join(parts).replace(NBSP, " ") + "."

"""Figures of methods side by side: scores, profiles, who beats whom, and where each is worst."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from cadenza.evaluation.leaderboard import GATE_PP
from cadenza.evaluation.report.analysis import MethodNumbers, Numbers, score_of
from cadenza.evaluation.report.figures.outcomes import (
    DotRow,
    Lane,
    difference_axis,
    dot_figure,
    score_axis,
)
from cadenza.evaluation.report.svg import (
    LEFT,
    MISSING,
    RIGHT,
    SHARES,
    WIDTH,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    draw_baseline,
    draw_grid,
    make_figure,
    score,
    score_change,
    score_interval,
    score_text,
    shorten,
)
from cadenza.evaluation.report.view import ReportView
from cadenza.evaluation.statistics.estimate import Estimate

#: Drawing units of a grid of cells.
_LABEL: Final = 190.0
_CELL: Final = 44.0
#: Narrowest cell that holds an interval; wider grids are drawn smaller.
_NARROWEST: Final = 92.0
#: Most that a cell of a grid is filled, so that its text can be read.
_DENSEST: Final = 0.6
#: Height of the profiles, drawing units.
_PROFILE: Final = 230.0


def method_legend(numbers: Numbers) -> tuple[LegendEntry, ...]:
    """Return the marks of the methods."""
    rows = numbers.methods.rows
    return tuple(LegendEntry(css=row.css, label=row.condition.label) for row in rows)


def score_figure(view: ReportView, numbers: Numbers) -> Figure:
    """Return the mean score of each method with simultaneous intervals, and a dot per seed."""
    rate = view.has_success
    rows: list[DotRow] = []
    for row in numbers.methods.rows:
        text = score_text(row.score, rate)
        lanes = [Lane(css=row.css, estimate=row.score, seeds=row.seeds, text=text, tip=text)]
        if row.iqm is not None:
            bounds = "" if row.iqm.low is None else f" {score_interval(row.iqm, rate)}"
            text = f"IQM {score(row.iqm.value, rate)}{bounds}"
            lanes.append(Lane(css="diff", estimate=row.iqm, seeds=(), text=text, tip=text))
        note = "" if row.ranks is None else f"rank {rank_range(row.ranks)}"
        rows.append(DotRow(label=row.condition.label, note=note, lanes=tuple(lanes)))
    return dot_figure(
        rows,
        score_axis(view, rows),
        identity="fig-methods",
        title="Scores over all partners",
        caption="Disc: mean; its intervals hold for all methods at once (Bonferroni). Dots: one "
        f"{view.seed_kind} each. Square: interquartile mean of the (seed, partner) cells, with its "
        "own 95 % interval if anything varies.",
        legend=method_legend(numbers),
    )


def rank_range(ranks: tuple[int, int]) -> str:
    """Return ``"2"`` or ``"1 to 3"``."""
    return f"{ranks[0]}" if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


def difference_forest(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return how much the leading method is ahead of each other one, None without several."""
    ranking = numbers.methods.ranking
    if ranking is None:
        return None
    labels = {row.condition.condition_id: row.condition.label for row in numbers.methods.rows}
    leader = next(iter(ranking.means))
    rows: list[DotRow] = []
    for (first, second), found in ranking.comparisons.items():
        if first == leader:
            text = score_change(found.difference, view.has_success)
            lane = Lane(css="diff", estimate=found.difference, seeds=(), text=text, tip=found.test)
            note = f"p = {ranking.p[first, second]:.2g} (Holm)"
            rows.append(DotRow(label=f"over {labels[second]}", note=note, lanes=(lane,)))
    axis = difference_axis(
        rows,
        f"{labels[leader]} minus the other" + (" (percentage points)" if view.has_success else ""),
        rates=view.has_success,
        sides=(f"{shorten(labels[leader], limit=20)} worse", "better"),
    )
    pairs = "Pairs of equal starts" if numbers.methods.paired else "Unpaired"
    return dot_figure(
        rows,
        axis,
        identity="fig-lead",
        title=f"How far {labels[leader]} is ahead",
        caption=f"{pairs}; each interval on its own at 95 %, p corrected for all pairs. Dashed: "
        f"{GATE_PP:.0f} points, the gap that counts for the benchmark's axes.",
    )


def profile_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return performance profiles with simultaneous bands, None without several seeds."""
    drawn = [(row, row.profile) for row in numbers.methods.rows if row.profile is not None]
    if not drawn:
        return None
    tau = drawn[0][1].thresholds
    name = "success rate" if view.has_success else "mean return"
    drawing = Drawing(height=_PROFILE + 60)
    x = Scale(low=float(tau[0]), high=float(tau[-1]), start=LEFT, end=RIGHT)
    y = Scale(low=0.0, high=1.0, start=_PROFILE + 10, end=14.0)
    draw_grid(drawing, x, y, SHARES)
    for row, profile in drawn:
        upper = [(x(t), y(v)) for t, v in zip(tau, profile.high, strict=True)]
        lower = [(x(t), y(v)) for t, v in zip(tau, profile.low, strict=True)]
        drawing.polygon([*upper, *lower[::-1]], f"area {row.css}")
        line = [(x(t), y(v)) for t, v in zip(tau, profile.share, strict=True)]
        drawing.polyline(line, f"step {row.css}")
    label = f"{name[0].upper()}{name[1:]} of a cell (one seed, one partner)"
    draw_baseline(drawing, x, y.start, label)
    return make_figure(
        drawing,
        identity="fig-profile",
        title="Performance profiles",
        caption=f"Share of (seed, partner) cells with a {name} above the value on the axis. Each "
        "band holds at all values at once, 95 %; the higher curve is better.",
        description="; ".join(f"{r.condition.label}, area {p.share.mean():.2f}" for r, p in drawn),
        legend=method_legend(numbers),
    )


class GridCell(NamedTuple):
    """Text of one cell, a smaller line below it, its class, and how much it is filled, 0 to 1.

    ``tip`` shows on hovering.
    """

    text: str
    note: str
    css: str
    share: float
    tip: str = ""


def grid(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[GridCell]]]) -> Drawing:
    """Return a matrix of filled cells under headings, one labelled row each."""
    width = min(max((WIDTH - _LABEL) / len(columns), _NARROWEST), 170.0)
    whole = max(WIDTH, _LABEL + width * len(columns))
    drawing = Drawing(height=30.0 + _CELL * len(rows), width=whole)
    for index, column in enumerate(columns):
        middle = _LABEL + (index + 0.5) * width
        text = shorten(column, limit=max(6, int(width / 7.5)))
        drawing.text(middle, 18, text, "label small", "middle")
    for number, (label, cells) in enumerate(rows):
        y = 28.0 + number * _CELL
        drawing.text(0, y + 26, shorten(label, limit=26), "label strong")
        for index, cell in enumerate(cells):
            left = _LABEL + index * width
            filled = _DENSEST * min(max(cell.share, 0.0), 1.0)
            drawing.rect(left + 1, y, width - 2, _CELL - 3, f"cell {cell.css}", filled, cell.tip)
            drawing.text(left + width / 2, y + 18, cell.text, "label", "middle")
            drawing.text(left + width / 2, y + 33, cell.note, "label small", "middle")
    return drawing


def heat_map(view: ReportView, numbers: Numbers) -> Figure:
    """Return the score of every method beside every partner, and its worst one."""
    methods = numbers.methods.rows
    index = [view.conditions.index(row.condition) for row in methods]
    found = [(row.label, [score_of(view, row.cells[i]) for i in index]) for row in numbers.partners]
    values = [e.value for _, row in found for e in row if e is not None and e.value is not None]
    low, high = (0.0, 1.0) if view.has_success else (min(values), max(values) + 1e-12)

    def cell(estimate: Estimate | None, css: str = "heat") -> GridCell:
        if estimate is None or estimate.value is None:
            return GridCell(MISSING, "", css, 0.0)
        share = (estimate.value - low) / (high - low)
        rate = view.has_success
        return GridCell(score(estimate.value, rate), score_interval(estimate, rate), css, share)

    rows = [(label, [cell(estimate) for estimate in row]) for label, row in found]
    rows.append(("Worst partner", [cell(row.worst.estimate, "heat worst") for row in methods]))
    labels = {p.partner_id: p.label for p in view.partners}
    worst = "; ".join(
        f"{row.condition.label} is worst with {labels[row.worst.names[0]]}" for row in methods
    )
    return make_figure(
        grid([row.condition.label for row in methods], rows),
        identity="fig-heat",
        title="Every method with every partner",
        caption="95 % intervals below; that of the worst partner pays for having been chosen last. "
        f"{worst}.",
        description=worst,
    )


def improvement_figure(numbers: Numbers) -> Figure | None:
    """Return the chance that one method beats another, None without several."""
    improvement, methods = numbers.methods.improvement, numbers.methods.rows
    if not improvement:
        return None

    def cell(ours: MethodNumbers, theirs: MethodNumbers) -> GridCell:
        found = improvement.get((ours.condition.condition_id, theirs.condition.condition_id))
        if found is None or found.value is None:
            return GridCell("", "", "heat", 0.0)
        css = "heat" if found.value >= 0.5 else "heat low"
        share = 2.0 * abs(found.value - 0.5)
        return GridCell(f"{found.value:.2f}", score_interval(found, False), css, share)

    rows = [(o.condition.label, [cell(o, t) for t in methods]) for o in methods]
    return make_figure(
        grid([row.condition.label for row in methods], rows),
        identity="fig-improvement",
        title="Probability of improvement",
        caption="Chance that a (seed, partner) cell of the row's method beats one of the column's "
        "with the same partner, a tie counting half; below it the 95 % interval, which where all "
        "seeds agree is by betting: it assumes nothing of the spread that was not seen, so it can "
        "be wide beside a small p.",
        description="; ".join(f"{a} beats {b}: {e.value:.2f}" for (a, b), e in improvement.items()),
    )

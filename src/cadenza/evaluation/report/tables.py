"""The tables of a report: what happened beside each partner, and methods side by side."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import MEAN, coverage
from cadenza.evaluation.report.analysis import TAIL, Cell, MetricName, Numbers, Row, score_of
from cadenza.evaluation.report.figures.methods import rank_range
from cadenza.evaluation.report.svg import (
    MISSING,
    count,
    number,
    percent,
    points,
    score,
    score_change,
    score_text,
    signed,
)
from cadenza.evaluation.report.view import ReportView

#: Heading of a column, and its text for one cell.
Column: TypeAlias = tuple[str, Callable[[Cell], str]]


def _cell_table(
    view: ReportView,
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    title: str,
    caption: str,
    chosen: Callable[[Cell], bool] = lambda _: True,
) -> Table:
    """Return a line for every chosen cell of ``rows``; columns that none fills are left out."""
    return Table(
        title=title,
        columns=("Partner", view.compared, *(name for name, _ in columns)),
        rows=tuple(
            (row.label, condition.label, *(shown(cell) for _, shown in columns))
            for row in rows
            for condition, cell in zip(view.conditions, row.cells, strict=True)
            if cell is not None and chosen(cell)
        ),
        caption=caption,
        text_columns=(0, 1),
    ).without_empty_columns(MISSING)


def success_table(view: ReportView, numbers: Numbers) -> Table:
    """Return the numbers behind the success figure."""
    columns: list[Column] = [
        ("Episodes", lambda x: count(x.n)),
        (f"{view.seed_kind.capitalize()}s", lambda x: str(x.success.n_clusters)),
        ("Success, 95 %", lambda x: score_text(x.success, True) if view.has_success else MISSING),
        ("Return, 95 %", lambda x: score_text(x.episode_return, False)),
    ]
    rows = (*numbers.partners, *numbers.groups)
    return _cell_table(view, rows, columns, title="Success and return by partner", caption="")


def endings_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return how episodes ended and how long the solved ones took, or ``None`` if unknown."""
    cells = [cell for row in numbers.partners for cell in row.cells if cell is not None]
    timed = view.control_timestep_s is not None and any(c.goal_steps.size for c in cells)
    if not timed and all(cell.n_timeouts is None for cell in cells):
        return None
    captions: list[str] = []
    if any(cell.timeouts_silent is not None for cell in cells):
        captions.append(
            "Filter silent: it changed no action in the episode, so the time-out is the policy's "
            "own. Filter active: it changed at least one action, which does not show that it "
            "caused the time-out."
        )
    if timed:
        captions.append(
            "Times are those of solved episodes, so they come from different starts under the "
            f"conditions; a control step lasts {number(view.control_timestep_s, unit='s')}."
        )
    columns: list[Column] = [
        ("Episodes", lambda x: count(x.n)),
        ("Solved", lambda x: count(x.n_solved) if view.has_success else MISSING),
        ("Contact", lambda x: count(x.n_contacts) if x.contact else MISSING),
        ("Time-outs", lambda x: count(x.n_timeouts)),
        ("Time-outs, filter silent", lambda x: count(x.timeouts_silent)),
        ("Time-outs, filter active", lambda x: count(x.timeouts_active)),
        ("Median time", lambda x: _goal_times(view, x)[0]),
        ("Quartiles", lambda x: _goal_times(view, x)[1]),
    ]
    return _cell_table(
        view,
        (*numbers.partners, *numbers.groups),
        columns,
        title="Endings and time to goal",
        caption=" ".join(captions),
    )


def difference_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return the paired differences of every metric, or ``None`` where nothing was paired."""
    rows = (*numbers.partners, *numbers.groups, numbers.overall)
    metrics = tuple(numbers.overall.comparisons)
    if view.treatment is None or view.baseline is None or not metrics:
        return None

    def shown(row: Row, metric: MetricName) -> str:
        found = row.comparisons.get(metric)
        return score_change(found and found.difference, is_rate=metric != "return")

    return Table(
        title=f"Paired differences, {view.treatment.label} minus {view.baseline.label}",
        columns=(
            "Partner",
            *(f"{m.capitalize()}{', points' if m != 'return' else ''}, 95 %" for m in metrics),
        ),
        rows=tuple((row.label, *(shown(row, metric) for metric in metrics)) for row in rows),
    )


def contact_table(view: ReportView, numbers: Numbers) -> Table:
    """Return contacts, violations and how near partners and walls came."""

    def contacts(cell: Cell) -> str:
        if cell.contact is None:
            return MISSING
        return f"{count(cell.n_contacts)} of {count(cell.n)}".replace(" ", "\u00a0")

    def gap(cell: Cell) -> str:
        return MISSING if cell.violating_steps is None else number(cell.violation_peak, digits=3)

    def least(values: FloatArray) -> str:
        return number(float(values[0]), digits=3) if values.size else MISSING

    columns: list[Column] = [
        ("Steps", lambda x: count(x.n_steps)),
        ("Contacts", contacts),
        ("Contact rate, 95 %", lambda x: score_text(x.contact, True)),
        ("Closest, m", lambda x: least(x.distances)),
        ("Wall contacts", lambda x: count(x.n_wall_contacts)),
        ("Least wall gap, m", lambda x: least(x.wall_gaps)),
        ("Barrier violated", lambda x: count(x.violating_steps)),
        ("Worst gap", gap),
    ]
    return _cell_table(
        view,
        (*numbers.partners, *numbers.groups, numbers.overall),
        columns,
        title="Contacts, partner by partner",
        caption="Contacts counts episodes; a count of zero is not a proof, the upper bound says "
        "how large the true rate could still be. Barrier violated counts steps. A dash: not "
        "recorded.",
    )


def filter_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return what the filter did, or ``None`` where none was used."""
    columns: list[Column] = [
        ("Steps", lambda x: count(x.n_steps)),
        ("Uncertified", lambda x: count(x.uncertified_steps)),
        ("Walls uncertified", lambda x: count(x.static_uncertified_steps)),
        ("Infeasible", lambda x: count(x.infeasible_steps)),
        ("Braked", lambda x: count(x.fallbacks)),
        ("Steps changed, 95 %", lambda x: score_text(x.intervention_share, True)),
        ("Mean change", lambda x: number(x.intervention_mean)),
        ("Largest change", lambda x: number(x.intervention_peak)),
    ]
    table = _cell_table(
        view,
        (*numbers.partners, *numbers.groups, numbers.overall),
        columns,
        title="What the filter did, partner by partner",
        caption="Uncertified (acted without its guarantee), infeasible (no action met every "
        "constraint) and braked count steps. A braked step is not a violation: it is what the "
        "filter does instead of one. Changes are of the action and in its unit, over the changed "
        "steps only. A dash: not recorded.",
        chosen=lambda cell: cell.intervention_share is not None,
    )
    return table if table.rows else None


def _goal_times(view: ReportView, cell: Cell) -> tuple[str, str]:
    """Return median and quartiles of the time to goal over solved episodes."""
    if view.control_timestep_s is None or not cell.goal_steps.size:
        return MISSING, MISSING
    low, median, high = np.quantile(cell.goal_steps * view.control_timestep_s, (0.25, 0.5, 0.75))
    return number(median, unit="s"), f"{number(low)} to {number(high, unit='s')}"


def score_difference(view: ReportView, value: float) -> str:
    """Return a difference of rates in points, or of returns."""
    return points(value) if view.has_success else signed(value, digits=2)


#: What a reader must know about rows of a leaderboard.
_ROW_LABELS: Final = {"REF-SCRIPT": "oracle reference", "B-JOINT": "non-AHT upper anchor"}


def methods_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return the task's table of methods; columns that no method fills are left out."""
    rate = view.has_success
    name = "Success" if rate else "Mean return"
    columns = (
        view.compared, "Rank", "Row", f"{name}, simultaneous 95 %", "IQM, 95 %",
        "Worst partner, 95 %", "Worst family, 95 %", f"Worst {TAIL:.0%} (CVaR), 95 %",
        "Per-partner range", "Stress p90, N", "BRProx, 95 %",
        f"{view.seed_kind.capitalize()}s", "Episodes",
    )  # fmt: skip

    labels = {p.partner_id: p.label for p in view.partners}
    rows: list[tuple[str, ...]] = []
    for row in numbers.methods.rows:
        index = view.conditions.index(row.condition)
        scores = [score_of(view, partner.cells[index]) for partner in numbers.partners]
        values = [e.value for e in scores if e is not None and e.value is not None]
        row_id, forces = row.condition.row_id, row.cell.forces
        worst = ", ".join(labels[name] for name in row.worst.names)
        rows.append((
            row.condition.label,
            MISSING if row.ranks is None else rank_range(row.ranks),
            f"{row_id} ({_ROW_LABELS[row_id]})" if row_id in _ROW_LABELS else row_id or MISSING,
            score_text(row.score, rate),
            score_text(row.iqm, rate),
            f"{score_text(row.worst.estimate, rate)} {worst}",
            score_text(row.family and row.family.estimate, rate),
            score_text(row.tail.estimate, rate),
            f"{score(min(values), rate)} to {score(max(values), rate)}",
            number(float(np.quantile(forces, 0.9)), digits=1) if forces.size else MISSING,
            f"{score_text(row.proximity[MEAN], False)} {coverage(row.proximity, list(labels))}"
            if MEAN in row.proximity
            else MISSING,
            str(row.cell.success.n_clusters),
            count(row.cell.n),
        ))  # fmt: skip
    if not rows:
        return None
    return Table(
        title=f"{view.compared}s on {view.task}",
        columns=columns,
        rows=tuple(rows),
        caption="Mean over all episodes; IQM: interquartile mean of the (seed, partner) cells. "
        "Intervals of the mean hold for all rows at once (Bonferroni), as do the ranges of ranks "
        "(Holm); worst cases pay for having been chosen. No interval: nothing varies.",
        text_columns=(0, 2, 5),
    ).without_empty_columns(MISSING)


def proximity_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return how close each method comes to best responses, None without any."""
    best = view.best_responses
    methods = [(r.condition.label, r.proximity) for r in numbers.methods.rows if r.proximity]
    if best is None or not methods:
        return None

    labels = {p.partner_id: p.label for p in view.partners}
    found = [proximity for _, proximity in methods]
    rows: list[tuple[str, ...]] = []
    for name in found[0]:
        bound = best.partners.get(name)
        scored, trained = ("", "") if bound is None else (number(bound.value), bound.trained)
        if bound is not None and bound.low is not None:
            scored += f" [{number(bound.low)}, {number(bound.high)}]"
        start = "" if bound is None else number(bound.random)
        covered = f"{name.removesuffix(' over partners')} {coverage(found[0], list(labels))}"
        label = labels.get(name, covered[0].upper() + covered[1:])
        is_vague = bound is not None and not bound.is_apart
        own = [MISSING if is_vague else score_text(one[name], False) for one in found]
        rows.append((label, *own, start, scored, trained))
    without = [label for name, label in labels.items() if name not in best.partners]
    absent = [name for name in best.partners if name not in labels]
    return Table(
        title=f"Best-response proximity of the {best.metric}",
        columns=(
            "Partner",
            *(label for label, _ in methods),
            "Random ego",
            "Best response",
            "Trained",
        ),
        rows=tuple(rows),
        caption="1 is the best response to the partner, 0 a random ego beside it; 95 % intervals, "
        'the best response taken at its value. "Bound not reached": an ego beats the best '
        "response, so that is none; the partner counts in no aggregate. So do partners with a dash:"
        " their best response is not above a random ego, beyond both 95 % intervals."
        + (f" Without a best response: {', '.join(without)}." if without else "")
        + (f" In the file, but not played here: {', '.join(absent)}." if absent else ""),
        text_columns=(0, len(methods) + 3),
    )


def spread_table(view: ReportView, numbers: Numbers) -> Table | None:
    """Return what more episodes or seeds would bring, and what these could have shown."""
    ranking = numbers.methods.ranking
    rows: list[tuple[str, ...]] = []
    for row in numbers.methods.rows:
        if (spread := row.spread) is None:
            continue
        name = row.condition.condition_id
        found = [c for pair, c in ranking.comparisons.items() if name in pair] if ranking else []
        shown = [c.smallest_shown for c in found if c.smallest_shown is not None]
        worth = spread.useful_episodes
        rows.append((
            row.condition.label,
            number(spread.icc, digits=3),
            number(spread.design_effect, digits=1),
            f"{spread.episodes:.0f}",
            "no limit seen" if worth is None else count(worth),
            percent(spread.gain_of_twice_the_episodes, digits=0),
            percent(spread.gain_of_twice_the_seeds, digits=0),
            MISSING if not shown else score_difference(view, min(shown)),
        ))  # fmt: skip
    if not rows:
        return None
    return Table(
        title="How many more episodes are worth running",
        columns=(
            view.compared, "ICC", "Design effect", "Episodes per seed", "Worth running, per seed",
            "Twice the episodes narrows by", "Twice the seeds narrows by",
            f"Smallest difference{', points' if view.has_success else ''}",
        ),
        rows=tuple(rows),
        caption="ICC: share of the variance that lies between seeds. Design effect: so many "
        "episodes say as much as one independent one. Above the number worth running, even endless "
        "episodes would narrow the interval by less than 5 %. Smallest difference: from the "
        "nearest other row, the one that so many seeds and episodes show in four of five "
        "comparisons (power 80 %); a smaller true one stays undecided.",
    )  # fmt: skip

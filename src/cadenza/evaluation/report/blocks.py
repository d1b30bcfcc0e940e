"""Tables and headline tiles of the page, as text ready to be escaped and placed."""

from dataclasses import dataclass

from cadenza.evaluation.report.analysis import Cell, Numbers, Row
from cadenza.evaluation.report.formatting import (
    MISSING,
    count,
    number,
    number_interval,
    percent,
    percent_interval,
    plural,
    points,
    points_interval,
)
from cadenza.evaluation.report.view import ConditionView, ReportView, condition_css


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """One table of the page.

    Attributes:
        title: Its caption.
        columns: Headings; the first names the row.
        rows: Cells, as many as columns.
        note: One sentence under it.
        text_columns: Columns that hold words, not numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One headline number.

    Attributes:
        value: The number.
        label: What it counts.
        detail: How sure it is.
        css: Class of its accent.
    """

    value: str
    label: str
    detail: str
    css: str


def headline_tiles(view: ReportView, numbers: Numbers) -> tuple[Tile, ...]:
    """Return contacts under each condition, then the outcome with seen and unseen partners."""
    tiles = [
        _contact_tile(condition, cell, css)
        for condition, css, cell in zip(
            view.conditions, condition_css(view), numbers.overall.cells, strict=True
        )
        if cell is not None and cell.contact is not None
    ]
    index = _headline_index(view)
    condition = view.conditions[index]
    for row, words in (
        (numbers.seen, "the partner it trained with"),
        (numbers.fair, "unseen partners"),
    ):
        cell = row.cells[index] if row is not None else None
        if row is not None and cell is not None:
            tiles.append(_outcome_tile(view, condition, cell, words))
    return tuple(tiles)


def success_table(view: ReportView, numbers: Numbers) -> TableBlock:
    """Return the numbers behind the success figure."""
    rows = [
        (
            row.label,
            condition.label,
            count(cell.n),
            str(cell.success.n_clusters),
            percent(cell.success.value) if view.has_success else MISSING,
            percent_interval(cell.success) if view.has_success else MISSING,
            MISSING if cell.episode_return is None else number(cell.episode_return.value),
            MISSING if cell.episode_return is None else number_interval(cell.episode_return),
        )
        for row, condition, cell in _cells(view, numbers)
    ]
    return TableBlock(
        title="Success and return by partner",
        columns=(
            "Partner", "Condition", "Episodes", "Seeds",
            "Success", "95 % interval", "Return", "95 % interval",
        ),
        rows=tuple(rows),
        text_columns=(0, 1),
    )  # fmt: skip


def contact_table(view: ReportView, numbers: Numbers) -> TableBlock | None:
    """Return contact counts and rates, or ``None`` when contact is not recorded."""
    shown = [*numbers.partners, *numbers.groups, numbers.overall]
    if not any(cell and cell.contact for row in shown for cell in row.cells):
        return None
    columns = ["Partner"]
    for condition in view.conditions:
        columns += [f"Contacts {condition.label}", "Rate, 95 % interval"]
    paired = view.treatment is not None
    if paired:
        columns.append("Paired change in points, 95 % interval")
    rows: list[tuple[str, ...]] = []
    for row in shown:
        cells = [row.label]
        for cell in row.cells:
            cells += _contact_cells(cell)
        if paired:
            comparison = row.comparisons.get("contact")
            if comparison is None or comparison.difference.value is None:
                cells.append(MISSING)
            else:
                change = comparison.difference
                cells.append(f"{points(change.value)} {points_interval(change)}")
        rows.append(tuple(cells))
    return TableBlock(
        title="Episodes with contact",
        columns=tuple(columns),
        rows=tuple(rows),
        note="A count of zero is not a proof: the upper bound says how large the true rate could "
        "still be.",
    )


def intervention_table(view: ReportView, numbers: Numbers) -> TableBlock | None:
    """Return how often and how strongly the filter acts, or ``None`` without a filter."""
    rows = [
        (
            row.label,
            percent(cell.intervention_share.value),
            percent_interval(cell.intervention_share),
            number(cell.intervention_mean, unit=view.action_unit),
            number(cell.intervention_peak, unit=view.action_unit),
            count(cell.fallbacks),
        )
        for row, _, cell in _cells(view, numbers)
        if cell.intervention_share is not None
    ]
    if not rows:
        return None
    return TableBlock(
        title="What the filter did",
        columns=(
            "Partner", "Steps changed", "95 % interval", "Mean change", "Largest change",
            "Braking fallbacks",
        ),
        rows=tuple(rows),
        note="Mean and largest change are taken over the changed steps only.",
    )  # fmt: skip


def safety_table(view: ReportView, numbers: Numbers) -> TableBlock:
    """Return violations and fallbacks, in separate columns, per partner and condition."""
    rows = [
        (
            row.label,
            condition.label,
            count(cell.n_steps),
            MISSING if cell.contact is None else f"{count(cell.n_contacts)} of {count(cell.n)}",
            count(cell.violating_steps),
            MISSING if cell.violating_steps is None else number(cell.violation_peak, digits=3),
            count(cell.fallbacks) if condition.filtered else MISSING,
            count(cell.infeasible_steps),
            count(cell.uncertified_steps),
            number(float(cell.distances[0]), digits=3) if cell.distances.size else MISSING,
        )
        for row, condition, cell in _cells(view, numbers)
        if row.partner is not None
    ]
    return TableBlock(
        title="Safety, partner by partner",
        columns=(
            "Partner", "Condition", "Steps", "Contacts", "Barrier violated",
            "Worst gap", "Braked", "Infeasible", "Uncertified", "Closest, m",
        ),
        rows=tuple(rows),
        note="Contacts counts episodes. Barrier violated, braked, infeasible (no action met every "
        "constraint) and uncertified (acted without its guarantee) count steps. A braked step is "
        "not a violation: it is what the filter does instead of one. A dash: not recorded.",
        text_columns=(0, 1),
    )  # fmt: skip


def _headline_index(view: ReportView) -> int:
    """Return the position of the filtered condition, or of the first."""
    if view.treatment is None:
        return 0
    return view.conditions.index(view.treatment)


def _contact_tile(condition: ConditionView, cell: Cell, css: str) -> Tile:
    """Return the number of contacts under one condition."""
    bounds = ""
    if cell.contact is not None and cell.contact.high is not None:
        bounds = f"; true rate at most {percent(cell.contact.high)} (95 % interval)"
        if cell.n_contacts:
            bounds = f"; rate {percent(cell.contact.value)} {percent_interval(cell.contact)}"
    noun = "contact" if cell.n_contacts == 1 else "contacts"
    return Tile(
        value=count(cell.n_contacts),
        label=f"{noun} {condition.label}",
        detail=f"in {plural(cell.n, 'episode')}{bounds}",
        css=css,
    )


def _outcome_tile(view: ReportView, condition: ConditionView, cell: Cell, words: str) -> Tile:
    """Return success, or return, with one group of partners."""
    if view.has_success:
        return Tile(
            value=percent(cell.success.value),
            label=f"solved with {words}",
            detail=f"{condition.label}, {plural(cell.n, 'episode')}; 95 % interval "
            f"{percent_interval(cell.success)}",
            css="plain",
        )
    estimate = cell.episode_return
    return Tile(
        value=MISSING if estimate is None else number(estimate.value),
        label=f"mean return with {words}",
        detail=f"{condition.label}, {plural(cell.n, 'episode')}"
        + ("" if estimate is None else f"; 95 % interval {number_interval(estimate)}"),
        css="plain",
    )


def _contact_cells(cell: Cell | None) -> list[str]:
    """Return the count, and the rate with its interval."""
    if cell is None or cell.contact is None:
        return [MISSING, MISSING]
    return [
        f"{count(cell.n_contacts)} of {count(cell.n)}",
        f"{percent(cell.contact.value)} {percent_interval(cell.contact)}",
    ]


def _cells(view: ReportView, numbers: Numbers) -> list[tuple[Row, ConditionView, Cell]]:
    """Return every filled cell of partners and groups with its row and condition."""
    return [
        (row, condition, cell)
        for row in (*numbers.partners, *numbers.groups)
        for condition, cell in zip(view.conditions, row.cells, strict=True)
        if cell is not None
    ]

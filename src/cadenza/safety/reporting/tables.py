"""What the report's tables say, cell by cell, before any markup."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cadenza.core.proportions import wilson_interval
from cadenza.safety.reporting.details import ConditionDetails, ReportDetails
from cadenza.safety.reporting.report import ThreeTableReport

#: Cell without a value.
MISSING: Final = "—"
#: What every interval in the tables is.
INTERVAL_NOTE: Final = (
    "Intervals are Wilson's, 95 %, for independent trials. Steps of one episode are not "
    "independent, so intervals over steps are too narrow; those over episodes of one policy are "
    "conditional on that policy."
)


@dataclass(frozen=True, slots=True)
class TextTable:
    """One table as text.

    Attributes:
        title: Heading.
        header: Column heads.
        rows: Cells, one per column; empty if there is nothing to show.
        empty: Sentence that stands for an empty table.
        numeric: Columns from this one on hold numbers.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str
    numeric: int


def report_tables(report: ThreeTableReport) -> tuple[TextTable, ...]:
    """Return the three tables, and a fourth with the details if there are any."""
    tables = (_assumptions(report), _conditions(report), _gap(report))
    details = report.details
    if details is None or not details.conditions:
        return tables
    return (*tables, _without_empty_columns(_details(details.conditions)))


def provenance_lines(details: ReportDetails | None) -> tuple[tuple[str, str], ...]:
    """Return name and value of what the details record about the origin of the numbers."""
    if details is None:
        return ()
    seeds = ", ".join(str(seed) for seed in details.seeds)
    version = "" if details.solver_version is None else f" {details.solver_version}"
    entries = (
        ("Seeds", seeds),
        ("Configuration", details.config_hash),
        ("Solver", None if details.solver is None else details.solver + version),
        ("Control step", _with_unit(details.control_timestep_s, "s")),
        ("Predictor", details.predictor_kind),
    )
    return tuple((name, value) for name, value in entries if value)


def _assumptions(report: ThreeTableReport) -> TextTable:
    rows = [
        (
            row.assumption,
            row.description,
            str(row.violations),
            str(row.n_steps),
            *_rate(row.violations, row.n_steps),
        )
        for row in report.table_1
    ]
    return TextTable(
        title="Table 1: assumptions",
        header=("Assumption", "Description", "Violations", "Steps", "Rate", "95 % interval"),
        rows=tuple(rows),
        empty="No assumption was checked.",
        numeric=2,
    )


def _conditions(report: ThreeTableReport) -> TextTable:
    details: Sequence[ConditionDetails | None] = (
        report.details.conditions if report.details is not None else ()
    ) or [None] * len(report.table_2)
    rows: list[tuple[str, ...]] = []
    for row, more in zip(report.table_2, details, strict=True):
        violating = None if more is None else more.violating_episodes
        rows.append(
            (
                row.predictor,
                row.conformal_mode,
                row.vendor_compliance or MISSING,
                str(row.n_episodes),
                str(row.violations),
                str(row.fallback_fires),
                number(row.max_slack),
                number(row.slack_l2),
                *_rate(violating, row.n_episodes),
            )
        )
    return TextTable(
        title="Table 2: conditions",
        header=(
            "Predictor",
            "Conformal mode",
            "Vendor compliance",
            "Episodes",
            "Violations",
            "Fallback fires",
            "Max slack",
            "Slack L2",
            "Violating episodes",
            "95 % interval",
        ),
        rows=tuple(rows),
        empty="No condition was run.",
        numeric=3,
    )


def _gap(report: ThreeTableReport) -> TextTable:
    rows = [
        (
            row.condition,
            number(row.lambda_mean),
            number(row.lambda_var),
            number(row.oracle_lambda_mean),
            number(row.gap),
        )
        for row in report.table_3
    ]
    return TextTable(
        title="Table 3: conservativeness gap",
        header=("Condition", "λ mean", "λ variance", "Oracle λ mean", "Gap"),
        rows=tuple(rows),
        empty="No oracle was run, so there is no gap to show.",
        numeric=1,
    )


def _details(conditions: Sequence[ConditionDetails]) -> TextTable:
    rows = [
        (
            entry.condition,
            _count(entry.n_steps),
            _count(entry.contact_episodes),
            _count(entry.infeasible_steps),
            _count(entry.uncertified_steps),
            _count(entry.intervened_steps),
            number(entry.min_distance_m),
            number(entry.intervention_mean),
            number(entry.intervention_peak),
            number(entry.slack_peak),
            number(entry.latency_p50_ms),
            number(entry.latency_p99_ms),
            _reasons(entry),
        )
        for entry in conditions
    ]
    return TextTable(
        title="Details",
        header=(
            "Condition",
            "Steps",
            "Episodes with contact",
            "Infeasible steps",
            "Uncertified steps",
            "Steps changed",
            "Least distance, m",
            "Mean change",
            "Largest change",
            "Largest row slack",
            "p50, ms",
            "p99, ms",
            "Braked for, pairs",
        ),
        rows=tuple(rows),
        empty="",
        numeric=1,
    )


def number(value: float | None) -> str:
    """Return six significant digits, or the sign for a missing value."""
    return MISSING if value is None else f"{value:.6g}"


def _rate(count: int | None, trials: int) -> tuple[str, str]:
    """Return a rate and its interval."""
    if count is None or trials == 0:
        return MISSING, MISSING
    low, high = wilson_interval(count, trials)
    return number(count / trials), f"{number(low)} to {number(high)}"


def _count(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _reasons(entry: ConditionDetails) -> str:
    if entry.brake_reasons is None:
        return MISSING
    counts = [f"{reason}: {count}" for reason, count in sorted(entry.brake_reasons.items())]
    return ", ".join(counts) or "never"


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{number(value)} {unit}"


def _without_empty_columns(table: TextTable) -> TextTable:
    """Return the table, its first column named, without columns that are missing throughout."""
    kept = [
        column
        for column in range(len(table.header))
        if any(row[column] != MISSING for row in table.rows)
    ]
    return replace(
        table,
        header=tuple(table.header[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in table.rows),
    )

"""Reports as Markdown and LaTeX, and on disk.

Text from outside is escaped, so it cannot break a table. Of the files, ``three_tables.json`` is the
record and ``three_tables.md`` for reading. Each is replaced in one durable step, the Markdown
first: who sees a new record finds the text that belongs to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import InputError, IntegrityError, UnknownNameError
from cadenza.core.files import atomic_write_bytes
from cadenza.core.proportions import wilson_interval
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tables import LATEX_HEAD, Table, latex_text, markdown_text
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting.report import (
    ConditionDetails,
    ReportDetails,
    ThreeTableReport,
    canonical_text,
    require_intact,
)

#: Names of the files.
JSON_NAME: Final = "three_tables.json"
MARKDOWN_NAME: Final = "three_tables.md"
#: Largest record we read, bytes; a row takes a few hundred.
MAX_REPORT_BYTES: Final = 1 << 24

_TITLE: Final = "Safety report"

#: Cell without a value.
MISSING: Final = "—"
#: What every interval in the tables is.
INTERVAL_NOTE: Final = (
    "Intervals are Wilson's, 95 %, for independent trials. Steps of one episode are not "
    "independent, so intervals over steps are too narrow; those over episodes of one policy are "
    "conditional on that policy."
)


def report_tables(report: ThreeTableReport) -> tuple[Table, ...]:
    """Return the three tables, and a fourth with the details if there are any."""
    tables = (_assumptions(report), _conditions(report), _gap(report))
    details = report.details
    if details is None or not details.conditions:
        return tables
    return (*tables, _details(details.conditions).without_empty_columns(MISSING))


def provenance_lines(details: ReportDetails | None) -> tuple[tuple[str, str], ...]:
    """Return name and value of what the details record about the origin of the numbers."""
    if details is None:
        return ()
    seeds = ", ".join(str(seed) for seed in details.seeds)
    timestep = details.control_timestep_s
    version = "" if details.solver_version is None else f" {details.solver_version}"
    entries = (
        ("Seeds", seeds),
        ("Configuration", details.config_hash),
        ("Solver", None if details.solver is None else details.solver + version),
        ("Control step", None if timestep is None else f"{number(timestep)} s"),
        ("Predictor", details.predictor_kind),
    )
    return tuple((name, value) for name, value in entries if value)


def _assumptions(report: ThreeTableReport) -> Table:
    rows = tuple(
        (
            *(row.assumption, row.description, str(row.violations), str(row.n_steps)),
            *_rate(row.violations, row.n_steps),
        )
        for row in report.table_1
    )
    return Table(
        title="Table 1: assumptions",
        columns=("Assumption", "Description", "Violations", "Steps", "Rate", "95 % interval"),
        rows=rows,
        caption="" if rows else "No assumption was checked.",
        text_columns=range(2),
    )


def _conditions(report: ThreeTableReport) -> Table:
    details: Sequence[ConditionDetails | None] = (
        report.details.conditions if report.details is not None else ()
    ) or [None] * len(report.table_2)
    rows = tuple(
        (
            *(row.predictor, row.conformal_mode, row.vendor_compliance or MISSING),
            *map(str, (row.n_episodes, row.violations, row.fallback_fires)),
            *map(number, (row.max_slack, row.slack_l2)),
            *_rate(None if more is None else more.violating_episodes, row.n_episodes),
        )
        for row, more in zip(report.table_2, details, strict=True)
    )
    columns = (
        *("Predictor", "Conformal mode", "Vendor compliance", "Episodes", "Violations"),
        *("Fallback fires", "Max slack", "Slack L2", "Violating episodes", "95 % interval"),
    )
    return Table(
        title="Table 2: conditions",
        columns=columns,
        rows=rows,
        caption="" if rows else "No condition was run.",
        text_columns=range(3),
    )


def _gap(report: ThreeTableReport) -> Table:
    rows = tuple(
        (
            row.condition,
            *map(number, (row.lambda_mean, row.lambda_var, row.oracle_lambda_mean, row.gap)),
        )
        for row in report.table_3
    )
    return Table(
        title="Table 3: conservativeness gap",
        columns=("Condition", "λ mean", "λ variance", "Oracle λ mean", "Gap"),
        rows=rows,
        caption="" if rows else "No oracle was run, so there is no gap to show.",
    )


#: Heads and fields of the details table.
_DETAILS: Final = (
    ("Steps", "n_steps"),
    ("Episodes with contact", "contact_episodes"),
    ("Infeasible steps", "infeasible_steps"),
    ("Uncertified steps", "uncertified_steps"),
    ("Steps changed", "intervened_steps"),
    ("Least distance, m", "min_distance_m"),
    ("Mean change", "intervention_mean"),
    ("Largest change", "intervention_peak"),
    ("Largest row slack", "slack_peak"),
    ("p50, ms", "latency_p50_ms"),
    ("p99, ms", "latency_p99_ms"),
)


def _details(conditions: Sequence[ConditionDetails]) -> Table:
    def cell(value: float | None) -> str:
        return str(value) if isinstance(value, int) else number(value)

    rows = tuple(
        (entry.condition, *(cell(getattr(entry, name)) for _, name in _DETAILS), _reasons(entry))
        for entry in conditions
    )
    columns = ("Condition", *(head for head, _ in _DETAILS), "Braked for, pairs")
    return Table(title="Details", columns=columns, rows=rows)


def number(value: float | None) -> str:
    """Return six significant digits, or the sign for a missing value."""
    return MISSING if value is None else f"{value:.6g}"


def _rate(count: int | None, trials: int) -> tuple[str, str]:
    """Return a rate and its interval."""
    if count is None or trials == 0:
        return MISSING, MISSING
    low, high = wilson_interval(count, trials)
    return number(count / trials), f"{number(low)} to {number(high)}"


def _reasons(entry: ConditionDetails) -> str:
    if entry.brake_reasons is None:
        return MISSING
    counts = [f"{reason}: {count}" for reason, count in sorted(entry.brake_reasons.items())]
    return ", ".join(counts) or "never"


def render_markdown(report: ThreeTableReport) -> str:
    """Return the report as Markdown, with its hashes in comments and a newline at its end."""
    parts = ["\n".join(f"<!-- {line} -->" for line in _hash_lines(report)), f"# {_TITLE}"]
    parts += [table.to_markdown() for table in report_tables(report)]
    parts.append(INTERVAL_NOTE)
    origin = [
        f"- {name}: {markdown_text(value)}" for name, value in provenance_lines(report.details)
    ]
    if origin:
        parts.append("\n".join(origin))
    notes = () if report.details is None else report.details.notes
    parts += [markdown_text(note) for note in notes]
    return "\n\n".join(parts) + "\n"


def render_latex(report: ThreeTableReport) -> str:
    """Return the report as LaTeX tables; the first line names the packages they need."""
    head = [LATEX_HEAD, *(f"% {line}" for line in _hash_lines(report))]
    tables = [table.to_latex() for table in report_tables(report)]
    notes = () if report.details is None else report.details.notes
    text = [latex_text(note) for note in (INTERVAL_NOTE, *notes)]
    return "\n\n".join(["\n".join(head), *tables, *text]) + "\n"


_FORMATS: Final = {"markdown": render_markdown, "latex": render_latex}


def render_three_table_safety_report(report: Mapping[str, Any], *, fmt: str = "markdown") -> str:
    """Return a stored report as text.

    Args:
        report: As `ThreeTableReport.to_jsonable` returns it, of any known version.
        fmt: ``"markdown"`` or ``"latex"``.

    Raises:
        InputError: Unknown format, or a field out of range.
        ReportError: Unknown version, or a missing table or field.
    """
    if fmt not in _FORMATS:
        raise InputError(
            f"render_three_table_safety_report: fmt: expected one of {', '.join(_FORMATS)}, got "
            f"{fmt!r}."
        )
    try:
        return _FORMATS[fmt](ThreeTableReport.from_jsonable(report))
    except UnknownNameError as error:
        raise ReportError(str(error)) from error


def report_files(report: ThreeTableReport) -> dict[str, bytes]:
    """Return what `emit_three_tables` writes, by file name."""
    return {
        JSON_NAME: (canonical_text(report.to_document()) + "\n").encode("utf-8"),
        MARKDOWN_NAME: render_markdown(report).encode("utf-8"),
    }


def emit_three_tables(*, out_dir: Path, report: ThreeTableReport) -> tuple[Path, Path]:
    """Write both files of a report into a folder; equal reports give equal bytes.

    Returns:
        Paths of the JSON and of the Markdown file.

    Raises:
        StorageError: The file system refused; each file is whole, old or new.
    """
    json_path, markdown_path = out_dir / JSON_NAME, out_dir / MARKDOWN_NAME
    files = report_files(report)
    atomic_write_bytes(markdown_path, files[MARKDOWN_NAME])
    atomic_write_bytes(json_path, files[JSON_NAME])
    return json_path, markdown_path


def parse_three_tables(json_path: Path, *, require_hash: bool = True) -> ThreeTableReport:
    """Return a stored report of any known version, checked against its hashes.

    Args:
        json_path: What `emit_three_tables` wrote.
        require_hash: Refuse a file without hash.

    Raises:
        ReportError: Not strict JSON, an unknown version, a missing or wrong hash, or malformed
            rows.
        OSError: The file cannot be read.
    """
    if json_path.stat().st_size > MAX_REPORT_BYTES:
        raise ReportError(
            f"{json_path}: expected a report of at most {MAX_REPORT_BYTES} bytes, got "
            f"{json_path.stat().st_size}."
        )
    return parse_report(json_path.read_bytes(), source=json_path.name, require_hash=require_hash)


def parse_report(data: bytes, *, source: str, require_hash: bool = True) -> ThreeTableReport:
    """Return the report that ``data`` holds, called ``source``; see `parse_three_tables`."""
    try:
        document = parse_json_object(data, source=source)
    except IntegrityError as error:
        raise ReportError(str(error)) from error
    require_intact(document, require_hash=require_hash, source=source)
    try:
        return ThreeTableReport.from_jsonable(document, source=source)
    except (InputError, UnknownNameError) as error:
        raise ReportError(f"{source}: {error}") from error


def verify_markdown(markdown_path: Path, json_path: Path) -> None:
    """Raise unless the text is, byte for byte, the one of the record.

    Raises:
        ReportError: It differs, or the record does not pass `parse_three_tables`.
        OSError: A file cannot be read.
    """
    expected = report_files(parse_three_tables(json_path))[MARKDOWN_NAME]
    if markdown_path.read_bytes() != expected:
        raise ReportError(
            f"{markdown_path.name}: expected the text of {json_path.name}, got another; one of "
            "them was changed, write both again with emit_three_tables."
        )


def _hash_lines(report: ThreeTableReport) -> list[str]:
    document = report.to_document()
    names = ("content_hash", "details_hash", "schema_version")
    return [f"{name}: {document[name]}" for name in names if name in document]

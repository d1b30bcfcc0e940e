"""Reports as Markdown and LaTeX. Text from outside is escaped, so it cannot break a table."""

from collections.abc import Mapping
from typing import Any, Final

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting.report import ThreeTableReport
from cadenza.safety.reporting.tables import (
    INTERVAL_NOTE,
    TextTable,
    provenance_lines,
    report_tables,
)

_TITLE: Final = "Safety report"
_MARKDOWN_ESCAPES: Final = str.maketrans(
    {
        "\\": "\\\\",
        "|": "\\|",
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "`": "\\`",
        "*": "\\*",
        "_": "\\_",
        "[": "\\[",
        "]": "\\]",
    }
)
_LATEX_ESCAPES: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "—": "---",
        "λ": r"$\lambda$",
    }
)


def render_markdown(report: ThreeTableReport) -> str:
    """Return the report as Markdown, with its hashes in comments and a newline at its end."""
    document = report.to_document()
    comments = [
        f"<!-- {name}: {document[name]} -->"
        for name in ("content_hash", "details_hash", "schema_version")
        if name in document
    ]
    parts = ["\n".join(comments), f"# {_TITLE}"]
    parts += [_markdown_table(table) for table in report_tables(report)]
    parts.append(INTERVAL_NOTE)
    origin = [f"- {name}: {_markdown(value)}" for name, value in provenance_lines(report.details)]
    if origin:
        parts.append("\n".join(origin))
    notes = () if report.details is None else report.details.notes
    parts += [_markdown(note) for note in notes]
    return "\n\n".join(parts) + "\n"


def render_latex(report: ThreeTableReport) -> str:
    r"""Return the report as LaTeX tables; the document needs ``\usepackage{booktabs}``."""
    document = report.to_document()
    head = [
        f"% {name}: {document[name]}"
        for name in ("content_hash", "details_hash", "schema_version")
        if name in document
    ]
    tables = [_latex_table(table) for table in report_tables(report)]
    notes = () if report.details is None else report.details.notes
    text = [_latex(note) for note in (INTERVAL_NOTE, *notes)]
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


def _markdown_table(table: TextTable) -> str:
    title = f"## {_markdown(table.title)}"
    if not table.rows:
        return f"{title}\n\n{_markdown(table.empty)}"
    rule = ["---" if i < table.numeric else "---:" for i in range(len(table.header))]
    lines = [table.header, *table.rows]
    cells = [[_markdown(cell) for cell in line] for line in lines]
    cells.insert(1, rule)
    return f"{title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _latex_table(table: TextTable) -> str:
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}"]
    if table.rows:
        columns = "".join("l" if i < table.numeric else "r" for i in range(len(table.header)))
        header, *rows = (
            " & ".join(_latex(cell) for cell in line) + r" \\"
            for line in (table.header, *table.rows)
        )
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule"]
        lines += [*rows, r"\bottomrule", r"\end{tabular}"]
    else:
        lines.append(_latex(table.empty))
    return "\n".join([*lines, r"\end{table}"])


def _markdown(text: str) -> str:
    """Return ``text`` for one line of Markdown, table cells included."""
    return "<br>".join(line.translate(_MARKDOWN_ESCAPES) for line in text.splitlines())


def _latex(text: str) -> str:
    """Return ``text`` for one table cell of LaTeX."""
    return " ".join(line.translate(_LATEX_ESCAPES) for line in text.splitlines())

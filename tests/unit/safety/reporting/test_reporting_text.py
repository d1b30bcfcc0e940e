import re

import pytest

from cadenza.core.errors import InputError
from cadenza.core.proportions import wilson_interval
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting import (
    AssumptionRow,
    ThreeTableReport,
    render_latex,
    render_markdown,
    render_three_table_safety_report,
)
from tests.unit.safety.reporting.samples import DETAILS, sample_report


def cells(line: str) -> list[str]:
    """Return the cells of one Markdown row; an escaped pipe does not separate."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table_lines(text: str, title: str) -> list[str]:
    block = text.split(f"## {title}\n\n")[1].split("\n\n")[0]
    return block.splitlines()


def test_markdown_begins_with_hash_and_version_and_ends_with_a_newline():
    report = sample_report()
    lines = render_markdown(report).splitlines()
    assert lines[:3] == [
        f"<!-- content_hash: {report.content_hash()} -->",
        "<!-- schema_version: 3 -->",
        "",
    ]
    assert lines[3].startswith("# ")
    assert sum(line.startswith("## Table") for line in lines) == 3
    assert render_markdown(report).endswith("\n")


def test_markdown_shows_every_field_of_the_three_tables():
    text = render_markdown(sample_report(details=DETAILS))
    assumption = cells(table_lines(text, "Table 1: assumptions")[2])
    low, high = wilson_interval(2, 400)
    assert assumption == [
        "A1", "gradient \\| bounded", "2", "400", "0.005", f"{low:.6g} to {high:.6g}",
    ]  # fmt: skip
    header, _, condition = table_lines(text, "Table 2: conditions")
    assert {"Max slack", "Slack L2"} <= set(cells(header))
    low, high = wilson_interval(2, 40)  # violating episodes
    assert cells(condition) == [
        "pred", "Learn", "—", "40", "7", "3", "0.5", "0.125", "0.05", f"{low:.6g} to {high:.6g}",
    ]  # fmt: skip
    gap = cells(table_lines(text, "Table 3: conservativeness gap")[2])
    assert gap == ["filter\\_on", "-0.5", "0.25", "-0.125", "0.375"]
    details = cells(table_lines(text, "Details")[2])
    assert details == [
        "filter\\_on", "400", "1", "3", "5", "70", "0.398", "0.25", "1.5", "0.75", "0.02", "0.09",
        "contact: 1, ttc: 2",
    ]  # fmt: skip
    assert "- Seeds: 3, 4\n- Configuration: abc123\n- Solver: daqp 0.11.1\n" in text
    assert "Three episodes were cut short." in text


def test_details_that_nobody_recorded_have_no_column():
    details = type(DETAILS)(conditions=(type(DETAILS.conditions[0])(condition="c", n_steps=4),))
    text = render_markdown(sample_report(details=details))
    assert cells(table_lines(text, "Details")[0]) == ["Condition", "Steps"]


def test_empty_tables_say_so():
    text = render_markdown(ThreeTableReport((), (), ()))
    assert "No oracle was run, so there is no gap to show." in text
    assert "|" not in text


def test_latex_tables_are_well_formed():
    text = render_latex(sample_report(details=DETAILS))
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == 4
        assert text.count(f"\\end{{{environment}}}") == 4
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 4
    for columns, body in re.findall(
        r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.S
    ):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) == 2
        assert all(len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 for row in rows)


def test_text_from_outside_is_no_command():
    special = '50% & $x_1$ #2 {a} ~ ^ \\input{/etc/passwd} <b> | "q"\nnext'
    report = ThreeTableReport((AssumptionRow("A1", special, 1, 2),), (), ())
    row = next(line for line in render_latex(report).splitlines() if line.startswith("A1 "))
    assert row.startswith(
        r"A1 & 50\% \& \$x\_1\$ \#2 \{a\} \textasciitilde{} \textasciicircum{} "
        r"\textbackslash{}input\{/etc/passwd\} \textless{}b\textgreater{} \textbar{} "
        r"\textquotedbl{}q\textquotedbl{} next & 1 & 2 & 0.5 & "
    )
    assert "<b>" not in render_markdown(report)


def test_stored_report_is_rendered_in_either_format():
    report = sample_report(details=DETAILS)
    payload = report.to_document()
    assert render_three_table_safety_report(payload) == render_markdown(report)
    assert render_three_table_safety_report(payload, fmt="latex") == render_latex(report)


def test_rendering_of_an_unknown_format_or_a_broken_report_is_refused():
    with pytest.raises(InputError, match="fmt: expected one of markdown, latex, got 'html'"):
        render_three_table_safety_report(sample_report().to_jsonable(), fmt="html")
    with pytest.raises(ReportError, match="table_1: expected a list"):
        render_three_table_safety_report({"schema_version": 3})
    payload = sample_report().to_jsonable()
    del payload["table_1"][0]["n_steps"]
    with pytest.raises(ValueError, match="missing n_steps"):
        render_three_table_safety_report(payload)

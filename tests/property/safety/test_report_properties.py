import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.reporting import (
    AssumptionRow,
    ConditionDetails,
    ConditionRow,
    GapRow,
    ReportDetails,
    ThreeTableReport,
    emit_three_tables,
    parse_three_tables,
    render_latex,
    render_markdown,
    verify_markdown,
)
from tests.campaigns import size

texts = st.text(min_size=1, max_size=12)
numbers = st.floats(-1e12, 1e12)
positive = st.floats(0.0, 1e12)
counts = st.integers(0, 10**9)
maybe = st.none() | numbers | st.just(float("nan"))


@st.composite
def assumptions(draw):
    steps = draw(counts)
    return AssumptionRow(draw(texts), draw(texts), draw(st.integers(0, steps)), steps)


@st.composite
def conditions(draw):
    return ConditionRow(
        draw(st.sampled_from(["gt", "pred"])),
        draw(st.sampled_from(["noLearn", "Learn"])),
        draw(st.none() | texts),
        draw(st.integers(1, 10**6)),
        draw(counts),
        draw(counts),
        draw(positive),
        draw(positive),
    )


gaps = st.builds(GapRow, texts, maybe, st.none() | positive | st.just(float("nan")), maybe)


@st.composite
def reports(draw):
    table_2 = tuple(draw(st.lists(conditions(), max_size=3)))
    details = None
    if draw(st.booleans()):
        details = ReportDetails(
            conditions=tuple(
                ConditionDetails(
                    condition=draw(texts),
                    violating_episodes=draw(st.none() | st.integers(0, row.n_episodes)),
                    min_distance_m=draw(st.none() | positive),
                    brake_reasons=draw(st.none() | st.dictionaries(texts, counts, max_size=2)),
                )
                for row in table_2
            ),
            seeds=tuple(draw(st.lists(counts, max_size=3))),
            notes=tuple(draw(st.lists(texts, max_size=2))),
        )
    return ThreeTableReport(
        tuple(draw(st.lists(assumptions(), max_size=3))),
        table_2,
        tuple(draw(st.lists(gaps, max_size=3))),
        details=details,
    )


@settings(max_examples=size(30, 100))
@given(report=reports())
def test_every_report_survives_its_files_to_the_bit(report):
    with tempfile.TemporaryDirectory() as folder:
        json_path, markdown_path = emit_three_tables(out_dir=Path(folder), report=report)
        first = json_path.read_bytes()
        assert parse_three_tables(json_path) == report
        verify_markdown(markdown_path, json_path)
        emit_three_tables(out_dir=Path(folder), report=parse_three_tables(json_path))
        assert json_path.read_bytes() == first
        assert b"NaN" not in first.replace(b'"NaN', b"")


@settings(max_examples=size(30, 100))
@given(report=reports())
def test_no_text_breaks_a_table(report):
    for block in render_markdown(report).split("\n\n"):
        lines = [line for line in block.split("\n") if line.startswith("| ")]
        widths = {line.replace("\\\\", "").replace("\\|", "").count("|") for line in lines}
        assert len(widths) <= 1
    latex = render_latex(report)
    assert latex.count("\\begin{") == latex.count("\\end{")

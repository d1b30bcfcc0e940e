import pytest

from cadenza.evaluation.report.svg import Drawing, nice_ticks, shorten, tick_label
from tests.unit.evaluation.report.svg_tree import parse_svg


@pytest.mark.parametrize(
    ("low", "high", "target", "expected"),
    [
        (0.0, 1.0, 5, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.3, 0.7, 4, [-0.25, 0.0, 0.25, 0.5]),
        (0.0, 110_000.0, 8, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
        (3.0, 3.5, 2, [3.0, 3.25, 3.5]),
    ],
)
def test_ticks_are_round_and_inside(low, high, target, expected):
    assert nice_ticks(low, high, target) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1 + 0.2, "0.3"), (-2.0, "−2"), (0.0, "0"), (-1e-17, "0"), (20_000, "20k"), (2.5e6, "2.5M")],
)
def test_tick_labels_are_short(value, text):
    assert tick_label(value) == text


def test_long_labels_end_in_an_ellipsis():
    assert shorten("abc", limit=3) == "abc"
    assert shorten("a long label", limit=7) == "a long…"


def test_drawing_is_well_formed_escaped_and_named():
    drawing = Drawing(width=10, height=5)
    drawing.text(1.005, -0.0001, "<&>\"'", "label")
    drawing.circle(1, 2, 3, "mark", tip="<b>")
    drawing.diamond(1, 2, 3, "mark")
    drawing.polyline([(0, 0)], "line")
    drawing.polyline([(0, 0), (1.234567, 2)], "line")
    drawing.rect(0, 0, 1, 1, "floor")
    text = drawing.render(identity="f", title="A < B", description='"quoted"')
    root = parse_svg(text)
    assert [child.tag for child in root] == [
        "title", "desc", "text", "circle", "path", "path", "rect",
    ]  # fmt: skip
    assert root.find("text").text == "<&>\"'"
    assert root.find("text").attrib["y"] == "0"
    assert root.find("circle/title").text == "<b>"
    assert root.findall("path")[1].attrib["d"] == "M0 0L1.23 2"
    assert root.attrib["aria-labelledby"] == "f-t f-d"
    assert (root.find("title").text, root.find("desc").text) == ("A < B", '"quoted"')

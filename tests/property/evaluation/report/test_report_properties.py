import html
import json
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from cadenza.evaluation.report.figures.episodes import moving_mean
from cadenza.evaluation.report.svg import Drawing, Scale, nice_ticks, percent
from cadenza.evaluation.report.view import script_json
from tests.unit.evaluation.report.svg_tree import parse_svg

numbers = st.floats(-1e6, 1e6)
#: Text that XML can hold: control characters have no XML form at all.
printable = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
)


@given(low=numbers, span=st.floats(1e-3, 1e6), target=st.integers(1, 12))
def test_ticks_lie_inside_and_are_evenly_spaced(low, span, target):
    high = low + span
    assume(high - low > span * 0.5)
    ticks = nice_ticks(low, high, target)
    assert len(ticks) <= 2 * target + 2
    assert all(low - 1e-6 * span <= t <= high + 1e-6 * span for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert all(abs(g - gaps[0]) < 1e-6 * span for g in gaps)


@given(low=numbers, span=st.floats(1e-3, 1e3), share=st.floats(0, 1))
def test_scale_keeps_shares(low, span, share):
    scale = Scale(low=low, high=low + span, start=0.0, end=100.0)
    assume(scale.high - scale.low > span / 2)
    value = scale.low + share * (scale.high - scale.low)
    assert abs(scale(value) - 100 * share) < 1e-3


@given(title=printable, label=printable)
def test_drawing_shows_any_text_as_text(title, label):
    drawing = Drawing(width=1, height=1)
    drawing.text(0, 0, label)
    root = parse_svg(drawing.render(identity="f", title=title, description="d"))
    assert (root.find("title").text or "") == title
    assert (root.find("text").text or "") == label
    assert len(root) == 3


@given(value=st.recursive(st.text() | st.integers() | st.none(), lambda v: st.lists(v, max_size=3)))
def test_script_json_means_the_same_and_holds_no_markup(value):
    text = script_json(value)
    assert not set("<>&'") & set(text)
    assert html.unescape(text) == text
    assert json.loads(text) == value


@given(values=st.lists(numbers, max_size=40), window=st.integers(1, 50))
def test_moving_mean_equals_the_plain_definition(values, window):
    means = moving_mean(values, window)
    assert len(means) == len(values)
    for index, mean in enumerate(means):
        part = values[max(0, index + 1 - window) : index + 1]
        assert abs(mean - sum(part) / len(part)) < 1e-6 * max(1.0, *map(abs, values))


@given(rate=st.floats(0, 1))
def test_percent_shows_certainty_only_where_it_is(rate):
    text = percent(rate)
    assert (text == "100.0\u00a0%") == (rate == 1.0)
    assert (text == "0.0\u00a0%") == (rate == 0.0)

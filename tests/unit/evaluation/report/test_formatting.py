import pytest

from cadenza.evaluation.report.svg import (
    count,
    number,
    number_interval,
    percent,
    percent_interval,
    plural,
    points,
    points_interval,
    signed,
)
from cadenza.evaluation.statistics.estimate import Estimate


def estimate(value, low, high) -> Estimate:
    return Estimate(
        value=value, low=low, high=high, confidence=0.95, estimator="x", n=1, n_clusters=1
    )


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.975, "97.5 %"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.0004, "<0.1 %"),
        (0.9997, ">99.9 %"), (None, "–"),
    ],
)  # fmt: skip
def test_percent_never_rounds_to_certainty(rate, text):
    assert percent(rate).replace("\u00a0", " ") == text


def test_intervals_show_both_bounds_or_that_there_is_none():
    assert percent_interval(estimate(0.5, 0.25, 0.75)) == "[25.0, 75.0]"
    assert percent_interval(estimate(0.5, None, None)) == "no interval"
    assert number_interval(estimate(0.5, -0.25, 0.75)) == "[−0.25, 0.75]"
    assert number_interval(estimate(0.5, None, 1.0)) == "no interval"
    assert points_interval(estimate(0.1, -0.02, 0.22)) == "[−2.0, +22.0]"


@pytest.mark.parametrize(
    ("value", "text"), [(0.035, "+3.5"), (-0.5, "−50.0"), (-0.0001, "0.0"), (None, "–")]
)
def test_points_carry_their_sign_unless_zero(value, text):
    assert points(value) == text


def test_numbers_have_no_negative_zero():
    assert number(-0.001) == "0.00"
    assert number(-1.5, digits=1, unit="m").replace("\u00a0", " ") == "−1.5 m"
    assert number(None) == "–"
    assert signed(-0.04) == "0.0"


def test_counts_group_thousands_and_agree_with_their_noun():
    assert count(1234567) == "1\u202f234\u202f567"
    assert count(None) == "–"
    assert plural(1, "episode").replace("\u00a0", " ") == "1 episode"
    assert plural(2000, "episode").replace("\u00a0", " ") == "2\u202f000 episodes"

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.comparison import compare, rank
from cadenza.evaluation.statistics.differences import seed_difference


def seeds(*rates, episodes=20):
    """Return one seed per rate, its successes first."""
    return {
        s: [1.0] * round(r * episodes) + [0.0] * (episodes - round(r * episodes))
        for s, r in enumerate(rates)
    }


A, B = seeds(0.6, 0.75, 0.5, 0.8, 0.7), seeds(0.45, 0.4, 0.5, 0.55, 0.35)
MEANS = np.array([0.6, 0.75, 0.5, 0.8, 0.7]), np.array([0.45, 0.4, 0.5, 0.55, 0.35])


def test_paired_seeds_are_compared_by_scipys_paired_t():
    result = compare(A, B, paired=True)
    expected = stats.ttest_rel(*MEANS)
    interval = expected.confidence_interval(0.95)
    assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (result.difference.low, result.difference.high) == pytest.approx(tuple(interval))
    assert (result.test, result.verdict) == ("paired t on seed differences", "better")
    assert compare(B, A, paired=True).verdict == "worse"


def test_unpaired_seeds_are_compared_by_scipys_welch():
    result = compare(A, seeds(0.45, 0.4, 0.5), paired=False)
    expected = stats.ttest_ind(MEANS[0], MEANS[1][:3], equal_var=False)
    assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (result.difference.low, result.difference.high) == pytest.approx(
        tuple(expected.confidence_interval(0.95))
    )


def test_near_one_the_wider_of_two_bounds_counts():
    near = seeds(1.0, 1.0, 1.0, 1.0, 0.95), seeds(0.9, 0.9, 0.85, 0.9, 0.9)
    result = compare(*near, paired=True)
    plain = stats.ttest_rel([1, 1, 1, 1, 0.95], [0.9, 0.9, 0.85, 0.9, 0.9]).confidence_interval()
    assert result.difference.low < plain.low < plain.high < result.difference.high
    assert "the wider of two" in result.difference.warnings[0]
    assert (result.p <= 0.05) == (result.difference.low > 0.0)


def test_boundary_bounds_equal_the_hand_calculation():
    # every seed 20/20 on both sides: d = 0, no pair differs, the means are constant: r = 0
    alike = seeds(1, 1, 1, 1, 1)
    result = compare(alike, alike, paired=True)
    low = 0.8062  # five 20/20, golden vector of the rate
    assert result.difference.high == pytest.approx(1 - low, abs=1e-4)  # b - lb; ua - a is 0
    assert result.difference.low == pytest.approx(low - 1, abs=1e-4)
    q = 1 / 102
    assert 1.96 * np.sqrt(q / 20 / 5) < 1 - low  # so (b) is the wider one
    assert (result.p, result.verdict) == (1.0, "undecided")


def test_equal_seed_differences_are_no_point():
    result = compare(seeds(0.6, 0.7, 0.5), seeds(0.5, 0.6, 0.4), paired=True)
    assert result.difference.low < 0.08
    assert result.difference.high > 0.12


def test_real_scores_without_spread_are_undefined():
    result = compare({0: [2.0], 1: [3.0]}, {0: [1.0], 1: [2.0]}, paired=True)
    assert (result.difference.low, result.p, result.verdict) == (None, None, "undecided")
    assert "spread is unknown" in result.sentence()


@pytest.mark.parametrize("paired", [True, False])
def test_one_run_a_side_says_that_training_luck_is_missing(paired):
    ours, theirs = {7: [1.0] * 26 + [0.0] * 2}, {9: [1.0] * 17 + [0.0] * 11}
    if paired:  # 11 wins, 2 losses
        ours, theirs = (
            {7: [1.0] * 24 + [0.0] * 4},
            {7: [1.0] * 13 + [0.0] * 11 + [1.0] * 2 + [0.0] * 2},
        )
    result = compare(ours, theirs, paired=paired)
    assert "training luck is not in this interval" in result.difference.warnings[0]
    assert result.sentence().endswith("Training luck is not in this interval.")
    if paired:
        assert result.test == "exact McNemar (unconditional)"
        assert result.p == pytest.approx(2 * 0.00726709, abs=1e-6)
        by_hand = compare(ours, theirs, paired=True, drawn_starts=False)
        assert by_hand.test == "exact McNemar (conditional)"
        assert by_hand.p == pytest.approx(2 * 92 / 8192)
    else:
        expected = stats.boschloo_exact([[26, 17], [2, 11]])
        assert result.p == pytest.approx(expected.pvalue, abs=1e-4)
    assert result.verdict == "better"
    assert 0.0 < result.smallest_shown < 1.0


def test_verdict_and_p_agree_whatever_one_run_shows():
    rng = np.random.default_rng(2)
    for _ in range(60):
        n = int(rng.integers(6, 40))
        ours, theirs = ({0: rng.integers(0, 2, n).astype(float)} for _ in range(2))
        for paired in (True, False):
            result = compare(ours, theirs, paired=paired)
            assert (result.p <= 0.05) == (result.verdict in ("better", "worse"))


def test_a_declared_margin_knows_not_worse():
    close = seeds(0.6, 0.7, 0.5, 0.6, 0.65), seeds(0.6, 0.65, 0.55, 0.6, 0.65)
    assert compare(*close, paired=True).verdict == "undecided"
    assert compare(*close, paired=True, margin=0.1).verdict == "not worse"
    assert compare(B, A, paired=True, margin=0.1).verdict == "worse"


def test_smallest_shown_is_the_difference_with_four_fifths_power():
    rng = np.random.default_rng(0)
    d = compare(A, B, paired=True)
    spread = (MEANS[0] - MEANS[1]).std(ddof=1)
    drawn = d.smallest_shown + spread * rng.standard_normal((20_000, 5))
    shown = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue <= 0.05
    assert shown.mean() == pytest.approx(0.8, abs=0.06)  # the usual approximation by two quantiles
    few = compare({0: [1.0] * 4}, {0: [0.0] * 4}, paired=True)
    assert few.smallest_shown is None  # four pairs show nothing at 5 %
    assert few.verdict == "undecided"


def test_pooled_test_would_fail_where_seeds_differ_and_ours_does_not():
    rng = np.random.default_rng(3)
    wrong_pooled = wrong = 0
    for _ in range(600):
        a, b = (
            [rng.binomial(1, p, 50).astype(float) for p in rng.beta(5.75, 5.75, 5)] for _ in "ab"
        )
        ours = seed_difference(a, b, paired=True)
        wrong += ours.p <= 0.05
        pa, pb = np.mean(a), np.mean(b)
        z = (pa - pb) / np.sqrt((pa + pb) / 2 * (1 - (pa + pb) / 2) * 2 / 250)
        wrong_pooled += abs(z) > 1.96
    assert wrong / 600 < 0.08
    assert wrong_pooled / 600 > 0.25  # sd .14 between seeds


def test_rank_keeps_the_set_that_cannot_be_told_from_the_best():
    ranking = rank(
        {
            "a": seeds(0.8, 0.85, 0.75, 0.8, 0.9),
            "b": seeds(0.8, 0.8, 0.75, 0.85, 0.85),
            "c": seeds(0.3, 0.35, 0.3, 0.25, 0.4),
        },
        paired=True,
    )
    assert ranking.best == ("a", "b")
    assert ranking.ranks == {"a": (1, 2), "b": (1, 2), "c": (3, 3)}
    assert list(ranking.means) == ["a", "b", "c"]
    raw = ranking.comparisons["a", "c"].p
    assert ranking.p["a", "c"] >= raw


@pytest.mark.parametrize(
    ("ours", "theirs", "paired", "match"),
    [
        ({}, A, False, "at least two seeds on both"),
        ({0: [1.0]}, A, False, "at least two seeds on both"),
        ({0: [1.0], 1: [1.0]}, {0: [1.0], 2: [1.0]}, True, "same seeds"),
        ({0: [0.5, 1.0]}, {0: [0.2, 1.0]}, True, "outcomes 0 or 1 of one run"),
    ],
)
def test_what_cannot_be_compared_is_refused(ours, theirs, paired, match):
    with pytest.raises(InputError, match=match):
        compare(ours, theirs, paired=paired)

import itertools

import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds, paired_outcome_interval


@pytest.mark.parametrize("tail", [0.05, 0.025, 0.002])
def test_lower_bound_above_zero_iff_exact_mcnemar_rejects(tail):
    rejected = 0
    for wins, losses in itertools.product(range(25), range(25)):
        low, high = paired_outcome_interval(wins, losses, 60, tail=tail)
        p_value = 1.0
        if wins + losses:
            p_value = stats.binomtest(wins, wins + losses, 0.5, alternative="greater").pvalue
        assert (low > 0.0) == (p_value <= tail)
        mirrored = paired_outcome_interval(losses, wins, 60, tail=tail)
        assert mirrored == pytest.approx((-high, -low), abs=1e-14)
        rejected += p_value <= tail
    assert 0 < rejected < 625


def test_bounds_with_pairs_that_all_win_have_the_closed_form():
    # n of n: both shares are at least tail^(1/n) and at most 1, so low = r (2 r - 1).
    root = 0.01 ** (1 / 12)
    low, high = paired_outcome_interval(12, 0, 12, tail=0.01)
    assert low == pytest.approx(root * (2 * root - 1), rel=1e-12)
    assert high == 1.0


def test_bounds_without_disagreement_are_those_of_its_share():
    # 0 of 20: the share of disagreeing pairs is at most 1 - tail^(1/20).
    share = 1 - 0.025 ** (1 / 20)
    assert paired_outcome_interval(0, 0, 20, tail=0.025) == pytest.approx((-share, share))


def test_bounds_of_a_mixed_count_follow_from_binomtest_intervals():
    # confidence 95 % of binomtest has tails of 2.5 %
    direction = stats.binomtest(30, 40).proportion_ci(0.95)
    share = stats.binomtest(40, 100).proportion_ci(0.95)
    low, high = paired_outcome_interval(30, 10, 100, tail=0.025)
    assert low == pytest.approx(share.low * (2 * direction.low - 1), rel=1e-9)
    assert high == pytest.approx(share.high * (2 * direction.high - 1), rel=1e-9)


def _miss_probabilities(p_win: float, p_loss: float, n: int, tail: float) -> tuple[float, float]:
    """Return how often the lower bound is too high, and the upper too low, by enumeration."""
    truth = p_win - p_loss
    too_high = too_low = 0.0
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            weight = stats.multinomial.pmf(
                [wins, losses, n - wins - losses], n, [p_win, p_loss, 1 - p_win - p_loss]
            )
            low, high = paired_outcome_interval(wins, losses, n, tail=tail)
            too_high += weight * (low > truth + 1e-12)
            too_low += weight * (high < truth - 1e-12)
    return too_high, too_low


@pytest.mark.parametrize(
    ("p_win", "p_loss"),
    [(0.05, 0.05), (0.25, 0.25), (0.5, 0.5), (0.3, 0.1), (0.1, 0.0), (0.6, 0.2), (0.9, 0.0)],
)
@pytest.mark.parametrize("n", [5, 20])
def test_each_bound_fails_with_at_most_its_tail_by_enumeration(p_win, p_loss, n):
    assert max(_miss_probabilities(p_win, p_loss, n, 0.05)) <= 0.05


@pytest.mark.parametrize("tail", [0.0, 1e-160, 1e-300])
def test_bounds_with_a_vanishing_tail_are_all_the_counts_allow(tail):
    assert exact_bounds(3, 9, tail=tail) == (0.0, 1.0)
    assert paired_outcome_interval(9, 0, 9, tail=tail) == (-1.0, 1.0)


def test_bounds_keep_their_precision_far_below_the_float_epsilon():
    # 50 of 50 successes: the lower bound solves x^50 = 1e-40, x = 10^-0.8
    assert exact_bounds(50, 50, tail=1e-40)[0] == pytest.approx(10**-0.8, rel=1e-9)
    assert exact_bounds(0, 50, tail=1e-40)[1] == pytest.approx(1 - 10**-0.8, rel=1e-9)


@pytest.mark.parametrize("tail", [-0.1, 0.5, float("nan")])
def test_bounds_with_a_tail_out_of_range_are_refused(tail):
    with pytest.raises(InputError, match=r"expected a probability in \[0, 0\.5\), got"):
        paired_outcome_interval(1, 1, 4, tail=tail)


@pytest.mark.parametrize(
    ("wins", "losses", "told"),
    [(-1, 2, "expected counts >= 0, got -1 wins and 2 losses"), (3, 2, "got 5 of 4")],
)
def test_bounds_with_impossible_counts_are_refused(wins, losses, told):
    with pytest.raises(InputError, match=told):
        paired_outcome_interval(wins, losses, 4, tail=0.05)

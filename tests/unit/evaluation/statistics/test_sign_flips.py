import itertools

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import SignFlips


def flips(seed: int = 0, n_resamples: int = 19_999) -> SignFlips:
    return SignFlips(rng=np.random.default_rng(seed), n_resamples=n_resamples)


def all_subset_means(values: np.ndarray) -> list[float]:
    """Return the means of all non-empty subsets, sorted."""
    n = len(values)
    masks = [m for m in itertools.product([False, True], repeat=n) if any(m)]
    return sorted(float(values[list(m)].mean()) for m in masks)


def test_bounds_approach_the_exact_quantiles_of_all_subset_means():
    values = np.array([0.31, -0.12, 0.55, 0.9, 0.07, -0.4, 0.63, 0.28, 0.81, 0.44])
    means = all_subset_means(values)  # 1023; with the empty subset a tail of 10 % is 102 of 1024
    low, high = flips().interval(values, confidence=0.8)
    assert means[97] <= low <= means[107]
    assert means[-108] <= high <= means[-98]


def test_lower_bound_on_yes_or_no_outcomes_follows_mcnemar():
    # 9 wins, 1 loss, 10 ties: binomtest gives p = 11/1024 = 0.0107
    values = np.array([1.0] * 9 + [-1.0] + [0.0] * 10)
    assert stats.binomtest(9, 10, alternative="greater").pvalue == pytest.approx(11 / 1024)
    assert flips().interval(values, confidence=1 - 2 * 0.013)[0] > 0.0
    assert flips().interval(values, confidence=1 - 2 * 0.009)[0] <= 0.0


def test_bounds_are_infinite_where_replicates_are_too_few():
    values = np.array([0.1, 0.4, 0.2])
    assert flips(n_resamples=99).interval(values, confidence=0.99) == (-np.inf, np.inf)
    assert np.isfinite(flips(n_resamples=199).interval(np.arange(12.0), confidence=0.99)).all()


def test_empty_subsets_count_against_both_bounds():
    # of 2 values a quarter of the subsets is empty, so no 5 % bound exists
    assert flips().interval(np.array([0.4, 0.5]), confidence=0.9) == (-np.inf, np.inf)


def test_sum_that_cancels_is_exactly_zero():
    # 0.3 - 0.1 - 0.2 is -2.8e-17 in some order of adding and +2.8e-17 in another; as the mean of
    # a subset it is 0. It is the 5th smallest of 16 (one is empty, three are below), hence the
    # bound of a tail between 4/16 and 5/16.
    values = np.array([-0.3, 0.1, 0.2, 1.0])
    low, _ = flips().interval(values, confidence=1 - 2 * 0.28)
    assert low == 0.0


def test_lower_bound_fails_with_exactly_its_tail_even_with_few_replicates():
    # 9 replicates and a tail of 10 %: the smallest of 9 subset means fails in 1 of 10 samples
    rng = np.random.default_rng(11)
    trials, method = 3000, flips(2, n_resamples=9)
    misses = sum(
        method.interval(row, confidence=0.8)[0] > 0.0 for row in rng.normal(size=(trials, 20))
    )
    assert stats.binom.ppf(0.001, trials, 0.1) <= misses <= stats.binom.ppf(0.999, trials, 0.1)


@pytest.mark.parametrize("n", [6, 12, 40])
def test_level_holds_for_rare_large_differences_where_student_t_fails(n):
    # Equal policies, 0/1 scores that always disagree: t is far too sure, sign flips are exact.
    rng = np.random.default_rng(n)
    alpha, trials = 0.02, 1500
    values = rng.choice([-1.0, 1.0], size=(trials, n)) * rng.uniform(0.999, 1.0, size=(trials, n))
    method = flips(1, n_resamples=999)
    ours = sum(method.interval(row, confidence=1 - 2 * alpha)[0] > 0 for row in values)
    # P(more than this many) < 0.1 % if the level is alpha
    assert ours <= stats.binom.ppf(0.999, trials, alpha)


def test_no_replicates_are_refused():
    with pytest.raises(InputError, match="n_resamples: expected >= 1, got 0"):
        flips(n_resamples=0)

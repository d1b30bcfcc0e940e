import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import BcaBootstrap, StudentT
from cadenza.evaluation.statistics.estimate import (
    KORN_GRAUBARD,
    as_clusters,
    cluster_means,
    mean_estimate,
    rate_estimate,
)


def test_rate_estimate_pools_episodes_and_names_its_estimator():
    estimate = rate_estimate({0: [True, False], 1: [True, True], 2: [False, True]})
    assert estimate.value == pytest.approx(4 / 6)
    assert (estimate.n, estimate.n_clusters) == (6, 3)
    assert estimate.estimator == "rate/cluster/beta-binomial/v1"
    assert estimate.low < 4 / 6 < estimate.high


@pytest.mark.parametrize(("outcome", "bounds"), [(True, (0.9404, 1.0)), (False, (0.0, 0.0596))])
def test_rate_estimate_of_the_older_estimator_is_exact_binomial(outcome, bounds):
    estimate = rate_estimate({seed: [outcome] * 6 for seed in range(10)}, estimator=KORN_GRAUBARD)
    assert (estimate.low, estimate.high) == pytest.approx(bounds, abs=5e-5)
    assert any("Clopper-Pearson" in warning for warning in estimate.warnings)


@pytest.mark.parametrize(("outcome", "bound"), [(1, "lower"), (0, "upper")])
def test_rate_estimate_of_equal_outcomes_says_what_its_bound_rests_on(outcome, bound):
    estimate = rate_estimate({seed: [outcome] * 20 for seed in range(5)})
    assert (estimate.low, estimate.high) == pytest.approx(
        (0.8062, 1.0) if outcome else (0.0, 1 - 0.8062), abs=1e-4
    )
    limits = 0.025 ** (1 / 100), 0.025 ** (1 / 5)  # seeds alike; nothing assumed
    alike, nothing = limits if outcome else (1 - limit for limit in limits)
    assert f"the {bound} bound rests on the assumption" in estimate.warnings[0]
    assert f"{alike:.3f} if all seeds were alike, {nothing:.3f}" in estimate.warnings[0]


def test_rate_estimate_warns_where_one_seed_carries_the_spread_and_rates_cannot_be_told_apart():
    estimate = rate_estimate({0: [1] * 47 + [0] * 3} | {seed: [1] * 50 for seed in range(1, 5)})
    assert "rests on one seed" in estimate.warnings[0]
    # five seeds, 50 of 50 each: the lower bound is .814
    assert "rates above 0.81 cannot be told apart with 5 seeds" in estimate.warnings[1]


def test_rate_estimate_of_one_seed_is_exact_and_says_what_it_leaves_out():
    estimate = rate_estimate({3: [1] * 9 + [0]})
    expected = stats.binomtest(9, 10).proportion_ci(method="exact")
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    assert estimate.estimator == "rate/one-seed/clopper-pearson/v1"
    assert "training luck is not in this interval" in estimate.warnings[0]


def test_rate_estimate_of_nothing_is_undefined_with_a_reason():
    estimate = rate_estimate({0: []})
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.n, estimate.n_clusters) == (0, 0)
    assert estimate.undefined_reason == "no episodes"


def test_rate_estimate_of_few_seeds_warns():
    few = rate_estimate({seed: [1, 0] for seed in range(9)})
    many = rate_estimate({seed: [1, 0] for seed in range(10)})
    assert few.warnings == (
        "only 9 seeds: the spread between seeds is badly known, use at least 10.",
    )
    assert many.warnings == ()


def test_rate_estimate_of_other_numbers_is_refused():
    with pytest.raises(InputError, match="expected outcomes 0 or 1"):
        rate_estimate({0: [0.5]})


def test_mean_estimate_weighs_every_seed_the_same():
    values = {0: [1.0], 1: [3.0, 5.0], 2: [0.0, 0.0, 9.0]}
    estimate = mean_estimate(values, method=StudentT())
    expected = stats.t.interval(0.95, 2, loc=8 / 3, scale=stats.sem([1.0, 4.0, 3.0]))
    assert estimate.value == pytest.approx(8 / 3)
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=1e-9)
    assert (estimate.n, estimate.n_clusters) == (6, 3)
    assert estimate.estimator == "mean/cluster/student-t/v1"


def test_mean_estimate_is_cut_to_its_bounds():
    estimate = mean_estimate({0: [1.0], 1: [0.6], 2: [1.0]}, method=StudentT(), bounds=(0.0, 1.0))
    assert estimate.high == 1.0
    assert estimate.low > 0.0


def test_mean_estimate_outside_its_bounds_is_refused():
    with pytest.raises(InputError, match=r"expected values in \[0.0, 1.0\], got \[2.0, 2.0\]"):
        mean_estimate({0: [2.0]}, method=StudentT(), bounds=(0.0, 1.0))


def test_mean_estimate_of_one_seed_has_a_value_but_no_bounds():
    estimate = mean_estimate({4: [1.0, 2.0]}, method=StudentT())
    assert (estimate.value, estimate.low) == (1.5, None)
    assert estimate.undefined_reason == "1 seeds, student-t needs at least 2"


def test_mean_estimate_of_two_seeds_cannot_use_bca():
    method = BcaBootstrap(rng=np.random.default_rng(0))
    estimate = mean_estimate({0: [1.0], 1: [2.0]}, method=method)
    assert estimate.undefined_reason == "2 seeds, bca needs at least 3"


def test_mean_estimate_of_equal_values_has_no_bounds():
    estimate = mean_estimate({0: [2.0, 2.0], 1: [2.0]}, method=StudentT())
    assert (estimate.value, estimate.low) == (2.0, None)
    assert estimate.undefined_reason == "every observation is the same, so their spread is unknown"


def test_mean_estimate_of_equal_seed_means_uses_single_episodes_and_says_so():
    estimate = mean_estimate({0: [0.0, 1.0], 1: [1.0, 0.0]}, method=StudentT())
    expected = stats.t.interval(0.95, 3, loc=0.5, scale=stats.sem([0, 1, 1, 0]))
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=1e-9)
    assert "every seed has the same mean" in estimate.warnings[0]


def test_mean_estimate_of_nothing_is_undefined():
    estimate = mean_estimate({3: []}, method=StudentT())
    assert (estimate.value, estimate.n, estimate.n_clusters) == (None, 0, 0)
    assert estimate.undefined_reason == "no episodes"


def test_clusters_are_ordered_by_seed_and_drop_empty_ones():
    clusters = as_clusters("x", {3: [1.0], 1: [], 2: [4.0, 6.0]})
    assert list(clusters) == [2, 3]
    assert cluster_means(clusters).tolist() == [5.0, 1.0]


def test_clusters_with_nan_or_two_dimensions_are_refused():
    with pytest.raises(InputError, match=r"x\[7\]: expected finite numbers, got nan at index"):
        as_clusters("x", {7: [1.0, float("nan")]})
    with pytest.raises(InputError, match=r"x\[7\]: expected one dimension"):
        as_clusters("x", {7: np.zeros((2, 2))})

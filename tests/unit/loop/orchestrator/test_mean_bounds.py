import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import SignFlips
from cadenza.loop.orchestrator.evidence import RESAMPLES, RESERVE, mean_bounds

TAIL = 0.05


def bounds(values, *, tail=TAIL, seed=0):
    return mean_bounds(np.asarray(values, dtype=float), tail=tail, rng=np.random.default_rng(seed))


def test_skewed_values_have_the_bounds_of_the_studentised_bootstrap():
    values = stats.expon.ppf((np.arange(20) + 0.5) / 20)
    rng = np.random.default_rng(5)
    drawn = rng.choice(values, (4_000, 20))
    pivots = (drawn.mean(axis=1) - values.mean()) / stats.sem(drawn, axis=1)
    low, high = np.quantile(pivots, [RESERVE * TAIL, 1 - RESERVE * TAIL])
    lower, upper = bounds(values)
    assert upper == pytest.approx(values.mean() - low * stats.sem(values), rel=0.1)
    assert lower <= values.mean() - high * stats.sem(values) + 0.05
    flips = SignFlips(rng=rng).interval(values, confidence=1 - 2 * RESERVE * TAIL)
    assert upper > flips[1] + 0.1  # sign flips alone would be too narrow


def test_a_rare_loss_that_most_resamples_miss_leaves_the_bound_open():
    lower, upper = bounds([0.1] * 39 + [-0.9])
    assert lower is None
    assert 0.075 < upper < 0.15
    assert bounds([-0.1] * 39 + [0.9])[1] is None


@pytest.mark.parametrize("values", [[0.3], [0.3] * 30, [-7.0] * 2, [0.0] * 5])
def test_values_without_spread_bound_nothing(values):
    assert bounds(values) == (None, None)


def test_levels_that_the_resamples_cannot_resolve_bound_nothing():
    values = np.random.default_rng(0).normal(size=40)
    least = 1.0 / (RESERVE * (RESAMPLES + 1))
    assert bounds(values, tail=0.99 * least) == (None, None)
    assert None not in bounds(values, tail=least)


def test_bounds_of_an_exponential_mean_keep_their_level_and_those_of_sign_flips_do_not():
    rng, runs, tail = np.random.default_rng(3), 300, 0.05
    samples = 1.0 - rng.exponential(size=(runs, 10))
    failures = sum((bounds(x, tail=tail, seed=i)[0] or -1.0) > 0.0 for i, x in enumerate(samples))
    flips = sum(
        SignFlips(rng=rng, n_resamples=1_999).interval(x, confidence=1 - 2 * tail)[0] > 0.0
        for x in samples
    )
    at_most = stats.binom.ppf(0.999, runs, tail)
    assert failures <= at_most < flips


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, float("nan")], [1.0, float("inf")]])
def test_values_that_are_no_finite_numbers_are_refused(values):
    with pytest.raises(InputError, match=r"mean_bounds\.tail: expected in \[0, 0\.5\), got"):
        bounds([1.0, 2.0], tail=0.5)
    with pytest.raises(InputError, match=r"mean_bounds\.values: expected finite numbers of shape"):
        bounds(values)

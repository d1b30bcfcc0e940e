import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics import cluster_means as module
from cadenza.evaluation.statistics.cluster_means import (
    BcaBootstrap,
    PercentileBootstrap,
    StudentT,
    bca_levels,
    resampled_means,
)

#: Multiples of 1 / 64: their sums are exact, so scipy sees the same ties as we do.
VALUES = np.array([13.0, 22.0, 60.0, 31.0, 7.0, 48.0, 19.0, 42.0]) / 64.0


def scipy_bounds(method: str, seed: int, resamples: int) -> tuple[float, float]:
    result = stats.bootstrap(
        (VALUES,), np.mean, n_resamples=resamples, method=method, rng=np.random.default_rng(seed)
    )
    return result.confidence_interval.low, result.confidence_interval.high


def test_student_t_equals_scipy():
    expected = stats.t.interval(0.95, 7, loc=VALUES.mean(), scale=stats.sem(VALUES))
    assert StudentT().interval(VALUES, confidence=0.95) == pytest.approx(expected, abs=1e-10)


def test_percentile_bootstrap_equals_scipy_on_the_same_draws():
    ours = PercentileBootstrap(rng=np.random.default_rng(5), n_resamples=999)
    expected = scipy_bounds("percentile", 5, 999)
    assert ours.interval(VALUES, confidence=0.95) == pytest.approx(expected, abs=1e-12)


def test_bca_bootstrap_equals_scipy_on_the_same_draws():
    ours = BcaBootstrap(rng=np.random.default_rng(5), n_resamples=999)
    expected = scipy_bounds("BCa", 5, 999)
    assert ours.interval(VALUES, confidence=0.95) == pytest.approx(expected, abs=1e-12)
    assert expected != pytest.approx(scipy_bounds("percentile", 5, 999), abs=1e-3)


def test_bca_levels_of_equal_values_are_the_plain_ones():
    assert bca_levels(np.ones(4), np.ones(5), confidence=0.9) == pytest.approx((0.05, 0.95))


def test_resampled_means_do_not_depend_on_the_chunk_size(monkeypatch):
    whole = resampled_means(VALUES, 100, np.random.default_rng(2))
    monkeypatch.setattr(module, "CHUNK_BYTES", 8 * VALUES.size * 7)  # seven rows at a time
    assert np.array_equal(resampled_means(VALUES, 100, np.random.default_rng(2)), whole)
    assert whole.shape == (100,)


@pytest.mark.parametrize("method", [PercentileBootstrap, BcaBootstrap])
def test_bootstraps_without_resamples_are_refused(method):
    with pytest.raises(InputError, match="n_resamples: expected >= 1, got 0"):
        method(rng=np.random.default_rng(0), n_resamples=0)

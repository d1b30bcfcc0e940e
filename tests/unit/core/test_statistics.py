"""Quantiles and intervals of proportions against scipy."""

import math

import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    beta_quantile,
    clopper_pearson_interval,
    normal_level,
    normal_quantile,
    student_quantile,
    wilson_interval,
)


def test_quantiles_equal_scipys_distributions():
    assert normal_quantile(0.975) == pytest.approx(stats.norm.ppf(0.975), abs=1e-12)
    assert normal_level(1.3) == pytest.approx(stats.norm.cdf(1.3), abs=1e-12)
    assert student_quantile(0.975, 9) == pytest.approx(stats.t.ppf(0.975, 9), abs=1e-10)
    assert beta_quantile(0.025, 4.5, 7.0) == pytest.approx(stats.beta.ppf(0.025, 4.5, 7.0))


COUNTS = [(0, 1), (1, 1), (0, 60), (60, 60), (3, 10), (7, 10), (50, 200), (199, 200)]


@pytest.mark.parametrize(("successes", "trials"), COUNTS)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_intervals_equal_scipy(successes, trials, confidence):
    found = stats.binomtest(successes, trials)
    for ours, method, close in (
        (wilson_interval, "wilson", 1e-12),
        (clopper_pearson_interval, "exact", 1e-10),
    ):
        expected = tuple(found.proportion_ci(confidence, method=method))
        assert ours(successes, trials, confidence=confidence) == pytest.approx(expected, abs=close)


@pytest.mark.parametrize(
    ("successes", "trials"), [(-1, 5), (6, 5), (0, 0), (math.nan, 5), (1, math.inf)]
)
def test_intervals_with_impossible_counts_are_refused(successes, trials):
    with pytest.raises(InputError, match="expected 0 <= successes <= trials and trials > 0"):
        wilson_interval(successes, trials)
    with pytest.raises(InputError, match="expected 0 <= successes <= trials and trials > 0"):
        clopper_pearson_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, float("nan")])
def test_intervals_with_impossible_confidence_are_refused(confidence):
    with pytest.raises(InputError, match="expected a number strictly between 0 and 1"):
        wilson_interval(1, 2, confidence=confidence)
    with pytest.raises(InputError, match="expected a number strictly between 0 and 1"):
        clopper_pearson_interval(1, 2, confidence=confidence)

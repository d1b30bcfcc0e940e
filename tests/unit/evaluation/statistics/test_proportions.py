import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.proportions import (
    clopper_pearson_interval,
    effective_trials,
    korn_graubard_interval,
    wilson_interval,
)
from cadenza.evaluation.statistics.quantiles import (
    beta_quantile,
    normal_level,
    normal_quantile,
    student_quantile,
)

COUNTS = [(0, 1), (1, 1), (0, 60), (60, 60), (3, 10), (7, 10), (50, 200), (199, 200)]


@pytest.mark.parametrize(("successes", "trials"), COUNTS)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_interval_equals_scipy(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    actual = wilson_interval(successes, trials, confidence=confidence)
    assert actual == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), COUNTS)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_clopper_pearson_interval_equals_scipy(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    actual = clopper_pearson_interval(successes, trials, confidence=confidence)
    assert actual == pytest.approx((expected.low, expected.high), abs=1e-10)


def test_clopper_pearson_interval_of_sixty_of_sixty_is_not_a_point():
    low, high = clopper_pearson_interval(60, 60)
    assert (round(low, 3), high) == (0.940, 1.0)  # 0.025 ** (1 / 60) = 0.94037


def test_clopper_pearson_interval_of_none_is_closed_form():
    low, high = clopper_pearson_interval(0, 200)
    assert (low, high) == (0.0, pytest.approx(1.0 - 0.025 ** (1 / 200), abs=1e-12))


def test_effective_trials_equals_the_hand_calculation():
    # rate 26 / 40; seed residuals (-1.5, -0.5, 0.5, 1.5) / 40, squares sum to 5 / 1600;
    # variance 4 / 3 * 5 / 1600 = 1 / 240; binomial variance per episode 0.65 * 0.35 = 0.2275
    price = (stats.t.ppf(0.975, 39) / stats.t.ppf(0.975, 3)) ** 2
    actual = effective_trials(np.array([5.0, 6.0, 7.0, 8.0]), np.full(4, 10.0), confidence=0.95)
    assert actual == pytest.approx(0.2275 * 240 * price, rel=1e-9)


def test_korn_graubard_interval_is_exact_binomial_on_effective_counts():
    successes, trials = np.array([5.0, 6.0, 7.0, 8.0]), np.full(4, 10.0)
    n = effective_trials(successes, trials, confidence=0.95)
    expected = (
        stats.beta.ppf(0.025, 0.65 * n, 0.35 * n + 1),
        stats.beta.ppf(0.975, 0.65 * n + 1, 0.35 * n),
    )
    assert korn_graubard_interval(successes, trials) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("successes", [[0.0, 0.0], [10.0, 10.0], [5.0, 5.0]])
def test_effective_trials_without_spread_between_seeds_is_the_true_count(successes):
    actual = effective_trials(np.array(successes), np.full(2, 10.0), confidence=0.95)
    assert actual == 20.0


def test_effective_trials_of_one_seed_is_the_true_count():
    assert effective_trials(np.array([3.0]), np.array([10.0]), confidence=0.95) == 10.0


def test_effective_trials_never_exceed_the_true_count():
    # 5, 5, 5, 6 of 10: seeds agree better than chance would let them
    actual = effective_trials(np.array([5.0] * 15 + [6.0]), np.full(16, 10.0), confidence=0.95)
    assert actual == 160.0


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0), (float("nan"), 5)])
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


def test_effective_trials_with_malformed_arrays_are_refused():
    with pytest.raises(InputError, match=r"expected shape \(2,\), got \(3,\)"):
        effective_trials(np.zeros(2), np.ones(3), confidence=0.95)
    with pytest.raises(InputError, match="expected at least one seed, each with an episode"):
        effective_trials(np.zeros(2), np.array([1.0, 0.0]), confidence=0.95)
    with pytest.raises(InputError, match="expected at least one seed"):
        effective_trials(np.zeros(0), np.zeros(0), confidence=0.95)
    with pytest.raises(InputError, match="expected 0 <= successes <= trials"):
        effective_trials(np.array([3.0]), np.array([2.0]), confidence=0.95)


def test_quantiles_equal_scipys_distributions():
    assert normal_quantile(0.975) == pytest.approx(stats.norm.ppf(0.975), abs=1e-12)
    assert normal_level(1.3) == pytest.approx(stats.norm.cdf(1.3), abs=1e-12)
    assert student_quantile(0.975, 9) == pytest.approx(stats.t.ppf(0.975, 9), abs=1e-10)
    assert beta_quantile(0.025, 4.5, 7.0) == pytest.approx(stats.beta.ppf(0.025, 4.5, 7.0))

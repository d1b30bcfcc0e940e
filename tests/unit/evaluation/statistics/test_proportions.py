import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.estimate import effective_trials, korn_graubard_interval


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


def test_effective_trials_with_malformed_arrays_are_refused():
    with pytest.raises(InputError, match=r"expected shape \(2,\), got \(3,\)"):
        effective_trials(np.zeros(2), np.ones(3), confidence=0.95)
    with pytest.raises(InputError, match="expected at least one seed, each with an episode"):
        effective_trials(np.zeros(2), np.array([1.0, 0.0]), confidence=0.95)
    with pytest.raises(InputError, match="expected at least one seed"):
        effective_trials(np.zeros(0), np.zeros(0), confidence=0.95)
    with pytest.raises(InputError, match="expected 0 <= successes <= trials"):
        effective_trials(np.array([3.0]), np.array([2.0]), confidence=0.95)

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import SignFlips
from cadenza.loop.orchestrator import evidence
from cadenza.loop.orchestrator.operating_characteristics import plan_of
from cadenza.loop.orchestrator.score_characteristics import BETTER, LEVEL, simulate_scores

RUNS = 150
#: If the true share is at most 5 %, more than this many happen with probability < 1e-3.
AT_MOST = stats.binom.ppf(1 - 1e-3, RUNS, 0.05)
EXPONENTIAL = "always 1 against exponential"
#: Kept by no method that does not know how large a score can get; see docs/loop.md.
BEYOND = "always 1.65 against lognormal, sigma 1"


def simulated(draw, budget, runs=RUNS):
    rng = np.random.default_rng(11)
    return simulate_scores(draw, plan_of(3, budget), runs=runs, rng=rng)


@pytest.mark.parametrize("name", [name for name in LEVEL if name != BEYOND])
def test_runs_of_policies_of_equal_mean_score_promote_in_at_most_five_percent(name):
    assert simulated(LEVEL[name], 10).promoted <= AT_MOST


@pytest.mark.parametrize("name", LEVEL)
def test_policies_of_the_tables_have_equal_mean_scores(name):
    candidate, reference = LEVEL[name](np.random.default_rng(0), 400_000)
    difference = candidate - reference
    assert abs(difference.mean()) < 5.0 * stats.sem(difference)


def test_sign_flips_alone_would_fail_the_claim(monkeypatch):
    def flips(values, *, tail, rng):
        if np.ptp(values) == 0.0:
            return None, None
        return SignFlips(rng=rng, n_resamples=1_999).interval(values, confidence=1 - 2 * tail)

    monkeypatch.setattr(evidence, "mean_bounds", flips)
    assert simulated(LEVEL[EXPONENTIAL], 10).promoted > AT_MOST


def test_true_gain_is_promoted_more_often_with_more_episodes():
    (draw,) = BETTER.values()
    few, more = simulated(draw, 10, 60), simulated(draw, 40, 60)
    assert few.promoted < more.promoted
    assert more.promoted >= stats.binom.ppf(1e-3, 60, 0.8)


def test_equal_generators_give_equal_results():
    (draw,) = BETTER.values()
    assert simulated(draw, 10, 20) == simulated(draw, 10, 20)


def test_no_runs_are_refused():
    with pytest.raises(InputError, match=r"simulate_scores\.runs: expected >= 1, got 0"):
        simulated(LEVEL[EXPONENTIAL], 10, 0)

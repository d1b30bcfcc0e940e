import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.decision import Decision, judge
from cadenza.loop.orchestrator.evidence import first_evidence
from cadenza.loop.orchestrator.first_blessing import first_blessing
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan

THRESHOLDS = ThresholdConfig()


def plan(first: int, most: int, *, cycles: int = 3, alpha: float = 0.05) -> SequentialPlan:
    return SequentialPlan(
        first=first, growth=2.0, max_episodes=most, alpha=alpha, comparisons=cycles - 1
    )


def test_single_look_has_its_closed_form():
    only = plan(10, 10)
    assert only.bar_alphas == pytest.approx([0.05 / 3])
    # P(Bin(10, 0.05) >= 3) = 1.15 %, of 2 successes 8.6 %: three are needed
    found = first_blessing(0.2, only, THRESHOLDS)
    assert found.blessed == pytest.approx(stats.binom.sf(2, 10, 0.2))
    assert found.mean_episodes == pytest.approx(10.0)


@pytest.mark.parametrize("most", [10, 50, 420])
@pytest.mark.parametrize("cycles", [2, 3, 10])
@pytest.mark.parametrize("bar", [0.05, 0.3, 0.9])
def test_run_of_policies_at_the_bar_blesses_one_with_at_most_the_level(most, cycles, bar):
    found = first_blessing(bar, plan(10, most, cycles=cycles), ThresholdConfig(min_promote=bar))
    assert found.blessed * cycles <= 0.05


def test_first_candidate_that_solves_nothing_costs_less_than_the_budget():
    found = first_blessing(0.0, plan(10, 420), THRESHOLDS)
    assert (found.blessed, found.mean_episodes) == (0.0, 160.0)
    assert first_blessing(1.0, plan(10, 420), THRESHOLDS).mean_episodes == 10.0


def test_probabilities_agree_with_runs_over_single_episodes():
    looks, runs, rate = plan(10, 80), 200, 0.15
    rng = np.random.default_rng(2)
    blessed, episodes = 0, 0
    for _ in range(runs):
        solved = rng.uniform(size=80) < rate
        for look, (size, alpha) in enumerate(zip(looks.sizes, looks.bar_alphas, strict=True)):
            outcomes = [
                EpisodeOutcome(task="t", seed=i, success=bool(solved[i])) for i in range(size)
            ]
            found = first_evidence(outcomes, metric="success", alpha=alpha, look=look, seed=0)
            left = looks.looks_left(look)
            decision = judge(found, (), THRESHOLDS, warm_up=False, looks_left=left).decision
            if decision is not None:
                blessed += decision is Decision.PROMOTE
                episodes += size
                break
    expected = first_blessing(rate, looks, THRESHOLDS)
    low, high = stats.binom.interval(0.998, runs, expected.blessed)
    assert low <= blessed <= high
    assert 0.3 < expected.blessed < 0.9
    assert episodes / runs == pytest.approx(expected.mean_episodes, abs=3.1 * 30 / runs**0.5)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rate_out_of_range_is_refused(rate):
    with pytest.raises(InputError, match=r"first_blessing\.rate: expected in \[0, 1\], got"):
        first_blessing(rate, plan(10, 10), THRESHOLDS)

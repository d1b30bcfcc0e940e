"""What decisions of whole runs are worth, by a small simulation; `tools/` has the full one."""

import numpy as np
import pytest
from scipy import stats

from cadenza.evaluation.statistics.paired_outcomes import paired_outcome_interval
from cadenza.loop.config import LoopConfig, ThresholdConfig
from cadenza.loop.orchestrator.decision import Decision, SequentialPlan, judge
from cadenza.loop.orchestrator.evidence import Evidence
from tests.campaigns import size
from tools.simulate_loop_decisions import (
    ALIKE,
    GO_ON,
    PROMOTE,
    SHARED,
    STOP,
    Scenario,
    decisions,
    look_levels,
    plan_of,
    simulate,
)

#: Runs per cell, and the probability with which a true claim may fail its test.
RUNS = 2_000
ERROR = 1e-3
THRESHOLDS = ThresholdConfig()
#: Of so many runs, more than this many wrong ones happen with probability < ERROR at 5 %.
MOST_WRONG = stats.binom.ppf(1 - ERROR, RUNS, 0.05)
#: Fewer than this many promotions happen with probability < ERROR at 80 %.
LEAST_RIGHT = stats.binom.ppf(ERROR, RUNS, 0.8)


def shipped():
    return SequentialPlan.of_run(LoopConfig.from_yaml("configs/loop/native_crossing.yaml"))


def simulated(scenario, *, comparisons=6, plan=None, runs=RUNS, seed=0):
    rng = np.random.default_rng(seed)
    return simulate(
        scenario, plan or shipped(), THRESHOLDS, comparisons=comparisons, runs=runs, rng=rng
    )


@pytest.mark.parametrize("spent", [0.0, 0.02, 0.0499])
@pytest.mark.parametrize("look", [0, 2, 3])
def test_simulation_decides_as_the_loop_does(look, spent):
    plan, rng = shipped(), np.random.default_rng(look)
    alphas, size, found = plan.alphas(spent), plan.sizes[look], []
    assert look_levels(plan, np.array([spent]))[0] == pytest.approx(alphas)
    wins, losses, _ = rng.multinomial(size, [0.25, 0.25, 0.5], size=60).T
    losses = np.where(np.arange(60) % 2, losses, losses // 2)
    told = decisions(plan, THRESHOLDS, look, wins, losses, np.full(60, alphas[look]))
    for w, c in zip(wins.tolist(), losses.tolist(), strict=True):
        bounds = paired_outcome_interval(w, c, size, tail=alphas[look])
        likely = paired_outcome_interval(w, c, size, tail=plan.futility)
        measured = Evidence(
            candidate=w / size, baseline=c / size, difference=(w - c) / size, lower=bounds[0],
            upper=bounds[1], likely_lower=likely[0], likely_upper=likely[1], n_pairs=size,
            method="test",
        )  # fmt: skip
        left = plan.looks_left(look)
        verdict = judge(measured, (), THRESHOLDS, warm_up=False, looks_left=left).decision
        found.append({None: GO_ON, Decision.PROMOTE: PROMOTE}.get(verdict, STOP))
    assert told.tolist() == found
    assert len(set(found)) > 1


@pytest.mark.parametrize("concentration", [ALIKE, SHARED])
@pytest.mark.parametrize("rate", size([0.1, 0.5, 0.95], [0.1, 0.3, 0.5, 0.8, 0.95]))
def test_equal_candidates_are_rarely_blessed_and_cost_at_most_three_fifths(rate, concentration):
    result = simulated(Scenario(reference=rate, concentration=concentration), comparisons=12)
    assert result.promoted <= MOST_WRONG
    assert result.mean_episodes <= 0.6 * shipped().max_episodes


def test_giving_back_the_level_of_looks_that_were_not_taken_would_fail_the_claim():
    # the mutant: the level of each comparison is whole again, as if futility had cost nothing
    rng, plan, wrong = np.random.default_rng(0), shipped(), 0
    for _ in range(6):
        wrong += simulate(
            Scenario(reference=0.5), plan, THRESHOLDS, comparisons=1, runs=RUNS, rng=rng
        ).promoted
    assert wrong > MOST_WRONG


@pytest.mark.parametrize("rate", [0.3, 0.5])
@pytest.mark.parametrize("concentration", [ALIKE, SHARED])
def test_shipped_plan_sees_a_true_gain_of_ten_points_at_once(rate, concentration):
    scenario = Scenario(reference=rate, gain=0.1, concentration=concentration)
    assert simulated(scenario, comparisons=1).promoted_at_once >= LEAST_RIGHT


def test_half_the_budget_would_fail_the_claim():
    result = simulated(Scenario(reference=0.5, gain=0.1), comparisons=1, plan=plan_of(240))
    assert result.promoted_at_once < LEAST_RIGHT


# Scores

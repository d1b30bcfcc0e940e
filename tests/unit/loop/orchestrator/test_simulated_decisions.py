"""What decisions of whole runs are worth, by a small simulation; `tools/` has the full one."""

import numpy as np
import pytest
from scipy import stats

from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import CheckpointRecord, EpisodeOutcome
from cadenza.loop.orchestrator.comparison import comparison_of, weigh
from cadenza.loop.orchestrator.decision import Decision
from cadenza.loop.state import LoopState
from tests.campaigns import size
from tools.simulate_loop_decisions import (
    ALIKE,
    PROMOTE,
    ROLLBACK,
    SHARED,
    STOP,
    Rule,
    Scenario,
    compare,
    ends_of_scores,
    ends_of_signs,
    own_mean,
    simulate,
)

#: Runs per cell, and the probability with which a true claim may fail its test.
RUNS = size(2_000, 4_000)
ERROR = 1e-3
#: Of so many runs, more than this many wrong ones happen with probability < ERROR at 5 %.
MOST_WRONG = stats.binom.ppf(1 - ERROR, RUNS, 0.05)
#: Fewer than this many promotions happen with probability < ERROR at 80 %.
LEAST_RIGHT = stats.binom.ppf(ERROR, RUNS, 0.8)
BLESSED = CheckpointRecord(policy_type="bc", path="/given", cycle=-1, blessed=True)
CODES = {Decision.PROMOTE: PROMOTE, Decision.ROLLBACK: ROLLBACK}
SCORES = {
    "promote_delta": 0.05, "regression_delta": 0.05, "plateau_epsilon": 0.01,
    "escalate_floor": 0.0, "min_promote": 0.0,
}  # fmt: skip


def weighed(sides, settings):
    """Return how a real comparison of these outcomes ends, and after how many pairs."""
    state = LoopState(run_id="r", blessed=BLESSED, spent=0.0)
    verdict, found = weigh(comparison_of(settings, state), settings, state, *sides)
    return CODES.get(verdict.decision, STOP), found.n_pairs


def episodes(values, *, score):
    return [
        EpisodeOutcome(
            task="t", seed=seed, success=bool(v > 0.5), score=float(v) if score else None
        )
        for seed, v in enumerate(values)
    ]


@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.15])
def test_simulated_success_ends_as_in_the_loop(gain):
    settings = LoopConfig.from_yaml("configs/loop/native_crossing.yaml")
    signs = Scenario(reference=0.5, gain=gain).draw(np.random.default_rng(0), 8, 480)
    ends, stops = ends_of_signs(signs, Rule())
    for row, *told in zip(signs, ends.tolist(), stops.tolist(), strict=True):
        sides = (episodes(row > 0, score=False), episodes(row < 0, score=False))
        assert weighed(sides, settings) == tuple(told)
    assert len(set(stops.tolist())) >= 3


def test_simulated_scores_end_as_in_the_loop():
    settings = LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/d",
            "eval": {"metric": "score", "score_range": [0.0, 1.0], "max_episodes": 100},
            "thresholds": SCORES,
        },
        source="test",
    )
    rng = np.random.default_rng(0)
    found = []
    for shift in (0.0, 0.1, 0.15, -0.2):
        one, other = rng.beta(4, 4, (2, 4, 100))
        one = np.clip(one + shift, 0.0, 1.0)
        told = ends_of_scores(one - other, Rule(most=100))
        for row in range(4):
            sides = (episodes(one[row], score=True), episodes(other[row], score=True))
            assert weighed(sides, settings) == (told.ends[row], told.stops[row])
        found += told.ends.tolist()
    assert PROMOTE in found
    assert STOP in found


@pytest.mark.parametrize("concentration", [ALIKE, SHARED])
@pytest.mark.parametrize("rate", size([0.1, 0.5, 0.95], [0.1, 0.3, 0.5, 0.8, 0.95]))
def test_equal_candidates_are_rarely_blessed_and_cost_at_most_three_fifths(rate, concentration):
    result = simulate(
        Scenario(reference=rate, concentration=concentration), Rule(), comparisons=size(6, 20),
        runs=RUNS, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert result.promoted[-1] <= MOST_WRONG
    assert result.mean_pairs <= 0.6 * 480


def test_equal_candidates_of_shared_and_opposite_luck_are_rarely_blessed():
    # the exact rule needs no independent arms: what helps one may hurt the other
    luck = np.random.default_rng(0).uniform(size=(RUNS, 480))
    signs = np.sign(luck - 0.5).astype(np.int8)
    ends, _ = ends_of_signs(signs, Rule(promote_delta=0.0))
    assert (ends == PROMOTE).sum() <= stats.binom.ppf(1 - ERROR, RUNS, 0.025)


def test_giving_back_the_level_of_pairs_that_were_not_played_would_fail_the_claim():
    # the mutant: the level of each comparison is whole again, as if futility had cost nothing
    rng = np.random.default_rng(0)
    wrong = sum(
        int((compare(Scenario(reference=0.5), Rule(), RUNS, rng)[0] == PROMOTE).sum())
        for _ in range(6)
    )
    assert wrong > MOST_WRONG


@pytest.mark.parametrize(("rate", "pairs"), [(0.45, 291), (0.8, 204)])
def test_a_true_gain_of_ten_points_is_seen_at_once_with_fewer_pairs_than_planned(rate, pairs):
    rng = np.random.default_rng(0)
    ends, stops = compare(Scenario(reference=rate, gain=0.1), Rule(), RUNS, rng)
    assert (ends == PROMOTE).sum() >= LEAST_RIGHT
    assert stops.mean() == pytest.approx(pairs, rel=0.05)


def test_half_the_budget_would_fail_the_claim():
    rng = np.random.default_rng(0)
    ends, _ = compare(Scenario(reference=0.5, gain=0.1), Rule(most=240), RUNS, rng)
    assert (ends == PROMOTE).sum() < LEAST_RIGHT


def test_a_first_candidate_at_the_bar_is_rarely_blessed_and_a_good_one_soon():
    options = {"bar": 0.05, "level": 0.025, "most": 480, "runs": RUNS}
    at_bar, _ = own_mean(0.05, **options, rng=np.random.default_rng(0))
    assert at_bar <= stats.binom.ppf(1 - ERROR, RUNS, 0.025)
    good, episodes_played = own_mean(0.5, **options, rng=np.random.default_rng(0))
    assert good == RUNS
    assert episodes_played < 30


@pytest.mark.parametrize("metric", ["success", "score"])
def test_a_delta_of_more_than_half_the_range_does_not_give_up_whatever_comes(metric):
    measured = {"metric": metric, "n_episodes": 10, "max_episodes": 480}
    if metric == "score":
        measured["score_range"] = [0.0, 1.0]
    settings = LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/d",
            "eval": measured,
            "thresholds": {**SCORES, "promote_delta": 0.6, "regression_delta": 0.6},
        },
        source="test",
    )
    better = np.where(np.arange(480) % 6 == 0, 0.0, 0.9)
    sides = (episodes(better, score=True), episodes(np.zeros(480), score=True))
    end, pairs = weighed(sides, settings)
    assert end == PROMOTE
    assert 10 < pairs < 100


def of_tasks(gains, rounds):
    """Return candidate and reference on rounds of tasks that one of them always wins."""
    names = [(f"t{task}", gain) for task, gain in enumerate(gains)]
    one = [
        EpisodeOutcome(task=name, seed=seed, success=gain > 0 or (gain == 0 and seed % 2 == 0))
        for name, gain in names
        for seed in range(rounds)
    ]
    other = [
        EpisodeOutcome(task=name, seed=seed, success=gain < 0 or (gain == 0 and seed % 2 == 0))
        for name, gain in names
        for seed in range(rounds)
    ]
    return one, other


@pytest.mark.parametrize(("gains", "end"), [((1, 0, 0, -1), STOP), ((1, 0, 0, 0), PROMOTE)])
def test_tasks_are_judged_in_complete_rounds_however_they_arrive(gains, end):
    # sorted by task, 40 wins would come before the first loss
    settings = LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/d",
            "eval": {"max_episodes": 40, "n_episodes": 40},
        },
        source="test",
    )
    found, pairs = weighed(of_tasks(gains, 40), settings)
    assert found == end
    assert pairs in ({12, 20, 32, 40, 52, 60} if end == PROMOTE else {160})

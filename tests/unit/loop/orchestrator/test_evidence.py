import json
import re

import pytest

from cadenza.core.errors import InputError
from cadenza.loop.config import EvalConfig
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport
from cadenza.loop.orchestrator.evidence import (
    RAW_CHARS,
    paired_rounds,
    pooled_report,
    selection_values,
    told_report,
)


def outcomes(successes, *, task="push", start=0):
    """Return one episode per character, 1 for success, on seeds from ``start``."""
    return [
        EpisodeOutcome(task=task, seed=start + i, success=c == "1") for i, c in enumerate(successes)
    ]


def scored(*scores):
    return [EpisodeOutcome(task="push", seed=i, success=False, score=s) for i, s in
            enumerate(scores)]  # fmt: skip


def test_rounds_are_initial_states_in_the_order_of_their_seeds_with_all_tasks():
    candidate = outcomes("1100", task="push") + outcomes("1111", task="lift")
    rounds, _ = paired_rounds(candidate[::-1], candidate)
    assert [[(e.seed, e.task) for e in row] for row in rounds] == [
        [(seed, "lift"), (seed, "push")] for seed in range(4)
    ]


@pytest.mark.parametrize(
    ("candidate", "reference", "message"),
    [
        (outcomes("11") + outcomes("1", start=1), outcomes("11"), "candidate: .* got two of ta"),
        ([], [], "candidate: expected at least one episode"),
        (outcomes("1111"), outcomes("111"), r"got 1 only of the candidate \(first: 'push' se"),
        (
            outcomes("11") + outcomes("1", task="lift"),
            outcomes("11") + outcomes("1", task="lift"),
            "candidate: expected equally many tasks from every initial state, got 1 to 2",
        ),
    ],
)
def test_episodes_that_cannot_be_compared_are_named(candidate, reference, message):
    with pytest.raises(InputError, match=message):
        paired_rounds(candidate, reference)


def test_policies_are_chosen_by_means_or_by_who_scores_higher_more_often():
    steady, rash = scored(0.5, 0.5, 0.5, 0.5), scored(0.6, 0.6, 0.6, -9.0)
    by_mean = EvalConfig(metric="score", score_range=(-1.0, 1.0))
    assert selection_values([steady, rash], by_mean) == [0.5, pytest.approx((1.8 - 1.0) / 4)]
    wins = EvalConfig(metric="wins")
    assert selection_values([steady, rash], wins) == [0.25, 0.75]
    assert selection_values([outcomes("1100"), outcomes("1110")], EvalConfig()) == [0.5, 0.75]
    with pytest.raises(
        InputError, match=r"got none for task 'push', seed 0; set eval\.metric to suc"
    ):
        selection_values([outcomes("1"), outcomes("1")], wins)


REPORT = EvalReport(
    checkpoint="/p", env_type="e", task_suite="s", n_episodes=1, success_rate=1.0,
    raw={"videos": ["v"]},
)  # fmt: skip


def outcome(task, seed, success, score=None):
    return EpisodeOutcome(task=task, seed=seed, success=success, score=score)


def test_pooled_report_counts_all_episodes_by_task():
    outcomes = [outcome("b", 0, True), outcome("a", 1, False), outcome("b", 2, False)]
    pooled = pooled_report(REPORT, outcomes)
    assert (pooled.n_episodes, pooled.success_rate) == (3, pytest.approx(1 / 3))
    assert pooled.per_task == {"a": 0.0, "b": 0.5}
    assert list(pooled.per_task) == ["a", "b"]
    assert pooled.outcomes == tuple(outcomes)
    assert (pooled.raw, pooled.checkpoint) == (REPORT.raw, "/p")


def test_raw_data_beyond_the_bound_are_cut_not_left_out():
    tasks = [
        {"task_id": i, "metrics": {"successes": [True] * 50, "video": "v" * 999}} for i in range(90)
    ]
    raw = {"per_task": tasks, "overall": {"pc_success": 50.0}}
    told = told_report(REPORT.model_copy(update={"raw": raw})).raw
    assert 1000 < len(json.dumps(told)) <= RAW_CHARS
    assert told["overall"] == {"pc_success": 50.0}
    assert told["per_task"][0]["task_id"] == 0
    assert re.fullmatch(r"\d+ left out", told["per_task"][-1])
    assert len(told["per_task"][0]["metrics"]["video"]) == 200
    wide = {f"k{i}": i for i in range(5000)}
    assert told_report(REPORT.model_copy(update={"raw": wide})).raw["left out"] == 5000 - 64

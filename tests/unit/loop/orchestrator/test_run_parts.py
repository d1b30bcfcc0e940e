"""Small parts of a run: reports, digests, incidents, what a step needs."""

import json
import re

import pytest

from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport
from cadenza.loop.orchestrator.evidence import RAW_CHARS, pooled_report, told_report

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

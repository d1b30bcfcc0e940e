"""Small parts of a run: reports, digests, incidents, what a step needs."""

import json
import re

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_file
from cadenza.core.tree_digest import tree_digest
from cadenza.loop.contracts.records import CheckpointRecord, EpisodeOutcome, EvalReport
from cadenza.loop.jobs.reports import Incident
from cadenza.loop.jobs.spec import JobKey
from cadenza.loop.orchestrator.checkpoints import require_intact, weights_digest
from cadenza.loop.orchestrator.reports import RAW_CHARS, mean_value, pooled_report, told_report
from cadenza.loop.orchestrator.session import IncidentLog

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


def test_mean_value_is_that_of_the_metric():
    outcomes = [outcome("a", 0, True, 0.5), outcome("a", 1, False, 0.25)]
    assert mean_value(outcomes, "success") == 0.5
    assert mean_value(outcomes, "score") == 0.375


def test_weights_are_a_file_or_a_folder(tmp_path):
    file = tmp_path / "folder" / "weights"
    file.parent.mkdir()
    file.write_text("w")
    assert weights_digest(file) == sha256_file(file)
    assert weights_digest(file.parent) == tree_digest(file.parent)
    with pytest.raises(IntegrityError, match="expected the weights of a policy, got nothing"):
        weights_digest(tmp_path / "missing")


def test_checkpoint_is_intact_until_its_weights_change(tmp_path):
    path = tmp_path / "weights"
    path.write_text("w")
    record = CheckpointRecord(
        policy_type="bc", path=str(path), cycle=3, sha256=weights_digest(path)
    )
    assert require_intact(record) is record
    path.write_text("v")
    with pytest.raises(IntegrityError, match="expected the weights of cycle 3 with SHA-256"):
        require_intact(record)
    undigested = record.model_copy(update={"sha256": None, "path": "/nowhere"})
    assert require_intact(undigested) is undigested


def test_incidents_are_appended_line_by_line(tmp_path):
    log = IncidentLog(tmp_path / "run")
    log.note("resumed", "again", step="0/train")
    key = JobKey(run_id="run", cycle=1, stage="train")
    log.note_job(Incident(kind="adopted", key=key, attempt=2, message="found it"))
    lines = (tmp_path / "run" / "incidents.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["kind"], first["message"], first["step"]) == ("resumed", "again", "0/train")
    assert first["ts"] > 0
    assert {key: second[key] for key in ("kind", "cycle", "stage", "attempt", "message")} == {
        "kind": "adopted", "cycle": 1, "stage": "train", "attempt": 2, "message": "found it",
    }  # fmt: skip

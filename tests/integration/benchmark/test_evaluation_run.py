"""Evaluations on the real crossing task: equal bytes whatever happens on the way."""

import json
import shutil
import signal
import time

import pytest

from cadenza.benchmark.cells import (
    CellRunner,
    EvaluationPlan,
    cell_path,
    initial_state_seed,
    read_cell,
    store_cell,
)
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.evaluation_run import EvaluationConfig, make_plan, run_evaluation
from cadenza.benchmark.policies import GoalPolicy, ZeroPolicy
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.core.device import network_fingerprint, single_torch_thread
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.files import canonical_json, sha256_bytes
from tests.campaigns import nightly, size
from tests.e2e.commands import LIMIT_S, Started

SETTINGS = {
    "task": "crossing",
    "policies": ["goal_pd"],
    "partners": ["crossing_goal_seeker", "crossing_wanderer", "crossing_chaser"],
    "seeds": [3, 4],
    "episodes_per_seed": 3,
    "block_size": 2,
}


def evaluate(settings, out, *, workers=1, **changes):
    """Run with a provenance that does not depend on the state of this source tree."""
    return run_evaluation(settings, out=out, workers=workers, repo_root=out, **changes)


def config(**changes):
    return EvaluationConfig.model_validate(SETTINGS | changes)


def bundle_bytes(folder):
    return {
        str(path.relative_to(folder / "bundles")): path.read_bytes()
        for path in sorted((folder / "bundles").rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Output folder of an undisturbed run in this process."""
    folder = tmp_path_factory.mktemp("reference") / "out"
    evaluate(config(), folder)
    return folder


def test_bundle_of_a_run_passes_verification(reference):
    rows = verify_bundle_dir(reference / "bundles" / "goal_pd", allow_dirty=True)
    assert [row for row in rows if not row.ok] == []


def test_filter_prevents_every_contact_and_contacts_occur_without_it(reference):
    content = json.loads((reference / "bundles" / "goal_pd" / "bundle.json").read_text())
    contacts = {"filter_on": 0.0, "filter_off": 0.0}
    for cell in content["summary"]["cells"]:
        contacts[cell["condition"]] += cell["contact"]["value"] * cell["contact"]["n"]
    assert contacts["filter_on"] == 0.0
    assert contacts["filter_off"] >= 10.0  # of 18: driving straight at a crossing robot


@pytest.mark.parametrize(("workers", "lanes"), [(2, 3), (1, 2)])
def test_neither_workers_nor_lanes_change_a_byte(reference, tmp_path, workers, lanes):
    evaluate(config(), tmp_path / "out", workers=workers, lanes=lanes)
    assert bundle_bytes(tmp_path / "out") == bundle_bytes(reference)
    for path in (reference / "cells").iterdir():
        assert (tmp_path / "out" / "cells" / path.name).read_bytes() == path.read_bytes()


def test_cells_of_a_machine_that_rounds_otherwise_are_not_continued(reference, tmp_path):
    shutil.copytree(reference, tmp_path / "out")
    first, second = list(make_plan(config()).cells)[:2]
    cell_path(tmp_path / "out", first).unlink()
    path = cell_path(tmp_path / "out", second)
    header, *lines, _ = path.read_bytes().splitlines(keepends=True)
    body = header.replace(network_fingerprint().encode(), b"0" * 64) + b"".join(lines)
    closing = canonical_json({"episodes": len(lines), "sha256": sha256_bytes(body)})
    path.write_bytes(body + closing + b"\n")
    with pytest.raises(ConfigurationError, match=r"finished cells: expected the bits of this"):
        evaluate(config(), tmp_path / "out", resume=True)


def test_plan_names_what_plays_each_condition():
    safety = {"enabled": True}
    conditions = [
        {"name": "filter_on", "safety": safety},
        {"name": "strict", "safety": safety | {"rate_limit": "soft"}},
        {"name": "heard", "link": "wifi"},
    ]
    engine = make_plan(config(conditions=conditions)).engine
    assert engine.conditions == {
        "filter_on": "lanes/1", "strict": "scalar/1", "heard": "scalar/1",
    }  # fmt: skip
    assert engine.of("filter_on") == {"name": "lanes/1", "block_rows": 64, "filter_rows": 128}


def test_plan_of_the_first_schema_is_played_by_the_scalar_loop(tmp_path):
    plan = make_plan(config(seeds=[3], partners=["crossing_wanderer"]))
    old = plan.model_copy(update={"schema_version": 1, "engine": None})
    assert b"engine" not in old.to_bytes()
    assert EvaluationPlan.from_bytes(old.to_bytes()) == old
    assert not set(old.cells) & set(plan.cells)
    (key, cell), *_ = old.cells.items()
    store_cell(tmp_path, key, CellRunner(plan=old, artifacts_root=tmp_path)(key))
    world = open_world(
        env=old.env,
        partner=old.partner(cell.partner).partner,
        safety=old.condition(cell.condition).safety,
        root_seed=3,
        make_policy=GoalPolicy,
    )
    with single_torch_thread(), world as one:
        alone = run_episode(
            one,
            EpisodeTag(
                seed=3,
                episode_idx=0,
                initial_state_seed=initial_state_seed(3, 0),
                policy="goal_pd",
                condition=cell.condition,
                partner=cell.partner,
            ),
        )
    assert read_cell(tmp_path, key, old)[0] == alone


def test_cell_that_takes_too_long_is_recorded_and_nothing_is_dropped(tmp_path):
    hurried = config(
        cell_time_limit_s=1e-3,
        failure_policy="best_effort",
        seeds=[3],
        partners=["crossing_chaser"],
        conditions=[{"name": "filter_off"}],
        episodes_per_seed=1,
    )
    outcome = evaluate(hurried, tmp_path)
    assert [failure.error for failure in outcome.failures] == ["TimeLimitExceeded"]
    rows = verify_bundle_dir(outcome.bundles["goal_pd"], allow_dirty=True)
    assert "failures:none" in [row.name for row in rows if not row.ok]


def test_same_seed_gives_the_same_start_under_every_condition_and_partner(reference):
    plan = make_plan(config())
    runner = CellRunner(plan=plan, artifacts_root=reference)
    starts = {}
    for cell in plan.cells.values():
        if cell.first_episode == 0:
            _, trajectory = runner.replay(cell, 1)
            start = tuple(trajectory.frames[0]["ego"]) + tuple(trajectory.frames[0]["partner"])
            starts.setdefault(cell.seed, set()).add(start)
    assert {seed: len(found) for seed, found in starts.items()} == {3: 1, 4: 1}
    assert starts[3] != starts[4]


def test_replay_gives_the_stored_episode(reference):
    outcome = evaluate(config(), reference, workers=1, resume=True)
    runner = CellRunner(plan=outcome.plan, artifacts_root=reference)
    cell = next(c for c in outcome.plan.cells.values() if c.first_episode == 2)
    result, trajectory = runner.replay(cell, 2)
    stored = next(
        e
        for e in outcome.episodes["goal_pd"]
        if (e.seed, e.condition, e.partner, e.initial_state_seed)
        == (cell.seed, cell.condition, cell.partner, result.initial_state_seed)
    )
    assert result == stored
    assert len(trajectory.frames) == stored.n_steps + 1


def test_torn_and_tampered_cells_are_run_again_and_reported(reference, tmp_path):
    shutil.copytree(reference, tmp_path / "out")
    outcome = evaluate(config(), tmp_path / "out", resume=True)
    torn, tampered, missing = list(outcome.plan.cells)[:3]
    path = cell_path(tmp_path / "out", torn)
    path.write_bytes(path.read_bytes()[:100])
    path = cell_path(tmp_path / "out", tampered)
    path.write_bytes(path.read_bytes().replace(b'"success":true', b'"success":false'))
    cell_path(tmp_path / "out", missing).unlink()
    outcome = evaluate(config(), tmp_path / "out", workers=1, resume=True)
    assert outcome.reused == len(outcome.plan.cells) - 3
    assert {torn, tampered} >= set(outcome.redone) >= {torn}
    assert bundle_bytes(tmp_path / "out") == bundle_bytes(reference)


def test_damaged_bundle_is_rebuilt_from_its_cells(reference, tmp_path):
    shutil.copytree(reference, tmp_path / "out")
    (tmp_path / "out" / "bundles" / "goal_pd" / "REPRO.txt").write_text("x")
    evaluate(config(), tmp_path / "out", workers=1, resume=True)
    assert bundle_bytes(tmp_path / "out") == bundle_bytes(reference)


CHILD = """
import sys
from pathlib import Path
from cadenza.benchmark.evaluation_run import EvaluationConfig
from cadenza.benchmark.evaluation_run import run_evaluation

if __name__ == "__main__":
    config = EvaluationConfig.model_validate_json(sys.argv[1])
    out = Path(sys.argv[2])
    run_evaluation(config, out=out, workers=int(sys.argv[3]), resume=True, repo_root=out)
"""

#: Kills its workers, one at work and one between two cells, when the first cell is done.
KILLS_WORKERS = """
import multiprocessing

def kill_workers(done, total, label):
    if done == 1:
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.kill()
        (out / "killed").write_text(f"{len(workers)} of {total - done} cells before the end")

""" + CHILD.replace("resume=True", "resume=True, progress=kill_workers")


def start_child(tmp_path, workers, program=CHILD):
    script = tmp_path / "child.py"
    script.write_text(program)
    words = [config().model_dump_json(), tmp_path / "out", str(workers)]
    return Started(script, *words, cwd=tmp_path)


def end_of(child):
    done = child.outcome(LIMIT_S)
    assert done.code == 0, done.err


def test_run_killed_at_random_moments_resumes_to_the_same_bytes(reference, tmp_path):
    cells = tmp_path / "out" / "cells"
    workers = size(1, 2)
    for more in size([3], [1, 5, 4]):
        child = start_child(tmp_path, workers)
        before = len(list(cells.glob("*.jsonl")))
        while child.process.poll() is None and len(list(cells.glob("*.jsonl"))) < before + more:
            time.sleep(0.002)
        child.process.kill()
        assert child.outcome(LIMIT_S).code in (0, -signal.SIGKILL)
    end_of(start_child(tmp_path, workers))
    assert bundle_bytes(tmp_path / "out") == bundle_bytes(reference)


@nightly
def test_run_with_killed_workers_ends_with_the_same_bytes(reference, tmp_path):
    end_of(start_child(tmp_path, workers=2, program=KILLS_WORKERS))
    assert (tmp_path / "out" / "killed").read_text() == "2 of 23 cells before the end"
    assert bundle_bytes(tmp_path / "out") == bundle_bytes(reference)


def test_other_settings_in_the_same_folder_are_refused(reference):
    with pytest.raises(ConfigurationError, match=r"with seeds = \[3, 4\], got \[3\]; use"):
        evaluate(config(seeds=[3]), reference, workers=1, resume=True)


@pytest.fixture
def failing_policy(monkeypatch):
    """Settings whose policy raises on every second episode seed."""

    def reset_row(self, row, *, seed):
        if seed % 2:
            raise InputError("this policy dislikes odd seeds")

    monkeypatch.setattr(ZeroPolicy, "reset_row", reset_row)
    return config(policies=["zero"], partners=["crossing_stationary"], block_size=1)


def test_strict_run_names_the_failed_cell_and_keeps_the_others(failing_policy, tmp_path):
    with pytest.raises(
        InputError, match=r"cell zero / .* episodes .*: episode \d .*dislikes odd seeds"
    ):
        evaluate(failing_policy, tmp_path)
    assert not (tmp_path / "bundles").exists()


def test_best_effort_run_records_failures_and_its_bundle_does_not_verify(failing_policy, tmp_path):
    lenient = failing_policy.model_copy(update={"failure_policy": "best_effort"})
    outcome = evaluate(lenient, tmp_path)
    assert 0 < len(outcome.failures) < len(outcome.plan.cells)
    played = len(outcome.episodes["zero"])
    assert played == len(outcome.plan.cells) - len(outcome.failures)
    rows = verify_bundle_dir(outcome.bundles["zero"], allow_dirty=True)
    assert [row.name for row in rows if not row.ok] == ["failures:none", "summary:n_episodes"]
    assert not all_ok(rows)


def test_several_partners_in_one_scene_are_played_and_sealed(tmp_path):
    crowd = config(options={"num_robots": 4}, partners=["crossing_stationary"], seeds=[3])
    outcome = evaluate(crowd, tmp_path)
    rows = verify_bundle_dir(outcome.bundles["goal_pd"], allow_dirty=True)
    assert [row for row in rows if not row.ok] == []
    runner = CellRunner(plan=outcome.plan, artifacts_root=tmp_path)
    _, trajectory = runner.replay(next(iter(outcome.plan.cells.values())), 0)
    assert sorted(trajectory.frames[0]) == ["ego", "partner", "robot_2", "robot_3"]


def test_task_without_success_predicate_says_so(tmp_path):
    push = EvaluationConfig.model_validate(
        {
            "task": "mpe_cooperative_push",
            "policies": ["zero"],
            "conditions": [{"name": "filter_off"}],
            "seeds": [0],
            "episodes_per_seed": 2,
        }
    )
    outcome = evaluate(push, tmp_path, workers=None)
    assert not outcome.has_success
    assert not any(episode.success for episode in outcome.episodes["zero"])
    content = json.loads((outcome.bundles["zero"] / "bundle.json").read_text())
    assert content["metadata"]["has_success"] is False
    # -sum of landmark distances over 50 steps: negative, and about -66 on average
    assert all(-200.0 < episode.episode_return < 0.0 for episode in outcome.episodes["zero"])

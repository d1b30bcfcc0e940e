"""Workers on their own: a plain runner, no store, as LeAgents uses them."""

import json
from pathlib import Path

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.loop.agents import (
    DataAgent,
    EvalAgent,
    EvalError,
    ImproveAgent,
    ImproveError,
    TrainAgent,
    TrainError,
)
from cadenza.loop.agents.base import cycle_of
from cadenza.loop.config import EvalConfig, ImproveConfig, PolicyRung, TrainConfig
from cadenza.loop.constitution import ConstitutionError, JobPlan, load_constitution
from cadenza.loop.constitution.typed_jobs import LeRobotSelect
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef, Proposal
from cadenza.loop.errors import DataError
from cadenza.loop.events import EventBus
from tests.loop_fakes import FakeBackend, FakeStack

RULES = load_constitution(None)
PLACE = {"run_id": "run", "cycle": 2}
EVAL = EvalConfig(env_type="crossing", task_suite="default", n_episodes=6, batch_size=4)


@pytest.fixture
def bus(tmp_path):
    made = EventBus(tmp_path / "events.jsonl")
    made.told = []
    made.subscribe(made.told.append)
    yield made
    made.close()


@pytest.fixture
def stack():
    return FakeStack([0.5, 0.5, 0.5])


@pytest.fixture
def dataset(tmp_path):
    root = tmp_path / "cycle_0" / "data"
    root.mkdir(parents=True)
    return DatasetRef(repo_id="local/d", root=str(root), num_episodes=3)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"rate": 0.5}))
    return CheckpointRecord(policy_type="bc", path=str(path), cycle=2)


def test_folder_of_a_job_tells_its_cycle():
    assert [cycle_of(Path(f"runs/{name}/x")) for name in ("cycle_7", "cycle_x", "a")] == [7, 0, 0]


def test_worker_on_its_own_may_read_what_it_is_given_and_no_more(
    bus, stack, tmp_path, checkpoint, dataset, monkeypatch
):
    place, backend = {**PLACE, "workdir": tmp_path / "run"}, FakeBackend()
    train = TrainAgent(TrainConfig(), RULES, bus, stack, backend=backend)
    for rung, init in (
        (PolicyRung(name="bc"), checkpoint.path),
        (PolicyRung(name="bc", init=checkpoint.path), None),
    ):
        made = train.run(**place, rung=rung, dataset=dataset, init_override=init, mix=dataset)
        assert made.path.startswith(str(tmp_path / "run"))
    play = EvalAgent(EVAL, RULES, bus, stack, backend=backend)
    assert play.run(**place, checkpoint=checkpoint).n_episodes == 6
    plan = backend.plan_eval
    hidden = checkpoint.model_copy(update={"path": str(tmp_path / "hidden")})
    monkeypatch.setattr(
        backend, "plan_eval", lambda asked: plan(asked.model_copy(update={"checkpoint": hidden}))
    )
    with pytest.raises(ConstitutionError, match="path_outside_roots"):
        play.run(**place, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        ("data", DataError),
        ("train", TrainError),
        ("eval", EvalError),
        ("harvest", ImproveError),
        ("merge", ImproveError),
    ],
)
def test_job_that_fails_or_leaves_nothing_usable_is_an_error_of_its_worker(
    stage, error, bus, tmp_path, dataset, checkpoint, monkeypatch
):
    stack, backend = FakeStack([0.5, 0.5, 0.5]), FakeBackend()
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    cfg = ImproveConfig(enabled=True, episodes=3, device="cpu")
    parts, place = {"backend": backend}, {**PLACE, "workdir": tmp_path}
    improve = ImproveAgent(cfg, EVAL, RULES, bus, stack, **parts)
    first, _ = improve.run(run_id="run", cycle=1, checkpoint=checkpoint, workdir=tmp_path)
    rung = PolicyRung(name="bc")
    train = TrainAgent(TrainConfig(), RULES, bus, stack, **parts)
    run = {
        "data": lambda: DataAgent(bus, stack, **parts).run(**place, proposal=proposal),
        "train": lambda: train.run(**place, rung=rung, dataset=dataset),
        "eval": lambda: EvalAgent(EVAL, RULES, bus, stack, **parts).run(
            **place, checkpoint=checkpoint
        ),
    }.get(stage, lambda: improve.run(**place, checkpoint=checkpoint, prev_mix=first))
    stack.failing.add((2, stage))
    with pytest.raises(error, match="expected an end with exit code 0, got exit code 1; see"):
        run()
    assert bus.told[-1].payload["exit_code"] == 1
    stack.failing.clear()

    def damaged(request):
        raise IntegrityError("expected a result, got none")

    if stage in ("train", "eval"):
        monkeypatch.setattr(backend, f"read_{stage}", damaged)
        with pytest.raises(error, match="expected a result, got none") as caught:
            run()
        assert isinstance(caught.value, IntegrityError)  # what a run ends with names its kind


@pytest.mark.parametrize("existing", ["keep", "remove"])
def test_default_runner_starts_the_back_ends_program_and_not_one_of_the_path(
    bus, tmp_path, dataset, monkeypatch, existing
):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for folder, word in ((tmp_path / "bin", "stranger"), (tmp_path, "ours")):
        program = folder / "cadenza-lerobot-select"
        program.write_text(f"#!/bin/sh\necho {word}\nexit 3\n")
        program.chmod(0o755)
    backend = FakeBackend()
    backend.programs = {"cadenza-lerobot-select": (str(tmp_path / "cadenza-lerobot-select"),)}
    plan = JobPlan(
        job=LeRobotSelect(repo_id="lerobot/x", suite="libero_spatial"),
        output_dir=tmp_path / "cycle_2" / "data",
        on_existing=existing,
    )
    plan.output_dir.mkdir(parents=True)  # of an earlier attempt
    monkeypatch.setattr(backend, "plan_data", lambda request: plan)
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    with pytest.raises(DataError, match="got exit code 3"):
        DataAgent(bus, backend=backend).run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert (tmp_path / "cycle_2" / "data.log").read_text() == "ours\n"
    assert plan.output_dir.exists() == (existing == "keep")

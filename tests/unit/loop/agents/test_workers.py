"""Workers on their own: a plain runner, no store, as LeAgents uses them."""

import json
from types import SimpleNamespace

import pytest

from cadenza.core.errors import InputError, IntegrityError
from cadenza.loop.agents import (
    DataAgent,
    EvalAgent,
    EvalError,
    ImproveAgent,
    ImproveError,
    TrainAgent,
    TrainError,
    dry_runner,
)
from cadenza.loop.agents.job_desk import PlainJobs
from cadenza.loop.backends.base import JobPlan, SeedRange
from cadenza.loop.config import EvalConfig, ImproveConfig, PolicyRung, TrainConfig
from cadenza.loop.constitution import Constitution, ConstitutionError, load_constitution
from cadenza.loop.constitution.verdict import quoted
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


def told(bus):
    return [(event.stage, event.kind) for event in bus.told]


# Data


def test_data_worker_without_back_end_takes_the_proposal_at_its_word(bus):
    proposal = Proposal(action="reuse_seed", dataset="lerobot/x", num_episodes=7, notes="n")
    dataset = DataAgent(bus).run(**PLACE, proposal=proposal)
    assert dataset == DatasetRef(repo_id="lerobot/x", num_episodes=7, notes="n")
    event = bus.told[0]
    assert (event.stage, event.kind, event.cycle) == ("collect", "dataset_resolved", 2)
    assert event.payload == {
        "action": "reuse_seed", "repo_id": "lerobot/x", "num_episodes": 7, "notes": "n",
        "task_filter": None, "episode_range": None, "sha256": None,
    }  # fmt: skip


# Training


def test_training_worker_trains_and_tells(bus, stack, tmp_path, dataset):
    backend = FakeBackend()
    worker = TrainAgent(TrainConfig(steps=9, batch_size=3), RULES, bus, stack, backend=backend)
    rung = PolicyRung(name="bc")
    made = worker.run(
        **PLACE, rung=rung, dataset=dataset, workdir=tmp_path, init_override=None, steps=4
    )
    assert made.path == str(tmp_path / "cycle_2" / "train" / "policy.json")
    assert made.sha256 is not None
    flags = stack.flags(2, "train")
    assert (flags["steps"], flags["batch-size"], "init" in flags) == ("4", "3", False)
    started, finished = bus.told
    assert (started.payload["stage"], started.payload["cmd"][:3]) == (
        "train", ["cadenza", "job", "train"]
    )  # fmt: skip
    assert list(started.payload) == ["stage", "cmd"]  # lines for people are cut short
    assert finished.payload["exit_code"] == 0
    assert finished.payload["log"] == str(tmp_path / "cycle_2" / "train.log")
    assert backend.checked == [(dataset.root, None)]


class Recorded:
    """Runs the jobs of a run, as a controller's runner does."""

    def __init__(self, stack):
        self.stack = stack

    def run(self, spec):
        return PlainJobs(self.stack).run(spec)


def test_command_of_a_run_may_read_only_its_folder_and_the_named_roots(
    bus, stack, tmp_path, checkpoint
):
    run, jobs = tmp_path / "run", Recorded(stack)
    worker = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(ConstitutionError, match="path_outside_roots") as caught:
        worker.run(**PLACE, checkpoint=checkpoint, workdir=run, jobs=jobs)
    assert str(caught.value).endswith(f"below {run}, got {quoted(checkpoint.path)}")
    freer = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend(), read_roots=(tmp_path,))
    assert freer.run(**PLACE, checkpoint=checkpoint, workdir=run, jobs=jobs).n_episodes == 6


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


# Evaluation


def test_evaluation_worker_plays_the_given_seeds(bus, stack, tmp_path, checkpoint):
    worker = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend())
    seeds = SeedRange(start=1000, count=2)
    report = worker.run(
        **PLACE, checkpoint=checkpoint, workdir=tmp_path, stage="eval_x", seeds=seeds
    )
    assert [outcome.seed for outcome in report.outcomes] == [1000, 1001]
    assert stack.flags(2, "eval_x")["batch-size"] == "2"  # never more than episodes
    assert bus.told[-1].payload == {
        "success_rate": report.success_rate, "task_suite": "default", "n_episodes": 2,
        "stage": "eval_x",
    }  # fmt: skip


# Improvement


@pytest.fixture
def improve(bus, stack):
    cfg = ImproveConfig(enabled=True, episodes=3, device="cpu")
    return ImproveAgent(cfg, EVAL, RULES, bus, stack, backend=FakeBackend())


def test_next_harvest_is_merged_with_the_mix(improve, bus, stack, tmp_path, checkpoint):
    first, _ = improve.run(run_id="run", cycle=1, checkpoint=checkpoint, workdir=tmp_path)
    mix, _ = improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path, prev_mix=first)
    assert (mix.repo_id, mix.num_episodes) == ("local/run-rollouts-mix-c2", 6)
    started = [event.payload["stage"] for event in bus.told if event.kind == "job_started"]
    assert started == ["harvest", "harvest", "merge"]
    assert bus.told[-1].payload == {"repo_id": "local/run-rollouts-mix-c2", "episodes": 6}


# Commands as LeAgents builds them


@pytest.fixture
def without_lerobot(monkeypatch, tmp_path):
    monkeypatch.delenv("CADENZA_LEROBOT_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


PUSHT = EvalConfig(env_type="pusht", task_suite="PushT-v0", extra_args=("--policy.use_amp=true",))


def test_evaluation_command_has_the_order_of_leagents(bus, without_lerobot, tmp_path, checkpoint):
    command = EvalAgent(PUSHT, RULES, bus).build_command(checkpoint, tmp_path / "eval")
    assert command == [
        "lerobot-eval", f"--policy.path={checkpoint.path}", "--env.type=pusht",
        "--env.task=PushT-v0", "--eval.n_episodes=10", "--eval.batch_size=10",
        f"--output_dir={tmp_path / 'eval'}", command[-2], "--policy.use_amp=true",
    ]  # fmt: skip
    assert command[-2].startswith("--seed=")


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


# Programs


def test_default_runner_starts_the_back_ends_program_and_not_one_of_the_path(
    bus, tmp_path, dataset, monkeypatch
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
        command=("cadenza-lerobot-select", "--repo-id=lerobot/x", "--suite=libero_spatial"),
        output_dir=tmp_path / "cycle_2" / "data",
    )
    monkeypatch.setattr(backend, "plan_data", lambda request: plan)
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    with pytest.raises(DataError, match="got exit code 3"):
        DataAgent(bus, backend=backend).run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert (tmp_path / "cycle_2" / "data.log").read_text() == "ours\n"


@pytest.mark.parametrize(("policy", "dry"), [("remove", False), ("keep", False), ("remove", True)])
def test_what_an_earlier_call_left_is_removed_for_a_command_that_refuses_it(
    bus, tmp_path, monkeypatch, policy, dry
):
    folder = tmp_path / "cycle_2" / "data"
    folder.mkdir(parents=True)
    seen = []

    def runner(cmd, log_path):
        seen.append(folder.exists())
        return dry_runner(cmd, log_path)

    call = dry_runner if dry else runner
    planned(monkeypatch, bus, call, output_dir=folder, on_existing=policy)(tmp_path)
    assert seen == ([] if dry else [policy == "keep"])
    assert folder.exists() == (dry or policy == "keep")
    outside = planned(monkeypatch, bus, runner, output_dir=tmp_path, on_existing="remove")
    with pytest.raises(InputError, match=r"expected a plain folder inside .*cycle_2"):
        outside(tmp_path)


def planned(monkeypatch, bus, runner, **plan):
    """Return a call of a data worker whose back end plans a job so."""
    backend = FakeBackend()
    job = JobPlan(command=("cadenza", "job", "merge", "--sources=a,b", "--repo-id=x"), **plan)
    monkeypatch.setattr(backend, "plan_data", lambda request: job)
    monkeypatch.setattr(backend, "read_data", lambda request: DatasetRef(repo_id="x"))
    monkeypatch.setattr(Constitution, "clear", lambda *_: SimpleNamespace(argv=lambda: job.command))
    worker = DataAgent(bus, runner, backend=backend)
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    return lambda workdir: worker.run(**PLACE, proposal=proposal, workdir=workdir)

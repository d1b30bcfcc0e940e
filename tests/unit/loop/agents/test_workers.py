"""Workers on their own: a plain runner, no store, as LeAgents uses them."""

import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.agents import (
    DataAgent,
    EvalAgent,
    EvalError,
    ImproveAgent,
    ImproveError,
    TrainAgent,
    TrainError,
)
from cadenza.loop.backends.base import SeedRange
from cadenza.loop.config import EvalConfig, ImproveConfig, PolicyRung, TrainConfig
from cadenza.loop.constitution import ConstitutionError, load_constitution
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


def test_data_worker_runs_the_back_ends_command(bus, stack, tmp_path):
    worker = DataAgent(bus, stack, backend=FakeBackend())
    proposal = Proposal(action="reuse_seed", dataset="local/x", num_episodes=7)
    dataset = worker.run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert dataset.root == str(tmp_path / "cycle_2" / "data")
    assert told(bus) == [
        ("collect", "job_started"), ("collect", "job_finished"), ("collect", "dataset_resolved")
    ]  # fmt: skip
    assert (tmp_path / "cycle_2" / "data.log").exists()


def test_data_worker_names_the_range_of_chosen_episodes(bus, stack, tmp_path, monkeypatch):
    backend = FakeBackend()
    chosen = DatasetRef(repo_id="local/x", root=str(tmp_path), episodes=(4, 9, 5))
    monkeypatch.setattr(backend, "plan_data", lambda request: None)
    monkeypatch.setattr(backend, "read_data", lambda request: chosen)
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    DataAgent(bus, stack, backend=backend).run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert stack.commands == []
    assert bus.told[0].payload["episode_range"] == [4, 9]
    assert bus.told[0].payload["num_episodes"] == 3


def test_failed_collection_is_a_data_error(bus, tmp_path):
    stack = FakeStack(failing=[(2, "data")])
    worker = DataAgent(bus, stack, backend=FakeBackend())
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    with pytest.raises(DataError, match="expected an end with exit code 0, got exit code 1"):
        worker.run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert bus.told[-1].payload["exit_code"] == 1


def test_data_worker_with_a_back_end_needs_the_runs_folder(bus):
    proposal = Proposal(action="reuse_seed", dataset="local/x")
    with pytest.raises(ConfigurationError, match="expected the run's folder as workdir"):
        DataAgent(bus, backend=FakeBackend()).run(**PLACE, proposal=proposal)


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
    assert finished.payload["exit_code"] == 0
    assert finished.payload["log"] == str(tmp_path / "cycle_2" / "train.log")
    assert backend.checked == [(dataset.root, None)]


def test_training_worker_checks_data_and_mix_against_the_weights_it_starts_from(
    bus, stack, tmp_path, dataset, checkpoint
):
    backend = FakeBackend()
    worker = TrainAgent(TrainConfig(steps=9), RULES, bus, stack, backend=backend)
    mix = dataset.model_copy(update={"root": str(tmp_path)})
    worker.run(
        **PLACE, rung=PolicyRung(name="bc"), dataset=dataset, mix=mix, workdir=tmp_path,
        init_override=checkpoint.path,
    )  # fmt: skip
    assert backend.checked == [(dataset.root, checkpoint.path), (mix.root, checkpoint.path)]


def test_failed_training_is_a_train_error(bus, tmp_path, dataset):
    stack = FakeStack(failing=[(2, "train")])
    worker = TrainAgent(TrainConfig(), RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(TrainError, match="got exit code 1; see"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)


def test_training_that_leaves_no_result_is_a_train_error(bus, tmp_path, dataset):
    class Liar(FakeStack):
        def __call__(self, cmd, log_path):
            result = super().__call__(cmd, log_path)
            (log_path.parent / "train.json").unlink()
            return result

    worker = TrainAgent(TrainConfig(), RULES, bus, Liar(), backend=FakeBackend())
    with pytest.raises(TrainError, match=r"exit code 0, but .*expected the result"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)


def test_refused_training_is_told_and_not_run(bus, stack, tmp_path, dataset):
    worker = TrainAgent(TrainConfig(steps=10**6), RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(ConstitutionError, match="max_train_steps"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)
    assert told(bus) == [("train", "constitution_denied")]
    assert bus.told[0].payload["rule"] == "max_train_steps"
    assert stack.commands == []


def test_command_may_read_only_the_run_and_the_named_roots(bus, stack, tmp_path, checkpoint):
    run = tmp_path / "run"
    worker = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(ConstitutionError, match="path_outside_roots"):
        worker.run(**PLACE, checkpoint=checkpoint, workdir=run)
    freer = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend(), read_roots=(tmp_path,))
    assert freer.run(**PLACE, checkpoint=checkpoint, workdir=run).n_episodes == 6


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


def test_evaluation_on_other_seeds_is_refused(bus, stack, tmp_path, checkpoint, monkeypatch):
    backend = FakeBackend()
    read = backend.read_eval
    monkeypatch.setattr(
        backend,
        "read_eval",
        lambda request: read(request).model_copy(
            update={
                "outcomes": tuple(
                    outcome.model_copy(update={"seed": outcome.seed + 1})
                    for outcome in read(request).outcomes
                )
            }
        ),
    )
    worker = EvalAgent(EVAL, RULES, bus, stack, backend=backend)
    seeds = SeedRange(start=10, count=6)
    with pytest.raises(EvalError, match="expected episodes from the seeds 10 to 15, got seed 16"):
        worker.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path, seeds=seeds)


def test_failed_evaluation_is_an_eval_error(bus, tmp_path, checkpoint):
    stack = FakeStack(failing=[(2, "eval")])
    worker = EvalAgent(EVAL, RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(EvalError, match="exit code 1"):
        worker.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)


# Improvement


@pytest.fixture
def improve(bus, stack):
    cfg = ImproveConfig(enabled=True, episodes=3, device="cpu")
    return ImproveAgent(cfg, EVAL, RULES, bus, stack, backend=FakeBackend())


def test_first_harvest_is_the_mix(improve, bus, tmp_path, checkpoint):
    mix, summary = improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)
    assert mix.root == str(tmp_path / "cycle_2" / "harvest")
    assert (summary["kept"], summary["attempts"], summary["success_rate"]) == (3, 6, 0.5)
    assert summary["repo_id"] == "local/run-cycle2-rollouts"
    assert bus.told[-1].payload == summary


def test_next_harvest_is_merged_with_the_mix(improve, bus, stack, tmp_path, checkpoint):
    first, _ = improve.run(run_id="run", cycle=1, checkpoint=checkpoint, workdir=tmp_path)
    mix, _ = improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path, prev_mix=first)
    assert (mix.repo_id, mix.num_episodes) == ("local/run-rollouts-mix-c2", 6)
    started = [event.payload["stage"] for event in bus.told if event.kind == "job_started"]
    assert started == ["harvest", "harvest", "merge"]
    assert bus.told[-1].payload == {"repo_id": "local/run-rollouts-mix-c2", "episodes": 6}


def test_empty_harvest_leaves_the_mix(improve, stack, tmp_path, checkpoint, dataset):
    stack.kept[2] = 0
    mix, summary = improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path, prev_mix=dataset)
    assert mix == dataset
    assert (summary["kept"], summary["root"]) == (0, None)


@pytest.mark.parametrize("stage", ["harvest", "merge"])
def test_failed_harvest_or_merge_is_an_improve_error(improve, stack, tmp_path, checkpoint, stage):
    first, _ = improve.run(run_id="run", cycle=1, checkpoint=checkpoint, workdir=tmp_path)
    stack.failing.add((2, stage))
    with pytest.raises(ImproveError, match="exit code 1"):
        improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path, prev_mix=first)

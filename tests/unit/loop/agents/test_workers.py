"""Workers on their own: a plain runner, no store, as LeAgents uses them."""

import json
from types import SimpleNamespace

import pytest

from cadenza.core.errors import (
    ConfigurationError,
    InputError,
    IntegrityError,
    MissingExtraError,
)
from cadenza.loop.agents import (
    DataAgent,
    EvalAgent,
    EvalError,
    ImproveAgent,
    ImproveError,
    RunResult,
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
    nameless = chosen.model_copy(update={"episodes": (), "num_episodes": 8})
    monkeypatch.setattr(backend, "read_data", lambda request: nameless)
    DataAgent(bus, stack, backend=backend).run(**PLACE, proposal=proposal, workdir=tmp_path)
    assert bus.told[1].payload["num_episodes"] == 8


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
    assert list(started.payload) == ["stage", "cmd"]  # lines for people are cut short
    assert finished.payload["exit_code"] == 0
    assert finished.payload["log"] == str(tmp_path / "cycle_2" / "train.log")
    assert backend.checked == [(dataset.root, None)]


def test_training_worker_checks_data_and_mix_against_the_weights_it_starts_from(
    bus, stack, tmp_path, dataset, checkpoint
):
    backend = FakeBackend()
    worker = TrainAgent(TrainConfig(steps=9), RULES, bus, stack, backend=backend)
    mix = dataset.model_copy(update={"root": str(tmp_path / "mix")})
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
            (log_path.parent / "train" / "result.json").unlink()
            return result

    worker = TrainAgent(TrainConfig(), RULES, bus, Liar(), backend=FakeBackend())
    with pytest.raises(TrainError, match=r"and its result, got exit code 0, but .*expected the"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)


def test_refused_training_is_told_and_not_run(bus, stack, tmp_path, dataset):
    worker = TrainAgent(TrainConfig(steps=10**6), RULES, bus, stack, backend=FakeBackend())
    with pytest.raises(ConstitutionError, match="max_train_steps"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)
    assert told(bus) == [("train", "constitution_denied")]
    assert bus.told[0].payload["rule"] == "max_train_steps"
    assert stack.commands == []


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
    run, parts = tmp_path / "run", {"backend": FakeBackend()}
    assert (
        EvalAgent(EVAL, RULES, bus, stack, **parts)
        .run(**PLACE, checkpoint=checkpoint, workdir=run)
        .n_episodes
        == 6
    )
    improve = ImproveAgent(
        ImproveConfig(episodes=3, device="cpu"), EVAL, RULES, bus, stack, **parts
    )
    other, _ = improve.run(
        run_id="run", cycle=1, checkpoint=checkpoint, workdir=tmp_path / "elsewhere"
    )
    mix, _ = improve.run(**PLACE, checkpoint=checkpoint, workdir=run, prev_mix=other)
    assert mix.num_episodes == 6
    train = TrainAgent(TrainConfig(), RULES, bus, stack, **parts)
    for rung, init in (
        (PolicyRung(name="bc"), checkpoint.path),
        (PolicyRung(name="bc", init=checkpoint.path), None),
    ):
        trained = train.run(
            **PLACE, rung=rung, dataset=dataset, workdir=run, init_override=init, mix=other
        )
        assert trained.path.startswith(str(run))
    strange = FakeBackend()
    hidden = checkpoint.model_copy(update={"path": str(tmp_path / "hidden")})
    monkeypatch.setattr(
        strange,
        "plan_eval",
        lambda request: FakeBackend().plan_eval(request.model_copy(update={"checkpoint": hidden})),
    )
    stray = EvalAgent(EVAL, RULES, bus, stack, backend=strange)
    with pytest.raises(ConstitutionError, match="path_outside_roots"):
        stray.run(**PLACE, checkpoint=checkpoint, workdir=run)


def test_job_that_leaves_nothing_usable_is_an_error_of_its_worker(
    bus, tmp_path, dataset, checkpoint, monkeypatch
):
    backend = FakeBackend()

    def damaged(request):
        raise IntegrityError(f"{request.folder}: expected a policy, got none")

    monkeypatch.setattr(backend, "read_train", damaged)
    monkeypatch.setattr(backend, "read_eval", damaged)
    stack = FakeStack([0.5])
    worker = TrainAgent(TrainConfig(), RULES, bus, stack, backend=backend)
    with pytest.raises(TrainError, match="expected a policy, got none") as caught:
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)
    assert isinstance(caught.value, IntegrityError)  # what a run ends with names its kind
    evaluation = EvalAgent(EVAL, RULES, bus, stack, backend=backend)
    with pytest.raises(EvalError, match="expected a policy, got none") as caught:
        evaluation.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)
    assert isinstance(caught.value, IntegrityError)


def test_dry_training_on_its_own_is_a_train_error(bus, tmp_path, dataset):
    worker = TrainAgent(TrainConfig(), RULES, bus, dry_runner, backend=FakeBackend())
    with pytest.raises(TrainError, match="expected the result"):
        worker.run(**PLACE, rung=PolicyRung(name="bc"), dataset=dataset, workdir=tmp_path)


def test_steps_of_nought_are_the_configured_ones_and_negative_ones_are_refused(
    bus, stack, tmp_path, dataset
):
    worker = TrainAgent(TrainConfig(steps=7), RULES, bus, stack, backend=FakeBackend())
    command = worker.build_command(PolicyRung(name="bc"), dataset, tmp_path, steps=0)
    assert "--steps=7" in command
    with pytest.raises(InputError, match="TrainAgent: expected steps >= 0, got -1"):
        worker.build_command(PolicyRung(name="bc"), dataset, tmp_path, steps=-1)


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


# Commands as LeAgents builds them


@pytest.fixture
def without_lerobot(monkeypatch, tmp_path):
    monkeypatch.delenv("CADENZA_LEROBOT_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


PUSHT = EvalConfig(env_type="pusht", task_suite="PushT-v0", extra_args=("--policy.use_amp=true",))


def test_training_command_has_the_order_of_leagents(bus, without_lerobot, tmp_path):
    cfg = TrainConfig(steps=9, batch_size=3, extra_args=("--log_freq=5",))
    worker = TrainAgent(cfg, RULES, bus)
    hub = DatasetRef(repo_id="lerobot/pusht", num_episodes=2)
    out = tmp_path / "cycle_1" / "train"
    command = worker.build_command(PolicyRung(name="act"), hub, out)
    seed = next(word for word in command if word.startswith("--seed="))
    assert command == [
        "lerobot-train", "--policy.type=act", "--policy.push_to_hub=false",
        "--dataset.repo_id=lerobot/pusht", "--dataset.episodes=[0, 1]", f"--output_dir={out}",
        "--steps=9", "--batch_size=3", seed, "--num_workers=0", "--log_freq=5",
    ]  # fmt: skip
    local = DatasetRef(repo_id="local/mix", root="/mix", num_episodes=2)
    again = worker.build_command(PolicyRung(name="act", init="hub/act"), local, out, None, 4)
    assert again[1:7] == [
        "--policy.path=hub/act", "--policy.push_to_hub=false", "--dataset.repo_id=local/mix",
        "--dataset.root=/mix", f"--output_dir={out}", "--steps=4",
    ]  # fmt: skip
    overridden = worker.build_command(PolicyRung(name="act", init="hub/act"), local, out, "/p")
    assert overridden[1] == "--policy.path=/p"
    later = worker.build_command(PolicyRung(name="act"), hub, tmp_path / "cycle_2" / "train")
    assert seed not in later


def test_evaluation_command_has_the_order_of_leagents(bus, without_lerobot, tmp_path, checkpoint):
    command = EvalAgent(PUSHT, RULES, bus).build_command(checkpoint, tmp_path / "eval")
    assert command == [
        "lerobot-eval", f"--policy.path={checkpoint.path}", "--env.type=pusht",
        "--env.task=PushT-v0", "--eval.n_episodes=10", "--eval.batch_size=10",
        f"--output_dir={tmp_path / 'eval'}", command[-2], "--policy.use_amp=true",
    ]  # fmt: skip
    assert command[-2].startswith("--seed=")


def test_harvest_command_has_the_order_of_leagents(bus, without_lerobot, tmp_path, checkpoint):
    cfg = ImproveConfig(enabled=True, episodes=3, device="cpu", task_text="push")
    worker = ImproveAgent(cfg, PUSHT, RULES, bus)
    command = worker.build_command(checkpoint, tmp_path / "rollouts", "local/r")
    assert command[:8] == [
        "cadenza-lerobot-collect", f"--policy-path={checkpoint.path}", "--env-type=pusht",
        "--task=PushT-v0", "--episodes=3", f"--out={tmp_path / 'rollouts' / 'dataset'}",
        "--repo-id=local/r", "--device=cpu",
    ]  # fmt: skip
    assert "--task-text=push" in command


def test_commands_that_are_run_are_those_that_are_built(bus, stack, tmp_path, dataset, checkpoint):
    backend = FakeBackend()
    rung = PolicyRung(name="bc")
    folder = tmp_path / "cycle_2"
    train = TrainAgent(TrainConfig(steps=9), RULES, bus, stack, backend=backend)
    train.run(**PLACE, rung=rung, dataset=dataset, workdir=tmp_path)
    play = EvalAgent(EVAL, RULES, bus, stack, backend=backend)
    play.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)
    cfg = ImproveConfig(enabled=True, episodes=3, device="cpu")
    improve = ImproveAgent(cfg, EVAL, RULES, bus, stack, backend=backend)
    improve.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)
    ran = [event.payload["cmd"] for event in bus.told if event.kind == "job_started"]
    built = [
        train.build_command(rung, dataset, folder / "train"),
        play.build_command(checkpoint, folder / "eval"),
        improve.build_command(checkpoint, folder / "harvest", "local/run-cycle2-rollouts"),
    ]
    assert [sorted(command) for command in ran] == [sorted(command) for command in built]


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


@pytest.mark.parametrize(("policy", "left"), [("remove", False), ("keep", True)])
def test_what_an_earlier_call_left_is_removed_for_a_command_that_refuses_it(
    bus, tmp_path, monkeypatch, policy, left
):
    folder = tmp_path / "cycle_2" / "data"
    folder.mkdir(parents=True)
    seen = []

    def runner(cmd, log_path):
        seen.append(folder.exists())
        return RunResult(list(cmd), 1, 1.0, log_path)

    run = planned(monkeypatch, bus, runner, output_dir=folder, on_existing=policy)
    with pytest.raises(DataError, match="got exit code 1"):
        run(tmp_path)
    assert seen == [left]


def test_a_dry_runner_removes_nothing(bus, tmp_path, monkeypatch):
    folder = tmp_path / "cycle_2" / "data"
    folder.mkdir(parents=True)
    run = planned(monkeypatch, bus, dry_runner, output_dir=folder, on_existing="remove")
    run(tmp_path)
    assert folder.exists()
    assert (tmp_path / "cycle_2" / "data.log").read_text().startswith("DRY RUN: cadenza job ")


def test_a_folder_outside_the_cycle_is_never_removed(bus, stack, tmp_path, monkeypatch):
    run = planned(monkeypatch, bus, stack, output_dir=tmp_path, on_existing="remove")
    with pytest.raises(InputError, match=r"expected a plain folder inside .*cycle_2"):
        run(tmp_path)
    assert stack.commands == []


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


def test_default_runner_without_lerobot_says_how_to_install_it(
    bus, without_lerobot, tmp_path, checkpoint
):
    worker = EvalAgent(PUSHT, RULES, bus)
    with pytest.raises(MissingExtraError, match="run: python environments/install"):
        worker.run(**PLACE, checkpoint=checkpoint, workdir=tmp_path)

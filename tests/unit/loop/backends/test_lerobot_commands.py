"""Command lines as LeAgents wrote them, and what we add."""

from pathlib import Path

import pytest

from cadenza.loop.backends import lerobot
from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.backends.lerobot_probe import Interface, LeRobotTools
from cadenza.loop.config import EvalConfig, LoopConfig
from cadenza.loop.constitution import ConstitutionError, Roots, load_constitution
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    EvalRequest,
    HarvestRequest,
    MergeRequest,
    Proposal,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import ImproveError
from tests.unit.loop.backends.test_lerobot_probe import TEXTS, TEXTS_06, environment

OLD = LeRobotTools.from_help("0.4.4", TEXTS)
NEW = LeRobotTools.from_help("0.6.1", TEXTS_06)
RUN = Path("/runs/r/cycle_0")
ROOTS = Roots(write=(Path("/runs/r"),), read=(Path("/data"),))
PUSHT = EvalConfig(
    env_type="pusht",
    task_suite="PushT-v0",
    env_args=("--env.obs_type=environment_state_agent_pos",),
    extra_args=("--policy.device=cpu", "--env.episode_length=60", '--rename_map={"a": "b"}'),
)
POLICY = CheckpointRecord(policy_type="act", path="/runs/r/p", cycle=0)


def training(**changes):
    request = TrainRequest(
        cycle=0,
        rung="act",
        init=None,
        dataset=DatasetRef(repo_id="lerobot/pusht", num_episodes=3),
        steps=20,
        batch_size=2,
        folder=RUN / "train",
    )
    return request.model_copy(update=changes)


@pytest.fixture
def stack(monkeypatch, tmp_path):
    """Return what makes a back end on an installed release of LeRobot."""

    def make(measured=None, tools=OLD, **changes):
        monkeypatch.setattr(lerobot, "probe", lambda _environment: tools)
        settings = {"run_name": "r", "seed_dataset": "lerobot/pusht", "backend": "lerobot"}
        config = LoopConfig(**settings, eval=measured or EvalConfig(), **changes)
        place = tmp_path / f"lerobot-{len([*tmp_path.iterdir()])}"
        return LeRobotBackend(config, environment=environment(place))

    return make


@pytest.fixture
def command(stack):
    """Return what returns the words of a training but for its seed."""

    def make(request, measured=None, **changes):
        words = stack(measured, **changes).plan_train(request).command
        return [word for word in words if not word.startswith("--seed=")]

    return make


def evaluation(**changes):
    request = EvalRequest(
        cycle=0,
        checkpoint=POLICY,
        seeds=SeedRange(start=500, count=3),
        batch_size=10,
        extra_args=PUSHT.extra_args,
        folder=RUN / "eval",
    )
    return request.model_copy(update=changes)


def harvesting(**changes):
    request = HarvestRequest(
        cycle=0,
        checkpoint=POLICY,
        episodes=2,
        seeds=SeedRange(start=900, count=10),
        repo_id="local/r-cycle0-rollouts",
        folder=RUN / "harvest",
    )
    return request.model_copy(update=changes)


def clears(words):
    """Check that the shipped rules let the command run."""
    load_constitution(None).clear(tuple(words), ROOTS)


@pytest.mark.parametrize(("tools", "flag"), [(OLD, "eval_freq"), (NEW, "env_eval_freq")])
def test_training_command_in_the_order_of_leagents(tools, flag, command):
    words = command(training(extra_args=("--eval_freq=0",)), tools=tools)
    assert words == [
        *("lerobot-train", "--policy.type=act", "--policy.push_to_hub=false"),
        *("--dataset.repo_id=lerobot/pusht", "--dataset.episodes=[0, 1, 2]"),
        *("--output_dir=/runs/r/cycle_0/train", "--steps=20", "--batch_size=2"),
        *("--num_workers=0", f"--{flag}=0"),
    ]
    clears(words)


def test_data_weights_and_workers_follow_the_request(command):
    local = DatasetRef(repo_id="local/x", root="/data/x", num_episodes=3)
    chosen = local.model_copy(update={"episodes": (4, 9)})
    words = command(training(dataset=chosen))
    assert [w for w in words if "dataset" in w][1:] == [
        "--dataset.root=/data/x",
        "--dataset.episodes=[4, 9]",
    ]
    assert not [w for w in command(training(dataset=local)) if "dataset.episodes" in w]
    hub = DatasetRef(repo_id="a/b", revision="v3.0")
    words = command(training(init="/runs/r/old", dataset=hub))
    assert words[1] == "--policy.path=/runs/r/old"
    assert words[4] == "--dataset.revision=v3.0"
    assert "--num_workers=0" in words
    assert "--num_workers=0" not in command(training(), jobs={"runner": "slurm"})
    wished = command(training(extra_args=("--num_workers=2",)))
    assert [w for w in wished if "num_workers" in w] == ["--num_workers=2"]


def test_environment_of_evaluations_in_training_is_that_of_all(command):
    extra = ("--env.type=pusht", "--env.obs_type=pixels_agent_pos")
    words = command(training(extra_args=extra), PUSHT)
    assert [w for w in words if "--env." in w] == ["--env.episode_length=60", *extra]
    assert not [w for w in command(training(), PUSHT) if "--env." in w]


MIX = DatasetRef(repo_id="local/mix", root="/runs/r/mix")
BLEND = ["--mix.repo_id=local/mix", "--mix.root=/runs/r/mix", "--mix.ratio=0.25"]


def test_mix_alone_replaces_the_data_and_a_share_is_blended(command):
    local = DatasetRef(repo_id="local/x", root="/data/x", episodes=(0, 2))
    alone = command(training(dataset=local, mix=MIX, mix_ratio=1.0))
    assert [w for w in alone if "dataset" in w] == [
        "--dataset.repo_id=local/mix",
        "--dataset.root=/runs/r/mix",
    ]
    blended = command(training(dataset=local, mix=MIX, mix_ratio=0.25))
    assert blended[3:9] == [
        "--dataset.repo_id=local/x",
        "--dataset.root=/data/x",
        "--dataset.episodes=[0, 2]",
        *BLEND,
    ]
    clears(blended)
    assert command(training(mix=MIX, mix_ratio=0.0)) == command(training())


@pytest.mark.parametrize("extra", ["--dataset.root=/other", "--steps=9", "--Output-dir=/x"])
def test_flag_that_the_loop_sets_is_refused_a_second_time(extra, monkeypatch):
    monkeypatch.setenv("CADENZA_LEROBOT_PYTHON", "/no/where")
    local = DatasetRef(repo_id="local/x", root="/data/x")
    settings = {"run_name": "r", "seed_dataset": "local/x", "backend": "lerobot"}
    backend = LeRobotBackend(LoopConfig(**settings))
    job = backend.plan_train(training(dataset=local, extra_args=(extra,))).job
    with pytest.raises(ConstitutionError, match=r"rule repeated_flag: expected --.* once"):
        load_constitution(None).clear(job, ROOTS)


@pytest.mark.parametrize("tools", [OLD, NEW])
def test_evaluation_command_in_the_order_of_leagents(tools, stack):
    words = stack(PUSHT, tools).plan_eval(evaluation()).command
    assert words == (
        *("lerobot-eval", "--policy.path=/runs/r/p", "--env.type=pusht", "--env.task=PushT-v0"),
        # LeRobot refuses a batch of more than there are episodes
        *("--eval.n_episodes=3", "--eval.batch_size=3", "--output_dir=/runs/r/cycle_0/eval"),
        *("--seed=500", "--env.obs_type=environment_state_agent_pos", "--policy.device=cpu"),
        *("--env.episode_length=60", '--rename_map={"a": "b"}'),
    )
    clears(words)


def test_harvest_plays_in_the_environment_of_evaluations_from_its_own_seeds(stack):
    extra = ("--keep-failures", "--env.episode_length=9")
    request = harvesting(extra_args=extra, focus=("pusht_0",), task_text="push")
    words = stack(PUSHT).plan_harvest(request).command
    assert words == (
        *("cadenza-lerobot-collect", "--policy-path=/runs/r/p", "--env-type=pusht"),
        *("--task=PushT-v0", "--episodes=2", "--out=/runs/r/cycle_0/harvest/dataset"),
        *("--repo-id=local/r-cycle0-rollouts", "--device=cpu", "--seed=900", "--max-attempts=10"),
        *("--focus=pusht_0", '--rename-map={"a": "b"}', "--task-text=push"),
        *("--result-json=/runs/r/cycle_0/harvest/result.json",),
        *("--env.obs_type=environment_state_agent_pos", "--keep-failures"),
        "--env.episode_length=9",
    )
    clears(words)


def test_merge_names_every_source_and_its_folder(stack, monkeypatch):
    monkeypatch.setattr(lerobot, "dataset_interface", lambda _root: Interface(name="", shapes={}))
    sources = (MIX, DatasetRef(repo_id="local/new", root="/runs/r/new"))
    request = MergeRequest(sources=sources, repo_id="local/all", folder=RUN / "merge")
    words = stack().plan_merge(request).command
    assert words == (
        *("cadenza-lerobot-merge", "--repo-ids=local/mix,local/new"),
        *("--roots=/runs/r/mix,/runs/r/new", "--out=/runs/r/cycle_0/merge/dataset"),
        *("--repo-id=local/all", "--result-json=/runs/r/cycle_0/merge/result.json"),
    )
    clears(words)
    far = (MIX, DatasetRef(repo_id="lerobot/pusht"))
    with pytest.raises(ImproveError, match="lerobot/pusht: expected a local dataset"):
        stack().plan_merge(MergeRequest(sources=far, repo_id="local/all", folder=RUN))


def test_selection_names_suite_limit_and_focus(stack):
    focus = ("libero_spatial_3",)
    asked = {"action": "reuse_seed", "dataset": "lerobot/libero", "num_episodes": 5}
    proposal = Proposal(**asked, focus=focus)
    seeds = SeedRange(start=0, count=5)
    request = DataRequest(cycle=0, proposal=proposal, seeds=seeds, folder=RUN / "data")
    data = {"task_filter": "libero_spatial", "instructions": Path("/data/suites.json")}
    plan = stack(data=data, seed_root=Path("/data/x")).plan_data(request)
    assert plan is not None
    words = plan.command
    assert words == (
        *("cadenza-lerobot-select", "--repo-id=lerobot/libero", "--root=/data/x"),
        *("--suite=libero_spatial", "--limit=5", "--focus=libero_spatial_3"),
        *("--instructions=/data/suites.json", "--result-json=/runs/r/cycle_0/data/result.json"),
    )
    clears(words)


LIBERO = EvalConfig()


def about_states(words):
    return [word for word in words if "init" in word.lower()]


def test_libero_is_told_in_every_command_to_let_the_seed_choose_the_initial_state(stack, command):
    measured = stack(LIBERO).plan_eval(evaluation(extra_args=())).command
    collected = stack(LIBERO).plan_harvest(harvesting()).command
    trained = command(training(extra_args=("--env.type=libero", "--eval_freq=0")), LIBERO)
    for words in (measured, collected, trained):
        assert about_states(words) == ["--env.init_states=false"]
    clears(collected)
    assert about_states(command(training(), LIBERO)) == []  # plays no episodes
    assert about_states(stack(PUSHT).plan_eval(evaluation()).command) == []
    elsewhere = ("--env.type", "libero_plus")
    assert about_states(command(training(extra_args=elsewhere), PUSHT, tools=None)) == [
        "--env.init_states=false"
    ]

"""`cadenza train` of every algorithm, killed with SIGKILL and resumed, against an unbroken run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadenza.core.payloads import serialise
from tests.campaigns import nightly, size
from tests.e2e.commands import REPOSITORY
from tests.integration.aht.killed_training import (
    RunFolder,
    Training,
    after_a_checkpoint,
    between_checkpoints,
    output_of,
    within_a_save_of,
)

FRAMES, EVALUATED = size((600, 300), (1200, 400))
#: Falls into the middle of episodes (50 steps), rollouts and pairs of updates.
EVERY = 136
ROLLOUT = 20
COMMON = {
    "total_frames": FRAMES,
    "checkpoint_every": EVERY,
    "evaluation": {"every_frames": EVALUATED, "episodes": 3},
    "happo": {"rollout_length": ROLLOUT},
}
ON_POLICY = {
    "env": {"num_envs": 4},
    "ppo": {
        "rollout_length": ROLLOUT,
        "batch_size": 20,
        "epochs": 2,
        "hidden_sizes": [16, 16],
        "decay_learning_rate": True,
    },
}
HAPPO = {
    "env": {"num_envs": 4},
    "happo": {"batch_size": 20, "n_epochs": 2, "hidden_dim": 16},
    "ppo_extras": {"lr_decay": True},
}
#: The memory is smaller than the run, so it forgets.
REPLAY = {"memory_size": 300, "warmup_steps": 100, "batch_size": 16, "hidden_sizes": [16]}
MBPO = {
    **REPLAY,
    "ensemble_size": 3,
    "num_elites": 2,
    "model_hidden": 16,
    "model_layers": 2,
    "model_updates": 50,
    "rollout_every": 20,
    "rollout_states": 40,
    "imagined_size": 300,
}
#: What makes each algorithm small and lets everything it remembers change within the run.
CHANGES: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY,
    "sac": {"sac": REPLAY},
    "dqn": {"dqn": {**REPLAY, "epsilon_frames": 800}},
    "mbpo": {"mbpo": MBPO},
    "mappo": ON_POLICY,
    "happo": HAPPO,
    "hlgauss": {"hlgauss": REPLAY},
    "td3": {"td3": REPLAY},
    "hatd3": {"hatd3": REPLAY},
    "liam": {
        "algo": "liam",
        "env": {"num_envs": 4},
        "liam": {**ON_POLICY["ppo"], "memory_size": 8, "belief_size": 4},
    },
    "recurrent_ppo": {
        "algo": "recurrent_ppo",
        "env": {"num_envs": 4},
        "recurrent_ppo": {**ON_POLICY["ppo"], "memory_size": 8},
    },
    "upd": {
        "algo": "upd",
        "env": {"num_envs": 4},
        "upd": {**ON_POLICY["ppo"], "memory_size": 8, "candidates": 8, "copy_every": 2},
    },
}
#: Algorithms without a configuration of their own, and whose they take without its section.
BORROWED = {"liam": "ppo", "recurrent_ppo": "ppo", "upd": "ppo"}
#: The one whose memory outlives its updates; `make nightly` kills every one.
QUICK = ("sac",)
ALGORITHMS = [
    pytest.param(name, marks=pytest.mark.slow if name in QUICK else nightly) for name in CHANGES
]


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Callable[[str], Training]:
    """Return the training of an algorithm: its shipped configuration, made small."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(REPOSITORY / "src", folder / "src")

    def of(algorithm: str) -> Training:
        owner = BORROWED.get(algorithm, algorithm)
        name = f"mpe_cooperative_push_{owner}.yaml"
        config = yaml.safe_load((REPOSITORY / "configs" / "train" / name).read_text("utf-8"))
        if owner != algorithm:
            del config[owner]
        for changes in (COMMON, CHANGES[algorithm]):
            for key, value in changes.items():
                nested = isinstance(value, dict)
                config[key] = {**config.get(key, {}), **value} if nested else value
        path = folder / f"{algorithm}.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return Training(folder / "src", path)

    return of


@pytest.fixture(scope="module")
def unbroken(training, tmp_path_factory):
    """Begin an unbroken run of an algorithm, once; the result of the call waits for its end."""
    begun = {}

    def of(algorithm: str) -> Callable[[], Path]:
        if algorithm not in begun:
            folder = tmp_path_factory.mktemp(f"unbroken_{algorithm}")
            begun[algorithm] = folder, training(algorithm).start(folder, "--json")
        folder, process = begun[algorithm]

        def wait() -> Path:
            if process is not None:
                (folder / "summary.json").write_text(output_of(process), encoding="utf-8")
                begun[algorithm] = folder, None
            return folder

        return wait

    yield of
    for _, process in begun.values():
        if process is not None:
            process.kill()
            process.communicate()


def assert_same_run(broken: Path, summary: dict, whole: Path) -> None:
    """The files and the summary of the two runs agree in everything but times and folders."""
    one, other = RunFolder(broken), RunFolder(whole)
    expected = other.results()
    assert len([name for name in expected if name.endswith(".pt")]) == FRAMES // EVERY + 1
    actual = one.results()
    assert sorted(actual) == sorted(expected)
    assert [name for name in expected if actual[name] != expected[name]] == []
    assert serialise(one.last_state()) == serialise(other.last_state())
    assert one.figures() == other.figures()
    told = json.loads((whole / "summary.json").read_text(encoding="utf-8"))
    for name in ("checkpoint", "log", "resumed_from"):
        summary.pop(name)
        told.pop(name)
    assert summary == told
    assert summary["training_evaluation"]["n_episodes"] == 3


def assert_counted_once(run: RunFolder) -> None:
    """Every frame is in the reward curve, the learner and the log exactly once."""
    state = run.last_state()
    num_envs = len(state["loop"]["returns"])
    assert state["loop"]["frames"] == state["trainer"]["frames"] == FRAMES
    assert len(state["loop"]["curve"]["per_step"]) == FRAMES // num_envs
    steps = {
        name: [event["step"] for event in run.log() if event["event"] == name]
        for name in ("rollout_update", "checkpoint_saved", "eval")
    }
    window = ROLLOUT * num_envs
    assert steps["rollout_update"] == list(range(window, FRAMES + 1, window))
    assert steps["checkpoint_saved"] == [*range(EVERY, FRAMES, EVERY), FRAMES]
    assert steps["eval"] == list(range(EVALUATED, FRAMES + 1, EVALUATED))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_training_ends_with_the_bits_of_an_unbroken_one(
    algorithm, training, unbroken, tmp_path
):
    whole = unbroken(algorithm)
    begun = training(algorithm)
    first = begun.kill_at(after_a_checkpoint, tmp_path)
    second = begun.kill_at(between_checkpoints, tmp_path)
    assert 0 < first < second < FRAMES
    summary = json.loads(begun.finish(tmp_path, "--resume", "--json"))
    run = RunFolder(tmp_path)
    (from_first, cut_first), (from_second, cut_second) = run.resumes()
    assert (from_first, from_second) == (first, second)
    assert cut_first == 0
    assert cut_second > 0  # frames that had been logged and were trained again
    assert (summary["status"], summary["resumed_from"]) == ("completed", second)
    assert_counted_once(run)
    assert_same_run(tmp_path, summary, whole())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("", id="policy", marks=nightly), pytest.param("-state", id="state")]
)
def test_training_killed_within_a_save_goes_on_from_the_checkpoint_before(
    kind, training, unbroken, tmp_path
):
    whole = unbroken("sac")
    begun = training("sac")
    newest = begun.kill_at(within_a_save_of(kind), tmp_path)
    run = RunFolder(tmp_path)
    (torn,) = run.checkpoints(kind, ".pt.json.next")
    assert torn == newest + EVERY
    assert len(run.half_written()) == 1
    summary = json.loads(begun.finish(tmp_path, "--resume", "--json"))
    assert summary["resumed_from"] == newest
    assert run.half_written() == []
    assert_same_run(tmp_path, summary, whole())


def test_training_resumed_after_its_end_says_so_and_changes_nothing(training, unbroken):
    folder = unbroken("sac")()
    before = _modification_times(folder)
    said = training("sac").finish(folder, "--resume", "--quiet")
    assert f": already finished, {FRAMES} frames, complete episodes: {FRAMES // 50}" in said
    assert _modification_times(folder) == before


def _modification_times(folder: Path) -> dict[Path, int]:
    """Return when each file below ``folder`` was written, locks aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.stat().st_mtime_ns for path in files}

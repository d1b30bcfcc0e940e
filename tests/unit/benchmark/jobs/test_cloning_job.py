"""Training jobs: blend, epochs, continuation and what they refuse."""

import collections
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from cadenza.benchmark.jobs import cloning
from cadenza.benchmark.jobs.cloning import Training, batch_rows, train, updates_of
from cadenza.benchmark.jobs.dataset_files import (
    KeptEpisode,
    Merge,
    merge,
    read_contract,
    write_dataset,
)
from cadenza.benchmark.policies import EgoSeat, load_policy
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.envs.contracts import crossing
from cadenza.learn.nn.portable import load_policy_file
from cadenza.stream.bridges.episodes import Episode


def training(data, tmp_path, name="job", **changes):
    settings = {
        "rung": "bc",
        "dataset": data.root,
        "steps": 20,
        "batch_size": 32,
        "seed": 1,
        "out": tmp_path / name,
        "result": tmp_path / f"{name}.json",
    }
    return Training(**(settings | changes))


def wide_dataset(root, dim=7, **page):
    """A dataset of one episode whose states have ``dim`` entries."""
    states = {"obs": np.zeros((4, dim), np.float32)}
    steps = {"actions": np.zeros((3, 2), np.float32), "rewards": np.zeros(3, np.float32)}
    episode = Episode(steps=steps, states=states, success=True)
    kept = [KeptEpisode(seed=0, partner="nobody", episode=episode)]
    write_dataset(root, kept, task="crossing", fps=20, page={"attempts": 1, **page})
    return root


def test_training_lowers_the_error_and_the_policy_plays(expert_data, clone, tmp_path):
    short = train(training(expert_data, tmp_path, steps=1))
    assert clone.result["loss"] < 0.8 * short["loss"]
    bounds = np.full(2, 2.0, np.float32)
    seat = EgoSeat(uid="ego", observation_dim=10, low=-bounds, high=bounds)
    policy = load_policy("local://policy.pt", seat=seat, artifacts_root=clone.path.parent)
    state = np.array([-2.0, 0, 0, 0, 4.0, 0, 0, 3.0, 0, 0], np.float32)
    action = policy.act({"agent": {"ego": {"state": state}}})
    assert action.shape == (2,)
    assert np.abs(action).max() <= 2.0


def test_equal_flags_give_equal_bytes_and_other_seeds_do_not(expert_data, tmp_path):
    results = [
        train(training(expert_data, tmp_path, name, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    digests = [result["policy"]["sha256"] for result in results]
    assert digests[0] == digests[1] != digests[2]
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_larger_rung_has_more_weights(expert_data, tmp_path):
    train(training(expert_data, tmp_path, "small", steps=1))
    train(training(expert_data, tmp_path, "large", steps=1, rung="bc_large"))
    sizes = [(tmp_path / name / "policy.pt").stat().st_size for name in ("small", "large")]
    assert sizes[1] > 5 * sizes[0]


def test_subset_of_episodes_is_what_is_learned_from(expert_data, tmp_path):
    part = train(training(expert_data, tmp_path, episodes=(0, 2)))
    whole = train(training(expert_data, tmp_path, "whole"))
    assert (part["dataset_episodes"], whole["dataset_episodes"]) == (2, 4)
    assert part["frames"] < whole["frames"]


def test_batch_holds_the_share_of_each_dataset(tmp_path, expert_data):
    settings = training(expert_data, tmp_path, mix_ratio=0.25, batch_size=40)
    stream = derive_substream("test", root_seed=0)
    rows = batch_rows(settings, 3, first=100, second=50, stream=stream)
    assert collections.Counter((rows >= 100).tolist()) == {False: 30, True: 10}
    assert rows.max() < 150
    alone = batch_rows(settings, 3, first=100, second=0, stream=stream)
    assert len(alone) == 40
    assert alone.max() < 100
    assert np.array_equal(alone, batch_rows(settings, 3, first=100, second=0, stream=stream))
    assert not np.array_equal(alone, batch_rows(settings, 4, first=100, second=0, stream=stream))


def test_blend_changes_the_policy_and_its_ratio_matters(expert_data, tmp_path):
    other = wide_dataset(tmp_path / "other", dim=10)
    digests = {
        train(training(expert_data, tmp_path, f"r{ratio}", mix=other, mix_ratio=ratio))["policy"][
            "sha256"
        ]
        for ratio in (0.25, 0.75)
    }
    assert len(digests | {train(training(expert_data, tmp_path))["policy"]["sha256"]}) == 3


def test_cap_on_epochs_shortens_and_never_lengthens(expert_data, tmp_path):
    # 100 steps at 32 samples: two epochs are 200 samples, 6 updates.
    capped = training(expert_data, tmp_path, max_epochs=2.0)
    assert updates_of(capped, first=100) == 6
    assert updates_of(capped, first=10_000) == 20
    assert updates_of(capped, first=1) == 1
    frames = expert_data.result["dataset"]["frames"]
    result = train(training(expert_data, tmp_path, max_epochs=0.5))
    assert result["updates"] == int(0.5 * frames / 32) < 20


@pytest.mark.parametrize(
    ("ratio", "first", "second", "updates"),
    [
        (0.25, 100, 10_000, 8),  # 24 samples of the first an update: 2 * 100 / 24
        (0.25, 10_000, 20, 5),  # 8 samples of the mix: 2 * 20 / 8
        (1.0, 10, 160, 10),  # the mix alone: 2 * 160 / 32, however small the first is
        (0.0, 100, 10, 6),  # the first alone, however small the mix is
    ],
)
def test_cap_on_epochs_holds_for_each_of_two_datasets(
    expert_data, tmp_path, ratio, first, second, updates
):
    capped = training(expert_data, tmp_path, max_epochs=2.0, mix_ratio=ratio)
    assert updates_of(capped, first=first, second=second) == updates


def test_first_episodes_are_those_of_the_smallest_numbers(expert_data, tmp_path):
    first = train(training(expert_data, tmp_path, "first", first_episodes=2))
    listed = train(training(expert_data, tmp_path, "listed", episodes=(0, 1)))
    assert first["dataset_episodes"] == 2
    assert (first["frames"], first["loss"]) == (listed["frames"], listed["loss"])
    more = train(training(expert_data, tmp_path, "more", first_episodes=100))
    whole = train(training(expert_data, tmp_path, "whole"))
    assert (more["dataset_episodes"], more["loss"]) == (4, whole["loss"])


def in_feet(contract):
    """The facts of a contract whose first field is in another unit."""
    first, *others = contract.obs_spec
    return replace(contract, obs_spec=(replace(first, unit="ft"), *others)).facts()


def test_policy_carries_the_task_contract_of_its_dataset(expert_data, clone, tmp_path):
    policy = load_policy_file(clone.path.with_name("policy.policy.safetensors"))
    wanted = crossing(("ego", "partner"))["ego"]
    assert read_contract(expert_data.root) == policy.contract == wanted
    other = wide_dataset(tmp_path / "other", dim=10, contract=in_feet(wanted))
    for changes, error, told in (
        ({"mix": other}, ConfigurationError, "--mix: expected datasets of one task contract"),
        ({"dataset": other, "init": clone.path}, CheckpointError, "expected the task contract"),
    ):
        with pytest.raises(error, match=rf"{told}.* position: .*unit"):
            train(training(expert_data, tmp_path, **changes))
    joined = {"repo_id": "local/m", "out": tmp_path / "m", "result": tmp_path / "m.json"}
    with pytest.raises(ConfigurationError, match=r"--sources: .*contract.* position: .*unit"):
        merge(Merge(sources=(expert_data.root, other), **joined))
    merge(Merge(sources=(expert_data.root, expert_data.root), **joined))
    assert read_contract(tmp_path / "m" / "dataset") == wanted


def test_continuation_starts_from_the_given_weights(expert_data, clone, tmp_path):
    again = train(training(expert_data, tmp_path, steps=1, init=clone.path))
    afresh = train(training(expert_data, tmp_path, "afresh", steps=1))
    assert again["loss"] < clone.result["loss"] * 1.2 < afresh["loss"]
    request = json.loads((tmp_path / "job.json").read_text())["request"]
    assert request["init_sha256"] == clone.result["policy"]["sha256"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rung": "act"}, "--rung: expected one of bc, bc_large, got 'act'"),
        ({"steps": 0}, "--steps: expected a number >= 1, got 0"),
        ({"batch_size": 0}, "--batch-size: expected a number >= 1, got 0"),
        ({"seed": -1}, "--seed: expected a number >= 0, got -1"),
        ({"mix_ratio": 1.5}, r"--mix-ratio: expected a share in \[0, 1\], got 1.5"),
        ({"mix_ratio": float("nan")}, "--mix-ratio"),
        ({"max_epochs": 0.0}, "--max-epochs: expected > 0"),
        ({"max_epochs": float("nan")}, "--max-epochs: expected > 0"),
        ({"max_epochs": float("inf")}, "--max-epochs: expected > 0 and finite, got inf"),
        ({"first_episodes": 0}, "--first-episodes: expected a number >= 1 .*, got 0 and 0"),
        ({"first_episodes": 2, "episodes": (0,)}, "--first-episodes: .* got 2 and 1 episodes"),
    ],
)
def test_impossible_settings_are_refused(expert_data, tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        training(expert_data, tmp_path, **changes)


def other_checkpoint(folder):
    """Return a checkpoint that is no clone."""
    metadata = CheckpointMetadata(run_id="x", seed=0, step=0, git_sha="x", pyproject_hash="x")
    state, uri = {"weights": torch.zeros(2)}, "local://other.pt"
    save_checkpoint(state_dict=state, uri=uri, metadata=metadata, artifacts_root=folder)
    return folder / "other.pt"


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        (lambda *_: {"episodes": (0, 4)}, ConfigurationError, r"--episodes: .*\(0 to 3\), got 4"),
        (
            lambda folder, _: {"mix": wide_dataset(folder / "wide")},
            ConfigurationError,
            "--mix: expected the features of --dataset",
        ),
        (lambda _, clone: {"rung": "bc_large", "init": clone}, ConfigurationError, "--init: expec"),
        (
            lambda folder, clone: {"dataset": wide_dataset(folder / "wide"), "init": clone},
            ConfigurationError,
            r"--init: .*for the dataset, \[\(7,\), .*, got \[\(10,\)",
        ),
        (lambda folder, _: {"init": other_checkpoint(folder)}, CheckpointError, r"got the keys \["),
    ],
)
def test_data_and_weights_that_do_not_fit_are_refused(
    expert_data, clone, tmp_path, changes, error, told
):
    with pytest.raises(error, match=told):
        train(training(expert_data, tmp_path, **changes(tmp_path, clone.path)))


def test_damaged_or_foreign_saves_are_not_trusted(expert_data, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cloning, "SAVE_EVERY", 5)
    wanted = train(training(expert_data, tmp_path, "undisturbed"))["policy"]["sha256"]
    other = train(training(expert_data, tmp_path, "other", seed=7))
    job = tmp_path / "job"
    assert train(training(expert_data, tmp_path))["policy"]["sha256"] == wanted

    def start_again():
        return train(training(expert_data, tmp_path))["policy"]["sha256"]

    # A changed policy, one of another job, and damaged and foreign states of the training.
    data = bytearray((job / "policy.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (job / "policy.pt").write_bytes(data)
    assert start_again() == wanted
    assert "training starts over" in caplog.text
    for name in ("policy.pt", "policy.pt.json"):
        shutil.copy(tmp_path / "other" / name, job / name)
    assert start_again() == wanted
    assert other["policy"]["sha256"] != wanted
    for state in (b"damaged", (tmp_path / "other" / "policy.pt").read_bytes()):
        (job / "policy.pt").unlink()
        (job / "work").mkdir()
        (job / "work" / "state.pt").write_bytes(state)
        shutil.copy(tmp_path / "other" / "policy.pt.json", job / "work" / "state.pt.json")
        assert start_again() == wanted
    assert "is of another job" in caplog.text

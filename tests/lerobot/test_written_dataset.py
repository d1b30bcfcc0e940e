"""The real LeRobot loads a dataset written here and sees every value in it."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature, features_of
from cadenza.stream.layout import BOOKKEEPING, Field
from tests.stream_episodes import random_episode

pytestmark = [pytest.mark.lerobot, pytest.mark.timeout(600)]

FPS = 10
LENGTHS = (5, 1, 8)
TASKS = ("push the cart", "hand it over", "push the cart")
PLAIN = features_of(
    [
        Field(name="obs.qpos", shape=(4,), dtype="float32", kind="state"),
        Field(name="obs.sensor.front.color", shape=(24, 32, 3), dtype="uint8", kind="state"),
        Field(name="actions", shape=(3,), dtype="float32"),
        *BOOKKEEPING,
    ],
    success=True,
)
MATRIX = Feature(key="observation.grid", source="grid", shape=(2, 3), dtype="float32")
FEATURES = [*PLAIN, MATRIX]


def new_episodes() -> list[Episode]:
    rng = np.random.default_rng(8)
    episodes = []
    for i, length in enumerate(LENGTHS):
        plain = random_episode(length, rng, number=i, image=(24, 32))
        grid = rng.standard_normal((length, 2, 3)).astype(np.float32)
        steps = {**plain.steps, "grid": grid}
        episodes.append(Episode(steps=steps, states=plain.states, number=i, success=i != 1))
    return episodes


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return new_episodes()


@pytest.fixture(scope="module")
def seen(
    episodes: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, np.ndarray]:
    """Return what LeRobot sees in a dataset of two data files."""
    folder = tmp_path_factory.mktemp("lerobot")
    for name, features in {"dataset": FEATURES, "plain": PLAIN}.items():
        with LeRobotWriter(folder / name, features, fps=FPS, robot_type="cart") as writer:
            for episode, task in zip(episodes, TASKS, strict=True):
                writer.add(episode, task)
                if writer.episodes == 2:
                    writer.flush()
    program = Path(__file__).with_name("read_dataset.py")
    arguments = [folder / name for name in ("dataset", "plain", "seen.npz", "merged")]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "HF_LEROBOT_HOME": str(folder / "datasets"),
    }
    environment.pop("PYTHONPATH", None)
    python = os.environ["CADENZA_LEROBOT_PYTHON"]
    finished = subprocess.run(
        [python, str(program), *map(str, arguments)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    with np.load(folder / "seen.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def facts(seen: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return json.loads(str(seen["facts"]))


def test_every_feature_of_every_frame_is_the_same(
    seen: Mapping[str, np.ndarray], episodes: list[Episode]
) -> None:
    for feature in FEATURES:
        expected = np.concatenate([feature.values(episode) for episode in episodes])
        found = seen[f"frame/{feature.key}"]
        if feature.dtype == "image":  # LeRobot gives channels first, from 0 to 1
            found = np.round(found.transpose(0, 2, 3, 1) * 255).astype(np.uint8)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, feature.key)


def test_frames_are_numbered_and_timed(seen: Mapping[str, np.ndarray]) -> None:
    frames = np.concatenate([np.arange(length) for length in LENGTHS])
    np.testing.assert_array_equal(seen["frame/frame_index"], frames)
    np.testing.assert_array_equal(seen["frame/index"], np.arange(14))
    np.testing.assert_array_equal(seen["frame/episode_index"], np.repeat([0, 1, 2], LENGTHS))
    np.testing.assert_array_equal(seen["frame/task_index"], np.repeat([0, 1, 0], LENGTHS))
    np.testing.assert_array_equal(seen["frame/timestamp"], (frames / FPS).astype(np.float32))


def test_episodes_and_tasks_are_found(facts: dict[str, Any]) -> None:
    assert (facts["version"], facts["fps"], facts["length"]) == ("v3.0", FPS, 14)
    assert facts["cameras"] == ["observation.images.front"]
    assert facts["tasks"] == {"push the cart": 0, "hand it over": 1}
    tasks = [task for task, length in zip(TASKS, LENGTHS, strict=True) for _ in range(length)]
    assert facts["frame_tasks"] == tasks
    assert [episode["length"] for episode in facts["episodes"]] == list(LENGTHS)
    assert [episode["data/file_index"] for episode in facts["episodes"]] == [0, 0, 1]
    assert facts["chosen"] == LENGTHS[1]


def test_statistics_are_those_of_numpy(
    seen: Mapping[str, np.ndarray], episodes: list[Episode]
) -> None:
    for feature in FEATURES:
        values = np.concatenate([feature.values(episode) for episode in episodes])
        if feature.dtype == "image":
            values = values.reshape(-1, 3) / 255.0
        expected = {
            "mean": values.mean(axis=0, dtype=np.float64),
            "std": values.std(axis=0, dtype=np.float64),
            "min": values.min(axis=0),
            "max": values.max(axis=0),
        }
        for name, value in expected.items():
            found = seen[f"stats/{feature.key}/{name}"]
            np.testing.assert_allclose(found.ravel(), value.ravel(), rtol=1e-9, atol=1e-12)
        assert seen[f"stats/{feature.key}/count"].tolist() == [14]


def test_windows_of_later_actions_are_read(
    seen: Mapping[str, np.ndarray], episodes: list[Episode]
) -> None:
    actions = episodes[0].steps["actions"]
    after = np.concatenate([actions[1:], actions[-1:]])  # the last one repeats at the end
    np.testing.assert_array_equal(seen["window/action"], np.stack([actions, after], axis=1))


def test_dataset_can_be_merged(facts: dict[str, Any]) -> None:
    assert facts["merged"] == [6, 28, ["push the cart", "hand it over"]]
    assert facts["merged_frames"] == list(range(28))

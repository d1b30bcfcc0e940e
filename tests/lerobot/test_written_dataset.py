"""The real LeRobot loads a dataset written here and sees every value in it."""

import numpy as np
import pytest

from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature, features_of
from cadenza.stream.layout import BOOKKEEPING, Field
from tests.lerobot.real_lerobot import assert_frames, assert_windows, read_with_lerobot
from tests.stream_episodes import random_episode

pytestmark = pytest.mark.lerobot

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


def new_episodes():
    rng = np.random.default_rng(8)
    episodes = []
    for i, length in enumerate(LENGTHS):
        plain = random_episode(length, rng, number=i, image=(24, 32))
        grid = rng.standard_normal((length, 2, 3)).astype(np.float32)
        steps = {**plain.steps, "grid": grid}
        episodes.append(Episode(steps=steps, states=plain.states, number=i, success=i != 1))
    return episodes


@pytest.fixture(scope="module")
def episodes():
    return new_episodes()


@pytest.fixture(scope="module")
def seen(episodes, tmp_path_factory):
    """Return what LeRobot sees in a dataset of two data files."""
    folder = tmp_path_factory.mktemp("lerobot")
    for name, features in {"dataset": FEATURES, "plain": PLAIN}.items():
        with LeRobotWriter(folder / name, features, fps=FPS, robot_type="cart") as writer:
            for episode, task in zip(episodes, TASKS, strict=True):
                writer.add(episode, task)
                if writer.episodes == 2:
                    writer.flush()
    return read_with_lerobot(folder / "dataset", folder / "plain", folder)


def test_every_feature_of_every_frame_is_the_same(seen, episodes):
    assert_frames(seen, FEATURES, episodes)


def test_episodes_and_tasks_are_found(seen):
    facts = seen.facts
    assert (facts["version"], facts["fps"], facts["length"]) == ("v3.0", FPS, 14)
    assert facts["cameras"] == ["observation.images.front"]
    assert facts["tasks"] == {"push the cart": 0, "hand it over": 1}
    tasks = [task for task, length in zip(TASKS, LENGTHS, strict=True) for _ in range(length)]
    assert facts["frame_tasks"] == tasks
    assert [episode["length"] for episode in facts["episodes"]] == list(LENGTHS)
    assert [episode["data/file_index"] for episode in facts["episodes"]] == [0, 0, 1]


def test_neighbours_are_read_also_of_some_episodes_only(seen, episodes):
    assert_windows(seen, FEATURES, episodes)


def test_dataset_can_be_merged(seen):
    assert seen.facts["merged"] == [6, 28, ["push the cart", "hand it over"]]
    assert seen.facts["merged_frames"] == list(range(28))

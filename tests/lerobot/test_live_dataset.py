"""The real LeRobot loads what a live stream with a camera produced, written while it went on."""

import time
from pathlib import Path

import numpy as np
import pytest

from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature, features_of
from tests.lerobot.camera_world import LENGTHS
from tests.lerobot.real_lerobot import (
    Seen,
    assert_frames,
    assert_statistics,
    assert_windows,
    read_with_lerobot,
)
from tests.stream_engines import nothing_left

pytestmark = pytest.mark.lerobot

EPISODES = 12
CAMERA = "observation.images.front"
Written = tuple[list[Feature], list[Episode], Seen]


def write_live(root: Path) -> tuple[list[Feature], list[Episode]]:
    """Write the stream's first episodes, a data file for every five of them."""
    cfg = OnlineDataEngineCfg(
        buffer_size=8,
        max_episode_steps=max(LENGTHS),
        gym_config={"factory": "tests.lerobot.camera_world:cameras", "num_envs": 2},
        policy={"factory": "tests.lerobot.camera_world:RandomPolicy"},
        producers=2,
        mode="continuous",
        high_water=4,
        initialization_timeout=800,
    )
    episodes: list[Episode] = []
    deadline = time.monotonic() + 800.0
    with OnlineDataEngine(cfg) as engine:
        reader = EpisodeReader(engine.store)
        features = features_of(engine.store.layout.fields, success=True)
        with LeRobotWriter(root, features, fps=20) as writer:
            while len(episodes) < EPISODES:
                assert time.monotonic() < deadline, "no episodes"
                for episode in reader.take(EPISODES - len(episodes)):
                    task = "succeed" if episode.success else "fail"
                    writer.add(episode, task)
                    episodes.append(episode)
                    if len(episodes) % 5 == 0:
                        writer.flush()
                time.sleep(0.01)
    assert reader.lost == 0
    return features, episodes


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("live")
    with nothing_left():
        features, episodes = write_live(folder / "dataset")
    return features, episodes, read_with_lerobot(folder / "dataset", folder / "dataset", folder)


def test_every_feature_of_every_frame_is_the_same(written: Written) -> None:
    features, episodes, seen = written
    assert {feature.key for feature in features if feature.dtype == "image"} == {CAMERA}
    assert_frames(seen, features, episodes)


def test_pictures_and_states_of_a_frame_belong_together(written: Written) -> None:
    _, episodes, seen = written
    marks = (seen.arrays[f"frame/{CAMERA}"][:, :2, 0, 0] * 255).round()  # red and green
    np.testing.assert_array_equal(marks, seen.arrays["frame/observation.state"])
    steps = np.concatenate([np.arange(episode.length) for episode in episodes])
    np.testing.assert_array_equal(marks[:, 1], steps)


def test_episodes_tasks_and_success_are_those_of_the_stream(written: Written) -> None:
    _, episodes, seen = written
    lengths = [episode.length for episode in episodes]
    assert [episode["length"] for episode in seen.facts["episodes"]] == lengths
    assert [e["data/file_index"] for e in seen.facts["episodes"]] == [0] * 5 + [1] * 5 + [2] * 2
    last = np.cumsum(lengths) - 1
    found = seen.arrays["frame/next.success"].ravel()
    assert found[last].tolist() == [episode.success for episode in episodes]
    assert found.sum() == found[last].sum()
    assert {episode.success for episode in episodes} == {True, False}
    tasks = np.array(seen.facts["frame_tasks"])
    assert (tasks[last] == np.where(found[last], "succeed", "fail")).all()


def test_statistics_are_those_of_numpy(written: Written) -> None:
    features, episodes, seen = written
    assert_statistics(seen, features, episodes)


def test_neighbours_are_read_also_of_some_episodes_only(written: Written) -> None:
    features, episodes, seen = written
    assert_windows(seen, features, episodes)

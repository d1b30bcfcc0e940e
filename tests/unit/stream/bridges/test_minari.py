"""An exported dataset, loaded back with Minari."""

import sys
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    InputError,
    MissingExtraError,
)
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.minari import export_to_minari
from tests.stream_episodes import random_episode

LENGTHS = (4, 1, 6)
# Minari advises to name authors and environments.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning"),
    pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning"),
]


@pytest.fixture(autouse=True)
def datasets_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def new_episodes(**options) -> list[Episode]:
    rng = np.random.default_rng(21)
    return [random_episode(n, rng, number=10 + i, **options) for i, n in enumerate(LENGTHS)]


def test_loaded_episodes_are_the_same_bit_for_bit() -> None:
    episodes = new_episodes()
    export_to_minari(episodes, "cadenza/cart-v0", author="someone", author_email="a@b.c")
    dataset = minari.load_dataset("cadenza/cart-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 11)
    assert dataset.observation_space == Dict({"qpos": Box(-np.inf, np.inf, (4,), np.float32)})
    assert dataset.action_space == Box(-np.inf, np.inf, (3,), np.float32)
    for i, (loaded, episode) in enumerate(zip(dataset, episodes, strict=True)):
        assert loaded.id == i
        assert loaded.observations["qpos"].dtype == np.float32
        np.testing.assert_array_equal(loaded.observations["qpos"], episode.states["obs.qpos"])
        np.testing.assert_array_equal(loaded.actions, episode.steps["actions"])
        np.testing.assert_array_equal(loaded.rewards, episode.steps["rewards"])
        np.testing.assert_array_equal(loaded.terminations, episode.steps["terminated"])
        np.testing.assert_array_equal(loaded.truncations, episode.steps["truncated"])


def test_other_facts_are_in_the_infos() -> None:
    episodes = new_episodes()
    export_to_minari(episodes, "cart-v0")
    for loaded, episode in zip(minari.load_dataset("cart-v0"), episodes, strict=True):
        segments = episode.steps["segment_id"].tolist()
        assert loaded.infos["segment_id"].tolist() == [0, *segments]
        assert set(loaded.infos["episode_number"].tolist()) == {episode.number}
        versions = episode.steps["policy_version"].tolist()
        assert loaded.infos["policy_version"].tolist() == [0, *versions]
        assert loaded.infos["success"].tolist() == [False] * episode.length + [True]


def test_success_is_left_out_when_nobody_judged() -> None:
    export_to_minari(new_episodes(success=None), "cart-v0")
    assert "success" not in minari.load_dataset("cart-v0")[0].infos


@pytest.mark.parametrize("flag", [False, True])
def test_cut_off_episode_ends_truncated(flag: bool) -> None:
    steps = {
        "actions": np.zeros((3, 1), dtype=np.float32),
        "rewards": np.zeros(3, dtype=np.float32),
        "terminated": np.zeros(3, dtype=bool),
        "truncated": np.array([False, False, flag]),
    }
    states = {"obs": np.zeros((4, 2), dtype=np.float32)}
    export_to_minari([Episode(steps=steps, states=states)], "cart-v0")
    loaded = minari.load_dataset("cart-v0")[0]
    assert loaded.terminations.tolist() == [False, False, False]
    assert loaded.truncations.tolist() == [False, False, True]


def test_several_state_fields_nest_as_in_the_environment_with_exact_images() -> None:
    episodes = new_episodes(image=(8, 10))
    export_to_minari(episodes, "camera-v0")
    dataset = minari.load_dataset("camera-v0")
    box = Box(-np.inf, np.inf, (4,), np.float32)
    front = Dict({"color": Box(0, 255, (8, 10, 3), np.uint8)})
    assert dataset.observation_space == Dict({"qpos": box, "sensor": Dict({"front": front})})
    for loaded, episode in zip(dataset, episodes, strict=True):
        color = loaded.observations["sensor"]["front"]["color"]
        np.testing.assert_array_equal(color, episode.states["obs.sensor.front.color"])
        np.testing.assert_array_equal(loaded.observations["qpos"], episode.states["obs.qpos"])


def test_dict_space_of_the_environment_keeps_names_and_bounds() -> None:
    episode = new_episodes(image=(8, 10))[0]
    color = Box(0, 200, (8, 10, 3), np.uint8)
    space = Dict(
        {"sensor": Dict({"front": Dict({"color": color})}), "qpos": Box(-9, 9, (4,), np.float32)}
    )
    export_to_minari([episode], "camera-v0", observation_space=space)
    assert minari.load_dataset("camera-v0").observation_space == space
    other = Dict({"sensor": Dict({"rear": color}), "qpos": Box(-9, 9, (4,), np.float32)})
    told = r"observation_space\['sensor'\] with the keys \['front'\] .* got the keys \['rear'\]"
    with pytest.raises(InputError, match=told):
        export_to_minari([episode], "rear-v0", observation_space=other)
    with pytest.raises(InputError, match=r"keys \['qpos', 'sensor'\] .* got one array"):
        export_to_minari([episode], "box-v0", observation_space=color)


def pole_episode() -> Episode:
    steps = {
        "actions": np.array([1, 0]),
        "rewards": np.ones(2, dtype=np.float32),
        "terminated": np.array([False, True]),
    }
    return Episode(steps=steps, states={"obs": np.zeros((3, 4), dtype=np.float32)})


def test_environment_gives_the_spaces_and_can_be_made_again() -> None:
    env = gymnasium.make("CartPole-v1")
    export_to_minari([pole_episode()], "pole-v0", env=env)
    dataset = minari.load_dataset("pole-v0")
    assert dataset.action_space == Discrete(2)
    assert dataset.observation_space == env.observation_space
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    assert dataset[0].actions.tolist() == [1, 0]


def test_existing_dataset_is_refused() -> None:
    export_to_minari(new_episodes(), "cart-v0")
    with pytest.raises(ConfigurationError, match="expected a new dataset, got 'cart-v0'"):
        export_to_minari(new_episodes(), "cart-v0")


@pytest.mark.parametrize("name", ["", "cart", "cart v0", "a/cart-v0", "cart-v"])
def test_name_that_the_format_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected an id '\(namespace/\)name-vN', got"):
        export_to_minari(new_episodes(), name)


def test_arguments_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigurationTypeError, match="dataset_id: expected str, got 3"):
        export_to_minari(new_episodes(), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationTypeError, match="episodes: expected Iterable, got None"):
        export_to_minari(None, "cart-v0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationTypeError, match="episodes: expected Episode, got 3"):
        export_to_minari([3], "cart-v0")  # pyright: ignore[reportArgumentType]


def test_export_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="expected at least one episode, got none"):
        export_to_minari([], "cart-v0")


def test_episode_without_rewards_is_refused() -> None:
    bare = Episode(steps={"actions": np.zeros((1, 1))}, states={"obs": np.zeros((2, 1))})
    with pytest.raises(InputError, match="expected actions, rewards, terminated and a state field"):
        export_to_minari([bare], "cart-v0")


def test_episodes_with_different_fields_are_refused(datasets_folder: Path) -> None:
    episodes = [*new_episodes(), *new_episodes(image=(8, 8))]
    with pytest.raises(InputError, match="of the first episode in all of them"):
        export_to_minari(episodes, "cart-v0")
    assert list(datasets_folder.iterdir()) == []


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[minari\]'"):
        export_to_minari(new_episodes(), "cart-v0")

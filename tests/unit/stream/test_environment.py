"""Which arrays an environment needs, and steps in every autoreset mode."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.stream.config import OnlineDataEngineCfg, load_callable
from cadenza.stream.engine import OnlineDataEngine
from cadenza.stream.environment import Worlds, WorldStep, make_worlds, space_fields, store_layout
from cadenza.stream.layout import BOOKKEEPING
from tests.stream_worlds import CountingEnv, counting


def shapes(cfg: OnlineDataEngineCfg) -> dict[str, tuple[Any, ...]]:
    """Return shape, type and kind of every field that is no bookkeeping."""
    fields = store_layout(cfg).fields[: -len(BOOKKEEPING)]
    return {field.name: (field.shape, field.dtype, field.kind) for field in fields}


def test_gymnasium_id_gives_the_spaces_and_the_step_limit() -> None:
    gym = {"id": "Pendulum-v1", "num_envs": 2}
    cfg = OnlineDataEngineCfg(gym_config=gym, buffer_size=6)
    layout = store_layout(cfg)
    assert shapes(cfg) == {"obs": ((3,), "float32", "state"), "actions": ((1,), "float32", "step")}
    # Six episodes and one more per environment; the default of 300 steps.
    assert (layout.slots, layout.steps, layout.producers) == (8, 300, 1)
    worlds = make_worlds(gym, {}, 7)
    assert worlds.envs[0].spec.max_episode_steps == 7
    worlds.close()
    vectorised = make_worlds({"id": "CartPole-v1", "num_envs": 2}, {}, 7)
    assert vectorised.max_episode_steps == 7
    vectorised.close()


def test_nested_observations_become_dotted_names() -> None:
    fields = space_fields(counting(1, nested=True))
    assert [field.name for field in fields] == ["obs.goal", "obs.robot.qpos", "actions"]


def test_robot_with_cameras_has_the_buffer_of_a_robot() -> None:
    stereo = {
        "uid": "head",
        "sensor_type": "StereoCamera",
        "width": 32,
        "height": 24,
        "enable_mask": True,
        "enable_depth": True,
    }
    observations = {
        "grasp": {"mode": "add", "name": "task/grasp", "extra": {"shape": [3]}},
        "noise": {"mode": "modify", "extra": {"shape": [9]}},
        "bare": {"mode": "add"},
    }
    gym = {"id": "unused", "sensor": [{}, stereo], "env": {"observations": observations}}
    found = shapes(OnlineDataEngineCfg(gym_config=gym, state_dim=7))
    eyes = {
        f"obs.sensor.head.{name}{eye}": (shape, dtype, "state")
        for eye in ("", "_right")
        for name, shape, dtype in (
            ("color", (24, 32, 4), "uint8"),
            ("mask", (24, 32), "int32"),
            ("depth", (24, 32), "float32"),
        )
    }
    joints = {f"obs.robot.{name}": ((7,), "float32", "state") for name in ("qpos", "qvel", "qf")}
    assert found == {
        **joints,
        "obs.sensor.camera.color": ((480, 640, 4), "uint8", "state"),
        **eyes,
        "obs.task.grasp": ((3,), "float32", "state"),
        "actions": ((7,), "float32", "step"),
    }


@pytest.mark.parametrize(
    ("robot", "told"),
    [
        ({"sensor": 3}, "'sensor' to be a list of mappings"),
        ({"sensor": [{"height": "high"}]}, "'sensor' to be a list of mappings"),
        ({"sensor": [{"height": 0}]}, "expected axes of at least 1"),
        ({"env": {"observations": [1]}}, r"\['observations'\] mappings by name"),
        ({"env": {"observations": {"a": {"mode": "add", "extra": {"shape": 3}}}}}, "by name"),
        ({"env": {"observations": {"a": {"mode": "add", "extra": {"shape": [2.5]}}}}}, "axes of"),
    ],
)
def test_robot_that_cannot_be_stored_is_refused(robot, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        store_layout(OnlineDataEngineCfg(gym_config={"id": "A", **robot}))


def test_policy_that_cannot_be_imported_is_refused_before_a_producer_starts() -> None:
    cfg = OnlineDataEngineCfg(
        gym_config={"id": "CartPole-v1"}, policy={"factory": "no.such:Expert"}
    )
    with pytest.raises(ConfigurationError, match=r"policy\['factory'\]: .*'no.such:Expert' to be"):
        OnlineDataEngine(cfg)


@pytest.mark.parametrize("name", ["NoSuchWorld-v0", "no_such_module:World-v0"])
def test_environment_that_gymnasium_does_not_know_is_refused(name: str) -> None:
    told = f"expected the name of a registered environment, got '{name}' .*; write 'module:name'"
    with pytest.raises(ConfigurationError, match=told):
        store_layout(OnlineDataEngineCfg(gym_config={"id": name}))


class OddEnv(CountingEnv):
    """Observes something without arrays of fixed size."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__(0, [1])
        self.observation_space = space


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Text(3), "obs: expected a space of one array"),
        (
            spaces.Tuple([spaces.Discrete(2)]),
            r"obs: .* got Tuple\(.*; wrap every environment in gymnasium.wrappers.FlattenObservat",
        ),
        (spaces.Dict({"a": spaces.Tuple([])}), "obs.a: expected a space of one array"),
        (spaces.Dict({"a.b": spaces.Discrete(2)}), "observation obs.a.b: expected a key without"),
    ],
)
def test_observations_that_cannot_be_stored_are_refused(space, told) -> None:
    worlds = SyncVectorEnv([lambda: OddEnv(space)])
    with pytest.raises(ConfigurationError, match=told):
        space_fields(worlds)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.Tuple([])])
def test_actions_of_several_arrays_are_refused(space) -> None:
    env = CountingEnv(0, [1])
    env.action_space = space
    told = r"actions: expected a space of one array .*in gymnasium.wrappers.TransformAction with"
    with pytest.raises(ConfigurationError, match=told):
        space_fields(SyncVectorEnv([lambda: env]))


def test_environment_without_autoreset_mode_is_refused() -> None:
    env = counting(1)
    env.metadata = {}
    with pytest.raises(InputError, match=r"expected metadata\['autoreset_mode'\]"):
        Worlds(env)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("nested", [False, True])
def test_steps_keep_episodes_apart(mode, nested) -> None:
    key = "obs.robot.qpos" if nested else "obs"
    worlds = Worlds(counting(2, [1, 2], mode, nested=nested))
    start = worlds.reset(seed=0)
    np.testing.assert_array_equal(start[key], [[0, 0], [0, 0]])
    step = worlds.step(np.zeros((2, 1), np.float32))
    # Environment 0 has ended after one step; what it led to is (episode 0, step 1).
    np.testing.assert_array_equal(step.states[key], [[0, 1], [0, 1]])
    assert step.terminated.tolist() == [True, False]
    assert step.played.tolist() == [True, True]
    assert step.success(0) is True
    if mode == "NEXT_STEP":
        assert step.begun.tolist() == [False, False]
        step = worlds.step(np.zeros((2, 1), np.float32))
        assert step.played.tolist() == [False, True]
    assert step.begun.tolist() == [True, False]
    np.testing.assert_array_equal(step.first[key][0], [1, 0])
    worlds.close()


@pytest.mark.parametrize("told", [["False"], np.array(["False"], object), [np.nan], [2], [None]])
@pytest.mark.parametrize("which", ["terminations", "truncations"])
def test_words_and_other_numbers_are_no_endings(monkeypatch, told, which: str) -> None:
    worlds = Worlds(counting(1, [5]))
    worlds.reset(seed=0)
    seen, rewards, *_ = worlds.env.step(np.zeros((1, 1), np.float32))
    ends = [told, [False]] if which == "terminations" else [np.zeros(1), told]
    monkeypatch.setattr(worlds.env, "step", lambda actions: (seen, rewards, *ends, {}))
    with pytest.raises(InputError, match=f"expected truth values in {which}, got \\[.*; correct"):
        worlds.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("told", ["no", 0.5, None])
def test_endings_of_one_environment_are_refused_before_gymnasium_converts_them(
    monkeypatch, told
) -> None:
    def step(env: CountingEnv, action):
        return env.observation(), 0.0, told, False, {}

    monkeypatch.setattr(CountingEnv, "step", step)
    worlds = Worlds(counting(2, [5]))
    worlds.reset(seed=0)
    with pytest.raises(InputError, match=r"expected truth values in terminated, got .*; correct"):
        worlds.step(np.zeros((2, 1), np.float32))


def test_numbers_0_and_1_are_endings(monkeypatch) -> None:
    worlds = Worlds(counting(2, [5]))
    worlds.reset(seed=0)
    seen, rewards, *_ = worlds.env.step(np.zeros((2, 1), np.float32))
    step = (seen, rewards, [0.0, 1.0], np.array([True, False], object), {})
    monkeypatch.setattr(worlds.env, "step", lambda actions: step)
    made = worlds.step(np.zeros((2, 1), np.float32))
    assert (made.terminated.tolist(), made.truncated.tolist()) == ([False, True], [True, False])


def test_word_is_no_success() -> None:
    two = np.zeros(2, np.bool_)
    step = WorldStep({}, np.zeros(2), two, two, two, two, {}, {"success": ["True", "False"]})
    with pytest.raises(InputError, match=r"truth values in infos\['success'\], got 'False'"):
        step.success(1)


def test_same_step_reset_must_tell_the_final_observation(monkeypatch) -> None:
    worlds = Worlds(counting(1, [1], "SAME_STEP"))
    worlds.reset(seed=0)
    inner = worlds.env.step
    monkeypatch.setattr(worlds.env, "step", lambda actions: (*inner(actions)[:4], {}))
    with pytest.raises(InputError, match="expected 'final_obs' in the infos"):
        worlds.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ({}, None),
        ({"is_success": np.array([False, True])}, True),
        ({"success": np.array([True, False])}, False),
        ({"success": np.ones(2), "final_info": {"success": np.zeros(2)}}, False),
        # Only environment 0 says something; its neighbour's entry is a filling.
        ({"success": np.array([True, False]), "_success": np.array([True, False])}, None),
        ({"success": np.array([False, True]), "_success": np.array([False, True])}, True),
        ({"success": np.zeros(2), "_success": [True, False], "is_success": [0, 1]}, True),
        ({"final_info": {"success": [1, 0], "_success": [1, 0]}, "success": [0, 1]}, True),
    ],
)
def test_success_is_what_the_infos_say_of_this_environment(infos, expected) -> None:
    two = np.zeros(2, np.bool_)
    step = WorldStep({}, np.zeros(2), two, two, two, two, {}, infos)
    assert step.success(1) is expected


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (3, "expected 'package.module:function', got 3"),
        ("tests.stream_worlds", "expected 'package.module:function'"),
        (":counting", "expected 'package.module:function'"),
        ("tests.no_such:counting", "to be importable, got: No module named"),
        ("tests.stream_worlds:no_such", "has no attribute 'no_such'"),
        ("math:pi", "expected something to call at 'math:pi', got float"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(path, told) -> None:
    with pytest.raises(ConfigurationError, match=f"^here: .*{told}"):
        load_callable(path, "here")

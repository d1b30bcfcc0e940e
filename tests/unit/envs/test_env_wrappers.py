import gymnasium as gym
import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.wrappers import (
    PartnerIdAnnotationWrapper,
    PerAgentActionRepeatWrapper,
    TextureFilterObsWrapper,
    zeroed,
)
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions

PARTNER_ID = "0123456789abcdef"


class RecordingEnv(gym.Env):
    """Two robots with several channels; remembers the actions it was given."""

    def __init__(self, *, dict_spaces=True):
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        image = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.action_space = gym.spaces.Dict({"a": box, "b": box}) if dict_spaces else box
        robot = gym.spaces.Dict({"state": box, "rgb": image, "nested": gym.spaces.Dict({"x": box})})
        self.observation_space = (
            gym.spaces.Dict(
                {
                    "agent": gym.spaces.Dict({"a": robot, "b": robot, "c": box}),
                    "extra": gym.spaces.Dict({"goal": box}),
                }
            )
            if dict_spaces
            else box
        )
        self.seen = []

    def _obs(self):
        def robot():
            return {
                "state": np.ones(2, np.float32),
                "rgb": np.full((4, 4, 3), 7, np.uint8),
                "nested": {"x": np.ones(2, np.float32)},
            }

        goal = np.ones(2, np.float32)
        return {"agent": {"a": robot(), "b": robot(), "c": goal}, "extra": {"goal": goal}}

    def reset(self, *, seed=None, options=None):
        return self._obs(), {"seed": seed}

    def step(self, action):
        self.seen.append(action)
        return self._obs(), 0.0, False, False, {}


# --- action repeat -------------------------------------------------------------------------------


def submit(wrapper, values):
    """Step once per value, both robots getting it; return what the env saw."""
    for value in values:
        wrapper.step({"a": np.full(2, value), "b": np.full(2, value)})
    seen = wrapper.env.seen
    return [float(s["a"][0]) for s in seen], [float(s["b"][0]) for s in seen]


def test_action_repeat_holds_each_robot_for_its_own_count_until_the_reset():
    wrapper = PerAgentActionRepeatWrapper(RecordingEnv(), {"b": 3})
    wrapper.reset()
    submit(wrapper, range(7))
    wrapper.reset()
    a, b = submit(wrapper, [7])
    assert a == [0, 1, 2, 3, 4, 5, 6, 7]
    assert b == [0, 0, 0, 3, 3, 3, 6, 7]


def test_action_repeat_holds_a_copy():
    wrapper = PerAgentActionRepeatWrapper(RecordingEnv(), {"a": 2})
    wrapper.reset()
    buffer = np.array([0.5, 0.5])
    wrapper.step({"a": buffer, "b": buffer})
    buffer[:] = -1.0
    wrapper.step({"a": buffer, "b": buffer})
    seen = wrapper.env.seen[1]
    assert seen["a"].tolist() == [0.5, 0.5]
    assert seen["b"].tolist() == [-1.0, -1.0]


def test_action_repeat_does_not_hold_an_action_the_env_refused():
    env = CrossingEnv()
    wrapper = PerAgentActionRepeatWrapper(env, {"partner": 3})
    wrapper.reset(seed=0)
    with pytest.raises(InputError, match="finite action of 'partner'"):
        wrapper.step({"ego": np.zeros(2), "partner": np.array([np.nan, 0.0])})
    plain = CrossingEnv()
    plain.reset(seed=0)
    actions = [{"ego": np.zeros(2), "partner": np.full(2, value)} for value in (0.1, 0.2, 0.3, 0.4)]
    for action in actions:
        wrapper.step(action)
    for value in (0.1, 0.1, 0.1, 0.4):
        plain.step({"ego": np.zeros(2), "partner": np.full(2, value)})
    assert env.robot_positions()["partner"].tolist() == plain.robot_positions()["partner"].tolist()


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 0}, r"action_repeat\['a'\]: expected an integer >= 1, got 0"),
        ({"a": True}, "integer >= 1, got True"),
        ({"ghost": 2}, r"uids of the action space \['a', 'b'\], got 'ghost'"),
    ],
)
def test_action_repeat_with_bad_counts_names_them(counts, message):
    with pytest.raises(InputError, match=message):
        PerAgentActionRepeatWrapper(RecordingEnv(), counts)


def test_action_repeat_without_dict_actions_is_incompatible_even_with_bad_counts():
    with pytest.raises(ChamberEnvCompatibilityError, match=r"Dict action space.*got Box"):
        PerAgentActionRepeatWrapper(RecordingEnv(dict_spaces=False), {"a": 0})


def test_action_repeat_of_the_ego_refuses_a_safety_filter_before_and_after_wrapping():
    inner = CrossingEnv()
    inside = SafetyDriver.from_env(inner, ego_uid="ego", options=SafetyOptions())
    env = PerAgentActionRepeatWrapper(inner, {"ego": 4})
    message = r"expected action_repeat\['ego'\] = 1 with a safety filter, got 4"
    with pytest.raises(ChamberEnvCompatibilityError, match=message):
        SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    with pytest.raises(ChamberEnvCompatibilityError, match=message):
        inside.drives(gym.Wrapper(env))


def test_action_repeat_of_a_partner_leaves_the_ego_guarded():
    env = PerAgentActionRepeatWrapper(CrossingEnv(), {"ego": 1, "partner": 4})
    driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    assert driver.drives(env)
    assert env.build_control_models() == env.unwrapped.build_control_models()


# --- texture filter ------------------------------------------------------------------------------


def test_texture_filter_zeroes_what_is_not_kept_and_passes_the_rest_by_reference():
    env = RecordingEnv()
    wrapper = TextureFilterObsWrapper(env, {"a": ["state"]})
    raw, _ = env.reset()
    obs = wrapper.observation(raw)
    assert obs["agent"]["a"]["state"] is raw["agent"]["a"]["state"]
    assert obs["agent"]["a"]["rgb"].dtype == np.uint8
    assert obs["agent"]["a"]["rgb"].shape == (4, 4, 3)
    assert not obs["agent"]["a"]["rgb"].any()
    assert not obs["agent"]["a"]["nested"]["x"].any()
    assert obs["agent"]["b"] is raw["agent"]["b"]
    assert obs["extra"] is raw["extra"]
    assert raw["agent"]["a"]["rgb"].all()  # the argument keeps its values


def test_texture_filter_applies_to_reset_and_step():
    wrapper = TextureFilterObsWrapper(RecordingEnv(), {"a": []})
    for obs in (wrapper.reset()[0], wrapper.step({})[0]):
        assert not obs["agent"]["a"]["state"].any()
        assert obs["agent"]["b"]["state"].all()
        assert wrapper.observation_space.contains(obs)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"a": ["joint_pos"]}, r"channels of 'a' among \['nested', 'rgb', 'state'\]"),
        ({"ghost": ["state"]}, r"uids of the observation space \['a', 'b', 'c'\], got 'ghost'"),
        ({"a": "state"}, r"got the string 'state'; write \['state'\]"),
    ],
)
def test_texture_filter_with_bad_keep_list_names_it(keep, message):
    with pytest.raises(InputError, match=message):
        TextureFilterObsWrapper(RecordingEnv(), keep)


def test_zeroed_keeps_structure_types_and_devices():
    value = {
        "array": np.ones((2, 3), np.float32),
        "tensor": torch.ones(2, dtype=torch.int32),
        "list": [1.5, (True, 3)],
        "scalar": np.float32(2.0),
    }
    blank = zeroed("obs", value)
    assert blank["array"].shape == (2, 3)
    assert blank["array"].dtype == np.float32
    assert not blank["array"].any()
    assert blank["tensor"].dtype == torch.int32
    assert blank["tensor"].tolist() == [0, 0]
    assert blank["list"] == [0.0, (False, 0)]
    assert type(blank["list"][1][0]) is bool
    assert type(blank["scalar"]) is np.float32
    assert blank["scalar"] == 0.0
    with pytest.raises(ChamberEnvCompatibilityError, match=r"obs\.task\[1\]: .* got str; keep"):
        zeroed("obs", {"task": [1.0, "lift"]})


# --- partner identity ----------------------------------------------------------------------------


def test_partner_id_is_in_every_observation_and_in_the_space_and_can_be_changed():
    env = PartnerIdAnnotationWrapper(CrossingEnv(), partner_id=PARTNER_ID)
    obs = env.reset(seed=0)[0]
    assert obs["meta"] == {"partner_id": PARTNER_ID}
    assert env.observation_space.contains(obs)
    action = {uid: np.zeros(2) for uid in env.agent_uids}
    assert env.step(action)[0]["meta"]["partner_id"] == PARTNER_ID
    env.set_partner_id("f" * 16)
    assert env.partner_id == env.step(action)[0]["meta"]["partner_id"] == "f" * 16


class MetaEnv(RecordingEnv):
    """Observation with a ``meta`` entry of its own."""

    def __init__(self, meta, space):
        super().__init__()
        self.meta = meta
        self.observation_space = gym.spaces.Dict({"meta": space})

    def _obs(self):
        return {"meta": self.meta}


def test_partner_id_keeps_other_meta_entries_and_does_not_touch_the_inner_dict():
    inner = {"mood": 1}
    space = gym.spaces.Dict({"mood": gym.spaces.Discrete(2)})
    env = PartnerIdAnnotationWrapper(MetaEnv(inner, space), partner_id=PARTNER_ID)
    obs = env.reset()[0]
    assert obs["meta"] == {"mood": 1, "partner_id": PARTNER_ID}
    assert env.observation_space.contains(obs)
    assert inner == {"mood": 1}


def test_partner_id_without_text_or_dict_observation_is_refused():
    with pytest.raises(ChamberEnvCompatibilityError, match="Dict observation space, got Box"):
        PartnerIdAnnotationWrapper(RecordingEnv(dict_spaces=False), partner_id=PARTNER_ID)
    with pytest.raises(InputError, match="partner_id to be str, got 7"):
        PartnerIdAnnotationWrapper(CrossingEnv(), partner_id=7)


# --- forwarding ----------------------------------------------------------------------------------


def test_wrappers_forward_public_attributes_through_the_whole_stack():
    env = PartnerIdAnnotationWrapper(
        TextureFilterObsWrapper(
            PerAgentActionRepeatWrapper(CrossingEnv(), {"partner": 2}), {"ego": ["state"]}
        ),
        partner_id=PARTNER_ID,
    )
    env.reset(seed=0)
    assert (env.ego_uid, env.control_timestep, env.plant) == ("ego", 0.05, "zoh")
    assert set(env.build_agent_snapshots()) == {"ego", "partner"}

"""States, senses and automatic resets of the simulated robots, on envs that are made up here."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.envs import (
    ChamberEnvCompatibilityError,
    Stage0StateSynthesizer,
    Stage1ASStateSynthesizer,
    Stage1OMChannelFilter,
)
from cadenza.envs.inputs import ObservationLayoutError
from cadenza.envs.maniskill.stage1_conditions import AS_HETERO, AS_HOMO, OM_HETERO, OM_HOMO
from cadenza.envs.maniskill.stage1_pickplace import Stage1AutoResetWrapper

JOINTS = {"panda_wristcam": 9, "panda_partner": 9, "fetch": 15}
EXTRA = {"tcp_pose": 7, "cube_pose": 7, "goal_pos": 3, "force_torque": 6}
ACTIONS = {"panda_wristcam": 8, "panda_partner": 8, "fetch": 13}


def counted(start, shape):
    return torch.arange(start, start + int(np.prod(shape)), dtype=torch.float32).reshape(shape)


class FakeScene(gym.Env):
    """Observations of the simulator's layout whose numbers tell where they come from."""

    def __init__(self, condition_id, rows=1, drop=None, widths=None):
        if condition_id is not None:
            self.condition_id = condition_id
        partner = "panda_partner" if condition_id == AS_HOMO else "fetch"
        self.uids, self.rows, self.seeds = ("panda_wristcam", partner), rows, []
        extra = {**EXTRA, **(widths or {})}
        start = 0
        agent = {}
        for uid in self.uids:
            agent[uid] = {}
            for channel in ("qpos", "qvel"):
                agent[uid][channel] = counted(start, (rows, JOINTS[uid]))
                start += 100
        fields = {
            name: counted(1000 * (k + 1), (rows, n)) for k, (name, n) in enumerate(extra.items())
        }
        self.obs = {
            "agent": agent,
            "extra": fields,
            "sensor_data": {"eye": {"rgb": torch.ones(1, 2)}},
        }
        node = self.obs
        for key in (drop or "").split(".")[:-1]:
            node = node[key]
        node.pop((drop or "").split(".")[-1], None)
        self.observation_space = spaces_of(
            {k: v for k, v in self.obs.items() if k != "sensor_data"}
        )
        boxes = {uid: gym.spaces.Box(-1, 1, (ACTIONS[uid],)) for uid in self.uids}
        self.action_space = gym.spaces.Dict(boxes)

    def reset(self, *, seed=None, options=None):
        self.seeds.append((seed, options))
        return self.obs, {}

    def step(self, action):
        return self.obs, torch.zeros(self.rows), self.done, torch.zeros(self.rows, dtype=bool), {}


def spaces_of(value):
    if isinstance(value, dict):
        return gym.spaces.Dict({key: spaces_of(entry) for key, entry in value.items()})
    return gym.spaces.Box(-np.inf, np.inf, tuple(value.shape), np.float32)


@pytest.mark.parametrize(
    ("condition", "ego_dim", "partner_dim"), [(AS_HOMO, 53, 18), (AS_HETERO, 65, 30)]
)
def test_widened_state_has_its_parts_in_order(condition, ego_dim, partner_dim):
    env = Stage1ASStateSynthesizer(FakeScene(condition))
    obs, _ = env.reset(seed=3)
    ego, partner = (obs["agent"][uid]["state"] for uid in env.uids)
    assert (ego.shape, partner.shape) == ((ego_dim,), (partner_dim,))
    assert ego.dtype == np.float32
    n = partner_dim // 2
    marks = [0, 9, 18, 18 + n, 18 + 2 * n, 18 + 2 * n + 7, 18 + 2 * n + 10]
    # First numbers of ego qpos, qvel, partner qpos, qvel, cube_pose, goal_pos, tcp_pose.
    assert ego[marks].tolist() == [0, 100, 200, 300, 2000, 3000, 1000]
    assert partner[[0, n]].tolist() == [200, 300]
    for uid in env.uids:
        assert env.observation_space["agent"][uid]["state"].contains(obs["agent"][uid]["state"])
    assert "state" not in env.env.obs["agent"]["panda_wristcam"]
    assert env.unwrapped.seeds == [(3, None)]


def test_proprioceptive_state_is_the_robots_own_joints():
    env = Stage1ASStateSynthesizer(FakeScene(AS_HETERO), ego_state="proprio")
    state = env.reset()[0]["agent"]["panda_wristcam"]["state"]
    assert state.tolist() == [*range(9), *range(100, 109)]


def test_batch_keeps_its_rows():
    env = Stage1ASStateSynthesizer(FakeScene(AS_HOMO, rows=3))
    obs, _ = env.reset()
    state = obs["agent"]["panda_wristcam"]["state"]
    assert state.shape == (3, 53)
    assert state[2, 0] == 18  # third row of 9 joints
    assert env.observation_space["agent"]["panda_wristcam"]["state"].shape == (3, 53)


@pytest.mark.parametrize("condition", [OM_HOMO, OM_HETERO, None, "another"])
def test_states_are_for_the_conditions_of_the_body_only(condition):
    env = Stage1ASStateSynthesizer(FakeScene(condition))
    obs, _ = env.reset()
    assert obs is env.unwrapped.obs
    assert env.observation_space is env.unwrapped.observation_space


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ("agent.fetch", "got only ['panda_wristcam'] there."),
        ("agent.fetch.qvel", "got only ['qpos'] there."),
        ("extra", "got only ['agent'] there."),
        ("extra.cube_pose", "got only ['force_torque', 'goal_pos', 'tcp_pose'] there."),
        ("agent", "space, got ['extra']."),
    ],
)
def test_missing_entry_is_named_at_construction(gone, left):
    with pytest.raises(ChamberEnvCompatibilityError) as caught:
        Stage1ASStateSynthesizer(FakeScene(AS_HETERO, drop=gone))
    assert f"{gone!r}" in str(caught.value)
    assert str(caught.value).endswith(left)
    assert isinstance(caught.value, TypeError)


def test_field_of_another_length_is_named():
    with pytest.raises(TypeError, match=r"'extra\.goal_pos' to have 3 entries"):
        Stage1ASStateSynthesizer(FakeScene(AS_HETERO, widths={"goal_pos": 2}))


def test_malformed_observations_are_never_filled_up():
    env = Stage1ASStateSynthesizer(FakeScene(AS_HETERO))
    obs = env.unwrapped.obs
    without = {**obs, "extra": {k: v for k, v in obs["extra"].items() if k != "tcp_pose"}}
    with pytest.raises(ObservationLayoutError, match=r"extra\.tcp_pose"):
        env.observation(without)
    with pytest.raises(ObservationLayoutError, match=r"shape \(D,\) or \(N, D\)"):
        env.observation({**obs, "extra": {**obs["extra"], "tcp_pose": torch.zeros(1, 1, 7)}})
    with pytest.raises(ObservationLayoutError, match="inconsistent batch dims"):
        env.observation({**obs, "extra": {**obs["extra"], "tcp_pose": torch.zeros(2, 7)}})


def test_other_spaces_and_settings_are_refused():
    scene = FakeScene(AS_HOMO)
    scene.observation_space = gym.spaces.Box(0, 1, (3,))
    for wrapper in (Stage1ASStateSynthesizer, Stage1OMChannelFilter, Stage0StateSynthesizer):
        with pytest.raises(TypeError, match="Dict"):
            wrapper(scene)
    with pytest.raises(InputError, match="'widened', 'proprio'"):
        Stage1ASStateSynthesizer(FakeScene(AS_HOMO), ego_state="all")


def test_vision_only_blanks_joints_and_task_but_not_hand_and_goal():
    env = Stage1OMChannelFilter(FakeScene(OM_HOMO))
    given = env.unwrapped.obs
    obs, _ = env.reset()
    assert all(
        isinstance(value, torch.Tensor) and value.shape == given["agent"][uid][name].shape
        for uid, channels in obs["agent"].items()
        for name, value in channels.items()
    )
    blank = {name for name, value in obs["extra"].items() if not value.any()}
    assert blank == {"cube_pose", "force_torque"}
    assert obs["extra"]["tcp_pose"] is given["extra"]["tcp_pose"]
    assert obs["sensor_data"] is given["sensor_data"]
    assert not any(v.any() for channels in obs["agent"].values() for v in channels.values())
    assert given["agent"]["fetch"]["qpos"].any()  # the scene's own arrays are as they were


@pytest.mark.parametrize("condition", [AS_HOMO, AS_HETERO, OM_HETERO, None])
def test_other_conditions_hide_nothing(condition):
    env = Stage1OMChannelFilter(FakeScene(condition))
    assert env.reset()[0] is env.unwrapped.obs
    assert env.condition_id == condition


def test_attributes_of_the_scene_stay_reachable():
    env = Stage1OMChannelFilter(Stage1ASStateSynthesizer(FakeScene(AS_HOMO)))
    assert env.rows == 1
    with pytest.raises(AttributeError):
        Stage1OMChannelFilter.__getattr__(env, "env")


def test_envs_that_end_begin_anew_and_keep_their_last_observation():
    scene = FakeScene(AS_HOMO, rows=4)
    env = Stage1AutoResetWrapper(scene)
    scene.done = torch.zeros(4, dtype=bool)
    _, _, _, _, info = env.step({})
    assert "final_observation" not in info
    assert scene.seeds == []
    scene.done = torch.tensor([False, True, False, True])
    obs, _, terminated, _, info = env.step({})
    ((seed, options),) = scene.seeds
    assert seed is None
    assert options["env_idx"].tolist() == [1, 3]
    assert options["env_idx"].dtype == torch.int32
    assert terminated.tolist() == [False, True, False, True]
    obs["extra"]["tcp_pose"] += 1.0
    assert torch.equal(info["final_observation"]["extra"]["tcp_pose"], counted(1000, (4, 7)))


class FakeTeam(gym.Env):
    """Robots with channels of several kinds."""

    def __init__(self, robots):
        self.obs = {"agent": robots}
        self.observation_space = spaces_of(self.obs)
        self.action_space = gym.spaces.Dict({uid: gym.spaces.Box(-1, 1, (2,)) for uid in robots})

    def reset(self, *, seed=None, options=None):
        return self.obs, {}


def test_state_is_made_of_vector_channels_in_alphabetical_order():
    arm = {
        "qvel": torch.tensor([[3.0, 4.0]]),
        "qpos": torch.tensor([1.0, 2.0]),
        "rgb": torch.ones(8, 8, 3),
    }
    env = Stage0StateSynthesizer(FakeTeam({"arm": arm, "hand": {"state": torch.zeros(2)}}))
    obs, _ = env.reset()
    assert obs["agent"]["arm"]["state"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert env.observation_space["agent"]["arm"]["state"].shape == (4,)
    assert obs["agent"]["hand"] is env.unwrapped.obs["agent"]["hand"]


def test_robot_without_vector_channels_is_named():
    with pytest.raises(ChamberEnvCompatibilityError, match=r"vector channel of 'eye'.*\['rgb'\]"):
        Stage0StateSynthesizer(FakeTeam({"eye": {"rgb": torch.ones(8, 8, 3)}}))

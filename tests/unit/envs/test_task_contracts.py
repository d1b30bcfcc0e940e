"""Our tasks' contracts say of every number what their environments compute."""

import gymnasium as gym
import numpy as np
import pytest

import cadenza
from cadenza import contracts
from cadenza.envs.foraging import VectorForaging
from cadenza.envs.mujoco import CoCarryEnv, CoCarryOptions, HandoverEnv, VectorCoCarryEnv
from cadenza.envs.mujoco.cocarry import GRIP_STEP, TASK_SCALE
from cadenza.envs.mujoco.handover import EGO_SCALE, PRESENTER_SCALE
from cadenza.envs.mujoco.handover import GRIP_STEP as CARRIED_STEP
from cadenza.envs.mujoco.two_arms import JOINT_STEP

TASKS = {
    "crossing": "cadenza/Crossing-v1",
    "doorway": "cadenza/Doorway-v1",
    "doorway_diffdrive": "cadenza/DoorwayDiffDrive-v1",
    "mpe_cooperative_push": "cadenza/CooperativePush-v1",
    "foraging": "cadenza/Foraging-v1",
    "cocarry_mj": "cadenza/CoCarry-v1",
    "handover_mj": "cadenza/Handover-v1",
}


@pytest.mark.parametrize("task", TASKS)
def test_contract_has_the_sizes_bounds_and_rate_of_its_task(task):
    env = gym.make(TASKS[task])
    contract = env.unwrapped.task_contract
    assert contracts.get(task) == contract
    assert (contract.env_id, contract.robot_uid) == (TASKS[task], "ego")
    assert env.observation_space.shape == (contract.obs_dim,)
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        assert contract.action_spec == (contracts.ActionField("move", 1, 0.0, space.n - 1.0),)
        assert contract.control_hz is None
    else:
        assert space.shape == (contract.action_dim,)
        for field, place in contract.action_slices().items():
            told = next(each for each in contract.action_spec if each.name == field)
            assert (space.low[place] == told.low).all()
            assert (space.high[place] == told.high).all()
        assert contract.control_hz == pytest.approx(1.0 / env.unwrapped.multi_env.control_timestep)
    assert contract.max_episode_steps == env.unwrapped.multi_env.episode_length
    env.close()


def scales(spec):
    return np.concatenate([[field.scale] * field.dim for field in spec])


def test_scales_are_those_by_which_views_are_divided():
    carrying, receiving = CoCarryEnv().task_contract, HandoverEnv().task_contract
    for contract in carrying.values():
        np.testing.assert_array_equal(scales(contract.obs_spec), TASK_SCALE)
        assert contract.action_spec[0].scale == GRIP_STEP
    np.testing.assert_array_equal(scales(receiving["ego"].obs_spec), EGO_SCALE)
    np.testing.assert_array_equal(scales(receiving["partner"].obs_spec), PRESENTER_SCALE)
    assert receiving["ego"].action_spec[0].scale == CARRIED_STEP
    jointly = VectorCoCarryEnv(2, options=CoCarryOptions(view="full", action_track="joint"))
    ego = jointly.task_contract["ego"]
    assert (ego.obs_dim, ego.action_dim) == (47, 7)
    assert ego.action_spec[0].scale == JOINT_STEP


def test_options_change_the_contract_with_the_numbers():
    crowd = gym.make("cadenza/Crossing-v1", num_robots=4)
    assert crowd.unwrapped.task_contract.obs_dim == crowd.observation_space.shape[0] == 18
    fields = VectorForaging(3, foods=2)
    contract = fields.task_contract["partner"]
    assert fields.single_observation_space["agent"]["partner"]["state"].shape == (contract.obs_dim,)
    batch = gym.make_vec("cadenza/Crossing-v1", num_envs=2)
    assert batch.unwrapped.task_contract == contracts.get("crossing")
    assert cadenza.guard("cadenza/Crossing-v1").unwrapped.task_contract == contracts.get("crossing")

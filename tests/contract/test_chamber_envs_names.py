"""The public names of CHAMBER's envs, agents, Stage-0 builders and device helpers."""

import pytest

from cadenza.envs.maniskill.stage1_conditions import CONDITION_IDS
from tests.contract.promises import faults, promises

#: chamber.envs is cadenza.envs; chamber.agents is cadenza.envs.maniskill, chamber.benchmarks
#: .stage0_smoke its stage0, chamber.utils.device its device.
PROMISES = """
[cadenza.envs]
ChamberEnvCompatibilityError
ConditionConfig .condition_id .agent_uids .obs_mode .is_om_condition .ft_synthesis_enabled
MPECooperativePushEnv(*, agent_uids=('ego', 'partner'), episode_length=50, root_seed=0)
    .reset(*, seed=None, options=None) .step(action)
PartnerIdAnnotationWrapper(env, *, partner_id) .partner_id .set_partner_id(partner_id) .reset
    .step(action)
PerAgentActionRepeatWrapper(env, action_repeat) .reset .step(action)
Stage0StateSynthesizer(env) .observation(observation)
Stage1ASStateSynthesizer(env) .observation(observation) .__getattr__(name)
Stage1OMChannelFilter(env) .condition_id .observation(observation) .__getattr__(name)
TextureFilterObsWrapper(env, keep_per_agent) .observation(observation)
build_control_models_for_condition(condition_id, *, jacobian_fn=None, fetch_action_dim=None,
    panda_action_dim=8)
make_stage1_pickplace_env(*, condition_id, episode_length=100, root_seed=0, num_envs=1,
    render_mode=None, render_backend=None, force_torque_noise_sigma=0.5)
resolve_condition(condition_id)
[cadenza.envs.maniskill]
PandaJacobianProvider(urdf_path=None, *, ee_link='panda_hand_tcp') .ee_link
    .__call__(snap, qpos_arm)
PandaPartner
[cadenza.envs.panda_kinematics]
PANDA_ARM_DOF
CARTESIAN_POSITION_DIM
[cadenza.envs.maniskill.stage1_pickplace]
DEFAULT_EPISODE_LENGTH
SYNTHESISED_FT_NOISE_SIGMA_N
PANDA_CARTESIAN_ACCEL_CAPACITY_MS2
FETCH_CARTESIAN_ACCEL_CAPACITY_MS2
PANDA_SAFETY_RADIUS_M
FETCH_SAFETY_RADIUS_M
[cadenza.envs.maniskill.stage0]
make_stage0_env(*, render_mode=None)
make_stage0_training_env(*, agent_uids, episode_length=100, root_seed=0)
[cadenza.envs.maniskill.device]
sapien_gpu_available()
sapien_cuda_renderer_available()
torch_cuda_available()
torch_device()
device_report()
"""


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_chamber_is_kept(module, path, parameters):
    assert faults(module, path, parameters) == []


def test_condition_ids_are_the_frozen_strings():
    assert CONDITION_IDS == (
        "stage1_pickplace_panda_only_mappo_shared_param",
        "stage1_pickplace_panda_plus_fetch_ego_aht_happo_per_agent",
        "stage1_pickplace_vision_only",
        "stage1_pickplace_vision_plus_force_torque_plus_proprio",
    )

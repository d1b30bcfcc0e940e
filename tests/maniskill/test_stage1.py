"""The pick-and-place task in the real simulator, on a CPU, with state observations."""

import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.envs import ChamberEnvCompatibilityError, make_stage1_pickplace_env
from cadenza.envs.maniskill.simulator import (
    ScalarManiSkillEnv,
    ensure_buildable,
    sapien_gpu_available,
)
from cadenza.envs.maniskill.stage1_conditions import AS_HETERO, AS_HOMO, OM_HETERO, OM_HOMO
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from tests.maniskill.scripted_ego import ScriptedEgo

BOTH = pytest.mark.parametrize("condition", [AS_HOMO, AS_HETERO])
pytestmark = pytest.mark.usefixtures("without_renderer")


@pytest.fixture(scope="module")
def envs():
    """One used env per condition; tests reset it, for a reset forgets everything."""
    made = {}

    def env_of(condition):
        if condition not in made:
            made[condition] = ScalarManiSkillEnv(make_stage1_pickplace_env(condition_id=condition))
        return made[condition]

    yield env_of
    for env in made.values():
        env.close()


def idle(env, **driven):
    return {
        uid: driven.get(uid, np.zeros(env.action_space[uid].shape, np.float32))
        for uid in env.agent_uids
    }


def numbers(value):
    if isinstance(value, dict):
        return b"".join(numbers(value[key]) for key in sorted(value))
    return np.asarray(value, np.float32).tobytes()


def played(env, seed, steps=25):
    """Digest of everything that is observed and paid in a violent episode."""
    rng = np.random.default_rng(seed)
    digest = sha256(numbers(env.reset(seed=seed)[0]))
    for _ in range(steps):
        action = {uid: rng.uniform(-3, 3, env.action_space[uid].shape) for uid in env.agent_uids}
        obs, reward, *_ = env.step(action)
        digest.update(numbers(obs) + np.float64(reward).tobytes())
    return digest.hexdigest()


def solved(env, seed, guard=None):
    """Play the scripted ego; return the steps it took, the last reward, info and observation."""
    obs, _ = env.reset(seed=seed)
    ego = ScriptedEgo()
    if guard is not None:
        guard.begin_episode()
    for step in range(1, env.episode_length + 1):
        action = ego.act(obs)
        if guard is not None:
            action = guard.step(action).action
        obs, reward, terminated, truncated, info = env.step(idle(env, panda_wristcam=action))
        if terminated or truncated:
            return step, reward, info, obs
    raise AssertionError("the episode did not end")


@pytest.mark.parametrize(
    ("condition", "states"),
    [
        (AS_HOMO, {"panda_wristcam": 53, "panda_partner": 18}),
        (AS_HETERO, {"panda_wristcam": 65, "fetch": 30}),
    ],
)
def test_observations_lie_in_their_space_under_plain_names(envs, condition, states):
    env = envs(condition)
    obs, _ = env.reset(seed=0)
    assert {uid: len(entry["state"]) for uid, entry in obs["agent"].items()} == states
    assert env.observation_space.contains(obs)
    assert set(env.action_space) == set(states) == set(env.agent_uids)
    assert (
        obs["agent"]["panda_wristcam"]["state"][-7:].tolist() == obs["extra"]["tcp_pose"].tolist()
    )
    assert env.control_timestep == 0.05


@BOTH
def test_equal_seeds_give_equal_episodes_in_a_fresh_and_a_used_env(envs, condition):
    used = envs(condition)
    first, other = played(used, 7), played(used, 8)
    assert played(used, 7) == first != other
    fresh = ScalarManiSkillEnv(make_stage1_pickplace_env(condition_id=condition))
    assert played(fresh, 7) == first
    fresh.close()


def test_equal_seeds_give_equal_episodes_in_another_process(envs):
    program = (
        "import tests.maniskill.test_stage1 as t\n"
        "env = t.ScalarManiSkillEnv(t.make_stage1_pickplace_env(condition_id=t.AS_HOMO))\n"
        "print(t.played(env, 7))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == played(envs(AS_HOMO), 7)


def test_layout_depends_on_root_seed_and_episode_only(envs):
    env = envs(AS_HOMO)

    def layouts(env, seeds):
        return [env.reset(seed=seed)[0]["extra"]["cube_pose"][:2].tolist() for seed in seeds]

    numbered = layouts(env, [1, 2, None, None])
    assert layouts(env, [2, None, None]) == numbered[1:]  # unnumbered episodes follow a number
    assert len({tuple(xy) for xy in numbered}) == 4
    assert np.abs(numbered).max() <= 0.05
    other = ScalarManiSkillEnv(make_stage1_pickplace_env(condition_id=AS_HOMO, root_seed=1))
    assert layouts(other, [1]) != numbered[:1]
    other.close()


@BOTH
def test_scripted_ego_solves_the_task(envs, condition):
    env = envs(condition)
    steps, reward, info, obs = solved(env, seed=3)
    assert info == {
        "success": True,
        "is_obj_placed": True,
        "is_robot_static": True,
        "is_grasped": True,
    }
    assert steps < 60
    assert reward == pytest.approx(1.0)
    # The fingers press the cube from both sides, with more than the noise of 0.5 N.
    left, right = obs["extra"]["force_torque"].reshape(2, 3)
    assert min(np.linalg.norm(left), np.linalg.norm(right)) > 5.0
    # What pressed in the last episode presses no more after a reset.
    obs, _ = env.reset(seed=3)
    assert np.abs(obs["extra"]["force_torque"]).max() < 3.0
    assert env.step(idle(env))[4]["success"] is False


def test_reward_of_the_start_is_reaching_alone(envs):
    env = envs(AS_HETERO)
    env.reset(seed=0)
    obs, reward, terminated, truncated, _ = env.step(idle(env))
    distance = np.linalg.norm(obs["extra"]["cube_to_tcp_pos"])
    assert reward == pytest.approx((1.0 - np.tanh(5.0 * distance)) / 5.0, abs=1e-6)
    assert (terminated, truncated) == (False, False)


def test_noise_of_the_fingers_is_as_asked_and_shifts_no_layout():
    quiet = make_stage1_pickplace_env(condition_id=AS_HETERO, force_torque_noise_sigma=0.0)
    loud = make_stage1_pickplace_env(condition_id=AS_HETERO, force_torque_noise_sigma=2.0)
    for env in (quiet, loud):
        env.reset(seed=0)
        env.step(idle(env))
    silent, noisy = quiet.reset(seed=5)[0]["extra"], loud.reset(seed=5)[0]["extra"]
    assert not silent["force_torque"].any()
    assert silent["cube_pose"].tolist() == noisy["cube_pose"].tolist()
    rows = [loud.reset(seed=k)[0]["extra"]["force_torque"].numpy() for k in range(60)]
    assert np.std(rows) == pytest.approx(2.0, rel=0.15)  # 360 draws
    quiet.close()
    loud.close()


def test_episode_truncates_once_it_is_long_enough():
    env = make_stage1_pickplace_env(condition_id=AS_HOMO, episode_length=3)
    env.reset(seed=0)
    assert [bool(env.step(idle(env))[3]) for _ in range(3)] == [False, False, True]
    env.close()


def test_partner_faces_the_table_unless_published_numbers_are_to_be_met(envs):
    tool = envs(AS_HOMO).agent.agents_dict["panda_partner"].tcp
    envs(AS_HOMO).reset(seed=0)
    assert tool.pose.p[0, 0] == pytest.approx(0.615 - 0.307, abs=2e-3)
    away = make_stage1_pickplace_env(condition_id=AS_HOMO, compat="upstream")
    away.reset(seed=0)
    tool = away.agent.agents_dict["panda_partner"].tcp
    assert tool.pose.p[0, 0] == pytest.approx(2 * 0.615, abs=1e-3)
    away.close()


@BOTH
def test_snapshots_are_the_present_motion_however_often_they_are_taken(envs, condition):
    env = envs(condition)
    env.reset(seed=0)
    assert all(not s.velocity.any() for s in env.build_agent_snapshots().values())
    rng = np.random.default_rng(0)
    for _ in range(5):
        env.step({uid: rng.uniform(-1, 1, env.action_space[uid].shape) for uid in env.agent_uids})
    first, again = env.build_agent_snapshots(), env.build_agent_snapshots()
    for uid, radius in (
        ("panda_wristcam", 0.1),
        (env.partner_uid, 0.1 if condition == AS_HOMO else 0.35),
    ):
        assert first[uid].velocity.tolist() == again[uid].velocity.tolist()
        assert first[uid].radius == radius
        link = env.agent.agents_dict[uid]
        link = link.base_link if uid == "fetch" else link.tcp
        # The simulator's own velocity is that of the link's centre of mass; the tool has no extent.
        np.testing.assert_allclose(first[uid].position, link.pose.p[0].numpy(), atol=1e-6)
        assert np.linalg.norm(first[uid].velocity) > 0.0
    flat = env.robot_positions()["panda_wristcam"]
    assert flat.tolist() == first["panda_wristcam"].position[:2].tolist()


def test_models_predict_the_velocity_that_a_held_action_reaches(envs):
    env = envs(AS_HOMO)
    env.reset(seed=0)
    models = env.build_control_models()
    for uid in env.agent_uids:
        env.reset(seed=0)
        action = np.array([0.2, -0.1, 0.2, 0.1, 0.2, -0.1, 0.2, 0.0])
        for _ in range(6):
            before = env.build_agent_snapshots()[uid]
            accel = models[uid].action_to_cartesian_accel(before, action)
            wanted = before.velocity + (accel + models[uid].bias_accel(before)) * 0.05
            env.step(idle(env, **{uid: action}))
        reached = env.build_agent_snapshots()[uid].velocity
        assert np.linalg.norm(reached) > 0.03
        assert np.linalg.norm(wanted - reached) < 0.2 * np.linalg.norm(reached)
    # Base and posture of the partner count: its map is not the ego's.
    ego, partner = (models[uid].jacobian(before) for uid in env.agent_uids)
    assert np.abs(ego - partner).max() > 1.0


def test_base_of_a_fetch_moves_as_its_model_says(envs):
    env = envs(AS_HETERO)
    env.reset(seed=0)
    backward = np.zeros(13)
    backward[env.xy_action_indices["fetch"][0]] = -0.3
    model = env.build_control_models()["fetch"]
    for _ in range(16):
        env.step(idle(env, fetch=backward))
    state = env.build_agent_snapshots()["fetch"]
    # It faces the ego, along -x, so it backs off along +x, at the speed it is told.
    np.testing.assert_allclose(state.velocity, [0.3, 0.0, 0.0], atol=5e-3)
    accel = model.action_to_cartesian_accel(state, backward) + model.bias_accel(state)
    assert np.abs(accel).max() < 0.1  # the model sees no further acceleration
    assert model.max_cartesian_accel(env.build_bounds()) == 1.5


def worst_gap(env, guarded):
    """Smallest distance between the balls while the ego's hand runs at the partner."""
    env.reset(seed=0)
    driver = SafetyDriver.from_env(env, ego_uid=env.ego_uid, options=SafetyOptions())
    driver.begin_run(0)
    driver.begin_episode()
    model, gaps = env.build_control_models()[env.ego_uid], []
    for _ in range(40):
        agents = env.build_agent_snapshots()
        ego, partner = (agents[uid] for uid in env.agent_uids)
        way = partner.position - ego.position
        gaps.append(np.linalg.norm(way) - ego.radius - partner.radius)
        action = np.sign(model.jacobian(ego).T @ way)
        action[7] = 0.0
        if guarded:
            action = driver.step(action).action
        env.step(idle(env, **{env.ego_uid: action}))
    return min(gaps)


@BOTH
def test_filter_keeps_the_hand_from_a_partner_it_runs_at(condition):
    env = ScalarManiSkillEnv(
        make_stage1_pickplace_env(condition_id=condition, partner_accel_capacity=1.5)
    )
    assert worst_gap(env, guarded=False) < -0.05
    assert worst_gap(env, guarded=True) > 0.0
    env.close()


def test_filter_lets_the_scripted_ego_solve_the_task():
    env = ScalarManiSkillEnv(
        make_stage1_pickplace_env(condition_id=AS_HOMO, partner_accel_capacity=1.5)
    )
    driver = SafetyDriver.from_env(env, ego_uid=env.ego_uid, options=SafetyOptions())
    driver.begin_run(0)
    assert solved(env, seed=3, guard=driver)[2]["success"] is True
    env.close()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"panda_wristcam": np.zeros(8)}, "missing uid 'panda_partner'"),
        (
            {"panda_wristcam": np.zeros(7), "panda_partner": np.zeros(8)},
            r"shape \(8,\), got \(7,\)",
        ),
        ({"panda_wristcam": np.full(8, np.nan), "panda_partner": np.zeros(8)}, "finite"),
        (np.zeros(16), "missing uid"),
    ],
)
def test_malformed_action_is_named(envs, action, message):
    env = envs(AS_HOMO)
    env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        env.step(action)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_malformed_seed_is_named(envs, seed):
    with pytest.raises(InputError, match="seed"):
        envs(AS_HOMO).reset(seed=seed)


@pytest.mark.parametrize("condition", [OM_HOMO, OM_HETERO])
def test_images_without_a_renderer_are_an_error(condition):
    with pytest.raises(ChamberEnvCompatibilityError, match="CHAMBER_RENDER_BACKEND='none'"):
        make_stage1_pickplace_env(condition_id=condition)
    if not sapien_gpu_available():
        with pytest.raises(ChamberEnvCompatibilityError, match="mesa-vulkan-drivers"):
            make_stage1_pickplace_env(condition_id=condition, render_backend="cpu")


def test_vision_only_ego_sees_and_feels_nothing():
    if not sapien_gpu_available():
        pytest.skip("SAPIEN finds no render device; Mesa 25 gives it one in software")
    env = make_stage1_pickplace_env(
        condition_id=OM_HOMO, render_mode="rgb_array", render_backend="cpu"
    )
    obs, _ = env.reset(seed=0)
    hand = obs["sensor_data"]["panda_wristcam-0-hand_camera"]
    assert hand["rgb"].shape == (1, 128, 128, 3)
    red = (hand["rgb"][..., 0].int() - hand["rgb"][..., 1].int()) > 100
    assert 50 < red.sum() < 8000  # the cube, from above
    assert all(int(camera["depth"].min()) >= 0 for camera in obs["sensor_data"].values())
    assert not obs["agent"]["panda_wristcam"]["qpos"].any()
    assert not obs["extra"]["cube_pose"].any()
    assert obs["extra"]["goal_pos"].any()
    frame = env.unwrapped.render()[0].numpy()
    assert frame.shape == (480, 640, 3)
    assert frame.std() > 20.0
    env.close()


def test_two_scenes_in_one_simulation_need_cuda():
    with pytest.raises(ChamberEnvCompatibilityError, match="one scene on a CPU"):
        make_stage1_pickplace_env(condition_id=AS_HOMO, num_envs=2)


def test_tasks_of_maniskill_itself_are_built_without_a_renderer(envs):
    envs(AS_HOMO)
    ensure_buildable()  # a second time changes nothing
    import gymnasium as gym

    env = gym.make("PickCube-v1", obs_mode="state", render_backend="none", sim_backend="physx_cpu")
    assert env.reset(seed=0)[0].shape == (1, 42)
    env.close()

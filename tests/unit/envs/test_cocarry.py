"""Co-carry: equal bytes in every form, what is measured, what the robots see, how episodes end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cadenza.benchmark.policies import ego_seat, load_policy
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.envs.mujoco import CoCarryEnv, CoCarryOptions, VectorCoCarryEnv
from cadenza.envs.mujoco import cocarry_rules as rules
from cadenza.envs.mujoco.cocarry import TASK_SCALE
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

pytest.importorskip("mjbatch")
ZERO = np.zeros(3)


def shaken(ticks, copies, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (ticks, 2, copies, 3))


def drive(env, actions):
    """Play (ticks, 2, 3) actions; return every state of both robots and the hash after them."""
    states = []
    for ego, partner in actions:
        obs, *_ = env.step({"ego": ego, "partner": partner})
        states += [obs["agent"][uid]["state"].tobytes() for uid in ("ego", "partner")]
    return b"".join(states), env.state_hash()


def physical(env, uid="ego"):
    return env.task_view(uid) * TASK_SCALE


def test_every_copy_has_the_bytes_of_the_scalar_environment():
    masses, scales, ties = (0.4, 2.0, 0.7), (0.4, 1.0, 0.5), (0.004, 0.01, 0.02)
    options = CoCarryOptions(bar_mass=masses, stiffness_scale=scales, time_constant_s=ties)
    batch = VectorCoCarryEnv(3, options, root_seed=5, episode_length=12, threads=2)
    batch.reset(seed=7)
    actions = shaken(30, 3)
    steps = [batch.step({"ego": ego, "partner": partner}) for ego, partner in actions]
    for copy in range(3):
        own = CoCarryOptions(
            bar_mass=masses[copy], stiffness_scale=scales[copy], time_constant_s=ties[copy]
        )
        single, episode = CoCarryEnv(own, root_seed=5, episode_length=12), 7 + copy
        single.reset(seed=episode)
        for (ego, partner), (obs, reward, terminated, truncated, info) in zip(
            actions, steps, strict=True
        ):
            alone = single.step({"ego": ego[copy], "partner": partner[copy]})
            over = terminated[copy] or truncated[copy]
            told = info["final_info"] if over else info
            assert alone[1:4] == (reward[copy], terminated[copy], truncated[copy])
            assert alone[4] == {name: told[name][copy] for name in alone[4]}
            seen = alone[0]
            if over:
                final = info["final_observation"]["agent"]["ego"]["state"][copy]
                assert seen["agent"]["ego"]["state"].tobytes() == final.tobytes()
                episode += 3
                seen, _ = single.reset(seed=episode)
            for uid in ("ego", "partner"):
                mine, theirs = (o["agent"][uid]["state"] for o in (seen, obs))
                assert mine.tobytes() == theirs[copy].tobytes()
        assert single.state_hash() == batch.state_hash(copy)


def test_state_is_the_same_in_a_fresh_a_used_and_a_reset_environment_and_another_process():
    actions = shaken(20, 1)[:, :, 0]
    fresh = CoCarryEnv()
    fresh.reset(seed=3)
    first = fresh.state_hash()
    expected = drive(fresh, actions)
    used = CoCarryEnv()
    used.reset(seed=11)
    drive(used, shaken(20, 1, seed=1)[:, :, 0])
    used.reset(seed=3)
    assert used.state_hash() == first
    assert drive(used, actions) == expected
    used.reset(seed=3)
    assert used.state_hash() == first
    script = (
        "from cadenza.envs.mujoco import CoCarryEnv; env = CoCarryEnv(); env.reset(seed=3); "
        "print(env.state_hash())"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert other.stdout.decode().strip() == first


def test_episodes_start_level_at_rest_with_goals_where_they_belong():
    env = VectorCoCarryEnv(64)
    env.reset(seed=0)
    first_view = physical(env)
    goal = first_view[:, :3]  # relative to the bar's centre
    assert np.abs(goal[:, 0]).max() <= 0.04
    assert (np.abs(goal[:, 1]) >= 0.26).all()
    assert (np.abs(goal[:, 1]) <= 0.36).all()
    assert {-1.0, 1.0} == set(np.sign(goal[:, 1]))
    assert (goal[:, 2] >= 0.05).all()
    assert (goal[:, 2] <= 0.20).all()
    assert np.abs(first_view[:, 3:6]).max() < 1e-14  # nobody is out of step
    assert (env.get_telemetry()["tilt_deg"] < 1e-9).all()
    held = env.robot_positions()
    assert held["partner"] - held["ego"] == pytest.approx(np.tile([0.23, 0.0], (64, 1)))
    # There is no ring at the start: the first tick is quiet.
    env.step({uid: np.zeros((64, 3)) for uid in env.agent_uids})
    assert env.get_telemetry()["max_tilt_deg"].max() < 0.05
    assert env.get_telemetry()["max_stress"].max() < 2.6


def test_constants_of_the_model_follow_the_bar_s_mass():
    model = CoCarryEnv(CoCarryOptions(bar_mass=2.0)).simulation.model
    assert model.body_subtreemass[0] == pytest.approx(model.body_mass.sum())
    assert model.body("bar").subtreemass == pytest.approx(2.0)


def test_internal_force_is_that_of_the_constraint_rows():
    env = CoCarryEnv()
    env.reset(seed=2)
    push = {"ego": np.array([1.0, 0.3, 0.2]), "partner": np.array([-1.0, 0.5, -0.2])}
    for _ in range(4):
        env.step(push)
    model, data = env.simulation.model, env.simulation.data
    # Rows of a connect pull site 1, the grip, towards site 2, the bar's end: the bar feels minus.
    axis = data.xmat[model.body("bar").id].reshape(3, 3)[:, 0]
    rows = data.efc_force[data.efc_type == 0].reshape(2, 3)
    along = -rows @ axis
    sensors = [
        (data.site(f"{name}_grip").xmat.reshape(3, 3) @ data.sensor(f"{name}_grip").data) @ axis
        for name in ("ego", "partner")
    ]
    assert np.abs(along).max() > 10.0
    assert np.array(sensors) == pytest.approx(along, abs=1e-4)
    # Pushed together: the bar is compressed.
    assert env.get_telemetry()["stress"] > 10.0
    assert physical(env)[14] < 0.0


@pytest.mark.parametrize(
    ("ego", "partner", "force"),
    [
        (-10.0, 12.0, 10.0),  # pulled apart
        (10.0, -4.0, -4.0),  # pushed together
        (3.0, 5.0, 0.0),  # both carry the same way
        (7.0, 0.0, 0.0),  # one alone
    ],
)
def test_internal_force_is_what_the_ends_do_against_each_other(ego, partner, force):
    assert rules.internal_force(np.array([ego]), np.array([partner]))[0] == force


def test_tilt_ignores_the_turn_about_the_vertical():
    half = np.radians(5.0) / 2
    pitched = np.array([np.cos(half), 0.0, np.sin(half), 0.0])
    yaw = np.array([np.cos(0.4), 0.0, 0.0, np.sin(0.4)])
    w1, (w2, x2, y2, z2) = yaw, pitched
    turned = [
        w1[0] * w2 - w1[3] * z2,
        w1[0] * x2 - w1[3] * y2,
        w1[0] * y2 + w1[3] * x2,
        w1[0] * z2 + w1[3] * w2,
    ]
    assert rules.tilt_deg(np.array([pitched, yaw, turned])) == pytest.approx([5.0, 0.0, 5.0])


def measures(**changes):
    usual = {"distance": 0.02, "transport": 0.3, "speed": 0.1, "tilt": 1.0, "force": 2.0}
    usual |= {"max_tilt": 5.0, "max_force": 10.0} | changes
    return rules.Measures(**{name: np.array([value]) for name, value in usual.items()})


@pytest.mark.parametrize(
    ("changes", "carried"),
    [
        ({}, True),
        ({"distance": 0.031}, False),
        ({"transport": 0.249}, False),
        ({"speed": 0.21}, False),
        ({"max_tilt": 10.0}, False),
        ({"max_force": 30.0}, False),
    ],
)
def test_the_bar_counts_as_carried_only_if_every_condition_holds(changes, carried):
    now = measures(**changes)
    assert bool((now.placed() & now.within_limits(30.0))[0]) is carried


def test_task_reward_pays_for_progress_and_the_proximity_reward_for_staying():
    yes, no, still = np.array([True]), np.array([False]), np.zeros(1)
    near, far = measures(), measures(distance=0.3)
    calm = rules.task_reward(np.array([0.01]), near, no, no, 40.0)
    assert calm[0] == pytest.approx(4 * 0.01 - 0.004)
    assert rules.task_reward(still, near, yes, no, 40.0)[0] == pytest.approx(3.0 - 0.004)
    assert rules.task_reward(still, near, no, yes, 40.0)[0] == pytest.approx(-1.0 - 0.004)
    strained = rules.task_reward(still, measures(force=-35.0, tilt=9.0), no, no, 40.0)
    assert -0.004 - 2 * 0.02 < strained[0] < -0.004 - 0.02
    close, away = (rules.proximity_reward(now, no, no, 40.0)[0] for now in (near, far))
    assert close > 0.4 > away > 0.0
    assert rules.proximity_reward(near, yes, no, 40.0)[0] == 1.0


@pytest.mark.parametrize(("force", "cost"), [(20.0, 0.0), (30.0, 1.0), (-40.0, 2.0)])
def test_proximity_reward_charges_force_from_half_of_the_limit_on(force, cost):
    # Onset 0.5 f_max, scale 0.25 f_max, a fifth of the reward.
    no = np.array([False])
    calm, strained = (
        rules.proximity_reward(measures(force=each), no, no, 40.0)[0] for each in (0.0, force)
    )
    assert calm - strained == pytest.approx(np.tanh(cost) / 5.0)


def test_force_limit_follows_from_its_manifest():
    import json

    manifest = json.loads(rules.MANIFEST.read_text(encoding="utf-8"))
    p99 = manifest["force_p50_p90_p99_max_N"][2]
    assert rules.force_limit() == pytest.approx(1.25 * p99, abs=0.06)
    assert rules.force_limit() == pytest.approx(40.3, rel=0.1)


def test_ego_sees_the_partner_late_and_everything_else_at_once():
    late, sharp = CoCarryEnv(CoCarryOptions(partner_delay=3)), CoCarryEnv()
    for env in (late, sharp):
        env.reset(seed=1)
    histories = {env: [] for env in (late, sharp)}
    for _ in range(8):
        for env in (late, sharp):
            obs, *_ = env.step({"ego": [0.2, -1.0, 0.3], "partner": [0.0, -0.8, 0.6]})
            histories[env].append(obs["agent"]["ego"]["state"] * TASK_SCALE)
    own = [*range(3), *range(6, 9), *range(12, 20)]
    for tick in range(3, 8):
        now, then = histories[late][tick], histories[sharp][tick - 3]
        assert now[own] == pytest.approx(histories[sharp][tick][own])
        assert now[9:12] == pytest.approx(then[9:12])
        # The partner stands where it stood, seen from where the own grip is now.
        moved = now[15:18] - then[15:18]
        assert now[3:6] == pytest.approx(then[3:6] - moved, abs=1e-6)


def test_blind_ego_is_told_nothing_that_only_partner_or_bar_can_tell():
    env = CoCarryEnv(CoCarryOptions(ego_sees="own"))
    obs, _ = env.reset(seed=1)
    start = obs["agent"]["ego"]["state"] * TASK_SCALE
    for _ in range(5):
        obs, *_ = env.step({"ego": [0.0, -0.5, 0.2], "partner": [0.3, 0.9, 0.9]})
    state = obs["agent"]["ego"]["state"] * TASK_SCALE
    assert not state[[*range(3, 6), *range(9, 15), 19]].any()
    assert state[:3] + state[15:18] == pytest.approx(start[:3], abs=1e-6)
    assert obs["agent"]["partner"]["state"].all()  # the partner still sees everything


def test_full_view_holds_joints_bar_and_goal():
    env = CoCarryEnv(CoCarryOptions(view="full", action_track="joint"))
    env.reset(seed=1)
    obs, *_ = env.step({"ego": np.full(7, 0.2), "partner": ZERO})
    state, data = obs["agent"]["ego"]["state"], env.simulation.data
    assert state.shape == (47,)
    assert state[:7] == pytest.approx(data.qpos[:7], abs=1e-6)
    assert state[27:34] == pytest.approx(data.qvel[7:14], abs=1e-6)
    assert state[36:43] == pytest.approx(data.qpos[14:], abs=1e-6)
    to_goal = physical(env)[:3]
    assert state[43:46] - state[36:39] == pytest.approx(to_goal, abs=1e-6)


def test_joint_track_moves_every_joint_towards_its_target():
    env = CoCarryEnv(CoCarryOptions(action_track="joint"))
    env.reset(seed=1)
    before = env.simulation.qpos[0, :7].copy()
    env.step({"ego": np.full(7, 0.5), "partner": ZERO})
    assert env.simulation.ctrl[0, :7] == pytest.approx(before + 0.05)
    assert (env.simulation.qpos[0, :7] > before).sum() >= 6


def test_targets_start_from_where_the_joints_are():
    env = CoCarryEnv()
    env.reset(seed=1)
    for _ in range(40):  # adding up targets would wind up far beyond what the arms can do
        env.step({"ego": [1.0, 0, 0], "partner": [-1.0, 0, 0]})
    wanted = env.simulation.ctrl[0] - env.simulation.qpos[0, :14]
    assert np.abs(wanted).max() < 0.11


@pytest.mark.parametrize("condition", ["static_partner", "single_arm"])
def test_partner_that_holds_its_joints_stays_whatever_it_is_told(condition):
    env = CoCarryEnv(CoCarryOptions(condition=condition))
    env.reset(seed=1)
    before = env.simulation.qpos[0, 7:14].copy()
    for _ in range(10):
        env.step({"ego": ZERO, "partner": np.ones(3)})
    assert env.simulation.qpos[0, 7:14] == pytest.approx(before, abs=0.01)
    tilt = env.get_telemetry()["max_tilt_deg"]
    assert tilt > 20.0 if condition == "single_arm" else tilt < 1.0


def test_training_ends_where_a_limit_breaks_and_tightens_the_force():
    hard = {"ego": [0.0, 0.0, 1.0], "partner": [0.0, 0.0, -1.0]}
    judged, training = CoCarryEnv(), CoCarryEnv(CoCarryOptions(training=True))
    for env in (judged, training):
        env.reset(seed=1)
    for _ in range(60):
        _, reward, terminated, truncated, info = training.step(hard)
        judged.step(hard)
        if terminated:
            break
    assert (terminated, truncated) == (True, False)
    assert info["max_tilt_deg"] >= 10.0
    assert reward < -0.9
    assert judged.get_telemetry()["max_tilt_deg"] == info["max_tilt_deg"]  # and plays on
    judged.step(hard)
    with pytest.raises(NotReadyError, match="expected an episode in progress"):
        training.step(hard)


@pytest.mark.parametrize(
    ("training", "reward", "is_cut"),
    [(False, "proximity", False), (True, "proximity", True), (True, "task", False)],
)
def test_success_ends_an_episode_for_good_unless_more_reward_would_follow(training, reward, is_cut):
    env = CoCarryEnv(CoCarryOptions(training=training, reward=reward))
    ego = load_policy("cocarry_reference", seat=ego_seat(env, "ego"), artifacts_root=Path())
    leader = load_partner(PartnerSpec("cocarry_nominal", 0))
    obs, _ = env.reset(seed=1)
    over = False
    while not over:
        actions = {"ego": ego.act(obs), "partner": leader.act(obs)}
        obs, paid, terminated, truncated, info = env.step(actions)
        over = terminated or truncated
    assert info["success"]
    assert info["time"] < 15.0
    assert 2.0 < info["energy"] < 15.0  # two arms over half a metre: a few joules
    assert paid == 1.0 if reward == "proximity" else paid > 2.9
    assert (terminated, truncated) == (not is_cut, is_cut)


def test_poses_for_a_channel_are_those_of_the_grips():
    env = CoCarryEnv()
    env.reset(seed=1)
    env.step({"ego": [0.5, 0.5, 0.5], "partner": [0.2, 0.5, 0.1]})
    sent, data = env.comm_state(), env.simulation.data
    mujoco = pytest.importorskip("mujoco")
    mujoco.mj_kinematics(env.simulation.model, data)
    for uid in env.agent_uids:
        pose, matrix = sent["pose"][uid], np.zeros(9)
        mujoco.mju_quat2Mat(matrix, np.array(pose["quat_wxyz"]))
        assert pose["xyz"] == pytest.approx(data.site(f"{uid}_grip").xpos, abs=1e-12)
        assert matrix == pytest.approx(data.site(f"{uid}_grip").xmat, abs=1e-9)
        assert set(sent["task_state"]) == {"ego", "partner"}


def test_picture_shows_the_goal_in_red_once_a_limit_is_broken():
    env = CoCarryEnv(render_mode="rgb_array")
    env.reset(seed=3)
    try:
        calm = env.render()
    except ConfigurationError:
        pytest.skip("nothing here draws without a display")
    for _ in range(30):
        env.step({"ego": [0, 0, 1.0], "partner": [0, 0, -1.0]})
    alarmed = env.render()
    env.close()
    assert calm.shape == alarmed.shape == (480, 640, 3)

    def greenish(image):
        red, green, blue = (image[..., k].astype(int) for k in range(3))
        return int(((green > red + 60) & (green > blue)).sum())

    assert greenish(calm) > 50
    assert greenish(alarmed) == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"condition": "alone"}, "expected condition to be one of matched"),
        ({"partner_delay": -1}, "partner_delay: expected an integer >= 0"),
        ({"bar_mass": 0.0}, "expected bar_mass > 0"),
        ({"physics_step_s": 0.004}, "expected physics_step_s to divide 0.01 s"),
    ],
)
def test_options_out_of_range_say_what_was_expected(options, problem):
    with pytest.raises(InputError, match=problem):
        CoCarryOptions(**options)


def test_actions_and_parameters_of_the_wrong_shape_are_named():
    env = CoCarryEnv()
    with pytest.raises(NotReadyError):
        env.step({"ego": ZERO, "partner": ZERO})
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"action of 'ego' to have shape \(3,\), got \(7,\)"):
        env.step({"ego": np.zeros(7), "partner": ZERO})
    with pytest.raises(InputError, match=r"finite action of 'partner'"):
        env.step({"ego": ZERO, "partner": np.array([0.0, np.nan, 0.0])})
    with pytest.raises(InputError, match="bar_mass to be a number or one per copy"):
        VectorCoCarryEnv(3, CoCarryOptions(bar_mass=(0.4, 0.5)))

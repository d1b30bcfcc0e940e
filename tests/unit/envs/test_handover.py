"""Handover: equal bytes in every form, welds in the snapshot, grasp and release, what ends it."""

import numpy as np
import pytest

from cadenza.benchmark.scripted_egos import RECEIVER_SCALE as VIEW_SCALE
from cadenza.benchmark.scripted_egos import receive
from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs.mujoco import HandoverEnv, HandoverOptions, VectorHandoverEnv
from cadenza.envs.mujoco.handover import EGO_SCALE, PRESENTER_SCALE, TIP
from cadenza.partners import handover as presenters
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

pytest.importorskip("mjbatch")


def reference(obs):
    view = np.atleast_2d(obs["agent"]["ego"]["state"]).astype(np.float64) * VIEW_SCALE
    return receive(view, point_only=False, nominal_grasp=False)


def presenter(seed=0):
    partner = load_partner(PartnerSpec("handover_nominal", 0, extra={"uid": "partner"}))
    partner.reset(seed=seed)
    return partner


def play(env, seed, ticks=400):
    """Play the reference; return hashes after reset and at the end, and what each tick told."""
    obs, _ = env.reset(seed=seed)
    first, told, partner = env.state_hash(), [], presenter()
    for _ in range(ticks):
        view = obs["agent"]["ego"]["state"] * EGO_SCALE
        obs, reward, *ends, info = env.step({"ego": reference(obs)[0], "partner": partner.act(obs)})
        told.append((view, reward, info))
        if any(ends):
            break
    return (first, env.state_hash()), told


def test_fresh_used_and_reset_environments_have_the_same_bytes():
    used = HandoverEnv()
    expected, _ = play(HandoverEnv(), 3, ticks=80)
    play(used, 8, ticks=80)
    assert play(used, 3, ticks=80)[0] == expected
    assert play(used, 3, ticks=80)[0] == expected
    assert play(used, 4, ticks=80)[0] != expected


def test_every_copy_has_the_bytes_of_the_scalar_environment_through_grasp_and_reset():
    ticks = 100
    batch = VectorHandoverEnv(3, HandoverOptions(takt_s=4.0), threads=2)
    partner, obs = presenter(), batch.reset(seed=7)[0]
    hashes, rewards = [], []
    for _ in range(ticks):
        obs, reward, *_ = batch.step({"ego": reference(obs), "partner": partner.act(obs)})
        hashes.append([batch.state_hash(row) for row in range(3)])
        rewards.append(reward)
    for row in range(3):
        env, alone = HandoverEnv(HandoverOptions(takt_s=4.0)), presenter()
        seed, grasped = 7 + row, False
        obs, _ = env.reset(seed=seed)
        for tick in range(ticks):
            action = {"ego": reference(obs)[0], "partner": alone.act(obs)}
            obs, reward, *ends, info = env.step(action)
            grasped |= info["grasped"]
            if any(ends):
                seed += 3
                obs, _ = env.reset(seed=seed)
            assert env.state_hash() == hashes[tick][row]
            assert reward == rewards[tick][row]
        assert grasped
        assert seed == 10 + row


def test_grips_should_end_up_at_the_fixture_and_in_the_zone():
    env = VectorHandoverEnv(2)
    obs, _ = env.reset(seed=0)
    goals, grips = env.goal_positions(), env.robot_positions()
    ego = obs["agent"]["ego"]["state"] * EGO_SCALE  # from the grip to the seated handle
    partner = obs["agent"]["partner"]["state"] * PRESENTER_SCALE
    assert goals["ego"] - grips["ego"] == pytest.approx(ego[:, 18:20] + TIP[:2], abs=1e-5)
    assert goals["partner"] - grips["partner"] == pytest.approx(partner[:, :2], abs=1e-5)


def test_the_hash_tells_how_the_presenter_holds_the_peg():
    draws = {"grasp_error_m": 0.0, "yaw_error_deg": 0.0}
    env = HandoverEnv(HandoverOptions(**draws))
    env.reset(seed=0)
    before = env.state_hash()
    env.simulation.model.eq_data[0, 3] += 1e-6
    assert env.state_hash() != before


def test_the_presenter_lets_go_a_fifth_of_a_second_after_the_grasp_and_the_peg_is_seated():
    _, told = play(HandoverEnv(), 0)
    holds = np.array([view[27:29] for view, _, _ in told])
    both = (holds == 1.0).all(axis=1).sum()
    assert both == 4
    assert holds[0].tolist() == [0, 1]
    assert holds[-1].tolist() == [1, 0]
    grasp = int(np.argmax(holds[:, 0]))
    gaps = np.linalg.norm([view[:3] for view, _, _ in told], axis=1)
    assert gaps[grasp] < 1.5e-3
    way_there = [reward for _, reward, _ in told[: grasp - 1]]
    nearer = -np.diff(gaps[:grasp])
    np.testing.assert_allclose(way_there, 4.0 * nearer - 0.004, atol=1e-4)
    info = told[-1][2]
    assert info["success"]
    assert info["depth"] >= 0.027
    assert info["lateral"] <= 1e-3
    assert info["angle_deg"] <= 5.0
    assert info["time"] < 11.0
    assert told[-1][1] > 2.5


def test_closing_beside_the_handle_grasps_nothing_and_letting_go_drops_the_peg():
    env = HandoverEnv()
    obs, _ = env.reset(seed=0)
    closed, still = np.array([0, 0, 0, 0, 0, 0, 1.0]), np.zeros(6)
    for _ in range(5):
        obs, *_, info = env.step({"ego": closed, "partner": still})
    assert not info["grasped"]
    env = HandoverEnv()
    obs, _ = env.reset(seed=0)
    partner, done = presenter(), False
    while not done:
        action = reference(obs)[0]
        if obs["agent"]["ego"]["state"][28] == 0.0:  # the presenter has let go
            action[6] = -1.0
        obs, reward, done, truncated, info = env.step({"ego": action, "partner": partner.act(obs)})
        assert not truncated
    assert info["grasped"]
    assert not info["success"]
    assert reward < -0.9


def test_the_key_keeps_a_turned_peg_out_of_the_hole():
    env = HandoverEnv()
    obs, _ = env.reset(seed=0)
    partner, deepest, hardest = presenter(), 0.0, 0.0
    for _ in range(219):
        view = obs["agent"]["ego"]["state"][None].astype(np.float64) * VIEW_SCALE
        view[:, 11] += np.pi / 2 if view[0, 27] else 0.0  # a square peg fits so, a keyed one not
        ego = receive(view, point_only=False, nominal_grasp=False)[0]
        obs, _, terminated, _, info = env.step({"ego": ego, "partner": partner.act(obs)})
        deepest, hardest = max(deepest, info["depth"]), max(hardest, info["force"])
        assert not terminated
    assert deepest < 0.005
    assert info["angle_deg"] > 80.0


@pytest.mark.parametrize("condition", ["presenter_absent", "presenter_frozen"])
def test_conditions_keep_the_presenter_where_it_is(condition):
    env = HandoverEnv(HandoverOptions(condition=condition))
    env.reset(seed=1)
    start = env.simulation.qpos[0, 7:14].copy()
    for _ in range(10):
        env.step({"ego": np.zeros(7), "partner": np.ones(6)})
    assert np.abs(env.simulation.qpos[0, 7:14] - start).max() < 0.01


def test_an_ego_that_sees_only_itself_is_told_nothing_of_the_peg():
    seen, own = HandoverEnv(), HandoverEnv(HandoverOptions(ego_sees="own"))
    full, masked = (env.reset(seed=2)[0]["agent"]["ego"]["state"] for env in (seen, own))
    assert (masked[:12] == 0).all()
    assert (masked[15:18] == 0).all()
    assert masked[28] == 0
    kept = [*range(12, 15), *range(18, 28), 29, 30]
    assert (masked[kept] == full[kept]).all()
    assert np.abs(full[:3]).max() > 0.1


def test_partners_and_egos_read_the_view_with_the_environments_scale():
    assert (presenters.VIEW_SCALE == PRESENTER_SCALE).all()
    assert (VIEW_SCALE == EGO_SCALE).all()


def test_errors():
    with pytest.raises(InputError, match="condition"):
        HandoverOptions(condition="alone")
    with pytest.raises(InputError, match="takt_s >= 0"):
        HandoverOptions(takt_s=float("nan"))
    env = HandoverEnv()
    with pytest.raises(NotReadyError):
        env.step({"ego": np.zeros(7), "partner": np.zeros(6)})
    env.reset(seed=0)
    with pytest.raises(InputError, match="partner"):
        env.step({"ego": np.zeros(7), "partner": np.zeros(3)})


def test_pictures_show_the_red_key():
    env = HandoverEnv(render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    env.close()
    red = (image[..., 0] > 120) & (image[..., 1] < 70) & (image[..., 2] < 70)
    assert image.shape == (480, 640, 3)
    assert red.sum() > 5

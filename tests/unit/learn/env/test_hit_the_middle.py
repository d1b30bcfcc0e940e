"""The small control task: motion, walls, reward, length; and rows in memory that agree with it."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cadenza.core.errors import NotReadyError
from cadenza.learn.env.hit_the_middle import EPISODE_STEPS, HitTheMiddle, moved


def test_motion_by_hand():
    assert moved(1.0, 0.5, 0.25) == (1.75, 0.75)
    assert moved(9.5, 0.5, 0.5) == (10.0, -1.0)  # 10.5 is beyond the wall
    assert moved(-9.0, -1.5, -0.5) == (-10.0, 2.0)
    assert moved(9.0, 1.0, 0.0) == (10.0, 1.0)  # on the wall is not beyond it


def test_episode_has_31_steps_and_ends_terminal():
    env = HitTheMiddle()
    observation, info = env.reset(seed=3)
    assert info == {"info": []}
    assert env.observation_space.contains(observation)
    assert abs(observation[1]) <= 0.25
    ends = []
    for _ in range(EPISODE_STEPS):
        before = observation.astype(float)
        observation, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
        position, velocity = moved(before[0], before[1], 0.5)
        np.testing.assert_allclose(observation, [position, velocity], atol=1e-5)
        assert reward == pytest.approx(-(position**2), abs=1e-4)
        ends.append((terminated, truncated))
    assert ends == [(False, False)] * 30 + [(True, False)]


def test_starts_follow_the_seed_and_cover_the_box():
    env = HitTheMiddle()
    first = env.reset(seed=1)[0].tolist(), env.reset()[0].tolist()
    assert first == (env.reset(seed=1)[0].tolist(), env.reset()[0].tolist())
    assert first[0] != first[1]
    assert HitTheMiddle(seed=1).reset()[0].tolist() == first[0]
    positions = np.array([env.reset()[0] for _ in range(500)])
    assert positions[:, 0].min() < -9.0
    assert positions[:, 0].max() > 9.0
    # Uniform: mean 0 and variance 100 / 3, within 4 standard errors.
    assert abs(positions[:, 0].mean()) < 4.0 * np.sqrt(100.0 / 3.0 / 500)


def test_unseeded_copies_in_a_vector_start_in_different_places():
    envs = gymnasium.vector.SyncVectorEnv([HitTheMiddle] * 8)
    starts, _ = envs.reset()
    assert len(np.unique(starts[:, 0])) == 8
    again = [gymnasium.vector.SyncVectorEnv([HitTheMiddle] * 2).reset(seed=5)[0] for _ in range(2)]
    np.testing.assert_array_equal(*again)
    assert again[0][0, 0] != again[0][1, 0]


def test_observations_do_not_change_afterwards():
    env = HitTheMiddle()
    first, _ = env.reset(seed=0)
    before = first.copy()
    env.step(np.ones(1))
    np.testing.assert_array_equal(first, before)


def test_actions_are_not_clipped():
    env = HitTheMiddle()
    first, _ = env.reset(seed=0)
    observation = env.step(np.array([3.0]))[0]
    assert observation[1] == pytest.approx(first[1] + 3.0, abs=1e-6)


def test_task_follows_the_interface_of_gymnasium():
    check_env(gymnasium.wrappers.TimeLimit(HitTheMiddle(), 100), skip_render_check=True)


def test_step_before_reset_is_refused():
    with pytest.raises(NotReadyError, match=r"expected reset\(\) first"):
        HitTheMiddle().step(np.zeros(1))

"""The small control task: motion, walls, reward, length; and rows in memory that agree with it."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

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


def test_task_follows_the_interface_of_gymnasium():
    check_env(gymnasium.wrappers.TimeLimit(HitTheMiddle(), 100), skip_render_check=True)

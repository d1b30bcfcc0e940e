"""Scripted egos of streams: their laws by hand, and that they do their tasks."""

import numpy as np
import pytest

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.stream_tasks import cover, make_expert, stream_config, swerve
from cadenza.core.errors import ConfigurationError
from cadenza.stream.environment import make_worlds
from cadenza.stream.policies import make_policy


def crossing_state(goal, other, velocity=(0.0, 0.0), other_rate=(0.0, 0.0)):
    return np.array([[0.0, 0.0, *velocity, *goal, *other, *other_rate]])


def test_swerve_pulls_to_the_goal_alone_when_nobody_is_in_the_way():
    # goal 3 m away: 1 * 3 - 2 * 0.5 = 2; the other is behind, far aside, or beyond the goal
    for other in ((-0.6, 0.0), (1.0, 0.9), (3.5, 0.1)):
        state = crossing_state((3.0, 0.0), other, velocity=(0.5, 0.0))
        assert np.allclose(swerve(state), [[2.0, 0.0]])


def test_swerve_turns_right_before_a_robot_that_stands_in_the_way():
    # Nobody moves, so the miss is the offset itself, of length l = sqrt(0.37), on neither side of
    # the line of sight: the ego turns right, along (y, -x) / l, by 16 (0.7 - l).
    length = np.sqrt(0.6**2 + 0.1**2)
    push = 16.0 * (0.7 - length) * np.array([0.1, -0.6]) / length
    state = crossing_state((3.0, 0.0), (0.6, 0.1))
    assert np.allclose(swerve(state), np.array([[3.0, 0.0]]) + push)


def test_swerve_turns_away_from_the_side_on_which_the_other_would_pass():
    # Offset (2, 0), rate (-1, 0.1): t = 2 / 1.01, miss = (2 - t, 0.1 t), to the left: turn right.
    time_s = 2.0 / 1.01
    miss = np.hypot(2.0 - time_s, 0.1 * time_s)
    state = crossing_state((4.0, 0.0), (2.0, 0.0), other_rate=(-1.0, 0.1))
    assert np.allclose(swerve(state), [[4.0, -16.0 * (0.7 - miss)]])
    mirrored = crossing_state((4.0, 0.0), (2.0, 0.0), other_rate=(-1.0, -0.1))
    assert np.allclose(swerve(mirrored), [[4.0, 16.0 * (0.7 - miss)]])


def test_cover_takes_the_landmark_of_the_cheaper_pairing():
    # Ego at 0, other at (1, 0), landmarks at (0.9, 0) and (-0.5, 0). Ego to the first: 0.9 + 1.5;
    # to the second: 0.5 + 0.1. Gain 10.
    state = np.array([[0.0, 0.0, 0.0, 0.0, 0.9, 0.0, -0.5, 0.0, 1.0, 0.0]])
    assert np.allclose(cover(state), [[-5.0, 0.0]])
    swapped = state[:, [0, 1, 2, 3, 6, 7, 4, 5, 8, 9]]
    assert np.allclose(cover(swapped), [[-5.0, 0.0]])


def play(config, episodes):
    """Return success (or None) and return of each finished episode, and all actions."""
    env = make_worlds(config.gym_config, {}, config.steps)
    policy = make_policy(config.policy, env, seed=1)
    observation, _ = env.reset(seed=4)
    policy.reset(np.arange(env.num_envs))
    successes, returns, actions = [], [], []
    totals = np.zeros(env.num_envs)
    while len(returns) < episodes:
        actions.append(policy.act(observation))
        observation, reward, terminated, truncated, info = env.step(actions[-1])
        totals += reward
        rows = np.flatnonzero(terminated | truncated)
        for row in rows:
            successes.append(info["success"][row] if "success" in info else None)
            returns.append(totals[row])
            totals[row] = 0.0
        if len(rows):
            policy.reset(rows)
    return successes, np.array(returns), np.array(actions)


def test_crossing_expert_succeeds_behind_the_filter_with_varying_partners():
    successes, _, actions = play(stream_config("crossing", num_envs=40), episodes=60)
    assert np.mean(successes) > 0.9
    assert actions.dtype == np.float32
    assert np.abs(actions).max() <= 2.0


def test_filter_changes_what_the_expert_executes():
    partners = [PartnerConfig(class_name="crossing_late_braker")]
    rates = {}
    for enabled in (True, False):
        config = stream_config(
            "crossing",
            expert="goal_pd",
            partners=partners,
            num_envs=20,
            safety=SafetyConfig(enabled=enabled),
        )
        rates[enabled] = np.mean(play(config, episodes=20)[0])
    assert rates[True] > 0.9
    assert rates[False] < 0.5  # driving straight at the goal ends in contact


def test_push_expert_beats_staying_in_nearly_every_episode():
    config = stream_config("mpe_cooperative_push", num_envs=50)
    successes, returns, _ = play(config, episodes=50)
    assert set(successes) == {None}  # the task has no success predicate
    idle = config.replace(policy={"factory": f"{__name__}:Idle"})
    assert np.mean(returns > play(idle, episodes=50)[1]) > 0.9


def test_noise_disturbs_the_wanted_action_and_follows_the_seed():
    config = stream_config("mpe_cooperative_push", num_envs=1000, buffer_size=1000, noise=0.1)
    env = make_worlds(config.gym_config, {}, config.steps)
    observation, _ = env.reset(seed=0)
    kwargs = config.policy["kwargs"]
    clean = make_expert(env, seed=1, **(kwargs | {"noise": 0.0})).act(observation)
    noisy, again, other = (
        make_expert(env, seed=seed, **kwargs).act(observation) for seed in (1, 1, 2)
    )
    assert np.array_equal(noisy, again)
    assert not np.array_equal(noisy, other)
    inner = np.abs(clean) < 0.5  # five standard deviations from the bounds of 1
    assert np.std((noisy - clean)[inner]) == pytest.approx(0.1, rel=0.2)
    assert np.abs(noisy).max() <= 1.0


class Idle:
    """Never acts."""

    def __init__(self, env, seed):
        self.shape = env.action_space.shape

    def reset(self, rows):
        pass

    def act(self, observations):
        return np.zeros(self.shape, np.float32)


def test_filter_for_a_task_without_hooks_is_refused():
    config = stream_config("mpe_cooperative_push")
    env = make_worlds(config.gym_config, {}, config.steps)
    with pytest.raises(ConfigurationError, match=r"expected an environment with build_agent_batch"):
        make_expert(env, seed=0, expert="cover", safety={"enabled": True})

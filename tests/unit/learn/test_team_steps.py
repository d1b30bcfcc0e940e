"""A team's environment: joint states, ends, bounds."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.algorithms.team_steps import TeamSteps
from tests.unit.learn.counting_envs import TargetTeam


def test_joint_state_holds_every_robot_and_splits_back():
    team = TeamSteps(TargetTeam(3, widths=(1, 2)), ("one", "two"))
    joint = team.reset(0)
    assert joint.shape == (3, 3)
    assert team.joint_dim == 3
    assert [part.shape for part in team.split_state(joint)] == [(3, 1), (3, 2)]


def test_actions_are_clipped_and_rewards_summed_per_episode():
    env = TargetTeam(2, horizon=2)
    team = TeamSteps(env, env.uids)
    team.reset(0)
    far = np.full((2, 1), 9.0)
    first = team.step([far, far])
    expected = -np.abs(2.0 - env.x) - np.abs(2.0 + env.x)
    np.testing.assert_allclose(first.rewards, expected)
    before = env.x
    last = team.step([far, far])
    assert last.boundaries.all()
    assert last.cut.tolist() == [0, 1]
    np.testing.assert_allclose(last.final_states[:, 0], before, rtol=1e-6)
    np.testing.assert_allclose(last.states[:, 0], env.x, rtol=1e-6)
    np.testing.assert_allclose(team.take_finished(), 2 * expected)
    assert team.take_finished() == []


def test_termination_is_no_cut():
    env = TargetTeam(2, horizon=1, terminates=True)
    team = TeamSteps(env, env.uids)
    team.reset(0)
    step = team.step([np.zeros((2, 1))] * 2)
    assert step.terminated.all()
    assert step.cut.tolist() == []


def test_hidden_final_observation_is_refused():
    env = TargetTeam(1, horizon=1)
    env.hide_final = True
    team = TeamSteps(env, env.uids)
    team.reset(0)
    with pytest.raises(InputError, match=r"info\['final_observation'\], got none"):
        team.step([np.zeros((1, 1))] * 2)


@pytest.mark.parametrize("uids", [(), ("one", "one")])
def test_robots_are_named_once(uids):
    with pytest.raises(ConfigurationError, match="each named once"):
        TeamSteps(TargetTeam(1), uids)


def test_spaces_without_a_batch_are_refused():
    env = TargetTeam(1)
    env.action_space["two"] = env.action_space["two"].__class__(-1.0, 1.0, (1,), np.float32)
    with pytest.raises(ConfigurationError, match=r"batched Box spaces of shape \(1, D\) for 'two'"):
        TeamSteps(env, env.uids)

"""A policy that corrects a law."""

import gymnasium
import numpy as np
import pytest

from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs.residual import ResidualActions


def pendulums():
    return gymnasium.make_vec("Pendulum-v1", num_envs=2)


def damp(observations):
    return -1.9 * np.sign(observations[:, 2:])  # N m, of at most 2


def test_correction_is_added_to_the_law_within_the_bounds():
    env, plain = ResidualActions(pendulums(), damp, share=0.5), pendulums()
    seen, _ = env.reset(seed=3)
    plain.reset(seed=3)
    for correction in ([[0.4], [-0.4]], [[1.0], [-1.0]], [[-7.0], [7.0]]):
        wanted = np.clip(damp(seen) + 0.5 * np.clip(correction, -1.0, 1.0), -2.0, 2.0)
        assert env.policy(lambda _, u=correction: np.array(u))(seen) == pytest.approx(wanted)
        seen, reward, *_ = env.step(np.array(correction, np.float32))
        same, expected, *_ = plain.step(wanted.astype(np.float32))
        np.testing.assert_array_equal(seen, same)
        np.testing.assert_array_equal(reward, expected)
    assert env.single_action_space.low == -1.0
    assert env.single_action_space.high == 1.0


def test_what_cannot_be_corrected_is_refused():
    with pytest.raises(InputError, match="expected a finite share > 0"):
        ResidualActions(pendulums(), damp, share=0.0)
    with pytest.raises(InputError, match="bounded Box of rank 1, got Discrete"):
        ResidualActions(gymnasium.make_vec("CartPole-v1", num_envs=2), damp, share=0.5)
    with pytest.raises(NotReadyError, match="call reset"):
        ResidualActions(pendulums(), damp, share=0.5).step(np.zeros((2, 1), np.float32))

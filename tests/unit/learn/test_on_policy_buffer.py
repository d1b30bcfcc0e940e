"""Advantages through episode ends of every kind, invalid rows, and storage."""

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome


def shape(**changes):
    values = {"capacity": 3, "rows": 1, "observation_dim": 1}
    return BufferShape(**{**values, **changes})


def fill(buffer, *, rewards, terminated=(), truncated=(), finals=None):
    """Observation t is t; a cut at step t has the final observation of ``finals``."""
    rows = buffer.shape.rows
    for t, reward in enumerate(rewards):
        cut = np.arange(rows) if t in truncated else np.zeros(0, dtype=np.int64)
        buffer.stage(np.full((rows, 1), t), np.zeros(rows))
        ended = np.full(rows, t in terminated)
        buffer.commit(
            Outcome(np.full(rows, reward), ended, ended | (t in truncated)),
            np.full((rows, 1), t + 1),
            cut,
            None if not len(cut) else np.full((rows, 1), (finals or {}).get(t, 0.0)),
        )


def identity(rows):
    return rows[:, 0]


def test_open_end_bootstraps_with_the_next_observation():
    buffer = OnPolicyBuffer(shape())
    fill(buffer, rewards=[1.0, 1.0, 1.0])
    estimates = buffer.estimate(identity, gamma=0.5, gae_lambda=0.0)
    # V(s_t) = t: A_t = 1 + 0.5 (t + 1) - t
    np.testing.assert_allclose(estimates.advantages[:, 0], [1.5, 1.0, 0.5])
    np.testing.assert_allclose(estimates.returns[:, 0], [1.5, 2.0, 2.5])


def test_termination_has_no_future_and_a_time_limit_has_its_own():
    terminated, truncated = OnPolicyBuffer(shape()), OnPolicyBuffer(shape())
    fill(terminated, rewards=[1.0, 1.0, 1.0], terminated=[1])
    fill(truncated, rewards=[1.0, 1.0, 1.0], truncated=[1], finals={1: 10.0})
    ended = terminated.estimate(identity, gamma=0.5, gae_lambda=1.0).advantages[:, 0]
    cut = truncated.estimate(identity, gamma=0.5, gae_lambda=1.0).advantages[:, 0]
    # Step 2 is open: 1 + 0.5 * 3 - 2 = 0.5 in both.
    # Step 1 ended: 1 - 1 = 0; cut: 1 + 0.5 * 10 - 1 = 5; step 0: 1 + 0.5 * 1 - 0 + 0.5 A_1.
    np.testing.assert_allclose(ended, [1.5, 0.0, 0.5])
    np.testing.assert_allclose(cut, [4.0, 5.0, 0.5])


def test_only_the_cut_rows_take_final_observations():
    buffer = OnPolicyBuffer(shape(capacity=1, rows=2))
    buffer.stage(np.zeros((2, 1)), np.zeros(2))
    ends = np.array([True, False])
    buffer.commit(
        Outcome(np.zeros(2), np.zeros(2, bool), ends),
        np.array([[1.0], [2.0]]),
        np.array([0]),
        np.array([[7.0]]),
    )
    estimates = buffer.estimate(identity, gamma=1.0, gae_lambda=1.0)
    np.testing.assert_allclose(estimates.advantages, [[7.0, 2.0]])


def test_central_critic_has_its_own_observations():
    buffer = OnPolicyBuffer(shape(capacity=1, critic_dim=2))
    buffer.stage(np.array([[1.0]]), np.zeros(1), np.array([[3.0, 4.0]]))
    flags = np.zeros(1, bool)
    buffer.commit(Outcome(np.zeros(1), flags, flags), np.array([[5.0, 6.0]]))
    estimates = buffer.estimate(lambda rows: rows.sum(axis=1), gamma=1.0, gae_lambda=1.0)
    assert estimates.values.tolist() == [[7.0]]
    assert estimates.advantages.tolist() == [[4.0]]  # 11 - 7


def test_a_stored_buffer_gives_equal_estimates():
    buffer, other = OnPolicyBuffer(shape()), OnPolicyBuffer(shape())
    fill(buffer, rewards=[1.0, 2.0], truncated=[0], finals={0: 4.0})
    other.load_state_dict(buffer.state_dict())
    one = buffer.estimate(identity, gamma=0.9, gae_lambda=0.8)
    two = other.estimate(identity, gamma=0.9, gae_lambda=0.8)
    assert np.array_equal(one.advantages, two.advantages)
    assert other.length == 2


def test_full_buffer_refuses_a_step():
    buffer = OnPolicyBuffer(shape(capacity=1))
    fill(buffer, rewards=[0.0])
    with pytest.raises(NotReadyError, match=r"at most 1 steps \(rollout_length\) between"):
        buffer.stage(np.zeros((1, 1)), np.zeros(1))


def test_cut_without_final_observation_is_refused():
    buffer = OnPolicyBuffer(shape())
    buffer.stage(np.zeros((1, 1)), np.zeros(1))
    flags = np.zeros(1, bool)
    with pytest.raises(InputError, match=r"rows \[0\]\), got 0"):
        buffer.commit(Outcome(np.zeros(1), flags, ~flags), np.zeros((1, 1)), np.array([0]))


def test_reward_and_observation_that_are_not_finite_are_refused():
    buffer = OnPolicyBuffer(shape())
    with pytest.raises(InputError, match="OnPolicyBuffer: rewards"):
        fill(buffer, rewards=[float("nan")])
    buffer.stage(np.full((1, 1), np.inf), np.zeros(1))
    flags = np.zeros(1, bool)
    buffer.commit(Outcome(np.zeros(1), flags, flags), np.zeros((1, 1)))
    with pytest.raises(InputError, match="OnPolicyBuffer: observations"):
        buffer.estimate(identity, gamma=0.9, gae_lambda=0.9)


def test_sizes_and_stored_contents_are_checked():
    with pytest.raises(InputError, match="expected every size >= 1"):
        OnPolicyBuffer(shape(rows=0))
    buffer = OnPolicyBuffer(shape())
    with pytest.raises(CheckpointError, match="expected a stored rollout"):
        buffer.load_state_dict({"length": 0})
    with pytest.raises(CheckpointError, match="belongs to another configuration"):
        buffer.load_state_dict(OnPolicyBuffer(shape(rows=2)).state_dict())

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.learn.agents.grpo import group_advantages, rollout_mask
from cadenza.learn.agents.on_policy import k3_divergence
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome

EPSILON = 1e-8


@st.composite
def grouped(draw):
    """Returns, which steps count, and the size of a group."""
    steps, groups = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    size = draw(st.integers(2, 5))
    shape = (steps, groups * size)
    returns = draw(arrays(np.float32, shape, elements=st.floats(-100, 100, width=16)))
    return returns, draw(arrays(np.bool_, shape)), size


def advantages_by_loop(returns, mask, size, epsilon):
    result = np.zeros(returns.shape)
    for t in range(returns.shape[0]):
        for first in range(0, returns.shape[1], size):
            members = [n for n in range(first, first + size) if mask[t, n]]
            values = [float(returns[t, n]) for n in members]
            if not values:
                continue
            mean = sum(values) / len(values)
            std = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
            for n, value in zip(members, values, strict=True):
                result[t, n] = (value - mean) / (std + epsilon)
    return result


@given(grouped())
def test_advantages_equal_a_loop(case):
    returns, mask, size = case
    ours = group_advantages(returns, mask, group_size=size, epsilon=1e-3)
    np.testing.assert_allclose(ours, advantages_by_loop(returns, mask, size, 1e-3), atol=1e-5)


@given(grouped())
def test_advantages_of_a_group_add_up_to_zero_and_vanish_where_nothing_counts(case):
    returns, mask, size = case
    ours = group_advantages(returns, mask, group_size=size, epsilon=EPSILON)
    sums = ours.reshape(len(ours), -1, size).sum(-1)
    np.testing.assert_allclose(sums, 0.0, atol=1e-5)
    assert not ours[~mask].any()
    squares = np.square(ours).reshape(len(ours), -1, size).sum(-1)
    assert (squares <= mask.reshape(len(ours), -1, size).sum(-1) + 1e-4).all()


@given(grouped(), st.integers(-1000, 1000), st.sampled_from([0.25, 2.0, 64.0]))
def test_advantages_do_not_see_a_shift_or_a_scale_of_returns(case, shift, scale):
    returns, mask, size = case
    exact = returns.astype(np.float64)
    plain = group_advantages(exact, mask, group_size=size, epsilon=1e-15)
    moved = group_advantages(exact * scale + shift, mask, group_size=size, epsilon=1e-15)
    np.testing.assert_allclose(plain, moved, atol=1e-4)


@given(arrays(np.bool_, st.tuples(st.integers(1, 8), st.integers(1, 4))))
def test_mask_holds_one_episode_per_environment_and_never_comes_back(ends):
    mask = rollout_mask(ends, np.ones_like(ends), truncate_at_first_done=True)
    for n in range(ends.shape[1]):
        length = int(np.argmax(ends[:, n])) + 1 if ends[:, n].any() else len(ends)
        assert mask[:, n].tolist() == [t < length for t in range(len(ends))]


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8))
def test_divergence_is_never_negative(log_ratios):
    assert (k3_divergence(torch.tensor(log_ratios, dtype=torch.float64)) >= 0.0).all()


@st.composite
def rollouts(draw):
    steps, rows = draw(st.integers(1, 8)), draw(st.integers(1, 3))

    def table(elements):
        return draw(arrays(np.float32, (steps, rows), elements=elements))

    kinds = draw(arrays(np.int8, (steps, rows), elements=st.integers(0, 2)))
    return table(st.floats(-10, 10, width=16)), kinds == 1, kinds > 0


def returns_by_loop(rewards, terminated, boundaries, gamma, tail):
    """G_t: the sum of rewards up to the episode's end, and the tail unless the task ended it."""
    steps, rows = rewards.shape
    result = np.zeros(rewards.shape)
    for n in range(rows):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                result[t, n] += weight * float(rewards[k, n])
                weight *= gamma
                if boundaries[k, n] or k == steps - 1:
                    result[t, n] += 0.0 if terminated[k, n] else weight * tail(k, n)
                    break
    return result


@given(rollouts(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans())
def test_returns_of_the_shared_buffer_equal_a_loop(case, gamma, with_tail):
    rewards, terminated, boundaries = case
    steps, rows = rewards.shape
    buffer = OnPolicyBuffer(BufferShape(capacity=steps, rows=rows, observation_dim=1))
    # The observation after step k of environment n is its number, so a value can be told by it.
    after = 1.0 + np.arange(steps * rows, dtype=np.float32).reshape(steps, rows, 1)
    for t in range(steps):
        cut = np.flatnonzero(boundaries[t] & ~terminated[t])
        before = after[t - 1] if t else np.zeros((rows, 1), np.float32)
        buffer.stage(before, np.zeros(rows, np.int64))
        buffer.commit(
            Outcome(rewards[t], terminated[t], boundaries[t]), after[t], cut, after[t][cut]
        )
    scale = 1.0 if with_tail else 0.0
    ours = buffer.estimate(
        lambda observations: scale * observations[:, 0], gamma=gamma, gae_lambda=1.0
    ).returns
    expected = returns_by_loop(
        rewards, terminated, boundaries, gamma, lambda k, n: scale * float(after[k, n, 0])
    )
    np.testing.assert_allclose(ours, expected, atol=2e-3 if with_tail else 1e-4)

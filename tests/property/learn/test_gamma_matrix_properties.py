"""The matrix product equals the recursion of discounted returns."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.learn.algorithms.targets import discount, make_gamma_matrix, split_rollouts

sizes = st.tuples(st.integers(1, 6), st.integers(1, 12))


@given(data=st.data(), gamma=st.floats(0.0, 1.0), size=sizes)
def test_every_return_is_its_reward_plus_the_discounted_next_one(data, gamma, size):
    values = data.draw(arrays(np.float32, size, elements=st.floats(-10, 10, width=32)))
    last = data.draw(arrays(np.float32, (size[0], 1), elements=st.floats(-10, 10, width=32)))
    rewards, bootstrap = torch.from_numpy(values), torch.from_numpy(last)
    returns = discount(rewards, bootstrap, make_gamma_matrix(gamma, size[1]))
    per_rollout = split_rollouts(returns, size[1]).squeeze(2)
    following = torch.cat((per_rollout[:, 1:], bootstrap), dim=1)
    torch.testing.assert_close(per_rollout, rewards + gamma * following, atol=1e-3, rtol=1e-4)

"""N-step returns by one matrix product."""

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.targets import discount, make_gamma_matrix, split_rollouts


def test_gamma_matrix_of_three_steps_holds_shifted_powers():
    matrix = make_gamma_matrix(0.5, 3)
    expected = [[1, 0, 0], [0.5, 1, 0], [0.25, 0.5, 1], [0.125, 0.25, 0.5]]
    assert matrix.dtype is torch.float32
    assert matrix.tolist() == expected


def test_discount_returns_rollouts_one_after_the_other():
    # γ = 1/2, T = 2: R0 = r0 + r1/2 + V/4, R1 = r1 + V/2
    rewards = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    values = torch.tensor([[8.0], [16.0]])
    found = discount(rewards, values, make_gamma_matrix(0.5, 2))
    assert found.tolist() == [[4.0], [6.0], [9.0], [12.0]]


def test_split_rollouts_refuses_a_remainder():
    with pytest.raises(InputError, match=r"expected a multiple of rollout_len = 4 rows"):
        split_rollouts(torch.zeros(6, 1), 4)

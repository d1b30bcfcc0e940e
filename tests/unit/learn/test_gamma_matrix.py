"""N-step returns by one matrix product."""

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.gamma_matrix import discount, make_gamma_matrix, split_rollouts


def test_gamma_matrix_of_three_steps_holds_shifted_powers():
    matrix = make_gamma_matrix(0.5, 3)
    expected = [[1, 0, 0], [0.5, 1, 0], [0.25, 0.5, 1], [0.125, 0.25, 0.5]]
    assert matrix.dtype is torch.float32
    assert matrix.tolist() == expected


def test_gamma_zero_and_one_are_exact():
    assert make_gamma_matrix(0.0, 2).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert make_gamma_matrix(1.0, 2).tolist() == [[1, 0], [1, 1], [1, 1]]


def test_discount_returns_rollouts_one_after_the_other():
    # γ = 1/2, T = 2: R0 = r0 + r1/2 + V/4, R1 = r1 + V/2
    rewards = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    values = torch.tensor([[8.0], [16.0]])
    found = discount(rewards, values, make_gamma_matrix(0.5, 2))
    assert found.tolist() == [[4.0], [6.0], [9.0], [12.0]]


def test_split_rollouts_is_a_view():
    data = torch.arange(12.0).view(6, 2)
    rollouts = split_rollouts(data, 3)
    assert rollouts.shape == (2, 3, 2)
    assert rollouts[1, 0].tolist() == [6.0, 7.0]
    assert rollouts.data_ptr() == data.data_ptr()


def test_split_rollouts_refuses_a_remainder():
    with pytest.raises(InputError, match=r"expected a multiple of rollout_len = 4 rows"):
        split_rollouts(torch.zeros(6, 1), 4)


def test_split_rollouts_refuses_strided_data():
    with pytest.raises(InputError, match=r"call \.contiguous\(\) first"):
        split_rollouts(torch.zeros(4, 4).t(), 2)


@pytest.mark.parametrize(("gamma", "steps"), [(1.1, 3), (-0.1, 3), (0.9, 0)])
def test_make_gamma_matrix_refuses_impossible_settings(gamma, steps):
    with pytest.raises(InputError, match=r"gamma in \[0, 1\] and roll_length >= 1"):
        make_gamma_matrix(gamma, steps)


def test_discount_refuses_values_of_another_count():
    with pytest.raises(InputError, match=r"got \(2, 3\), \(3, 1\) and \(4, 3\)"):
        discount(torch.zeros(2, 3), torch.zeros(3, 1), make_gamma_matrix(0.9, 3))

"""The clone's formulas, against hand calculations and the policy that is played."""

import math

import numpy as np
import pytest
import torch

from cadenza.benchmark.jobs.cloning import (
    LEARNING_RATE,
    clone_policy,
    cloning_loss,
    cosine_rate,
    new_clone,
    state_scale,
)


def test_loss_is_the_mean_square_over_the_steps_that_count():
    predicted = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    done = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    assert cloning_loss(predicted, done).item() == (5.0 + 25.0) / 2
    assert cloning_loss(predicted, done, torch.tensor([[True, False]])).item() == 5.0


def test_step_size_falls_along_half_a_cosine():
    assert cosine_rate(0, 10) == LEARNING_RATE
    assert cosine_rate(5, 10) == pytest.approx(LEARNING_RATE / 2)
    assert cosine_rate(1, 10) == pytest.approx(LEARNING_RATE * (1 + math.cos(math.pi / 10)) / 2)


def test_moments_are_over_all_steps():
    states = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    assert torch.allclose(state_scale(states), torch.tensor([[3.0], [(20.0 / 3.0) ** 0.5]]))


def test_played_policy_is_the_trained_one():
    scale = torch.tensor([[1.0, -1.0, 0.0], [4.0, 1.0, 0.25]])
    clone = new_clone(scale, (8, 8), 2, torch.Generator().manual_seed(0))
    # The last state is far outside: both clip the scaled input, or they would differ.
    states = torch.tensor([[1.0, 0.5, 0.2], [3.0, -2.0, 0.1], [500.0, 0.0, -300.0]])
    low, high = torch.tensor([-0.3, -0.2]), torch.tensor([0.3, 0.2])
    wanted = torch.clamp(clone(states), low, high).detach().numpy()
    assert np.allclose(clone_policy(clone, low, high).act(states.numpy()), wanted, atol=1e-6)
    assert np.abs(clone(states).detach().numpy()).max() > 0.3  # so the bounds matter
    scaled = ((states - scale[0]) / scale[1]).clamp(-10.0, 10.0)
    weights = [p.detach() for p in clone.parameters()]
    hidden = torch.relu(torch.relu(scaled @ weights[0].T) @ weights[2].T)  # biases begin at zero
    assert torch.allclose(clone(states), hidden @ weights[4].T, atol=1e-5)

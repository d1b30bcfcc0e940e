"""Portable policies: every output rule by hand, storage, refusals."""

import math

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.nn.mlp_policy import MlpPolicy


def policy(output="mean", **changes):
    """y = 2 relu(s) + 0.5 for one state and one action in [-1, 3]."""
    values = {
        "weights": [
            torch.tensor([[1.0]]),
            torch.tensor([0.0]),
            torch.tensor([[2.0]]),
            torch.tensor([0.5]),
        ],
        "activation": "relu",
        "output": output,
        "low": torch.tensor([-1.0]),
        "high": torch.tensor([3.0]),
    }
    return MlpPolicy(**{**values, **changes})


def test_mean_is_clipped_to_the_bounds():
    assert policy().act(np.array([[-5.0], [1.0], [9.0]])).tolist() == [[0.5], [2.5], [3.0]]


def test_tanh_spans_the_bounds():
    action = policy("tanh").act(np.array([[0.0]])).item()
    assert action == pytest.approx(-1.0 + (math.tanh(0.5) + 1.0) * 2.0)


def test_squashed_limits_what_enters_the_tanh():
    far = np.array([[100.0]])
    assert policy("squashed").act(far).item() == pytest.approx(-1.0 + (math.tanh(5.0) + 1) * 2)
    assert policy("tanh").act(far).item() == 3.0


def test_tanh_layers_are_another_activation():
    assert policy(activation="tanh").act(np.array([[1.0]])).item() == pytest.approx(
        2.0 * math.tanh(1.0) + 0.5
    )


def test_layer_norm_and_silu_come_between_the_layers():
    normed = policy(
        weights=[torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.ones(1, 2), torch.zeros(1)],
        activation="silu",
        norms=[torch.tensor([2.0, 1.0]), torch.tensor([0.0, 0.5])],
    )
    # z = (5, −5) has mean 0 and deviation 5, so norm(z) = (2, −1 + 0.5); silu(x) = x / (1 + e^−x).
    expected = 2.0 / (1.0 + math.exp(-2.0)) - 0.5 / (1.0 + math.exp(0.5))
    assert normed.act(np.array([[5.0]])).item() == pytest.approx(expected, abs=1e-5)


def test_unit_is_clipped_and_spans_the_bounds():
    # y = 0.5, 0.7 and 2.5: a = −1 + (clip(y) + 1) / 2 · 4
    actions = policy("unit").act(np.array([[-5.0], [0.1], [1.0]]))[:, 0]
    assert actions.tolist() == pytest.approx([2.0, 2.4, 3.0])


def test_choice_takes_the_best_row():
    chooser = policy(
        "choice",
        weights=[torch.tensor([[1.0], [-1.0]]), torch.zeros(2)],
        choices=torch.tensor([[0.1], [0.2]]),
    )
    assert chooser.act(np.array([[1.0], [-1.0]]))[:, 0].tolist() == pytest.approx([0.1, 0.2])


def test_moments_scale_states_first():
    scaled = policy(moments=torch.tensor([[1.0], [4.0]], dtype=torch.float64))
    # (3 - 1) / 2 = 1
    assert scaled.act(np.array([[3.0]])).item() == pytest.approx(2.5)
    assert scaled.act(np.array([[1e9]])).item() == 3.0


def test_stored_policy_acts_alike_and_is_a_copy():
    original = policy("squashed")
    state = deserialise(serialise(original.state_dict()), max_bytes=10**6)
    original.weights[0].mul_(0.0)
    assert MlpPolicy.from_state_dict(state).act(np.array([[1.0]])) == policy("squashed").act(
        np.array([[1.0]])
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": [torch.zeros((1, 1))]},
        {"activation": "sine"},
        {"output": "raw"},
        {"low": torch.zeros(2)},
        {"output": "choice"},
    ],
)
def test_what_cannot_be_played_is_refused(changes):
    with pytest.raises(CheckpointError, match="MlpPolicy: expected pairs of weights"):
        policy(**changes)

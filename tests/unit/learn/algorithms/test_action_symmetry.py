"""Symmetry between the sides of an action: loss and reward by hand, maps, refusals."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from cadenza.learn.algorithms.action_symmetry import (
    ActionSymmetryAMPReward,
    ActionSymmetryDiscriminatorLoss,
    confusion_reward,
    slices_map,
)


@dataclass
class Part:
    start: int
    end: int


class Identity(nn.Module):
    """D(x) = w x for one action per side."""

    def __init__(self, w: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


#: Right action, left action.
ACTIONS = torch.tensor([[1.0, -1.0], [0.5, 3.0], [-1.0, 1.0]])
RIGHT, LEFT = slices_map([Part(0, 1)]), slices_map([Part(1, 2)])


def symmetry_loss(network: nn.Module, **options) -> ActionSymmetryDiscriminatorLoss:
    arguments = {
        "discriminator": network,
        "right_action_map_fn": RIGHT,
        "left_action_map_fn": LEFT,
        "grad_loss_weight": 0.0,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "lr_schedule": None,
        "max_grad_norm": 100.0,
        "data_group": "rl",
        "name": "symmetry",
        **options,
    }
    return ActionSymmetryDiscriminatorLoss(**arguments)


def test_loss_calls_right_plus_one_and_left_minus_one():
    callback = symmetry_loss(Identity(), grad_loss_weight=0.5)
    loss = callback.loss(rl={"actions": ACTIONS})
    positive = (0.0 + 0.25 + 4.0) / 3
    negative = (0.0 + 16.0 + 4.0) / 3
    assert loss.item() == pytest.approx(positive + negative + 0.5)
    logs = callback.scalar_logs
    prefix = "amp_action_symmetry"
    assert logs[f"{prefix}/loss/pos_discrimination_loss"] == pytest.approx(positive)
    assert logs[f"{prefix}/loss/neg_discrimination_loss"] == pytest.approx(negative)
    assert logs[f"{prefix}/loss/grad_loss"] == pytest.approx(0.5)
    assert logs[f"{prefix}/loss/total"] == pytest.approx(loss.item())
    assert logs[f"{prefix}/predict/positive_samples_mean"] == pytest.approx(0.5 / 3)
    assert logs[f"{prefix}/predict/negative_samples_mean"] == pytest.approx(1.0)


def test_confusion_is_two_when_sides_are_swapped_and_zero_when_told_apart():
    right = torch.tensor([[1.0], [-1.0], [0.0], [9.0]])
    left = torch.tensor([[-1.0], [1.0], [0.0], [-9.0]])  # the last pair is clamped to the first
    assert confusion_reward(right, left)[:, 0].tolist() == [0.0, 2.0, 1.5, 0.0]


def symmetry_reward(**options) -> ActionSymmetryAMPReward:
    arguments = {
        "discriminator": Identity(),
        "right_action_map_fn": RIGHT,
        "left_action_map_fn": LEFT,
        "confusion_reward_weight": 3.0,
        "data_group": "rl",
        **options,
    }
    return ActionSymmetryAMPReward(**arguments)


def test_rewards_get_the_weighted_confusion():
    callback = symmetry_reward()
    state = {"rl": {"actions": ACTIONS, "rewards": torch.tensor([[1.0], [1.0], [1.0]])}}
    assert callback.begin_batch(**state) == {}
    # Rows: (right 1, left -1) → 0; (0.5, 3 → 1) → 1 + 1 - ¼ · 2.25; (-1, 1) → 2.
    expected = [1.0, 1.0 + 3.0 * (2.0 - 0.25 * 2.25), 7.0]
    assert state["rl"]["rewards"][:, 0].tolist() == pytest.approx(expected)
    assert state["rl"]["task_rewards"].tolist() == [[1.0]] * 3
    assert not state["rl"]["rewards"].requires_grad
    logs = callback.scalar_logs
    prefix = "amp_action_symmetry"
    mean_confusion = (0.0 + 1.4375 + 2.0) / 3
    assert logs[f"{prefix}/unscaled_confusion_reward"] == pytest.approx(mean_confusion)
    assert logs[f"{prefix}/scaled_confusion_reward"] == pytest.approx(3 * mean_confusion)
    assert logs[f"{prefix}/task_reward"] == 1.0
    assert logs[f"{prefix}/total_reward"] == pytest.approx(1 + 3 * mean_confusion)
    assert logs[f"{prefix}/predicts_right_mean"] == pytest.approx(0.5 / 3)
    assert logs[f"{prefix}/predicts_left_mean"] == pytest.approx(1.0)


def test_slices_are_concatenated_in_the_given_order():
    take = slices_map([Part(3, 5), Part(0, 1)])
    assert take(torch.arange(12.0).reshape(2, 6)).tolist() == [[3.0, 4.0, 0.0], [9.0, 10.0, 6.0]]

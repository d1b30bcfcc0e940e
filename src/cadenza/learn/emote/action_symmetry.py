"""Rewards for using the right and the left side alike.

Idea:      a discriminator learns to tell actions of the right side (+1) from those of the left
           (-1); the policy is rewarded for confusing it, so that both sides act alike over time.
Equation:  r = r_task + w { [1 - ¼ (D(left) - 1)²] + [1 - ¼ (D(right) + 1)²] }, D clamped to [-1, 1]
Source:    the objective of arXiv:2104.02180 between the two halves of an action.
Axes:      B = rows, A = actions, k = actions of one side.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.learn.emote.amp import (
    AdversarialLoss,
    RewardShaper,
    discriminator_scores,
    style_reward,
)

#: Takes the actions of one side, (B, k), out of all, (B, A), in matching order and sign.
ActionMap = Callable[[Tensor], Tensor]


class IndexRange(Protocol):
    """Neighbouring entries of an action."""

    @property
    def start(self) -> int:
        """First index."""
        ...

    @property
    def end(self) -> int:
        """Index after the last."""
        ...


def slices_map(ranges: Sequence[IndexRange]) -> ActionMap:
    """Return a map from actions (B, A) to the concatenation of the slices [start, end).

    Raises:
        ConfigurationError: There is no range, or an empty one.
    """
    bounds = [(item.start, item.end) for item in ranges]
    if not bounds or any(not 0 <= start < end for start, end in bounds):
        expected = "ranges with 0 <= start < end"
        refuse(ConfigurationError, "slices_map", expected=expected, got=bounds)

    def take(actions: Tensor) -> Tensor:
        return torch.cat([actions[..., start:end] for start, end in bounds], dim=-1)

    return take


def confusion_reward(right_scores: Tensor, left_scores: Tensor) -> Tensor:
    """Return how well the sides are confused, 0 (told apart) to 2 (taken for each other), (B, 1).

    The scores are D on actions of each side, (B, 1); clamped to [-1, 1].
    """
    left, right = left_scores.clamp(-1.0, 1.0), right_scores.clamp(-1.0, 1.0)
    return style_reward(left) + style_reward(-right)


class ActionSymmetryDiscriminatorLoss(AdversarialLoss):
    """Trains a discriminator to tell right-side actions (+1) from left-side actions (-1).

    Both maps take the actions of one side, (B, k), in the same order and sign. Other arguments are
    those of `LossCallback`.

    Args:
        grad_loss_weight: Weight of the gradient penalty, on right-side actions.
    """

    LOG_PREFIX: ClassVar[str] = "amp_action_symmetry"

    def __init__(
        self,
        discriminator: nn.Module,
        right_action_map_fn: ActionMap,
        left_action_map_fn: ActionMap,
        grad_loss_weight: float,
        optimizer: optim.Optimizer,
        lr_schedule: LRScheduler | None,
        max_grad_norm: float,
        data_group: str,
        name: str,
    ) -> None:
        super().__init__(
            lr_schedule,
            name=name,
            network=discriminator,
            optimizer=optimizer,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        self._grad_loss_weight = grad_loss_weight
        self._right_action_map = right_action_map_fn
        self._left_action_map = left_action_map_fn

    def loss(self, actions: Tensor) -> Tensor:
        """Return the discriminator's loss for ``actions``, shape (B, A)."""
        return self._loss_of(self._right_action_map(actions), self._left_action_map(actions))


class ActionSymmetryAMPReward(RewardShaper):
    """Adds the weighted confusion of the discriminator to the rewards of a batch.

    The task's rewards stay in the group as ``task_rewards``, the bonus as ``symmetry_rewards``.
    """

    LOG_PREFIX: ClassVar[str] = "amp_action_symmetry"
    BONUS: ClassVar[str] = "confusion"
    BONUS_KEY: ClassVar[str] = "symmetry_rewards"

    def __init__(
        self,
        discriminator: nn.Module,
        right_action_map_fn: ActionMap,
        left_action_map_fn: ActionMap,
        confusion_reward_weight: float,
        data_group: str,
        *,
        name: str = "ActionSymmetryAMPReward",
    ) -> None:
        super().__init__(discriminator, confusion_reward_weight, data_group=data_group, name=name)
        self._right_action_map = right_action_map_fn
        self._left_action_map = left_action_map_fn

    @torch.no_grad()
    def begin_batch(
        self,
        actions: Tensor,
        rewards: Tensor,
        shaped_by: tuple[str, ...] = (),
        task_rewards: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the batch's new rewards, for actions (B, A) and rewards (B, 1)."""
        right = discriminator_scores(self._discriminator, self._right_action_map(actions))
        left = discriminator_scores(self._discriminator, self._left_action_map(actions))
        confusion = confusion_reward(right, left)
        shaped = self._shaped(confusion, rewards, shaped_by, task_rewards)
        self._log_scores("predicts_right", right)
        self._log_scores("predicts_left", left)
        return shaped

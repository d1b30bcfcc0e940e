"""Adversarial motion priors: rewards for moving as the reference does.

Equation:  r = r_task + w [1 - ¼ (D(s, s') - 1)²], D trained to give 1 on reference transitions and
           -1 on the policy's.
Source:    arXiv:2104.02180, eq. 7. The paper clamps the bracket at 0, which is optional here.
Axes:      n = rollouts, T = rollout length, B = n·T rows, rollout-major, d = observation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.algorithms.discriminator_loss import AdversarialLoss
from cadenza.learn.algorithms.least_squares_gan import (
    discriminator_scores,
    gradient_loss_function,
    spread,
)
from cadenza.learn.algorithms.reward_shaping import RewardShaper
from cadenza.learn.gamma_matrix import split_rollouts

__all__ = [
    "AMPReward",
    "DiscriminatorLoss",
    "gradient_loss_function",
    "next_states",
    "style_reward",
]

#: Chooses and transforms the features the discriminator sees, row by row.
StateMap = Callable[[Tensor], Tensor]


def style_reward(scores: Tensor) -> Tensor:
    """Return 1 - ¼ (D - 1)²: 1 for a score of 1, 0 for a score of -1; same shape as ``scores``."""
    return 1.0 - 0.25 * (scores - 1.0).square()


def next_states(observation: Tensor, next_observation: Tensor, rollout_length: int) -> Tensor:
    """Return the state after every row, shape (B, ...).

    Args:
        observation: Shape (B, ...).
        next_observation: After every rollout, (n, ...), or already after every row, (B, ...).
        rollout_length: T.

    Raises:
        InputError: The rows do not fit together.
    """
    if next_observation.shape == observation.shape:
        return next_observation
    rollouts = split_rollouts(observation.contiguous(), rollout_length)
    if next_observation.shape != (rollouts.shape[0], *observation.shape[1:]):
        raise InputError(
            f"amp: expected next observations of {rollouts.shape[0]} rollouts or "
            f"{observation.shape[0]} rows, got shape {tuple(next_observation.shape)}; give "
            "AMPReward the rollout length of the memory loader."
        )
    following = torch.cat([rollouts[:, 1:], next_observation.unsqueeze(1)], dim=1)
    return following.flatten(0, 1)


class DiscriminatorLoss(AdversarialLoss):
    """Trains a discriminator to tell transitions of the reference from the policy's.

    It reads the groups ``imitation_batch`` and ``policy_batch`` of the state, as a
    `JointMemoryLoader` over two one-step memories provides them.

    Args:
        discriminator: Maps the features of a state and its successor, (B, 2k), to (B, 1).
        imitation_state_map_fn: Features (B, k) of a reference state.
        policy_state_map_fn: Features (B, k) of a policy state.
        grad_loss_weight: Weight of the gradient penalty.
        optimizer: Optimiser of the discriminator.
        lr_schedule: Schedule of its learning rate; None keeps it constant.
        max_grad_norm: Largest global L2 norm of the gradients.
        input_key: Observation that the maps take.
        name: Part of the log keys, and the name in checkpoints.
    """

    LOG_PREFIX = "amp"

    def __init__(
        self,
        discriminator: nn.Module,
        imitation_state_map_fn: StateMap,
        policy_state_map_fn: StateMap,
        grad_loss_weight: float,
        optimizer: optim.Optimizer,
        lr_schedule: LRScheduler | None,
        max_grad_norm: float,
        input_key: str = "features",
        name: str = "Discriminator",
    ) -> None:
        super().__init__(
            discriminator,
            grad_loss_weight,
            optimizer,
            lr_schedule,
            max_grad_norm,
            data_group=None,
            name=name,
        )
        self._imitation_state_map = imitation_state_map_fn
        self._policy_state_map = policy_state_map_fn
        self._input_key = input_key

    def loss(self, imitation_batch: Mapping[str, Any], policy_batch: Mapping[str, Any]) -> Tensor:
        """Return the discriminator's loss.

        Args:
            imitation_batch: ``observation`` and ``next_observation`` of the reference, positive.
            policy_batch: The same of the policy, negative.

        Raises:
            InputError: States and successors differ in shape, or the discriminator's output is not
                one score per row.
        """
        real = self._transitions("imitation_batch", imitation_batch, self._imitation_state_map)
        made = self._transitions("policy_batch", policy_batch, self._policy_state_map)
        return self._loss_of(real, made)

    def _transitions(self, label: str, batch: Mapping[str, Any], state_map: StateMap) -> Tensor:
        """Return the features of states and successors side by side, (B, 2k)."""
        state: Tensor = batch["observation"][self._input_key]
        successor: Tensor = batch["next_observation"][self._input_key]
        if state.shape != successor.shape:
            raise InputError(
                f"amp.DiscriminatorLoss: expected {label} with one next observation per row, got "
                f"{tuple(successor.shape)} for {tuple(state.shape)}; sample it from a one-step "
                "memory table."
            )
        return torch.cat([state_map(state), state_map(successor)], dim=-1)


class AMPReward(RewardShaper):
    """Adds the weighted style reward to the rewards of a batch.

    The task's rewards stay in the group as ``task_rewards``, the bonus as ``style_rewards``.

    Args:
        discriminator: Maps the features of a state and its successor, (B, 2k), to (B, 1).
        state_map_fn: Features (B, k) of a state.
        style_reward_weight: w.
        rollout_length: T of the batch.
        observation_key: Observation that the map takes.
        data_group: Group of the batch.
        clamp_style_reward: Let no transition cost more than nothing: clamp the style reward at 0.
        name: Name in messages and checkpoints; two shapers of one batch need two names.

    Raises:
        ConfigurationError: ``rollout_length`` is below one.
    """

    LOG_PREFIX = "amp"
    BONUS = "style"
    BONUS_KEY = "style_rewards"

    def __init__(
        self,
        discriminator: nn.Module,
        state_map_fn: StateMap,
        style_reward_weight: float,
        rollout_length: int,
        observation_key: str,
        data_group: str,
        *,
        clamp_style_reward: bool = False,
        name: str = "AMPReward",
    ) -> None:
        super().__init__(discriminator, style_reward_weight, data_group=data_group, name=name)
        if rollout_length < 1:
            raise ConfigurationError(
                f"AMPReward.rollout_length: expected >= 1, got {rollout_length}."
            )
        self._state_map = state_map_fn
        self._rollout_length = rollout_length
        self._observation_key = observation_key
        self._clamp_style_reward = clamp_style_reward

    @torch.no_grad()
    def begin_batch(
        self,
        observation: Mapping[str, Tensor],
        next_observation: Mapping[str, Tensor],
        rewards: Tensor,
        shaped_by: tuple[str, ...] = (),
        task_rewards: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the batch's new rewards.

        Args:
            observation: Each entry (B, ...).
            next_observation: Each entry (n, ...) or (B, ...).
            rewards: Shape (B, 1).
            shaped_by: Names of the shapers that the batch has seen.
            task_rewards: Rewards before the first of them.

        Raises:
            ConfigurationError: This shaper has seen the batch before.
            InputError: The shapes do not fit together.
        """
        state = observation[self._observation_key]
        successor = next_states(
            state, next_observation[self._observation_key], self._rollout_length
        )
        features = torch.cat([self._state_map(state), self._state_map(successor)], dim=-1)
        scores = discriminator_scores(self._discriminator, features)
        style = style_reward(scores)
        if self._clamp_style_reward:
            style = style.clamp_min(0.0)
        shaped = self._shaped(style, rewards, shaped_by, task_rewards)
        self.log_scalar("amp/predicts_mean", scores.mean())
        self.log_scalar("amp/predicts_std", spread(scores))
        return shaped

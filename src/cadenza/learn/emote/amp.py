"""Adversarial motion priors: rewards for moving as the reference does.

Equations:  L = mean (D(x⁺) - 1)² + mean (D(x⁻) + 1)² + w mean_i |∂D(x⁺_i)/∂x⁺_i|²
            r = r_task + w [1 - ¼ (D(s, s') - 1)²], D trained to give 1 on reference transitions and
            -1 on the policy's.
Sources:    least-squares objective arXiv:1611.04076; with this penalty, for motion priors:
            arXiv:2104.02180, eq. 5 to 7. The paper clamps the bracket at 0, optional here.
Axes:       n = rollouts, T = rollout length, B = n·T rows, rollout-major, d = observation,
            K = inputs of the discriminator.
Shaping:    a shaper writes the sum to ``rewards``, keeps the bonus under a key of its own, and
            signs the batch with its name: the same shaper on the same batch a second time is an
            error, not a doubled bonus.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler

from cadenza.core.arrays import require_shape
from cadenza.core.checks import checked_integer
from cadenza.core.errors import ConfigurationError
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.emote.targets import split_rollouts
from cadenza.learn.nn.layers import mlp


class Discriminator(nn.Module):
    """ReLU perceptron with one unbounded output per row: near 1 for real, near -1 for made.

    ``generator`` is the source of the initial weights; None draws from the package's own.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int] = (256, 256),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mlp: nn.Sequential = mlp(input_dim, hidden_dims, outputs=1, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, shape (B, 1), for ``features``, shape (B, K)."""
        return self.mlp(features)


def gradient_loss_function(model_output: Tensor, model_input: Tensor) -> Tensor:
    """Return the mean over rows of |∂(Σ_j output_j)/∂input_i|², a differentiable scalar.

    ``model_input``, (B, ...), is part of the graph of ``model_output``, whose rows must not
    influence each other.
    """
    (gradient,) = torch.autograd.grad(
        model_output,
        model_input,
        grad_outputs=torch.ones_like(model_output),
        create_graph=True,
    )
    return gradient.square().flatten(1).sum(1).mean()


def discriminator_loss(
    discriminator: nn.Module, real: Tensor, made: Tensor, gradient_weight: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss that teaches to tell ``real`` (B, K), +1, from ``made`` (B', K), -1.

    Beside it stand its parts and what the scores are like, by the names of their logs.
    ``gradient_weight`` is w, of the penalty on ``real``.
    """
    real = real.detach().requires_grad_()
    scores = discriminator_scores(discriminator, real)
    made_scores = discriminator_scores(discriminator, made.detach())
    parts = {
        "loss/pos_discrimination_loss": (scores - 1.0).square().mean(),
        "loss/neg_discrimination_loss": (made_scores + 1.0).square().mean(),
        "loss/grad_loss": gradient_weight * gradient_loss_function(scores, real),
    }
    positive, negative, gradient = parts.values()
    total = positive + negative + gradient
    figures = {**parts, "loss/total": total}
    for sign, found in (("positive", scores.detach()), ("negative", made_scores.detach())):
        figures[f"predict/{sign}_samples_mean"] = found.mean()
        figures[f"predict/{sign}_samples_std"] = spread(found)
    return total, figures


def discriminator_scores(discriminator: nn.Module, rows: Tensor) -> Tensor:
    """Return the discriminator's output, shape (B, 1)."""
    scores: Tensor = discriminator(rows)
    advice = "end the discriminator with one linear unit"
    require_shape("discriminator: output", scores, (len(rows), 1), advice)
    return scores


def spread(values: Tensor) -> Tensor:
    """Return the sample standard deviation; 0 for a single value, where it is not defined."""
    return values.std(correction=min(1, values.numel() - 1))


class AdversarialLoss(LossCallback):
    """Steps a discriminator; `loss` of a subclass says which rows are real and which are made."""

    #: First part of the log keys.
    LOG_PREFIX: ClassVar[str]
    #: Weight of the gradient penalty, on the real rows.
    _grad_loss_weight: float

    def _loss_of(self, real: Tensor, made: Tensor) -> Tensor:
        """Return the loss that teaches to tell ``real`` (B, K) from ``made`` (B', K); log it."""
        network = cast("nn.Module", self.network)
        loss, figures = discriminator_loss(network, real, made, self._grad_loss_weight)
        for name, figure in figures.items():
            self.log_scalar(f"{self.LOG_PREFIX}/{name}", figure)
        return loss


#: Key of the names of the shapers that a batch has seen.
SHAPED_BY: Final = "shaped_by"


class RewardShaper(LoggingMixin, Callback):
    """Adds a weighted bonus to the rewards of a batch and logs it; a subclass says which.

    Two shapers of one batch need two names.
    """

    #: First part of the log keys.
    LOG_PREFIX: ClassVar[str]
    #: What the log keys call the bonus.
    BONUS: ClassVar[str]
    #: Where the group keeps the bonus.
    BONUS_KEY: ClassVar[str]

    def __init__(
        self, discriminator: nn.Module, weight: float, *, data_group: str, name: str
    ) -> None:
        super().__init__()
        self.name = name
        self.data_group = data_group
        self._discriminator = discriminator
        self._weight = weight

    def _shaped(
        self,
        bonus: Tensor,
        rewards: Tensor,
        shaped_by: tuple[str, ...],
        task_rewards: Tensor | None,
    ) -> dict[str, Any]:
        """Return what goes into the state for a bonus of the shape of ``rewards``, (B, 1)."""
        if self.name in shaped_by:
            raise ConfigurationError(
                f"{self.name}: expected rewards without its bonus, got a batch that was shaped by "
                f"{list(shaped_by)}; list each shaper once, give two of a kind different names, "
                "and let the loader make a new batch every step."
            )
        advice = "check rollout_length and the memory table"
        require_shape(f"{self.name}: bonus", bonus, tuple(rewards.shape), advice)
        weighted = self._weight * bonus
        total = rewards + weighted
        for name, values in {
            f"unscaled_{self.BONUS}_reward": bonus,
            "task_reward": rewards,
            f"scaled_{self.BONUS}_reward": weighted,
            "total_reward": total,
        }.items():
            self.log_scalar(f"{self.LOG_PREFIX}/{name}", values.mean())
        written = {
            "rewards": total,
            "task_rewards": rewards if task_rewards is None else task_rewards,
            self.BONUS_KEY: weighted,
            SHAPED_BY: (*shaped_by, self.name),
        }
        return {self.data_group: written}

    def _log_scores(self, name: str, scores: Tensor) -> None:
        self.log_scalar(f"{self.LOG_PREFIX}/{name}_mean", scores.mean())
        self.log_scalar(f"{self.LOG_PREFIX}/{name}_std", spread(scores))


#: Chooses and transforms the features the discriminator sees, row by row.
StateMap = Callable[[Tensor], Tensor]


def style_reward(scores: Tensor) -> Tensor:
    """Return 1 - ¼ (D - 1)²: 1 for a score of 1, 0 for a score of -1; same shape as ``scores``."""
    return 1.0 - 0.25 * (scores - 1.0).square()


def next_states(observation: Tensor, next_observation: Tensor, rollout_length: int) -> Tensor:
    """Return the state after every row, (B, ...).

    ``next_observation`` has that after every rollout of ``rollout_length`` rows, or already all.
    """
    if next_observation.shape == observation.shape:
        return next_observation
    rollouts = split_rollouts(observation.contiguous(), rollout_length)
    advice = "give AMPReward the rollout length of the memory loader"
    wanted = (len(rollouts), *observation.shape[1:])
    require_shape("amp: next observations", next_observation, wanted, advice)
    following = torch.cat([rollouts[:, 1:], next_observation.unsqueeze(1)], dim=1)
    return following.flatten(0, 1)


class DiscriminatorLoss(AdversarialLoss):
    """Trains a discriminator to tell transitions of the reference from the policy's.

    It reads the groups ``imitation_batch`` and ``policy_batch`` of the state, as a
    `JointMemoryLoader` over two one-step memories provides them.

    Arguments not named here are those of `LossCallback`.

    Args:
        imitation_state_map_fn: Features (B, k) of a reference state.
        policy_state_map_fn: Features (B, k) of a policy state.
        grad_loss_weight: Weight of the gradient penalty.
    """

    LOG_PREFIX: ClassVar[str] = "amp"

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
            lr_schedule,
            name=name,
            network=discriminator,
            optimizer=optimizer,
            max_grad_norm=max_grad_norm,
            data_group=None,
        )
        self._grad_loss_weight = grad_loss_weight
        self._imitation_state_map = imitation_state_map_fn
        self._policy_state_map = policy_state_map_fn
        self._input_key = input_key

    def loss(self, imitation_batch: Mapping[str, Any], policy_batch: Mapping[str, Any]) -> Tensor:
        """Return the loss on transitions of the reference, which are positive, and the policy's."""
        real = self._transitions("imitation_batch", imitation_batch, self._imitation_state_map)
        made = self._transitions("policy_batch", policy_batch, self._policy_state_map)
        return self._loss_of(real, made)

    def _transitions(self, label: str, batch: Mapping[str, Any], state_map: StateMap) -> Tensor:
        """Return the features of states and successors side by side, (B, 2k)."""
        state: Tensor = batch["observation"][self._input_key]
        successor: Tensor = batch["next_observation"][self._input_key]
        name = f"amp.DiscriminatorLoss: {label}: next observation"
        advice = "sample it from a one-step memory table"
        require_shape(name, successor, tuple(state.shape), advice)
        return torch.cat([state_map(state), state_map(successor)], dim=-1)


class AMPReward(RewardShaper):
    """Adds the weighted style reward to the rewards of a batch.

    The task's rewards stay in the group as ``task_rewards``, the bonus as ``style_rewards``.

    Args:
        state_map_fn: Features (B, k) of a state, the observation under ``observation_key``.
        clamp_style_reward: Let no transition cost more than nothing: clamp the style reward at 0.

    Raises:
        ConfigurationError: ``rollout_length`` is below one.
    """

    LOG_PREFIX: ClassVar[str] = "amp"
    BONUS: ClassVar[str] = "style"
    BONUS_KEY: ClassVar[str] = "style_rewards"

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
        checked_integer("AMPReward.rollout_length", rollout_length)
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
        """Return the batch's new rewards, for rewards (B, 1).

        Entries of ``observation`` are (B, ...), of ``next_observation`` (n, ...) or (B, ...);
        ``task_rewards`` are those before the shapers that the batch has seen, ``shaped_by``.

        Raises:
            ConfigurationError: This shaper has seen the batch before.
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
        self._log_scores("predicts", scores)
        return shaped

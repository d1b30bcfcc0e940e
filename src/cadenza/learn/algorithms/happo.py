"""One minibatch step of HAPPO's actor, and of the critic beside it.

Equations, with importance ratio ρ, advantage Â, clip range c and sequential factor M:
    ρ = Π_d exp(ℓ_d − ℓ_old,d),   ℓ = log π(a|s) per action dimension
    L = −mean_B[ M · min(ρ Â, clip(ρ, 1 − c, 1 + c) Â) ],   H = mean_B[ Σ_d entropy_d ]
    minimise L − k H;  clip the global gradient norm;  Adam
Source:  HAPPO, arXiv:2304.09870, section 4; with one learner M = 1, which is PPO, arXiv:1707.06347.
Axes:    B = batch, O = observation, A = action dimension.
Limits:  every operation runs in HARL's order, so that results agree with it bit for bit on the CPU;
         exp(Σ_d(ℓ_d − ℓ_old,d)) would be the same number with different rounding.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.ppo_loss import descend
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic

#: Weight of the entropy bonus (HARL's default for continuous control).
ENTROPY_COEFFICIENT: Final = 0.01
#: Largest global norm of the actor's gradient (HARL's default).
MAX_GRADIENT_NORM: Final = 10.0
#: Adam's denominator guard of the actor (HARL's ``opti_eps``); the critic keeps torch's 1e-8.
ACTOR_ADAM_EPSILON: Final = 1e-5

_LOG_SQRT_2PI: Final = math.log(math.sqrt(2.0 * math.pi))
_UNIT_ENTROPY: Final = 0.5 + 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorBatch:
    """What one actor step learns from.

    Attributes:
        observations: Shape (B, O).
        actions: Actions that were drawn, shape (B, A).
        old_log_probs: Their log-density per dimension when drawn, shape (B, A).
        advantages: Normalised advantages, shape (B, 1).
        factor: Product of the ratios of agents updated before, shape (B, 1); None means ones.
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorUpdate:
    """Detached results of one actor step; reading a value synchronises with the device.

    Attributes:
        policy_loss: L, scalar.
        entropy: H, scalar, nats.
        gradient_norm: Global norm before clipping, scalar.
        ratio: ρ before the step, shape (B, 1).
    """

    policy_loss: Tensor
    entropy: Tensor
    gradient_norm: Tensor
    ratio: Tensor


def gaussian_log_prob(actions: Tensor, mean: Tensor, standard_deviation: Tensor) -> Tensor:
    """Return the log-density per dimension, shape (B, A).

    Args:
        actions: Shape (B, A).
        mean: Shape (B, A).
        standard_deviation: Shape (A,) or (B, A), > 0.
    """
    variance = standard_deviation**2
    log_deviation = standard_deviation.log()
    return -((actions - mean) ** 2) / (2 * variance) - log_deviation - _LOG_SQRT_2PI


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return ρ, shape (B, 1), from log-densities per dimension, shape (B, A)."""
    return torch.prod(torch.exp(log_probs - old_log_probs), dim=-1, keepdim=True)


def clipped_policy_loss(
    ratio: Tensor, advantages: Tensor, *, clip_epsilon: float, factor: Tensor | None = None
) -> Tensor:
    """Return L, a scalar; all arguments have shape (B, 1)."""
    surrogate = torch.min(
        ratio * advantages,
        torch.clamp(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon) * advantages,
    )
    if factor is not None:
        surrogate = factor * surrogate
    return -torch.sum(surrogate, dim=-1, keepdim=True).mean()


def update_actor(
    actor: GaussianActor,
    optimizer: torch.optim.Optimizer,
    batch: ActorBatch,
    *,
    clip_epsilon: float,
    entropy_coefficient: float = ENTROPY_COEFFICIENT,
    max_gradient_norm: float = MAX_GRADIENT_NORM,
) -> ActorUpdate:
    """Take one optimiser step on ``actor``.

    Args:
        actor: Network to change in place.
        optimizer: Over the actor's parameters, in their order.
        batch: Data of this step.
        clip_epsilon: c, > 0.
        entropy_coefficient: k.
        max_gradient_norm: Global norm to which the gradient is shortened.
    """
    mean = actor(batch.observations)
    # Spread over the batch before use: gradients then add up in HARL's order.
    deviation = actor.standard_deviation().expand_as(mean)
    log_probs = gaussian_log_prob(batch.actions, mean, deviation)
    entropy = (_UNIT_ENTROPY + torch.log(deviation)).sum(-1).mean()
    ratio = importance_ratio(log_probs, batch.old_log_probs)
    policy_loss = clipped_policy_loss(
        ratio, batch.advantages, clip_epsilon=clip_epsilon, factor=batch.factor
    )
    loss = policy_loss - entropy * entropy_coefficient
    gradient_norm = descend(loss, optimizer, [*actor.parameters()], max_gradient_norm)
    return ActorUpdate(
        policy_loss=policy_loss.detach(),
        entropy=entropy.detach(),
        gradient_norm=gradient_norm,
        ratio=ratio.detach(),
    )


def update_critic(
    critic: ValueCritic,
    optimizer: torch.optim.Optimizer,
    observations: Tensor,
    returns: Tensor,
    *,
    max_gradient_norm: float | None = None,
) -> Tensor:
    """Take one mean-squared-error step on ``critic`` and return the loss before it, a scalar.

    Args:
        critic: Network to change in place.
        optimizer: Over the critic's parameters.
        observations: Shape (B, O).
        returns: Regression targets, shape (B, 1).
        max_gradient_norm: Global norm to which the gradient is shortened; None leaves it.
    """
    loss = nn.functional.mse_loss(critic(observations), returns)
    limit = math.inf if max_gradient_norm is None else max_gradient_norm
    descend(loss, optimizer, [*critic.parameters()], limit)
    return loss.detach()


def actor_optimizer(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Return HARL's optimiser; the batched form of Adam gives the same bits in less time."""
    return torch.optim.Adam(parameters, lr=learning_rate, eps=ACTOR_ADAM_EPSILON, foreach=True)


def critic_optimizer(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Return Adam with torch's default guard."""
    return torch.optim.Adam(parameters, lr=learning_rate, foreach=True)


def minibatch_bounds(transitions: int, batch_size: int) -> list[tuple[int, int]]:
    """Return [start, stop) of every minibatch of a shuffled rollout.

    No transition is dropped: the last minibatch takes the remainder, so each holds at least
    ``batch_size`` transitions unless the rollout is shorter than that.

    Args:
        transitions: Rollout size, >= 1.
        batch_size: Wanted minibatch size, >= 1.

    Raises:
        InputError: An argument is below one.
    """
    if min(transitions, batch_size) < 1:
        raise InputError(
            "minibatch_bounds: expected transitions >= 1 and batch_size >= 1, got "
            f"{transitions} and {batch_size}."
        )
    count = max(1, transitions // batch_size)
    size = max(1, transitions // count)
    return [(j * size, transitions if j == count - 1 else (j + 1) * size) for j in range(count)]

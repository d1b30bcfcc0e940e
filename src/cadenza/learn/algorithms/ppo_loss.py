"""PPO's loss over one minibatch, and one optimiser step on it.

Equations, with ratio ρ = π(a|s) / π_old(a|s), advantage Â, return R and clip range c:
    L_π = −mean[ min(ρ Â, clip(ρ, 1 − c, 1 + c) Â) ]
    L_V = mean[ ℓ(V − R) ]; with a clip range d the larger of ℓ(V − R) and ℓ(V' − R),
          V' = V_old + clip(V − V_old, −d, d)
    minimise L_π + k_V L_V − k_H mean[H(π)];  clip the global gradient norm;  Adam
    approximate KL = mean[ (ρ − 1) − log ρ ]  (never negative, low variance)
Source:  arXiv:1707.06347; implementation choices follow arXiv:2006.05990.
Axes:    B = batch, O = observation, S = critic observation, A = action components.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.policy_networks import ActorCritic

#: Added to the standard deviation of a minibatch's advantages, in their unit.
ADVANTAGE_EPSILON = 1e-8
#: Error beyond which the Huber value loss grows linearly, in the unit of returns (MAPPO's value,
#: arXiv:2103.01955, table 7).
HUBER_DELTA = 10.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOBatch:
    """What one step learns from.

    Attributes:
        observations: Shape (B, O).
        critic_observations: Shape (B, S).
        actions: Shape (B,) int64 or (B, A).
        old_log_probs: Shape (B,).
        advantages: Shape (B,).
        returns: Shape (B,).
        old_values: Shape (B,).
    """

    observations: Tensor
    critic_observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    old_values: Tensor

    def rows(self, indices: Tensor) -> "PPOBatch":
        """Return the transitions ``indices``."""
        shared = self.critic_observations is self.observations
        observations = self.observations.index_select(0, indices)
        return PPOBatch(
            observations=observations,
            critic_observations=(
                observations if shared else self.critic_observations.index_select(0, indices)
            ),
            actions=self.actions.index_select(0, indices),
            old_log_probs=self.old_log_probs.index_select(0, indices),
            advantages=self.advantages.index_select(0, indices),
            returns=self.returns.index_select(0, indices),
            old_values=self.old_values.index_select(0, indices),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """Numbers of the loss.

    Attributes:
        clip_epsilon: c, > 0.
        clip_value: d, in the unit of returns; None leaves the value loss unclipped.
        value_loss: ℓ: squared error, or Huber's.
        value_coefficient: k_V, >= 0.
        entropy_coefficient: k_H, >= 0.
        max_gradient_norm: Global norm to which the gradient is shortened.
        normalize_advantages: Give each minibatch's advantages mean 0 and deviation 1.
    """

    clip_epsilon: float
    clip_value: float | None
    value_loss: Literal["mse", "huber"]
    value_coefficient: float
    entropy_coefficient: float
    max_gradient_norm: float
    normalize_advantages: bool


class LossTerms(NamedTuple):
    """Scalars of one minibatch."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_epsilon: float) -> Tensor:
    """Return L_π, a scalar; arguments have shape (B,)."""
    clipped = torch.clamp(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def value_error(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    *,
    kind: Literal["mse", "huber"] = "mse",
    clip_value: float | None = None,
) -> Tensor:
    """Return L_V, a scalar; arguments have shape (B,)."""
    error = _pointwise(values, returns, kind)
    if clip_value is not None:
        near = old_values + torch.clamp(values - old_values, -clip_value, clip_value)
        error = torch.maximum(error, _pointwise(near, returns, kind))
    return error.mean()


def _pointwise(values: Tensor, returns: Tensor, kind: Literal["mse", "huber"]) -> Tensor:
    if kind == "huber":
        return nn.functional.huber_loss(values, returns, reduction="none", delta=HUBER_DELTA)
    return (values - returns).square()


def normalized(advantages: Tensor) -> Tensor:
    """Return (Â − mean) / (std + 1e-8), shape (B,); a single advantage is returned as it is."""
    if advantages.shape[0] < 2:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + ADVANTAGE_EPSILON)


def ppo_terms(network: ActorCritic, batch: PPOBatch, weights: LossWeights) -> LossTerms:
    """Return the loss terms of ``batch``; policy, value and entropy carry gradients."""
    output = network.actor(batch.observations)
    log_ratio = network.head.log_prob(output, batch.actions) - batch.old_log_probs
    ratio = log_ratio.exp()
    advantages = normalized(batch.advantages) if weights.normalize_advantages else batch.advantages
    with torch.no_grad():
        approx_kl = ((ratio - 1.0) - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > weights.clip_epsilon).float().mean()
    return LossTerms(
        policy=clipped_surrogate(ratio, advantages, weights.clip_epsilon),
        value=value_error(
            network.value(batch.critic_observations),
            batch.returns,
            batch.old_values,
            kind=weights.value_loss,
            clip_value=weights.clip_value,
        ),
        entropy=network.head.entropy(output).mean(),
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
    )


def total_loss(terms: LossTerms, weights: LossWeights) -> Tensor:
    """Return what is minimised, a scalar."""
    loss = terms.policy + weights.value_coefficient * terms.value
    if weights.entropy_coefficient > 0.0:
        loss = loss - weights.entropy_coefficient * terms.entropy
    return loss


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    max_gradient_norm: float,
) -> Tensor:
    """Take one optimiser step down ``loss``; return the gradient norm before shortening, ().

    Raises:
        InputError: On the CPU, loss or gradient is not finite; no weight has changed.
    """
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    norm = nn.utils.clip_grad_norm_(parameters, max_gradient_norm, foreach=True)
    if norm.is_cpu and not np.isfinite((loss.detach() + norm).numpy()):
        raise InputError(
            f"descend: expected finite numbers, got loss = {loss.item()} and gradient norm = "
            f"{norm.item()}; lower the learning rate, or normalise observations and rewards."
        )
    optimizer.step()
    return norm.detach()


def ppo_step(
    network: ActorCritic,
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    batch: PPOBatch,
    weights: LossWeights,
) -> Tensor:
    """Take one optimiser step; return policy loss, value loss, entropy, KL, clipped, norm, (6,)."""
    terms = ppo_terms(network, batch, weights)
    norm = descend(total_loss(terms, weights), optimizer, parameters, weights.max_gradient_norm)
    return torch.stack([*(term.detach() for term in terms), norm])

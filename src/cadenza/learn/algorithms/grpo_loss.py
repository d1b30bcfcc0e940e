"""GRPO's mask, group advantages and loss, and one optimiser step.

Equations, for environment i of group g at step t, with m = 1 where a step counts:
    G_t = r_t + γ c_t,   c_t = G_{t+1} within an episode, else what is known of its continuation
    Â_t = m_t (G_t − mean_g G_t) / (std_g G_t + ε),  moments over the members of g with m_t = 1
    d = log π_ref(a|s) − log π(a|s),   k3 = exp(d) − d − 1   (never negative)
    L = [ −Σ min(ρ Â, clip(ρ, 1 − c, 1 + c) Â) m + k_KL Σ k3 m − k_H Σ H(π) m ] / max(1, Σ m)
Source:  arXiv:2402.03300, equations 3 and 4; k3 of http://joschu.net/blog/kl-approx.html.
Axes:    T = step, N = environment, M = members of a group, B = transitions of a minibatch.
Shared:  G_t are the λ = 1 targets of `OnPolicyBuffer.estimate`, min(...) is PPO's
         `clipped_surrogate`: a batch holds only transitions with m = 1, so sums over m are means.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, require_finite, require_shape
from cadenza.core.errors import InputError
from cadenza.learn.algorithms.ppo_loss import clipped_surrogate, descend
from cadenza.learn.nn.policy_networks import ActorOnly


def rollout_mask(
    boundaries: NDArray[np.bool_], valid: NDArray[np.bool_], *, truncate_at_first_done: bool
) -> NDArray[np.bool_]:
    """Return which steps count, shape (T, N).

    Args:
        boundaries: Whether a step ended its episode, in either way, (T, N).
        valid: Whether its action was executed, (T, N).
        truncate_at_first_done: Drop what follows the first end of an episode.

    Raises:
        InputError: The shapes differ.
    """
    require_shape("rollout_mask: valid", valid, boundaries.shape)
    if not truncate_at_first_done:
        return valid.copy()
    ended_by_now = np.logical_or.accumulate(boundaries, axis=0)
    mask = valid.copy()
    mask[1:] &= ~ended_by_now[:-1]
    return mask


def group_advantages(
    returns: NDArray[Any], mask: NDArray[np.bool_], *, group_size: int, epsilon: float
) -> Float32Array:
    """Return how each return compares with those of its group at the same step, (T, N).

    Equal returns, or one alone, give exactly 0.

    Args:
        returns: G_t, shape (T, N); members of a group are adjacent.
        mask: Which steps count, shape (T, N).
        group_size: M; divides N.
        epsilon: Added to the population standard deviation, in the unit of returns.

    Raises:
        InputError: Shapes do not fit, or a return that counts is not finite.
    """
    if returns.ndim != 2 or returns.shape[1] % group_size:
        raise InputError(
            "group_advantages: expected returns of shape (T, N) with N a multiple of "
            f"{group_size} (group_size), got {returns.shape}."
        )
    require_shape("group_advantages: mask", mask, returns.shape)
    counted = np.where(mask, returns, 0.0).astype(np.float64)
    require_finite("group_advantages: returns", counted)
    grouped = counted.reshape(len(returns), -1, group_size)  # (T, G, M)
    member = mask.reshape(grouped.shape)
    count = np.maximum(member.sum(-1, keepdims=True), 1)
    # Measured from the group's smallest: equal returns then differ by exactly 0, not by rounding.
    lowest = np.where(member, grouped, np.inf).min(-1, keepdims=True)
    above = np.where(member, grouped - np.where(np.isfinite(lowest), lowest, 0.0), 0.0)
    deviation = np.where(member, above - above.sum(-1, keepdims=True) / count, 0.0)
    spread = np.sqrt(np.square(deviation).sum(-1, keepdims=True) / count)
    return (deviation / (spread + epsilon)).reshape(returns.shape).astype(np.float32)


def k3_divergence(log_ratio: Tensor) -> Tensor:
    """Return exp(d) − d − 1 for d = ``log_ratio``, same shape; without cancellation near 0."""
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GRPOBatch:
    """What one step learns from; only transitions that count.

    Attributes:
        observations: Shape (B, O).
        actions: Shape (B,) int64 or (B, A).
        old_log_probs: Under the policy that acted, shape (B,).
        advantages: Shape (B,).
        reference_log_probs: Under the reference policy, shape (B,); None without one.
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    reference_log_probs: Tensor | None

    def rows(self, indices: Tensor) -> "GRPOBatch":
        """Return the transitions ``indices``."""
        reference = self.reference_log_probs
        return GRPOBatch(
            observations=self.observations.index_select(0, indices),
            actions=self.actions.index_select(0, indices),
            old_log_probs=self.old_log_probs.index_select(0, indices),
            advantages=self.advantages.index_select(0, indices),
            reference_log_probs=None if reference is None else reference.index_select(0, indices),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOWeights:
    """Numbers of the loss.

    Attributes:
        clip_epsilon: c, > 0.
        kl_coefficient: k_KL, >= 0.
        entropy_coefficient: k_H, >= 0.
        max_gradient_norm: Global norm to which the gradient is shortened.
    """

    clip_epsilon: float
    kl_coefficient: float
    entropy_coefficient: float
    max_gradient_norm: float


class GRPOTerms(NamedTuple):
    """Scalars of one minibatch."""

    policy: Tensor
    reference_kl: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def grpo_terms(network: ActorOnly, batch: GRPOBatch, clip_epsilon: float) -> GRPOTerms:
    """Return the loss terms of ``batch``; policy, divergence and entropy carry gradients."""
    output = network.actor(batch.observations)
    log_probs = network.head.log_prob(output, batch.actions)
    log_ratio = log_probs - batch.old_log_probs
    ratio = log_ratio.exp()
    with torch.no_grad():
        approx_kl = k3_divergence(log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip_epsilon).float().mean()
    reference = batch.reference_log_probs
    return GRPOTerms(
        policy=clipped_surrogate(ratio, batch.advantages, clip_epsilon),
        reference_kl=(
            torch.zeros_like(approx_kl)
            if reference is None
            else k3_divergence(reference - log_probs).mean()
        ),
        entropy=network.head.entropy(output).mean(),
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
    )


def grpo_loss(terms: GRPOTerms, weights: GRPOWeights) -> Tensor:
    """Return L, a scalar."""
    loss = terms.policy + weights.kl_coefficient * terms.reference_kl
    if weights.entropy_coefficient > 0.0:
        loss = loss - weights.entropy_coefficient * terms.entropy
    return loss


def grpo_step(
    network: ActorOnly,
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    batch: GRPOBatch,
    weights: GRPOWeights,
) -> Tensor:
    """Take one optimiser step; return policy loss, KLs, entropy, clipped and norm, (6,).

    The order is that of `GRPOTerms`, then the gradient norm before shortening.
    """
    terms = grpo_terms(network, batch, weights.clip_epsilon)
    norm = descend(grpo_loss(terms, weights), optimizer, parameters, weights.max_gradient_norm)
    return torch.stack([*(term.detach() for term in terms), norm])

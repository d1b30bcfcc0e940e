"""All epochs of a PPO update over one rollout, actor step before critic step in every minibatch.

Source:  arXiv:1707.06347, algorithm 1; minibatches and order follow HARL, arXiv:2304.09870.
Axes:    n = transitions of the rollout, O = observation, A = action dimension.
Limits:  advantages, returns and old log-densities stay fixed over the epochs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cadenza.learn.algorithms.happo import (
    ActorBatch,
    ActorUpdate,
    update_actor,
    update_critic,
)
from cadenza.learn.algorithms.minibatch_epochs import EpochPlan, run_epochs
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOLearner:
    """The networks and optimisers that an update changes in place."""

    actor: GaussianActor
    actor_optimizer: torch.optim.Optimizer
    critic: ValueCritic
    critic_optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPORollout:
    """What one update learns from; float32 tensors on one device.

    Attributes:
        observations: Shape (n, O).
        actions: Shape (n, A).
        old_log_probs: Log-density per dimension when drawn, shape (n, A).
        advantages: Normalised, shape (n, 1).
        returns: Critic targets, shape (n, 1).
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOOptions:
    """Numbers of an update.

    Attributes:
        epochs: Passes over the rollout, >= 1.
        batch_size: Smallest minibatch, >= 1.
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        target_kl: Stop after the first epoch whose mean ½(ρ − 1)² exceeds this; None never stops.
        critic_max_gradient_norm: Global norm for the critic's gradient; None leaves it.
    """

    epochs: int
    batch_size: int
    clip_epsilon: float
    target_kl: float | None = None
    critic_max_gradient_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMetrics:
    """Plain means over all minibatches, except the two extremes.

    Attributes:
        policy_loss: Clipped surrogate loss.
        value_loss: Mean squared error of the critic, squared reward unit.
        dist_entropy: Entropy of the policy, nats.
        actor_grad_norm: Global gradient norm before clipping.
        approx_kl: ½ · mean((ρ − 1)²).
        clip_fraction: Share of ratios outside the trusted interval.
        ratio_min: Smallest ratio of the update.
        ratio_max: Largest ratio of the update.
    """

    policy_loss: float
    value_loss: float
    dist_entropy: float
    actor_grad_norm: float
    approx_kl: float
    clip_fraction: float
    ratio_min: float
    ratio_max: float


def run_ppo_epochs(
    learner: PPOLearner, rollout: PPORollout, options: PPOOptions, rng: np.random.Generator
) -> PPOMetrics:
    """Update ``learner`` on ``rollout``.

    Args:
        learner: Changed in place.
        rollout: n >= 1 transitions.
        options: Numbers of the update.
        rng: Shuffles the transitions, one permutation per epoch.

    Returns:
        Metrics, read from the device once at the end (once per epoch with ``target_kl``).
    """
    plan = EpochPlan(
        epochs=options.epochs,
        batch_size=options.batch_size,
        kl_column=_KL_COLUMN,
        target_kl=options.target_kl,
    )
    rows = run_epochs(
        rollout.observations.shape[0],
        lambda indices: _update_minibatch(learner, rollout, options, indices),
        plan,
        rng,
        rollout.observations.device,
    )
    return _mean_metrics(rows)


#: Columns of a metric row; see `_metric_row`.
_KL_COLUMN = 4


def _update_minibatch(
    learner: PPOLearner, rollout: PPORollout, options: PPOOptions, indices: Tensor
) -> Tensor:
    """Step actor, then critic; return this minibatch's metric row."""
    observations = rollout.observations.index_select(0, indices)
    batch = ActorBatch(
        observations=observations,
        actions=rollout.actions.index_select(0, indices),
        old_log_probs=rollout.old_log_probs.index_select(0, indices),
        advantages=rollout.advantages.index_select(0, indices),
    )
    update = update_actor(
        learner.actor, learner.actor_optimizer, batch, clip_epsilon=options.clip_epsilon
    )
    value_loss = update_critic(
        learner.critic,
        learner.critic_optimizer,
        observations,
        rollout.returns.index_select(0, indices),
        max_gradient_norm=options.critic_max_gradient_norm,
    )
    return _metric_row(update, value_loss, options.clip_epsilon)


def _metric_row(update: ActorUpdate, value_loss: Tensor, clip_epsilon: float) -> Tensor:
    """Return the metrics of one minibatch in the order of `PPOMetrics`, shape (8,)."""
    deviation = update.ratio - 1.0
    lowest, highest = torch.aminmax(update.ratio)
    return torch.stack(
        (
            update.policy_loss,
            value_loss,
            update.entropy,
            update.gradient_norm,
            0.5 * deviation.square().mean(),
            (deviation.abs() > clip_epsilon).float().mean(),
            lowest,
            highest,
        )
    )


def _mean_metrics(rows: Tensor) -> PPOMetrics:
    """Reduce metric rows, shape (minibatches, 8), in float64 with one device read."""
    table = rows.cpu().double().numpy()
    means = table.mean(axis=0)
    return PPOMetrics(
        policy_loss=float(means[0]),
        value_loss=float(means[1]),
        dist_entropy=float(means[2]),
        actor_grad_norm=float(means[3]),
        approx_kl=float(means[_KL_COLUMN]),
        clip_fraction=float(means[5]),
        ratio_min=float(table[:, 6].min()),
        ratio_max=float(table[:, 7].max()),
    )

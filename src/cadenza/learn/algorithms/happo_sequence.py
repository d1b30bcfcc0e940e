"""HAPPO's sequential update of several actors, and the factor that carries from one to the next.

Equations, with ratios ρ_i = π_i(a_i|o_i) / π_i,old(a_i|o_i), robots in a random order i_1 ... i_n:
    M_1 = 1,   M_{m+1} = M_m · ρ_{i_m} after that robot's own update
    robot i_m maximises  mean[ min(ρ M_m Â, clip(ρ, 1 − c, 1 + c) M_m Â) ]
Each robot thus improves on what the robots before it have already changed, and the joint return
does not fall as long as each step does what its surrogate says.
Source:  arXiv:2109.11251, lemma 1 and algorithm 4; arXiv:2304.09870, section 4.
Axes:    n = transitions of the rollout, O_i = state, A_i = action of robot i.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.happo import (
    ActorBatch,
    ActorUpdate,
    gaussian_log_prob,
    importance_ratio,
    minibatch_bounds,
    update_actor,
)
from cadenza.learn.nn.gaussian_actor import GaussianActor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RobotRollout:
    """What one robot's actor learns from.

    Attributes:
        observations: Shape (n, O_i).
        actions: Shape (n, A_i).
        old_log_probs: Log-density per dimension when drawn, (n, A_i).
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """Numbers of an update of all actors.

    Attributes:
        epochs: Passes of each actor over the rollout, >= 1.
        batch_size: Smallest minibatch, >= 1.
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0.
    """

    epochs: int
    batch_size: int
    clip_epsilon: float
    entropy_coefficient: float


@torch.no_grad()
def log_probs(actor: GaussianActor, rollout: RobotRollout) -> Tensor:
    """Return the log-density of the drawn actions under ``actor`` now, per dimension, (n, A_i)."""
    mean = actor(rollout.observations)
    return gaussian_log_prob(rollout.actions, mean, actor.standard_deviation())


def next_factor(factor: Tensor, actor: GaussianActor, rollout: RobotRollout) -> Tensor:
    """Return M_{m+1}, (n, 1), from M_m and the actor after its update."""
    return factor * importance_ratio(log_probs(actor, rollout), rollout.old_log_probs)


def update_actors_in_sequence(
    actors: Sequence[GaussianActor],
    optimizers: Sequence[torch.optim.Optimizer],
    rollouts: Sequence[RobotRollout],
    advantages: Tensor,
    options: SequenceOptions,
    rng: np.random.Generator,
) -> tuple[list[ActorUpdate], Tensor]:
    """Update every actor once, in a random order.

    Args:
        actors: One per robot, changed in place.
        optimizers: One per robot.
        rollouts: One per robot, of the same n transitions.
        advantages: Normalised advantages of the joint action, (n, 1).
        options: Numbers of the update.
        rng: Draws the order, then one permutation per robot and epoch.

    Returns:
        Results of every minibatch, in the order of the updates, and the factor after the last
        robot, (n, 1): the ratio of the new joint policy to the old one.

    Raises:
        InputError: Not one optimiser and one rollout per actor.
    """
    if not len(actors) == len(optimizers) == len(rollouts) > 0:
        raise InputError(
            "update_actors_in_sequence: expected one optimiser and one rollout per actor, got "
            f"{len(actors)} actors, {len(optimizers)} optimisers and {len(rollouts)} rollouts."
        )
    factor = torch.ones_like(advantages)
    updates: list[ActorUpdate] = []
    order: list[int] = rng.permutation(len(actors)).tolist()
    for robot in order:
        updates += _update_one(
            actors[robot], optimizers[robot], rollouts[robot], advantages, factor, options, rng
        )
        factor = next_factor(factor, actors[robot], rollouts[robot])
    return updates, factor


def _update_one(
    actor: GaussianActor,
    optimizer: torch.optim.Optimizer,
    rollout: RobotRollout,
    advantages: Tensor,
    factor: Tensor,
    options: SequenceOptions,
    rng: np.random.Generator,
) -> list[ActorUpdate]:
    count = len(advantages)
    updates: list[ActorUpdate] = []
    for _ in range(options.epochs):
        order = torch.as_tensor(rng.permutation(count), device=advantages.device)
        for start, stop in minibatch_bounds(count, options.batch_size):
            rows = order[start:stop]
            batch = ActorBatch(
                observations=rollout.observations.index_select(0, rows),
                actions=rollout.actions.index_select(0, rows),
                old_log_probs=rollout.old_log_probs.index_select(0, rows),
                advantages=advantages.index_select(0, rows),
                factor=factor.index_select(0, rows),
            )
            updates.append(
                update_actor(
                    actor,
                    optimizer,
                    batch,
                    clip_epsilon=options.clip_epsilon,
                    entropy_coefficient=options.entropy_coefficient,
                )
            )
    return updates

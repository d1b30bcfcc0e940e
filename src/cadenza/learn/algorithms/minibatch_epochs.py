"""Passes over one rollout in shuffled minibatches, every transition once a pass.

Axes:    n = transitions of the rollout, K = figures of a minibatch.
Device:  indices go there and figures stay there: nothing is read back from within a pass, and with
         ``target_kl`` one number after each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cadenza.learn.algorithms.happo import minibatch_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How often and in what portions to learn from a rollout.

    Attributes:
        epochs: Passes over the rollout, >= 1.
        batch_size: Smallest minibatch, >= 1; see `minibatch_bounds`.
        kl_column: Which figure of a minibatch is its KL from the policy that collected, nats.
        target_kl: Stop after the first pass whose mean KL exceeds this; None never stops.
    """

    epochs: int
    batch_size: int
    kl_column: int
    target_kl: float | None = None


def run_epochs(
    transitions: int,
    learn: Callable[[Tensor], Tensor],
    plan: EpochPlan,
    rng: np.random.Generator,
    device: torch.device,
) -> Tensor:
    """Return the figures of every minibatch in order, (minibatches, K) on ``device``.

    Args:
        transitions: n >= 1.
        learn: Takes one optimiser step on the transitions of the given indices, (B,) int64, and
            returns its figures, (K,).
        plan: How often and in what portions.
        rng: Shuffles the transitions, one permutation per pass.
        device: Where the transitions are.

    Raises:
        InputError: There are no transitions.
    """
    bounds = minibatch_bounds(transitions, plan.batch_size)
    rows: list[Tensor] = []
    for _ in range(plan.epochs):
        order = torch.as_tensor(rng.permutation(transitions), device=device)
        rows += [learn(order[start:stop]) for start, stop in bounds]
        if plan.target_kl is not None:
            latest = torch.stack(rows[-len(bounds) :])
            if float(latest[:, plan.kl_column].mean()) > plan.target_kl:
                break
    return torch.stack(rows)

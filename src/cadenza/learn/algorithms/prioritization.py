"""Losses on batches of a prioritised memory: importance weights in, priorities out.

Source:  arXiv:1511.05952, sections 3.3 and 3.4.
Axes:    n = rollouts, T = rollout length, B = n·T = rows of a batch, rollout-major.
"""

from typing import Protocol

from torch import Tensor

from cadenza.core.errors import InputError


class PrioritizedMemory(Protocol):
    """A memory that samples surprising rollouts more often."""

    def update_priorities(self, sample_ids: Tensor, priorities: Tensor) -> object:
        """Take the absolute errors of rollouts, shape (n,), by their ids, shape (n,)."""
        ...


def weighted_mean(rows: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Return the mean loss, shape (), every rollout weighted by its importance.

    Args:
        rows: Loss of every row, shape (B, 1).
        sample_weights: Weight of every rollout, shape (n,); None weights all alike.

    Raises:
        InputError: There is not one weight per rollout.
    """
    if sample_weights is None:
        return rows.mean()
    rollouts = sample_weights.numel()
    if rollouts == 0 or rows.shape[0] % rollouts != 0:
        raise InputError(
            f"sample_weights: expected one weight per rollout, got {rollouts} for "
            f"{rows.shape[0]} rows; sample weights and rows from one memory."
        )
    return (rows.view(rollouts, -1) * sample_weights.view(-1, 1)).mean()


def report_errors(
    memory: PrioritizedMemory | None, sample_ids: Tensor | None, errors: Tensor
) -> None:
    """Tell a prioritised memory how far off its rollouts were; nothing without a memory.

    Args:
        memory: The memory that the batch comes from.
        sample_ids: Ids of the rollouts in the batch, shape (n,).
        errors: Absolute error of every row, shape (B, 1).

    Raises:
        InputError: The batch has no ids, so it does not come from a prioritised memory.
    """
    if memory is None:
        return
    if sample_ids is None:
        raise InputError(
            "prioritized_memory: expected batches with 'sample_ids', got none; let the loader "
            "sample the prioritised memory, or leave prioritized_memory out."
        )
    memory.update_priorities(sample_ids, errors.view(sample_ids.numel(), -1).mean(1))

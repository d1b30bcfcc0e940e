"""Boxes of actions, and what depends on them: the rate limit and the tightest lambda.

Axes:  B environments, N partners, n action components.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.safety.batched.ego_rows import EgoRowsBatch
from cadenza.safety.batched.extremes import first_largest
from cadenza.safety.filters.ego_rows import FEASIBILITY_ROOM


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Bounds of the action, shape (B, n) each."""

    lower: Tensor
    upper: Tensor

    def holds(self, u: Tensor) -> Tensor:
        """Return where ``u``, shape (B, n), lies inside, shape (B,)."""
        return ((self.lower <= u) & (u <= self.upper)).all(1)


def rate_box(previous: Tensor, rate: float, box: Box) -> Box:
    """Return the part of the box within ``rate`` of the previous action, all of it without one.

    Args:
        previous: Shape (B, n); a row of NaN where there was none.
        rate: Largest change of a component in one step.
        box: The box.
    """
    known = ~previous.isnan().any(1, keepdim=True)
    lower = torch.minimum(torch.maximum(previous - rate, box.lower), box.upper)
    upper = torch.maximum(torch.minimum(previous + rate, box.upper), box.lower)
    return Box(torch.where(known, lower, box.lower), torch.where(known, upper, box.upper))


def feasible_lambda_batch(wanted: Tensor, rows: EgoRowsBatch, box: Box) -> Tensor:
    """Return lambda, (B, N), no tighter than each row allows; see `ego_rows.feasible_lambda`."""
    low, high = box.lower.unsqueeze(1), box.upper.unsqueeze(1)
    lowest = (rows.a * torch.where(rows.a > 0.0, low, high)).sum(-1)
    tightest = lowest - rows.level + FEASIBILITY_ROOM
    return torch.where(wanted >= 0.0, wanted, torch.maximum(wanted, tightest).clamp_max(0.0))


def most_urgent(rows: EgoRowsBatch) -> Tensor:
    """Return the row with the smallest (h, time left, index), shape (B,)."""
    if rows.h.shape[1] == 0:
        return torch.zeros(rows.h.shape[:1], dtype=torch.int64, device=rows.h.device)
    lowest = rows.h == rows.h.amin(1, keepdim=True)
    time_left = torch.where(lowest, rows.time_left, torch.inf)
    soonest = lowest & (time_left == time_left.amin(1, keepdim=True))
    return first_largest(soonest.to(torch.int8).T)

"""Rows of all barriers at one state or at many, ready for a projection.

Scaling:  a row is divided by |gain| and multiplied by its weight, so that missing it by 1 means the
          action is 1 away from meeting it, times the weight. The scale changes no feasible action.
Left out: rows on which the action does not act (|gain| at most `AUTHORITY_TOLERANCE` of what it
          could be) and rows that are not finite. Of these the ones that are not met anyway are
          ``lost``.
Tracing:  for one state the rows are recorded once as a flat list of tensor operations, which spares
          the set-up of nested derivatives in every call.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cadenza.safety.affine.lifting import AUTHORITY_TOLERANCE, AffineRow, LiftedBarrier


class ScaledRows(NamedTuple):
    """Rows a @ u <= b. The leading axes are those of the states.

    Attributes:
        a: Shape (..., m, k); zero where left out.
        b: Shape (..., m); 1 where left out.
        active: Rows that count, shape (..., m), bool.
        lost: Rows that nothing can meet, shape (..., m), bool.
    """

    a: Tensor
    b: Tensor
    active: Tensor
    lost: Tensor


def stacked_rows(lifted: Sequence[LiftedBarrier]) -> Callable[[Tensor], AffineRow]:
    """Return the function from a state (n,) to the rows of all barriers, stacked on axis 0."""
    functions = [barrier.row for barrier in lifted]

    def rows(x: Tensor) -> AffineRow:
        parts = [row(x) for row in functions]
        return AffineRow(*(torch.stack(column) for column in zip(*parts, strict=True)))

    return rows


def traced(rows: Callable[[Tensor], AffineRow], state: Tensor) -> Callable[[Tensor], AffineRow]:
    """Return ``rows`` as recorded at ``state``: the same numbers, without the set-up."""

    def as_tuple(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows(x))

    graph: Any = make_fx(as_tuple)(state)
    return lambda x: AffineRow(*graph(x))


def scaled(row: AffineRow, weights: Tensor) -> ScaledRows:
    """Return the rows in the form of the projections.

    Args:
        row: Stacked rows; the leading axes of the states may come first.
        weights: Shape (m,).
    """
    finite = torch.isfinite(row.gain).all(-1) & torch.isfinite(row.level)
    finite = finite & torch.isfinite(row.authority)
    acts = row.authority > AUTHORITY_TOLERANCE
    active = finite & acts
    length = row.gain.square().sum(-1).sqrt()
    scale = weights / torch.where(active, length, 1.0)
    a = torch.where(active.unsqueeze(-1), -row.gain * scale.unsqueeze(-1), 0.0)
    b = torch.where(active, row.level * scale, 1.0)
    return ScaledRows(a, b, active, ~finite | (~acts & (row.level < 0.0)))


def missed(row: AffineRow, u: Tensor) -> Tensor:
    """Return how far actions (..., k) miss the rows, shape (..., m); inf where not finite."""
    value = (row.gain * u.unsqueeze(-2)).sum(-1) + row.level
    return torch.where(torch.isfinite(value), torch.where(value < 0.0, -value, 0.0), torch.inf)

"""Gradient of a projection through its active constraints.

At the solution, with W the rows that hold the action back and F the components inside the box,
    x_F = u_F - A_WF^T y,  A_W x = b_W,
and the solution map is differentiable while W and F stay the same. For a cotangent g, with
K = A_WF A_WF^T, z = K^-1 A_WF g_F and q = g_F - A_WF^T z (zero outside F):
    du = q,   db = z,   dA = -(y q^T + z x^T).
Passthrough: W is empty and q = g. No solution: the gradient is zero.
Source:  differentiating quadratic programmes at their optimality conditions, arXiv:1703.00443.
Axes:    inside, B is last.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch import Tensor

from cadenza.safety.batched.active_set import SoftProblem, solve_positive
from cadenza.safety.batched.status import INACTIVE, OPTIMAL

#: Distance from a row, over 1 + |b|, at which it counts as active, by precision.
_ACTIVE: Final = {torch.float64: 1e-9, torch.float32: 1e-5}


def differentiable(
    u_hat: Tensor, A: Tensor, b: Tensor, u: Tensor, status: Tensor, problem: SoftProblem
) -> Tensor:
    """Return ``u`` as a function of ``u_hat``, ``A`` and ``b``.

    Args:
        u_hat: Nominal actions, shape (B, n).
        A: Rows, shape (B, m, n).
        b: Right-hand sides, shape (B, m).
        u: The projections, shape (B, n).
        status: Codes, shape (B,).
        problem: The same data with B last and rows that are off replaced.
    """
    apply = cast("Callable[..., Tensor]", _Projection.apply)  # pyright: ignore[reportUnknownMemberType] # torch leaves it untyped
    return apply(u_hat, A, b, u, status, *problem)


class _Projection(torch.autograd.Function):
    """Identity on the solution, with the derivative of the solution map."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        _, _, _, u, status, *problem = arguments
        ctx.save_for_backward(u, status, *problem)
        return u.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        u, status, *data = ctx.saved_tensors
        du, dA, db = _pull_back(cotangents[0].T, u.T, status, SoftProblem(*data))
        return du.T, dA.permute(2, 0, 1), db.T, *([None] * (2 + len(data)))


def _pull_back(
    g: Tensor, x: Tensor, status: Tensor, problem: SoftProblem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of u, A and b: shapes (n, B), (m, n, B), (m, B)."""
    u, A, b, _, lower, upper = problem
    solved = (status == INACTIVE) | (status == OPTIMAL)
    free = (x > lower) & (x < upper) & solved
    held = ((A * x).sum(1) - b).abs() <= _ACTIVE[x.dtype] * (1.0 + b.abs())
    held = held & (status == OPTIMAL)
    active = torch.where(held.unsqueeze(1) & free, A, 0.0)  # A_WF, (m, n, B)
    gram = (active.unsqueeze(1) * active.unsqueeze(0)).sum(2)
    g_free = torch.where(free, g, 0.0)
    z = solve_positive(gram.clone(), (active * g_free).sum(1))
    y = solve_positive(gram, (active * torch.where(free, u - x, 0.0)).sum(1))
    q = g_free - (active * z.unsqueeze(1)).sum(0)
    dA = -(y.unsqueeze(1) * q + z.unsqueeze(1) * x)
    return q, dA, z

"""Exact projection onto several rows and a box in two or three dimensions, by enumeration.

The projection of u onto a polytope is the projection of u onto the flat spanned by one of its
faces. In two and three dimensions there are few: every choice of at most n constraints that
contains a row. (Without a row in it the answer would be the clipped nominal, which the caller has
already found to miss a row.) Each choice gives a candidate in closed form; the nearest candidate
that meets all constraints is the projection, and if there is none, no point of the box meets all
rows. No iteration, no starting point, and infeasibility is decided rather than suspected.

Axes:    n action components, m rows, P box faces, K candidates, B environments last.
Capture: no branch depends on data.
"""

import itertools
import math
from functools import cache
from typing import Final

import torch
from torch import Tensor

from cadenza.safety.batched.one_row import ROUNDING

#: Dimensions the enumeration is written for.
FACE_DIMS: Final = (2, 3)
#: Largest number of rows that is enumerated, by dimension; the candidates grow with its n-th power.
MAX_FACE_ROWS: Final = {2: 12, 3: 6}


def project_on_faces(
    u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the nearest points of the polytopes, and where they are not empty.

    Args:
        u: Nominal points, shape (n, B), n in `FACE_DIMS`; clipped to the box they miss a row.
        A: Rows, shape (m, n, B).
        b: Right-hand sides, shape (m, B).
        lower: Lower bounds, shape (n, 1) or (n, B).
        upper: Upper bounds, same shape.

    Returns:
        x of shape (n, B), meaningful where feasible, shape (B,), is true.
    """
    x = _planar(u, A, b, lower, upper) if u.shape[0] == 2 else _spatial(u, A, b, lower, upper)
    low, high = lower.expand_as(u), upper.expand_as(u)
    tolerance = ROUNDING[u.dtype] * (1.0 + b.abs())
    # (K, m, B): residual of each row at each candidate
    residual = x[:, None, 0] * A[:, 0]
    for k in range(1, u.shape[0]):
        residual = torch.addcmul(residual, x[:, None, k], A[:, k])
    meets = (residual <= b + tolerance).all(1)
    slack = ROUNDING[u.dtype] * (1.0 + high - low)
    meets &= ((x >= low - slack) & (x <= high + slack)).all(1)
    distance = torch.where(meets, (x - u).square().sum(1), torch.inf)
    nearest, index = distance.min(0)
    answer = x.gather(0, index.expand(1, *u.shape)).squeeze(0)
    feasible = nearest < torch.inf
    answer = torch.where(feasible, answer, u)
    return torch.minimum(torch.maximum(answer, low), high), feasible


def _planar(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of the plane, shape (K, 2, B)."""
    parts = [_flats_2d(u, A, b), _edges(u, A, b, lower, upper)]
    return torch.cat(parts)


def _spatial(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of space, shape (K, 3, B)."""
    parts = [_flats_3d(u, A, b), _edges(u, A, b, lower, upper)]
    low, high = lower.expand_as(u), upper.expand_as(u)
    for axis in range(3):
        kept = [k for k in range(3) if k != axis]
        for bound in (low[axis], high[axis]):
            flat = _flats_2d(u[kept], A[:, kept], b - A[:, axis] * bound)  # (K, 2, B)
            columns = [flat[:, 0], flat[:, 1]]
            columns.insert(axis, bound.expand_as(flat[:, 0]))
            parts.append(torch.stack(columns, 1))
    return torch.cat(parts)


def _edges(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return where rows meet the edges of the box, one component free: (K, n, B)."""
    n, m = u.shape[0], A.shape[0]
    low, high = lower.expand_as(u), upper.expand_as(u)
    parts: list[Tensor] = []
    for free in range(n):
        others = [k for k in range(n) if k != free]
        for bounds in itertools.product((low, high), repeat=n - 1):
            rest = b
            columns: list[Tensor] = []
            for k, bound in zip(others, bounds, strict=True):
                rest = rest - A[:, k] * bound[k]
                columns.append(bound[k].expand(m, -1))
            columns.insert(free, rest / A[:, free])
            parts.append(torch.stack(columns, 1))
    return torch.cat(parts)


def _foot(u: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the residuals at ``u``, (m, B), and the feet of ``u`` on the planes, (m, n, B)."""
    excess = (A * u).sum(1) - b
    return excess, u - (excess / A.square().sum(1)).unsqueeze(1) * A


def _flats_2d(u: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Return the feet on all lines and the crossings of all pairs of lines: (K, 2, B)."""
    excess, feet = _foot(u, A, b)
    if A.shape[0] < 2:
        return feet
    first, second = _choices(A.shape[0], 2, A.device).unbind(1)
    a, c = A[first], A[second]  # (K, 2, B)
    r, s = excess[first], excess[second]
    determinant = a[:, 0] * c[:, 1] - a[:, 1] * c[:, 0]
    step_x = (r * c[:, 1] - s * a[:, 1]) / determinant
    step_y = (s * a[:, 0] - r * c[:, 0]) / determinant
    return torch.cat((feet, u - torch.stack((step_x, step_y), 1)))


def _flats_3d(u: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Return the feet on all planes and lines, and the crossings of three planes: (K, 3, B)."""
    excess, feet = _foot(u, A, b)
    parts, m = [feet], A.shape[0]
    if m >= 2:
        first, second = _choices(m, 2, A.device).unbind(1)
        a, c = A[first], A[second]
        d = _cross(a, c)
        # Dual basis of the plane of a and c: steps that move one residual and not the other.
        step = excess[first].unsqueeze(1) * _cross(c, d) + excess[second].unsqueeze(1) * _cross(
            d, a
        )
        parts.append(u - step / d.square().sum(1, keepdim=True))
    if m >= 3:
        first, second, third = _choices(m, 3, A.device).unbind(1)
        a, c, e = A[first], A[second], A[third]
        normal = _cross(c, e)
        step = (
            excess[first].unsqueeze(1) * normal
            + excess[second].unsqueeze(1) * _cross(e, a)
            + excess[third].unsqueeze(1) * _cross(a, c)
        )
        parts.append(u - step / (a * normal).sum(1, keepdim=True))
    return torch.cat(parts)


def _cross(a: Tensor, c: Tensor) -> Tensor:
    """Return the cross products over axis 1: (K, 3, B)."""
    (a0, a1, a2), (c0, c1, c2) = a.unbind(1), c.unbind(1)
    return torch.stack((a1 * c2 - a2 * c1, a2 * c0 - a0 * c2, a0 * c1 - a1 * c0), 1)


@cache
def _choices(m: int, k: int, device: torch.device) -> Tensor:
    """Return all choices of k of m rows, shape (K, k); kept, so that a capture finds them."""
    return torch.tensor(list(itertools.combinations(range(m), k)), device=device)


@cache
def face_count(n: int, m: int) -> int:
    """Return the number of candidates of m rows in n dimensions, K."""
    flat = m + math.comb(m, 2)
    if n == 2:
        return flat + 4 * m
    return flat + math.comb(m, 3) + 6 * flat + 12 * m

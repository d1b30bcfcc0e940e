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
from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

from cadenza.safety.batched.extremes import first_smallest
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
    # (K, m, B): residual of each row at each candidate
    residual = x[:, None, 0] * A[:, 0]
    for k in range(1, u.shape[0]):
        residual = torch.addcmul(residual, x[:, None, k], A[:, k])
    missed = (residual - (b + ROUNDING[u.dtype] * (1.0 + b.abs()))).amax(1)
    slack = ROUNDING[u.dtype] * (1.0 + high - low)
    outside = torch.maximum(x - (high + slack), (low - slack) - x).amax(1)
    meets = (missed <= 0.0) & (outside <= 0.0)  # no candidate, a division by zero, meets nothing
    distance = torch.where(meets, (x - u).square().sum(1), torch.inf)
    index, environment = first_smallest(distance), torch.arange(u.shape[1], device=u.device)
    feasible = distance.amin(0) < torch.inf
    answer = torch.where(feasible, x[index, :, environment].T, u)
    return torch.minimum(torch.maximum(answer, low), high), feasible


def _planar(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of the plane, shape (K, 2, B)."""
    excess = (A * u).sum(1) - b
    flats = _flats_2d(u, A.unbind(1), excess)
    return torch.cat((torch.stack(flats, 1), _edges(A, b, lower, upper)))


def _spatial(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of space, shape (K, 3, B)."""
    parts = [_flats_3d(u, A, b), _edges(A, b, lower, upper)]
    parts.append(_sides(u, A, b, lower, upper))
    return torch.cat(parts)


def _edges(A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return where rows meet the edges of the box, one component free: (K, n, B)."""
    m, n, size = A.shape
    bounds = torch.stack((lower.expand(n, size), upper.expand(n, size)), 1)  # (n, 2, B)
    parts: list[Tensor] = []
    for free in range(n):
        columns: list[Tensor] = []
        rest = b.view(m, *([1] * (n - 1)), size)
        for place, held in enumerate(k for k in range(n) if k != free):
            # (1, 2, B) in the plane; (1, 2, 1, B) and (1, 1, 2, B) in space: all pairs of bounds
            sides = [2 if axis == place else 1 for axis in range(n - 1)]
            value = bounds[held].view(1, *sides, size)
            rest = rest - A[:, held].reshape(m, *([1] * (n - 1)), size) * value
            columns.append(value)
        found = rest / A[:, free].reshape(m, *([1] * (n - 1)), size)
        columns = [value.expand_as(found) for value in columns]
        columns.insert(free, found)
        parts.append(torch.stack(columns, -2).reshape(-1, n, size))
    return torch.cat(parts)


def _sides(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates on the six sides of the box, two components free: (K, 3, B)."""
    m, n, size = A.shape
    bounds = torch.stack((lower.expand(n, size), upper.expand(n, size)))  # (2, 3, B)
    # Side (side, axis); its two free components are axis + 1 and axis + 2, cyclically.
    first, second = torch.roll(A, -1, 1), torch.roll(A, -2, 1)  # (m, 3, B)
    u_first, u_second = torch.roll(u, -1, 0), torch.roll(u, -2, 0)
    level = b.view(m, 1, 1, size) - A.unsqueeze(1) * bounds  # (m, 2, 3, B)
    columns = (first.unsqueeze(1), second.unsqueeze(1))  # (m, 1, 3, B)
    excess = columns[0] * u_first + columns[1] * u_second - level
    x_first, x_second = _flats_2d(torch.stack((u_first, u_second)), columns, excess)
    fixed = bounds.expand_as(x_first)  # (K, 2, 3, B)
    candidates = torch.stack((fixed, x_first, x_second), 3)  # (K, 2, 3, 3, B)
    # On axis a the entries are components a, a + 1, a + 2; roll them to 0, 1, 2.
    turned = [torch.roll(candidates[:, :, axis], axis, 2) for axis in range(n)]
    return torch.cat(turned, 1).reshape(-1, n, size)


def _flats_2d(u: Tensor, columns: Sequence[Tensor], excess: Tensor) -> tuple[Tensor, Tensor]:
    """Return the feet of u on all lines, and the crossings of all pairs of lines.

    Args:
        u: Nominal points, (2, ..., B).
        columns: Entries of the rows, (m, ..., B) each.
        excess: Residuals of the rows at ``u``, (m, ..., B).

    Returns:
        Both coordinates, (m + m (m - 1) / 2, ..., B).
    """
    a_x, a_y = columns
    scale = excess / (a_x * a_x + a_y * a_y)
    feet = (u[0] - scale * a_x, u[1] - scale * a_y)
    m = excess.shape[0]
    if m < 2:
        return feet
    first, second = _choices(m, 2, excess.device).unbind(1)
    r, s = excess[first], excess[second]
    p_x, p_y, q_x, q_y = a_x[first], a_y[first], a_x[second], a_y[second]
    determinant = p_x * q_y - p_y * q_x
    crossings = (
        u[0] - (r * q_y - s * p_y) / determinant,
        u[1] - (s * p_x - r * q_x) / determinant,
    )
    return torch.cat((feet[0], crossings[0])), torch.cat((feet[1], crossings[1]))


def _flats_3d(u: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Return the feet on all planes and lines, and the crossings of three planes: (K, 3, B)."""
    m = A.shape[0]
    excess = (A * u).sum(1) - b
    parts = [u - (excess / A.square().sum(1)).unsqueeze(1) * A]
    if m >= 2:
        first, second = _choices(m, 2, A.device).unbind(1)
        a, c = A[first], A[second]
        d = _cross(a, c)
        # Dual basis of the plane of a and c: steps that move one residual and not the other.
        step = excess[first].unsqueeze(1) * _cross(c, d)
        step = step + excess[second].unsqueeze(1) * _cross(d, a)
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

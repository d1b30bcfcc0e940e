"""Exact projection onto one row and a box, for many environments at once.

Problem:   min |x - u|^2  subject to  a @ x <= b,  lower <= x <= upper
Solution:  x(mu) = clip(u - mu a). The excess a @ x(mu) - b falls piecewise linearly in mu, with two
           breakpoints per component; the segment that contains its zero gives mu exactly.
Axes:      n action components first, B environments last, so that every operation runs over
           contiguous memory.
Capture:   no branch depends on data.
"""

from typing import Final

import torch
from torch import Tensor

#: Relative shortfall that is rounding of the sums, not a violated row, by precision.
ROUNDING: Final = {torch.float64: 1e-12, torch.float32: 2e-6}


def project_one_row_batch(
    u: Tensor, a: Tensor, b: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the points of the box closest to ``u`` that meet the row, and where one does.

    Args:
        u: Nominal points, shape (n, B).
        a: Rows, shape (n, B).
        b: Right-hand sides, shape (B,).
        lower: Lower bounds, shape (n, 1) or (n, B).
        upper: Upper bounds, same shape.

    Returns:
        x of shape (n, B) and feasible of shape (B,). Where no point of the box meets the row, x is
        the point of the box with the smallest ``a @ x``, closest to ``u``.
    """
    x = torch.minimum(torch.maximum(u, lower), upper)
    value = (a * x).sum(0) - b
    squared = a * a
    moves = squared > 0.0
    safe = torch.where(moves, a, 1.0)
    near = torch.where(a > 0.0, upper, lower)
    far = torch.where(a > 0.0, lower, upper)
    starts = torch.where(moves, ((u - near) / safe).clamp_min_(0.0), 0.0)
    ends = torch.where(moves, ((u - far) / safe).clamp_min_(0.0), 0.0)
    length = ends - starts
    points = torch.cat((starts, ends))  # (2n, B)
    moved = torch.minimum((points.unsqueeze(1) - starts).clamp_min_(0.0), length)
    left = value - moved.mul_(squared).sum(1)  # (2n, B): excess that is left at each breakpoint
    passed = left >= 0.0
    mu = torch.where(passed, points, 0.0).amax(0)
    excess = torch.minimum(torch.where(passed, left, value).amin(0), value)
    slope = torch.where((starts <= mu) & (mu < ends), squared, 0.0).sum(0)
    sloped = slope > 0.0
    mu = mu + torch.where(sloped, excess / torch.where(sloped, slope, 1.0), 0.0)
    on_row = torch.minimum(torch.maximum(u - mu * a, lower), upper)
    corner = torch.where(moves, far, x)
    met = value <= 0.0
    x = torch.where(met, x, torch.where(sloped, on_row, corner))
    feasible = met | sloped | (excess <= ROUNDING[u.dtype] * (1.0 + b.abs()))
    return x, feasible

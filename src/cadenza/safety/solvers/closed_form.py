"""Exact projections that need no iteration: one row and a box.

Problem:  min |x - u|^2   subject to   a @ x <= b,  lower <= x <= upper
Method:   search over the breakpoints of a piecewise linear function; no tolerance, no limit.
Axes:     n variables.
"""

import math
from collections.abc import Sequence

from cadenza.safety.solvers.interface import ROUNDING


def project_one_row(
    u: Sequence[float],
    a: Sequence[float],
    b: float,
    lower: Sequence[float],
    upper: Sequence[float],
) -> tuple[list[float], bool]:
    """Return the point of the box closest to ``u`` with ``a @ x <= b``.

    x(mu) = clip(u - mu a) with the smallest mu >= 0 that meets the row; a @ x(mu) falls
    piecewise linearly, so mu lies on the segment between two breakpoints and is exact.

    Args:
        u: Nominal point, n numbers.
        a: Row, n numbers.
        b: Right-hand side.
        lower: Lower bounds, n numbers.
        upper: Upper bounds, n numbers.

    Returns:
        The projection and True; or, when no point of the box meets the row, the point of the
        box with the smallest ``a @ x`` closest to ``u``, and False.
    """
    x = [min(max(u_k, low), high) for u_k, low, high in zip(u, lower, upper, strict=True)]
    value = math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)]) - b
    if value <= 0.0:
        return x, True
    # Component k moves while mu is between the two breakpoints of its clip.
    events: list[tuple[float, float]] = []
    slope = 0.0
    for u_k, a_k, low, high in zip(u, a, lower, upper, strict=True):
        if a_k == 0.0:
            continue
        near, far = (high, low) if a_k > 0.0 else (low, high)
        starts, ends = (u_k - near) / a_k, (u_k - far) / a_k
        if ends <= 0.0:
            continue
        if starts <= 0.0:
            slope += a_k * a_k
        else:
            events.append((starts, a_k * a_k))
        events.append((ends, -a_k * a_k))
    events.sort()
    mu = 0.0
    for position, change in events:
        drop = slope * (position - mu)
        if drop >= value:
            break
        value -= drop
        mu = position
        slope += change
    else:  # every component has reached its far bound
        corner = [
            low if a_k > 0.0 else high if a_k < 0.0 else x_k
            for a_k, x_k, low, high in zip(a, x, lower, upper, strict=True)
        ]
        return corner, value <= ROUNDING * (1.0 + abs(b))
    mu += value / slope
    return [
        min(max(u_k - mu * a_k, low), high)
        for u_k, a_k, low, high in zip(u, a, lower, upper, strict=True)
    ], True

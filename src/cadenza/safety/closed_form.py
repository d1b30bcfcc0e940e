"""Exact projections that need no iteration.

One row:   min |x - u|^2   subject to   a @ x <= b,  lower <= x <= upper
           Search over the breakpoints of a piecewise linear function; no tolerance, no limit.
Two rows:  min |x - u|^2   subject to   a_1 @ x <= b_1,  a_2 @ x <= b_2
           One of four sets of active rows satisfies the optimality conditions.
Metric:    for (x - u)^T W (x - u) with W diagonal, scale component k by sqrt(W_k) first.
Axes:      n variables.
"""

import math
from collections.abc import Sequence
from typing import Final

#: Relative shortfall that is rounding of the sums, not a violated row.
ROUNDING: Final = 1e-12
#: Squared sine of the angle between two rows below which they count as parallel: float64 leaves
#: the directions of unit vectors uncertain by about 1e-16 each.
_PARALLEL: Final = 1e-30


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

    Returns:
        The projection and True; or, when no point of the box meets the row, the point of the
        box with the smallest ``a @ x`` closest to ``u``, and False.
    """
    if len(a) == 2:  # a sum of two is exact but for its last bit, as `fsum` is
        (u_0, u_1), (a_0, a_1), (low_0, low_1), (high_0, high_1) = u, a, lower, upper
        if low_0 <= u_0 <= high_0 and low_1 <= u_1 <= high_1:
            value, slope = a_0 * u_0 + a_1 * u_1 - b, a_0 * a_0 + a_1 * a_1
            if value > 0.0 < slope:
                mu = value / slope
                x_0, x_1 = u_0 - mu * a_0, u_1 - mu * a_1
                if low_0 < x_0 < high_0 and low_1 < x_1 < high_1:
                    return [x_0, x_1], True  # the box plays no part: no breakpoint to be sorted
        x = [
            low_0 if low_0 > u_0 else high_0 if high_0 < u_0 else u_0,
            low_1 if low_1 > u_1 else high_1 if high_1 < u_1 else u_1,
        ]
        value = a_0 * x[0] + a_1 * x[1] - b
    else:
        x = [min(max(u_k, low), high) for u_k, low, high in zip(u, lower, upper, strict=True)]
        value = math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)]) - b
        inner = _project_inside(x, a, value, lower, upper) if x == list(u) else None
        if inner is not None:
            return inner, True
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
    moved = [u_k - mu * a_k for u_k, a_k in zip(u, a, strict=True)]
    return [
        low if low > x_k else high if high < x_k else x_k  # compared: shorter than min() and max()
        for x_k, low, high in zip(moved, lower, upper, strict=True)
    ], True


def _project_inside(
    u: list[float], a: Sequence[float], value: float, lower: Sequence[float], upper: Sequence[float]
) -> list[float] | None:
    """Return the answer if the box plays no part in it, else None: no breakpoint has to be sorted.

    ``u`` lies in the box and misses the row by ``value``.
    """
    slope = 0.0
    for a_k in a:
        slope += a_k * a_k
    if slope == 0.0 or value <= 0.0:
        return None
    mu = value / slope
    x = [u_k - mu * a[k] for k, u_k in enumerate(u)]
    for k, x_k in enumerate(x):
        if not lower[k] < x_k < upper[k]:
            return None
    return x


def project_two_rows(
    u: Sequence[float], a: Sequence[Sequence[float]], b: Sequence[float]
) -> tuple[list[float], bool]:
    """Return the point closest to ``u`` that meets two rows, without bounds.

    With unit rows, residuals r_j = a_j @ u - b_j and c = a_1 @ a_2, the candidates are u,
    u - r_1 a_1, u - r_2 a_2, and u - y_1 a_1 - y_2 a_2 with (1 - c^2) y_1 = r_1 - c r_2. The
    first that meets both rows with y >= 0 is the answer.

    Args:
        u: Nominal point, n numbers.
        a: Two rows of n numbers.
        b: Two right-hand sides.

    Returns:
        The projection and True; or, when no point meets both rows, ``u`` and False.
    """
    point = list(u)
    rows: list[tuple[list[float], float]] = []
    for row, level in zip(a, b, strict=True):
        length = math.hypot(*row)
        if length > 0.0:
            rows.append(([a_k / length for a_k in row], level / length))
        elif level < 0.0:  # 0 @ x <= b with b < 0
            return point, False
    residuals = [_dot(row, point) - level for row, level in rows]
    room = [ROUNDING * (1.0 + abs(level)) for _, level in rows]
    if all(residual <= 0.0 for residual in residuals):
        return point, True
    if len(rows) == 1:
        return _moved(point, rows[0][0], residuals[0]), True
    (first, _), (second, _) = rows
    c = _dot(first, second)
    if residuals[0] > 0.0 and residuals[1] - c * residuals[0] <= room[1]:
        return _moved(point, first, residuals[0]), True
    if residuals[1] > 0.0 and residuals[0] - c * residuals[1] <= room[0]:
        return _moved(point, second, residuals[1]), True
    # The part of the second row that is orthogonal to the first; its square is 1 - c^2 without
    # the cancellation.
    across = [s_k - c * f_k for f_k, s_k in zip(first, second, strict=True)]
    sine_squared = _dot(across, across)
    if sine_squared < _PARALLEL:
        return point, False
    y_second = (residuals[1] - c * residuals[0]) / sine_squared
    return _moved(_moved(point, first, residuals[0]), across, y_second), True


def _dot(a: Sequence[float], x: Sequence[float]) -> float:
    return math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)])


def _moved(u: list[float], direction: list[float], length: float) -> list[float]:
    """Return u - length * direction."""
    return [u_k - length * d_k for u_k, d_k in zip(u, direction, strict=True)]

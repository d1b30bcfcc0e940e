"""Nearest action to a nominal one that meets every row, or the least unsafe one.

Problem:   min |x - u|^2  subject to  a_j @ x <= b_j (all j),  lower_k <= x_k <= upper_k
Order:     1. the nominal, clipped to the box, when it meets every row;
           2. the exact one-row answer of the most violated row, when it meets the others too
              (it is then optimal: the feasible set is a subset of that row's);
           3. DAQP on all rows;
           4. no solution: the box is hard, the most urgent row is met as far as the box allows,
              the other rows are met by least violation, urgency weighted.
Slack:     b_j = level_j + lambda_j. A negative lambda tightens its row no further than the box can
           follow, and is dropped where it sets rows against each other.
Axes:      n action components, m rows.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.cbf import barrier_violation, time_left
from cadenza.safety.solvers import ROUNDING, QPSolver, SolveStatus, project_one_row

#: Weight of a squared row violation against a squared change of the action. Large enough that
#: violations, not distance from the nominal, decide; small enough for the solver's conditioning.
SLACK_WEIGHT: Final = 1e3
#: Room left around the most urgent row when the others are fitted around it, relative to |b|.
_HARD_ROW_ROOM: Final = 1e-9
#: Share of a row's largest coefficient below which it does not see a component.
UNSEEN: Final = 1e-9
#: Bound of a variable that has none.
_FREE: Final = 1e30
#: Room a tightening lambda leaves above the limit of feasibility, m/s^2; above rounding.
FEASIBILITY_ROOM: Final = 1e-9

#: Lower and upper bounds of the action, n numbers each.
Box: TypeAlias = tuple[list[float], list[float]]


def residual(row: list[float], level: float, x: list[float]) -> float:
    """Return row @ x - level."""
    if len(row) == 2:  # written out: the common case on the hot path
        return -level + row[0] * x[0] + row[1] * x[1]
    total = -level
    for a_k, x_k in zip(row, x, strict=True):
        total += a_k * x_k
    return total


def rate_box(previous: list[float], rate: float, box: Box) -> Box:
    """Return the part of the box within ``rate`` of the previous action, in every component.

    A previous action outside the box leaves the bound next to it.
    """
    lower, upper = box
    return (
        [
            min(max(p - rate, low), high)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
        [
            max(min(p + rate, high), low)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
    )


def inside(x: list[float], box: Box) -> bool:
    """Return whether every component lies within its bounds."""
    return all(low <= x_k <= high for x_k, low, high in zip(x, *box, strict=True))


def clipped(u: list[float], lower: list[float], upper: list[float]) -> list[float]:
    """Return the point of the box closest to ``u``; ``u`` itself if it lies inside."""
    for k, u_k in enumerate(u):
        if not lower[k] <= u_k <= upper[k]:
            break
    else:
        return u
    return [
        low if low > u_k else high if high < u_k else u_k
        for u_k, low, high in zip(u, lower, upper, strict=True)
    ]


def nearest_in_closed_form(
    u: list[float],
    a: list[list[float]],
    b: list[float],
    lower: list[float],
    upper: list[float],
) -> tuple[list[float] | None, bool]:
    """Return the projection, None where only a search finds it, and whether one may exist.

    Where the most violated row misses the whole box, none exists: what comes back with False is
    its least violation.
    """
    x, worst, largest = u, -1, 0.0
    if len(u) == 2:  # written out: every step in the plane passes here
        x_0, x_1 = u
        if not (lower[0] <= x_0 <= upper[0] and lower[1] <= x_1 <= upper[1]):
            x = x_0, x_1 = clipped(u, lower, upper)
        for j, (a_0, a_1) in enumerate(a):
            missed = -b[j] + a_0 * x_0 + a_1 * x_1
            if missed > largest:
                worst, largest = j, missed
    else:
        x = clipped(u, lower, upper)
        for j, row in enumerate(a):
            missed = residual(row, b[j], x)
            if missed > largest:
                worst, largest = j, missed
    if worst < 0:
        return x, True
    x, feasible = project_one_row(u, a[worst], b[worst], lower, upper)
    if feasible and len(b) > 1:
        for j, row in enumerate(a):
            missed = residual(row, b[j], x) if j != worst else 0.0
            if missed > 0.0 and missed > ROUNDING * (1.0 + abs(b[j])):
                return None, True
    return x, feasible


def nearest(
    u: list[float],
    a: list[list[float]],
    b: list[float],
    lower: list[float],
    upper: list[float],
    solver: QPSolver,
) -> tuple[list[float] | None, SolveStatus]:
    """Return the projection and OPTIMAL, or why there is none.

    The least violation of a lone row comes with its INFEASIBLE; that of several is None.
    """
    x, feasible = nearest_in_closed_form(u, a, b, lower, upper)
    if x is not None and (feasible or len(b) == 1):
        return x, SolveStatus.OPTIMAL if feasible else SolveStatus.INFEASIBLE
    if not feasible:
        return None, SolveStatus.INFEASIBLE
    solution = solver.run(
        np.ones(len(u)), -np.array(u), np.array(a), np.array(b), np.array(lower), np.array(upper)
    )
    if solution.status is SolveStatus.OPTIMAL:
        return solution.x.tolist(), SolveStatus.OPTIMAL
    return None, solution.status


def ranked(h: list[float], time_left: list[float]) -> tuple[int, list[float]]:
    """Return the most urgent row and the weights rho_j = SLACK_WEIGHT (1 + 1 s / time left)."""
    first = min(range(len(h)), key=lambda j: (h[j], time_left[j], j))
    return first, [SLACK_WEIGHT * (1.0 + 1.0 / max(time, 1e-3)) for time in time_left]


def least_violation(
    u: list[float],
    a: list[list[float]],
    b: list[float],
    first: int,
    weights: list[float],
    box: Box,
    solver: QPSolver,
) -> list[float]:
    """Return the action that serves the row ``first`` and the others as well as it then can.

    Where no action meets that one, it fixes all components that it sees. The others get explicit
    slack s_j: cost 1/2 |x - u|^2 + 1/2 sum_j rho_j s_j^2 with ``weights`` rho_j.
    """
    (lower, upper), n, m = box, len(u), len(b)
    alone, feasible = project_one_row(u, a[first], b[first], lower, upper)
    urgent = a[first]
    if not feasible:
        seen = UNSEEN * max(map(abs, urgent))
        fixed = [abs(a_k) > seen for a_k in urgent]
        if all(fixed):
            return alone
        lower = [x if held else low for x, held, low in zip(alone, fixed, lower, strict=True)]
        upper = [x if held else high for x, held, high in zip(alone, fixed, upper, strict=True)]
        urgent = [0.0] * n  # whatever is left does not change this row
    others = [j for j in range(m) if j != first]
    hard_level = b[first] if feasible else 0.0
    A, levels, cost = np.zeros((m, n + m - 1)), np.empty(m), np.ones(n + m - 1)
    A[0, :n] = urgent
    levels[0] = hard_level + _HARD_ROW_ROOM * (1.0 + abs(hard_level))
    for slot, j in enumerate(others):
        A[1 + slot, :n] = a[j]
        A[1 + slot, n + slot] = -1.0
        levels[1 + slot] = b[j]
        cost[n + slot] = weights[j]
    low, high = np.full(n + m - 1, -_FREE), np.full(n + m - 1, _FREE)
    low[:n], high[:n] = lower, upper
    q: FloatArray = np.zeros(n + m - 1)
    q[:n] = [-u_k for u_k in u]
    solution = solver.run(cost, q, A, levels, low, high)
    if solution.status is not SolveStatus.OPTIMAL:
        return alone
    return solution.x[:n].tolist()


@dataclass(slots=True)
class PairRows:
    """Rows of one step before lambda, one entry per pair.

    Attributes:
        a: Row vectors, lists of n numbers.
        level: Right-hand sides at lambda = 0, m/s^2.
        h: Barrier values at the best estimate of the state, m/s.
        margin: Free distance less the safety margin, at the same estimate, m.
        closing: Closing speeds, at the same estimate, m/s.
    """

    a: list[list[float]]
    level: list[float]
    h: list[float]
    margin: list[float]
    closing: list[float]

    def add(self, a: list[float], level: float, h: float, margin: float, closing: float) -> None:
        """Append the row of one more pair."""
        self.a.append(a)
        self.level.append(level)
        self.h.append(h)
        self.margin.append(margin)
        self.closing.append(closing)

    def violation(self, gamma: float) -> FloatArray:
        """Return how far each pair is outside the safe set, shape (m,), m/s."""
        pairs = zip(self.h, self.margin, strict=True)
        return np.array([barrier_violation(h, e, gamma) for h, e in pairs])

    @property
    def time_left(self) -> list[float]:
        """Time until each margin is used up at today's closing speed, s; inf if never."""
        return [time_left(e, w) for e, w in zip(self.margin, self.closing, strict=True)]


@dataclass(slots=True)
class Solution:
    """One solved step.

    Attributes:
        x: The action, n numbers.
        status: How the solve ended.
        lambda_: Slack that entered the rows, one entry per row, m/s^2.
        b: Right-hand sides, likewise, m/s^2.
        proved: The action keeps what is guaranteed: it meets the rows, or needs not to.
    """

    x: list[float]
    status: SolveStatus
    lambda_: list[float]
    b: list[float]
    proved: bool

    def missed(self, rows: PairRows) -> list[float]:
        """Return how far the action misses each row, m/s^2; zeros after a solve that succeeded."""
        if self.status is SolveStatus.OPTIMAL:
            return [0.0] * len(self.b)
        return [max(0.0, residual(rows.a[j], b_j, self.x)) for j, b_j in enumerate(self.b)]


def project(
    u: list[float],
    rows: PairRows,
    wanted: list[float] | None,
    box: Box,
    solver: QPSolver,
    *,
    as_given: bool = False,
) -> Solution:
    """Return the projection of an action, or the least violation and why there is none.

    ``wanted`` is lambda per row, m/s^2; None for none. Unless it is to be taken ``as_given``, a
    negative lambda tightens its row no further than the box can follow, and is dropped where it
    sets rows against each other.
    """
    lower, upper = box
    if wanted is None:
        wanted = [0.0] * len(rows.level)
    used, b = granted(wanted, rows.a, rows.level, box, as_given)
    x, status = nearest(u, rows.a, b, lower, upper, solver)
    if status is SolveStatus.OPTIMAL and x is not None:
        return Solution(x, status, used, b, True)
    if not as_given and any(value < 0.0 for value in used):
        used = [max(0.0, value) for value in used]
        b = [level + used[j] for j, level in enumerate(rows.level)]
        x, status = nearest(u, rows.a, b, lower, upper, solver)
    if x is None:
        x = least_violation(u, rows.a, b, *ranked(rows.h, rows.time_left), box, solver)
    return Solution(x, status, used, b, status is SolveStatus.OPTIMAL)


def granted(
    wanted: list[float],
    a: list[list[float]],
    levels: list[float],
    box: Box,
    as_given: bool = False,
) -> tuple[list[float], list[float]]:
    """Return the lambda that enters the rows, and their right-hand sides; see `project`."""
    if not any(wanted):
        return wanted, levels
    used: list[float] = []
    b: list[float] = []
    for j, value in enumerate(wanted):
        if value < 0.0 and not as_given:
            value = feasible_lambda(value, a[j], levels[j], box)
        used.append(value)
        b.append(levels[j] + value)
    return used, b


def feasible_lambda(lambda_: float, row: list[float], level: float, box: Box) -> float:
    """Return ``lambda_``, no tighter than the row allows.

    The box meets the row iff lambda >= min_u row @ u - level. A relaxing lambda is returned as it
    is; a row that the box misses even at 0 gets 0.
    """
    if lambda_ >= 0.0:
        return lambda_
    lower, upper = box
    if len(row) == 2:  # written out: the common case on the hot path
        a_0, a_1 = row
        lowest = a_0 * (lower if a_0 > 0.0 else upper)[0]
        lowest += a_1 * (lower if a_1 > 0.0 else upper)[1]
    else:
        lowest = 0.0
        for k, a_k in enumerate(row):
            lowest += a_k * (lower[k] if a_k > 0.0 else upper[k])
    # Compared rather than by min() and max(): shorter on the hot path.
    tightest = lowest - level + FEASIBILITY_ROOM
    kept = tightest if tightest > lambda_ else lambda_
    return kept if kept < 0.0 else 0.0

"""Nearest action to a nominal one that meets every row, or the least unsafe one.

Problem:   min |x - u|^2  subject to  a_j @ x <= b_j (all j),  lower_k <= x_k <= upper_k
Order:     1. the nominal, clipped to the box, when it meets every row;
           2. the exact one-row answer of the most violated row, when it meets the others too
              (it is then optimal: the feasible set is a subset of that row's);
           3. DAQP on all rows;
           4. no solution: the box is hard, the most urgent row is met as far as the box allows,
              the other rows are met by least violation, urgency weighted.
Axes:      n action components, m rows.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
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


@dataclass(slots=True)
class RowSet:
    """Rows of one step, most of them plain lists: they are tiny and rebuilt every step.

    Attributes:
        a: Row vectors, m lists of n numbers.
        b: Right-hand sides, m numbers.
        h: Barrier value behind each row, m/s; the smallest is the most urgent pair.
        time_left: Time until the row's margin is used up at today's speed, s; inf if never.
    """

    a: list[list[float]]
    b: list[float]
    h: list[float]
    time_left: list[float]

    def residual(self, j: int, x: list[float]) -> float:
        """Return a_j @ x - b_j."""
        total = -self.b[j]
        for a_k, x_k in zip(self.a[j], x, strict=True):
            total += a_k * x_k
        return total

    def most_violated(self, x: list[float]) -> tuple[int, float]:
        """Return the row with the largest residual at ``x`` and that residual; (-1, 0) if none."""
        worst, largest = -1, 0.0
        for j, (row, level) in enumerate(zip(self.a, self.b, strict=True)):
            residual = -level  # `residual`, written out: every call passes here
            for a_k, x_k in zip(row, x, strict=True):
                residual += a_k * x_k
            if residual > largest:
                worst, largest = j, residual
        return worst, largest


def project(
    u: list[float],
    rows: RowSet,
    lower: list[float],
    upper: list[float],
    solver: QPSolver,
) -> tuple[list[float], SolveStatus]:
    """Return the action and whether it meets every row.

    Args:
        u: Nominal action, n numbers.
        rows: The rows.
        lower: Lower bounds of the box, n numbers.
        upper: Upper bounds of the box, n numbers.
        solver: Solves what one row cannot.

    Returns:
        The projection and OPTIMAL; or the least-violation action and why there is no solution:
        INFEASIBLE, or the status of a solver that failed on a problem it should have solved.
    """
    clipped = [min(max(u_k, low), high) for u_k, low, high in zip(u, lower, upper, strict=True)]
    worst, _ = rows.most_violated(clipped)
    if worst < 0:
        return clipped, SolveStatus.OPTIMAL
    x, feasible = project_one_row(u, rows.a[worst], rows.b[worst], lower, upper)
    if len(rows.b) == 1:
        return x, SolveStatus.OPTIMAL if feasible else SolveStatus.INFEASIBLE
    if not feasible:
        return _least_violation(u, rows, lower, upper, solver), SolveStatus.INFEASIBLE
    if _meets_others(rows, x, worst):
        return x, SolveStatus.OPTIMAL
    n = len(u)
    solution = solver.run(
        np.ones(n),
        -np.array(u),
        np.array(rows.a),
        np.array(rows.b),
        np.array(lower),
        np.array(upper),
    )
    if solution.status is SolveStatus.OPTIMAL:
        return solution.x.tolist(), SolveStatus.OPTIMAL
    return _least_violation(u, rows, lower, upper, solver), solution.status


def _meets_others(rows: RowSet, x: list[float], solved: int) -> bool:
    """Say whether ``x`` meets every row but the one it was computed for, to rounding."""
    for j, (row, level) in enumerate(zip(rows.a, rows.b, strict=True)):
        residual = -level
        for a_k, x_k in zip(row, x, strict=True):
            residual += a_k * x_k
        if j != solved and not residual <= ROUNDING * (1.0 + abs(level)):
            return False
    return True


def _least_violation(
    u: list[float], rows: RowSet, lower: list[float], upper: list[float], solver: QPSolver
) -> list[float]:
    """Return the action that serves the most urgent row first and the others as well as it can.

    Where no action meets that one, it fixes all components that it sees. The others get explicit
    slack s_j: cost 1/2 |x - u|^2 + 1/2 sum_j rho_j s_j^2 with
    rho_j = SLACK_WEIGHT (1 + 1 s / time left).
    """
    n, m = len(u), len(rows.b)
    first = min(range(m), key=lambda j: (rows.h[j], rows.time_left[j], j))
    alone, feasible = project_one_row(u, rows.a[first], rows.b[first], lower, upper)
    urgent = rows.a[first]
    if not feasible:
        seen = UNSEEN * max(map(abs, urgent))
        fixed = [abs(a_k) > seen for a_k in urgent]
        if all(fixed):
            return alone
        lower = [x if held else low for x, held, low in zip(alone, fixed, lower, strict=True)]
        upper = [x if held else high for x, held, high in zip(alone, fixed, upper, strict=True)]
        urgent = [0.0] * n  # whatever is left does not change this row
    others = [j for j in range(m) if j != first]
    hard_level = rows.b[first] if feasible else 0.0
    A = np.zeros((m, n + m - 1))
    b = np.empty(m)
    A[0, :n] = urgent
    b[0] = hard_level + _HARD_ROW_ROOM * (1.0 + abs(hard_level))
    weights = np.ones(n + m - 1)
    for slot, j in enumerate(others):
        A[1 + slot, :n] = rows.a[j]
        A[1 + slot, n + slot] = -1.0
        b[1 + slot] = rows.b[j]
        weights[n + slot] = SLACK_WEIGHT * (1.0 + 1.0 / max(rows.time_left[j], 1e-3))
    low, high = np.full(n + m - 1, -_FREE), np.full(n + m - 1, _FREE)
    low[:n], high[:n] = lower, upper
    q: FloatArray = np.zeros(n + m - 1)
    q[:n] = [-u_k for u_k in u]
    solution = solver.run(weights, q, A, b, low, high)
    if solution.status is not SolveStatus.OPTIMAL:
        return alone
    return solution.x[:n].tolist()

"""The exact projections of `closed_form` behind the solvers' Protocol.

Scope:  a diagonal cost, with at most one row and any bounds, or with two rows and no bounds.
"""

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.solvers.closed_form import project_one_row, project_two_rows
from cadenza.safety.solvers.interface import (
    UNBOUNDED,
    QPSolution,
    SolverBase,
    SolveStatus,
    failure,
    is_finite,
    judged,
)


def in_closed_form(P: FloatArray, b: FloatArray) -> bool:
    """Say whether one row and a diagonal cost make the problem exact whatever its bounds are."""
    return P.ndim == 1 and b.shape[0] <= 1


class ClosedFormSolver(SolverBase):
    """Exact answers to the problems that have one in closed form; no memory between calls."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "closed_form"

    def run(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
        *,
        warm_start: bool = False,
    ) -> QPSolution:
        """Return the minimiser; see `QPSolver.run`.

        Raises:
            InputError: A problem without a closed form: a cost that is not diagonal, two rows
                with bounds, or more rows.
        """
        del warm_start  # nothing is iterated
        n, m = q.shape[0], b.shape[0]
        weights = P if P.ndim == 1 else _diagonal_of(P)
        bounded = bool(np.any(np.abs(lower) < UNBOUNDED) or np.any(np.abs(upper) < UNBOUNDED))
        if m > 2 or (m == 2 and bounded):
            raise InputError(
                "closed_form: expected one row with bounds or two rows without, got "
                f"{m} rows {'with' if bounded else 'without'} bounds; use make_solver('auto')."
            )
        if not is_finite(weights, q, A, b, lower, upper) or not bool(np.all(weights > 0.0)):
            return failure(n, SolveStatus.BAD_INPUT)
        if bool(np.any(lower > upper)):
            return failure(n, SolveStatus.INFEASIBLE)
        x, feasible = _solve_scaled(weights, q, A, b, lower, upper)
        if not feasible:
            return failure(n, SolveStatus.INFEASIBLE)
        return judged(x, A, b, lower, upper, iterations=0)


def _solve_scaled(
    weights: FloatArray,
    q: FloatArray,
    A: FloatArray,
    b: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> tuple[FloatArray, bool]:
    """Return the answer in the variables sqrt(weights) x, in which the cost is a distance."""
    scale = np.sqrt(weights)
    u: list[float] = (-q / scale).tolist()
    rows: list[list[float]] = (A / scale).tolist()
    levels: list[float] = b.tolist()
    if len(levels) == 2:
        x, feasible = project_two_rows(u, rows, levels)
    else:
        row, level = (rows[0], levels[0]) if rows else ([0.0] * len(u), 0.0)
        low: list[float] = (lower * scale).tolist()
        high: list[float] = (upper * scale).tolist()
        x, feasible = project_one_row(u, row, level, low, high)
    return np.array(x) / scale, feasible


def _diagonal_of(P: FloatArray) -> FloatArray:
    """Return the diagonal of a diagonal matrix.

    Raises:
        InputError: Another entry is not zero.
    """
    diagonal = np.diagonal(P)
    if bool(np.count_nonzero(P - np.diag(diagonal))):
        raise InputError(
            "closed_form: expected a diagonal cost, got a full matrix; use make_solver('auto')."
        )
    return diagonal

"""DAQP: any number of rows, by a dual active-set method.

Source:  Arnstroem, Bemporad and Axehill, doi:10.1109/TAC.2022.3176430.
Axes:    n variables, m rows.
"""

import math
from typing import Any, Final, cast

import daqp
import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers.interface import (
    RESIDUAL_TOLERANCE,
    QPSolution,
    SolveStatus,
    largest_residual,
)

#: What DAQP takes for "no bound".
_UNBOUNDED: Final = 1e30
#: Its default of 1e-6 would let rows be violated by that much.
_DAQP_TOLERANCE: Final = 1e-12
#: Exit flags of DAQP that have a name here; every other one is a numerical failure.
_DAQP_STATUS: Final = {
    1: SolveStatus.OPTIMAL,
    -1: SolveStatus.INFEASIBLE,
    -4: SolveStatus.MAX_ITER,
}


class DaqpSolver:
    """DAQP with one workspace per problem shape.

    The active set starts empty on every call, so an answer depends on its own problem only and a
    resumed run repeats an unbroken one bit for bit. Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._workspaces: dict[tuple[int, int], _DaqpWorkspace] = {}

    def run(
        self,
        P_diagonal: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> QPSolution:
        """Return the minimiser.

        Args:
            P_diagonal: Diagonal of P, shape (n,), > 0.
            q: Linear cost, shape (n,).
            A: Rows, shape (m, n).
            b: Right-hand sides, shape (m,).
            lower: Lower bounds, shape (n,).
            upper: Upper bounds, shape (n,).
        """
        workspace = self._workspaces.get(A.shape)
        if workspace is None:
            workspace = self._workspaces[A.shape] = _DaqpWorkspace(*A.shape)
        return workspace.solve(P_diagonal, q, A, b, lower, upper)


class _DaqpWorkspace:
    """Arrays and solver memory for one shape; simple bounds come first, as DAQP wants them."""

    def __init__(self, m: int, n: int) -> None:
        self._n = n
        self._P = np.eye(n)
        self._diagonal = np.einsum("ii->i", self._P)
        self._upper = np.zeros(n + m)
        self._lower = np.full(n + m, -_UNBOUNDED)
        self._cold = np.zeros(n + m, dtype=np.int32)
        self._model = _new_model(m, n)

    def solve(
        self,
        P_diagonal: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> QPSolution:
        n = self._n
        self._upper[:n] = upper
        self._upper[n:] = b
        self._lower[:n] = lower
        # NaN compares false everywhere inside the solver, which then calls it optimal.
        total = float(q.sum() + A.sum() + self._upper.sum() + lower.sum() + P_diagonal.sum())
        if not math.isfinite(total):
            return QPSolution(np.full(n, np.nan), SolveStatus.BAD_INPUT, 0)
        self._diagonal[:] = P_diagonal
        # An explicit cold start: without it DAQP continues from the last active set.
        refused: int = self._model.update(self._P, q, A, self._upper, self._lower, self._cold)
        if refused < 0:  # found while reading the data; `solve` would repeat the last problem
            return QPSolution(
                np.full(n, np.nan), _DAQP_STATUS.get(refused, SolveStatus.NUMERICAL), 0
            )
        answer: tuple[FloatArray, float, int, dict[str, Any]] = self._model.solve()
        x, _, flag, info = answer
        status = _DAQP_STATUS.get(flag, SolveStatus.NUMERICAL)
        if status is SolveStatus.OPTIMAL:
            x = np.minimum(np.maximum(x, lower), upper)  # bounds hold to the last bit
            if not largest_residual(A, b, x) <= RESIDUAL_TOLERANCE:
                status = SolveStatus.NUMERICAL
        return QPSolution(x, status, int(info["iterations"]))


def _new_model(m: int, n: int) -> Any:
    """Return a DAQP model with memory for n variables and m rows; daqp ships no types."""
    model = cast("Any", daqp).Model()
    bounds = np.ones(n + m)
    # Any feasible problem will do: setup refuses to allocate for one it finds infeasible.
    model.setup(np.eye(n), np.zeros(n), np.ones((m, n)), bounds, -bounds, np.zeros(n + m, np.int32))
    model.settings = {"primal_tol": _DAQP_TOLERANCE, "dual_tol": _DAQP_TOLERANCE}
    return model

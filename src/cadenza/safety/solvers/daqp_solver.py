"""DAQP: any number of rows, by a dual active-set method.

Source:  Arnstroem, Bemporad and Axehill, doi:10.1109/TAC.2022.3176430.
Axes:    n variables, m rows.
"""

import math
from typing import Any, Final, cast

import daqp
import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.solvers.interface import (
    UNBOUNDED,
    QPSolution,
    SolverBase,
    SolveStatus,
    failure,
    judged,
)

#: The solver's own default of 1e-6 would let rows be violated by that much.
_TOLERANCE: Final = 1e-12
#: Exit flags of DAQP that have a name here; every other one is a numerical failure.
_STATUS: Final = {
    1: SolveStatus.OPTIMAL,
    -1: SolveStatus.INFEASIBLE,
    -4: SolveStatus.MAX_ITER,
    -5: SolveStatus.BAD_INPUT,  # the cost is not convex
}


class DaqpSolver(SolverBase):
    """DAQP with one workspace per problem shape.

    By default the active set starts empty on every call, so an answer depends on its own problem
    only and a resumed run repeats an unbroken one bit for bit; ``warm_start=True`` continues from
    the active set of the last problem of that shape. Not safe to share between threads.
    """

    name = "daqp"

    def __init__(self) -> None:
        self._workspaces: dict[tuple[int, ...], _Workspace] = {}

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
            InputError: Shapes that do not fit each other.
        """
        workspace = self._workspaces.get(A.shape)
        if workspace is None:
            workspace = self._workspaces[A.shape] = _Workspace(*A.shape)
        if workspace.shapes != (q.shape, b.shape, lower.shape, upper.shape):
            raise InputError(
                f"daqp: expected q, b, lower and upper to fit A {A.shape}, got "
                f"{q.shape}, {b.shape}, {lower.shape} and {upper.shape}."
            )
        return workspace.solve(P, q, A, b, lower, upper, warm_start)


class _Workspace:
    """Arrays and solver memory for one shape; simple bounds come first, as DAQP wants them."""

    def __init__(self, m: int, n: int) -> None:
        self.shapes = ((n,), (m,), (n,), (n,))
        self._n = n
        self._P = np.eye(n)
        self._diagonal = np.einsum("ii->i", self._P)
        self._upper = np.zeros(n + m)
        self._lower = np.full(n + m, -UNBOUNDED)
        self._cold = np.zeros(n + m, dtype=np.int32)
        self._has_rows = m > 0
        self._model = _new_model(m, n)

    def solve(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
        warm_start: bool,
    ) -> QPSolution:
        n = self._n
        self._upper[:n] = upper
        self._upper[n:] = b
        self._lower[:n] = lower
        # NaN compares false everywhere inside the solver, which then calls it optimal. A finite sum
        # of squares proves finite entries; only overflow needs the slow look.
        above = self._upper
        total = q.dot(q) + above.dot(above) + lower.dot(lower) + np.vdot(A, A) + np.vdot(P, P)
        if not math.isfinite(total) and not all(
            np.isfinite(each).all() for each in (q, A, above, lower, P)
        ):
            return failure(n, SolveStatus.BAD_INPUT)
        if P.ndim == 1:
            self._diagonal[:] = P
            cost = self._P
        else:
            cost = np.ascontiguousarray(P)
        # An explicit cold start: without it DAQP continues from the last active set.
        sense = None if warm_start else self._cold
        refused: int = self._model.update(
            cost, q, A if self._has_rows else None, self._upper, self._lower, sense
        )
        if refused < 0:  # found while reading the data; `solve` would repeat the last problem
            return failure(n, _STATUS.get(refused, SolveStatus.NUMERICAL))
        answer: tuple[FloatArray, float, int, dict[str, Any]] = self._model.solve()
        x, _, flag, info = answer
        status = _STATUS.get(flag, SolveStatus.NUMERICAL)
        iterations = int(info["iterations"])
        if status is SolveStatus.OPTIMAL:
            return judged(x, A, b, lower, upper, iterations)
        return QPSolution(x, status, iterations)


def _new_model(m: int, n: int) -> Any:
    """Return a DAQP model with memory for n variables and m rows; daqp ships no types."""
    model = cast("Any", daqp).Model()
    bounds = np.ones(n + m)
    # Any feasible problem will do: setup refuses to allocate for one it finds infeasible.
    model.setup(np.eye(n), np.zeros(n), np.ones((m, n)), bounds, -bounds, np.zeros(n + m, np.int32))
    model.settings = {"primal_tol": _TOLERANCE, "dual_tol": _TOLERANCE}
    return model

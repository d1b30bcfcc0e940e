"""quadprog: a dual active-set method without memory, the fallback of `AutoSolver`.

Source:  Goldfarb and Idnani, doi:10.1007/BF02591962.
"""

from typing import Any

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra
from cadenza.safety.solvers.dense_problem import dense_problem
from cadenza.safety.solvers.interface import (
    QPSolution,
    SolverBase,
    SolveStatus,
    failure,
    judged,
)


class QuadprogSolver(SolverBase):
    """quadprog; every call is on its own."""

    def __init__(self) -> None:
        self._quadprog: Any = load_extra("quadprog")

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "quadprog"

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
        del warm_start  # the library keeps nothing between calls
        problem = dense_problem(P, q, A, b, lower, upper)
        if problem is None:
            return failure(q.shape[0], SolveStatus.BAD_INPUT)
        rows = (-problem.G.T, -problem.h) if problem.h.size else ()
        try:
            answer: Any = self._quadprog.solve_qp(problem.P, -q, *rows)
        except ValueError:  # P was checked, so only "constraints are inconsistent" is left
            return failure(q.shape[0], SolveStatus.INFEASIBLE)
        return judged(answer[0], A, b, lower, upper, int(answer[3][0]))

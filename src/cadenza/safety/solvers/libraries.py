"""Solvers of other packages, imported when one is made: quadprog, Clarabel, OSQP and PIQP.

quadprog:  a dual active-set method without memory, the fallback of `AutoSolver`;
           Goldfarb and Idnani, doi:10.1007/BF02591962.
Clarabel:  an interior-point method; Goulart and Chen, arXiv:2405.12762.
OSQP:      an operator-splitting method; Stellato et al., arXiv:1711.08013. Its own polishing step
           prints from C whatever the verbosity, so it stays off; refinement replaces it.
PIQP:      a proximal interior-point method; Schwan, Jiang, Kuhn and Jones, arXiv:2304.00290.
Refined:   the answers of the last three become exact in `ApproximateSolver`.
"""

from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra
from cadenza.safety.solvers.approximate import ApproximateSolver, DenseProblem, Guess, dense_problem
from cadenza.safety.solvers.interface import (
    QPSolution,
    SolverBase,
    SolveStatus,
    failure,
    judged,
)

#: Tolerances handed to the method, below its default of 1e-8; refinement does the rest.
_CLARABEL_TOLERANCE: Final = 1e-10
#: Names of Clarabel's exits that have a name here; every other one is a numerical failure.
#: Refinement proves the optimum or refuses it, so an inaccurate answer may try.
_CLARABEL_STATUS: Final = {
    "Solved": SolveStatus.OPTIMAL,
    "AlmostSolved": SolveStatus.OPTIMAL,
    "PrimalInfeasible": SolveStatus.INFEASIBLE,
    "AlmostPrimalInfeasible": SolveStatus.INFEASIBLE,
    "MaxIterations": SolveStatus.MAX_ITER,
}


class ClarabelSolver(ApproximateSolver):
    """Clarabel, set up anew on every call; it has no warm start."""

    name = "clarabel"

    def __init__(self) -> None:
        self._clarabel: Any = load_extra("clarabel")
        #: Compressed columns, the form the library takes matrices in.
        self._csc: Any = load_extra("scipy.sparse").csc_matrix
        settings: Any = self._clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1  # the same bits on every machine
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(settings, name, _CLARABEL_TOLERANCE)
        self._settings = settings

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return Clarabel's answer."""
        del warm_start  # interior-point methods gain nothing from an old answer
        solver: Any = self._clarabel.DefaultSolver(
            self._csc(np.triu(problem.P)),
            problem.q,
            self._csc(problem.G),
            problem.h,
            [self._clarabel.NonnegativeConeT(problem.h.shape[0])],
            self._settings,
        )
        answer: Any = solver.solve()
        return Guess(
            x=np.array(answer.x),
            multipliers=np.array(answer.z),
            status=_CLARABEL_STATUS.get(str(answer.status), SolveStatus.NUMERICAL),
            iterations=int(answer.iterations),
        )


#: Absolute and relative tolerance of the method.
_OSQP_TOLERANCE: Final = 1e-9
_MAX_ITERATIONS: Final = 50_000
#: OSQP's exit texts that have a name here; every other one is a numerical failure.
_OSQP_STATUS: Final = {
    "solved": SolveStatus.OPTIMAL,
    "solved inaccurate": SolveStatus.OPTIMAL,
    "primal infeasible": SolveStatus.INFEASIBLE,
    "primal infeasible inaccurate": SolveStatus.INFEASIBLE,
    "maximum iterations reached": SolveStatus.MAX_ITER,
}


class OSQPSolver(ApproximateSolver):
    """OSQP, set up anew on every call; a warm start begins at the last answer of that shape.

    Not safe to share between threads.
    """

    name = "osqp"

    def __init__(self) -> None:
        self._osqp: Any = load_extra("osqp")
        #: Compressed columns, the form the library takes matrices in.
        self._csc: Any = load_extra("scipy.sparse").csc_matrix
        self._last: dict[tuple[int, ...], Guess] = {}

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return OSQP's answer."""
        solver: Any = self._osqp.OSQP()
        solver.setup(
            self._csc(np.triu(problem.P)),
            problem.q,
            self._csc(problem.G),
            np.full(problem.h.shape[0], -np.inf),
            problem.h,
            verbose=False,
            polishing=False,
            eps_abs=_OSQP_TOLERANCE,
            eps_rel=_OSQP_TOLERANCE,
            max_iter=_MAX_ITERATIONS,
        )
        last = self._last.get(problem.G.shape) if warm_start else None
        if last is not None:
            solver.warm_start(x=last.x, y=last.multipliers)
        answer: Any = solver.solve(raise_error=False)
        guess = Guess(
            x=np.array(answer.x, dtype=np.float64),
            multipliers=np.array(answer.y, dtype=np.float64),
            status=_OSQP_STATUS.get(str(answer.info.status), SolveStatus.NUMERICAL),
            iterations=int(answer.info.iter),
        )
        if guess.status is SolveStatus.OPTIMAL:
            self._last[problem.G.shape] = guess
        return guess


#: PIQP's exits that have a name here; every other one is a numerical failure.
_PIQP_STATUS: Final = {
    "PIQP_SOLVED": SolveStatus.OPTIMAL,
    "PIQP_PRIMAL_INFEASIBLE": SolveStatus.INFEASIBLE,
    "PIQP_MAX_ITER_REACHED": SolveStatus.MAX_ITER,
}


class PIQPSolver(ApproximateSolver):
    """PIQP with one workspace per problem shape; it has no warm start.

    Not safe to share between threads.
    """

    name = "piqp"

    def __init__(self) -> None:
        self._piqp: Any = load_extra("piqp")
        self._workspaces: dict[tuple[int, ...], Any] = {}

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return PIQP's answer."""
        del warm_start  # interior-point methods gain nothing from an old answer
        P, G = np.asfortranarray(problem.P), np.asfortranarray(problem.G)
        solver: Any = self._workspaces.get(G.shape)
        if solver is None:
            solver = self._workspaces[G.shape] = self._piqp.DenseSolver()
            solver.setup(P, problem.q, G=G, h_u=problem.h)
        else:
            solver.update(P=P, c=problem.q, G=G, h_u=problem.h)
        status: Any = solver.solve()
        return Guess(
            x=np.array(solver.result.x),
            multipliers=np.array(solver.result.z_u),
            status=_PIQP_STATUS.get(str(status.name), SolveStatus.NUMERICAL),
            iterations=int(solver.result.info.iter),
        )


class QuadprogSolver(SolverBase):
    """quadprog; every call is on its own."""

    name = "quadprog"

    def __init__(self) -> None:
        self._quadprog: Any = load_extra("quadprog")

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

"""Solvers of other packages, imported when one is made.

quadprog:  a dual active-set method without memory, the fallback of `AutoSolver`;
           Goldfarb and Idnani, doi:10.1007/BF02591962.
Clarabel:  an interior-point method; Goulart and Chen, arXiv:2405.12762.
Form:      min 1/2 x^T P x + q^T x  subject to  G x <= h; G stacks rows and bounds that exist.
Room:      interior-point methods stop on either side of a row, so they are handed rows that are
           tighter by what they may miss, and their answers meet the true ones.
Axes:      n variables, k stacked rows.
"""

from typing import Any, Final, NamedTuple, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import (
    UNBOUNDED,
    QPSolution,
    QPSolver,
    SolverBase,
    SolveStatus,
    failure,
    is_finite,
    judged,
)

#: How far beyond a row, over 1 + |h|, the answer of a solver of the caller's may lie.
_FOREIGN_ROOM: Final = 5e-8
#: Likewise that of Clarabel, and the tolerance it is set to, below its default of 1e-8.
_CLARABEL_ROOM: Final = 5e-10
_CLARABEL_TOLERANCE: Final = 1e-13


class DenseProblem(NamedTuple):
    """One quadratic programme: P (n, n), q (n,), G (k, n) and h (k,); see the module's form."""

    P: FloatArray
    q: FloatArray
    G: FloatArray
    h: FloatArray


def dense_problem(
    P: FloatArray,
    q: FloatArray,
    A: FloatArray,
    b: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    room: float = 0.0,
) -> DenseProblem | None:
    """Return the problem of `QPSolver.run` in dense form, its rows tighter by ``room`` (1 + |h|).

    None if an entry is not finite or P not definite.

    Raises:
        InputError: Shapes that do not fit each other.
    """
    n = q.shape[0]
    shapes = (A.shape, lower.shape, upper.shape)
    if shapes != ((b.shape[0], n), (n,), (n,)) or P.shape not in ((n,), (n, n)):
        raise InputError(
            f"run: expected P, A, b, lower and upper to fit q {q.shape}, got {P.shape}, "
            f"{A.shape}, {b.shape}, {lower.shape} and {upper.shape}."
        )
    if not is_finite(P, q, A, b, lower, upper):
        return None
    cost = np.diag(P) if P.ndim == 1 else P
    try:
        np.linalg.cholesky(cost)
    except np.linalg.LinAlgError:
        return None
    above, below = upper < UNBOUNDED, lower > -UNBOUNDED
    unit = np.eye(n)
    h = np.concatenate([b, upper[above], -lower[below]])
    G = np.concatenate([A, unit[above], -unit[below]])
    return DenseProblem(cost, q, G, h - room * (1.0 + np.abs(h)))


class SolveOnly(SolverBase):
    """A foreign solver that offers ``solve(P, q, A, b, *, warm_start) -> (x, ms)`` only.

    Bounds on the variables reach it as rows, and what it raises for "no solution" is
    `ConcertoSafetyInfeasible`. Its answers are judged like all others.
    """

    def __init__(self, solver: Any) -> None:
        self._solver = solver
        self.name = str(getattr(solver, "name", type(solver).__name__))

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
        """Return the minimiser; see `QPSolver.run`."""
        problem = dense_problem(P, q, A, b, lower, upper, _FOREIGN_ROOM)
        if problem is None:
            return failure(q.shape[0], SolveStatus.BAD_INPUT)
        try:
            x, _ = self._solver.solve(*problem, warm_start=warm_start)
        except ConcertoSafetyInfeasible:
            return failure(q.shape[0], SolveStatus.INFEASIBLE)
        return judged(np.asarray(x, dtype=np.float64), A, b, lower, upper, 0)


def as_solver(solver: object) -> QPSolver:
    """Return ``solver`` as a `QPSolver`: as it is, inside `SolveOnly`, or DAQP for None.

    Raises:
        ConfigurationError: It offers neither ``run`` nor ``solve``.
    """
    if solver is None:
        return DaqpSolver()
    if callable(getattr(solver, "run", None)):
        return cast("QPSolver", solver)
    if callable(getattr(solver, "solve", None)):
        return SolveOnly(solver)
    raise ConfigurationError(
        f"solver: expected a QPSolver or None, got {type(solver).__name__}; take one from "
        "cadenza.safety.solvers.make_solver(name), or offer solve(P, q, A, b, *, warm_start)."
    )


#: Names of Clarabel's exits that have a name here; every other one is a numerical failure.
#: The answer is judged, so an inaccurate one may try.
_CLARABEL_STATUS: Final = {
    "Solved": SolveStatus.OPTIMAL,
    "AlmostSolved": SolveStatus.OPTIMAL,
    "PrimalInfeasible": SolveStatus.INFEASIBLE,
    "AlmostPrimalInfeasible": SolveStatus.INFEASIBLE,
    "MaxIterations": SolveStatus.MAX_ITER,
}


class ClarabelSolver(SolverBase):
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
        """Return the minimiser; see `QPSolver.run`."""
        del warm_start  # interior-point methods gain nothing from an old answer
        problem = dense_problem(P, q, A, b, lower, upper, _CLARABEL_ROOM)
        if problem is None:
            return failure(q.shape[0], SolveStatus.BAD_INPUT)
        cones = [self._clarabel.NonnegativeConeT(len(problem.h))]
        answer: Any = self._clarabel.DefaultSolver(
            self._csc(np.triu(problem.P)),
            problem.q,
            self._csc(problem.G),
            problem.h,
            cones,
            self._settings,
        ).solve()
        status = _CLARABEL_STATUS.get(str(answer.status), SolveStatus.NUMERICAL)
        iterations = int(answer.iterations)
        if status is not SolveStatus.OPTIMAL:
            return failure(q.shape[0], status, iterations)
        return judged(np.array(answer.x), A, b, lower, upper, iterations)


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

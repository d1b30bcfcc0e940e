"""Solvers of other packages, imported when one is made: quadprog, Clarabel, OSQP and PIQP.

quadprog:  a dual active-set method without memory, the fallback of `AutoSolver`;
           Goldfarb and Idnani, doi:10.1007/BF02591962.
Clarabel:  an interior-point method; Goulart and Chen, arXiv:2405.12762.
OSQP:      an operator-splitting method; Stellato et al., arXiv:1711.08013. Its own polishing step
           prints from C whatever the verbosity, so it stays off; refinement replaces it.
PIQP:      a proximal interior-point method; Schwan, Jiang, Kuhn and Jones, arXiv:2304.00290.
Refined:   the answers of the last three become exact in `ApproximateSolver`.

Frame of the solvers whose method stops near the optimum: solve, refine, judge.

A quadratic programme in one dense form, for solvers without bounds of their own.

Form:   min 1/2 x^T P x + q^T x   subject to   G x <= h
        G stacks the rows and the bounds that exist.

From an approximate answer to an exact one, through the rows that are active at it.

Why:     interior-point and splitting methods stop about 1e-8 from the optimum, on either side of a
         row. Their multipliers say which rows are active; the optimum given those is a projection.
Method:  in the variables z = L^T x, with P = L L^T, the problem is the projection of z_0 = -L^-1 q
         on M z <= h, M = G L^-T. For a set W of independent active rows, z = z_0 - M_W^T y with
         M_W z = h_W. Rows with y < 0 leave W. Then violated rows enter one by one, as in the dual
         method of Goldfarb and Idnani, doi:10.1007/BF02591962, which ends in the optimum.
Axes:    n variables, k rows.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import (
    ROUNDING,
    UNBOUNDED,
    QPSolution,
    QPSolver,
    SolverBase,
    SolveStatus,
    failure,
    is_finite,
    judged,
)


@dataclass(frozen=True, slots=True, eq=False)
class DenseProblem:
    """One quadratic programme.

    Attributes:
        P: Cost, shape (n, n), symmetric positive definite.
        factor: Its lower Cholesky factor, shape (n, n).
        q: Linear cost, shape (n,).
        G: Stacked rows, shape (k, n).
        h: Right-hand sides, shape (k,).
    """

    P: FloatArray
    factor: FloatArray
    q: FloatArray
    G: FloatArray
    h: FloatArray


def dense_problem(
    P: FloatArray, q: FloatArray, A: FloatArray, b: FloatArray, lower: FloatArray, upper: FloatArray
) -> DenseProblem | None:
    """Return the problem in dense form; None if an entry is not finite or P not definite.

    Args:
        P: Cost, shape (n, n) or its diagonal (n,).
        q: Linear cost, shape (n,).
        A: Rows, shape (m, n).
        b: Right-hand sides, shape (m,).
        lower: Lower bounds, shape (n,).
        upper: Upper bounds, shape (n,).

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
        factor: FloatArray = np.linalg.cholesky(cost).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return None
    above, below = upper < UNBOUNDED, lower > -UNBOUNDED
    unit = np.eye(n)
    return DenseProblem(
        P=cost,
        factor=factor,
        q=q,
        G=np.concatenate([A, unit[above], -unit[below]]),
        h=np.concatenate([b, upper[above], -lower[below]]),
    )


#: How far below zero rounding may put a multiplier, relative to the largest.
_ROUNDED: Final = 1e-9
#: Rows that may enter beyond the number of rows before the attempt is given up.
_SPARE_ENTRIES: Final = 20
#: Squared sine of the angle to the span of the active rows below which a unit row lies in it.
_IN_SPAN: Final = 1e-20


@dataclass(slots=True)
class _Projection:
    """Projection of z_0 on M z <= h, rows of unit length, and where the search stands.

    Attributes:
        z_0: Point to project, shape (n,).
        M: Rows, shape (k, n).
        h: Right-hand sides, shape (k,).
        active: Indices of the active rows, independent of each other.
        y: Their multipliers, >= 0.
    """

    z_0: FloatArray
    M: FloatArray
    h: FloatArray
    active: list[int] = field(default_factory=list[int])
    y: list[float] = field(default_factory=list[float])

    def point(self) -> FloatArray:
        """Return z that meets the active rows exactly, and set their multipliers."""
        rows = self.M[self.active]
        shift = _least_squares(rows, rows @ self.z_0 - self.h[self.active])
        self.y = _least_squares(rows.T, shift).tolist()
        return self.z_0 - shift

    def leave(self, slot: int) -> None:
        """Take one row out of the active ones."""
        del self.active[slot], self.y[slot]

    def across(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return the part of a row outside the span of the active ones, and its part in it.

        The first has shape (n,); the second is given by its coefficients.
        """
        rows = self.M[self.active].T
        inside = _least_squares(rows, self.M[row])
        return self.M[row] - rows @ inside, inside

    def enter(self, row: int, z: FloatArray) -> bool:
        """Make a violated row active, others leaving as they must; False if no point meets it."""
        gained = 0.0
        while True:
            direction, inside = self.across(row)
            length = float(direction @ direction)
            moves = length > _IN_SPAN
            full = float(self.M[row] @ z - self.h[row]) / length if moves else math.inf
            ends = [
                (y / fall, slot)
                for slot, (y, fall) in enumerate(zip(self.y, inside.tolist(), strict=True))
                if fall > ROUNDING
            ]
            partial, leaving = min(ends, default=(math.inf, -1))
            step = min(full, partial)
            if math.isinf(step):
                return False
            if moves:
                z = z - step * direction
            self.y = [max(0.0, y - step * fall) for y, fall in zip(self.y, inside, strict=True)]
            gained += step
            if full <= partial:
                self.active.append(row)
                self.y.append(gained)
                return True
            self.leave(leaving)


def refine(problem: DenseProblem, x: FloatArray, multipliers: FloatArray) -> FloatArray | None:
    """Return the optimum near an approximate answer, or None if none was proved.

    Args:
        problem: The problem.
        x: Approximate minimiser, shape (n,).
        multipliers: Approximate multipliers of the stacked rows, shape (k,), >= 0.

    Returns:
        A point that meets the optimality conditions to rounding, shape (n,).
    """
    projection, lengths = _scaled(problem)
    spare = (problem.h - problem.G @ x) / lengths
    _begin(projection, multipliers * lengths, np.maximum(spare, 0.0))
    room = ROUNDING * (1.0 + np.abs(projection.h))
    for _ in range(problem.h.shape[0] + _SPARE_ENTRIES):
        z = projection.point()
        excess = projection.M @ z - projection.h - room
        if excess.max(initial=0.0) <= 0.0:
            least, most = min(projection.y, default=0.0), max(projection.y, default=0.0)
            return _solved(problem.factor.T, z) if least >= -_ROUNDED * (1.0 + most) else None
        row = int(np.argmax(excess))
        if row in projection.active or not projection.enter(row, z):
            return None
    return None


def _begin(projection: _Projection, multipliers: FloatArray, spare: FloatArray) -> None:
    """Activate independent rows that look active, the heaviest first, as far as y >= 0 allows."""
    for row in np.argsort(-multipliers).tolist():
        if multipliers[row] <= spare[row]:
            continue
        direction, _ = projection.across(row)
        if direction @ direction > _IN_SPAN:
            projection.active.append(row)
    while projection.active:
        projection.point()
        worst = min(range(len(projection.y)), key=projection.y.__getitem__)
        if projection.y[worst] >= 0.0:
            return
        projection.leave(worst)


def _scaled(problem: DenseProblem) -> tuple[_Projection, FloatArray]:
    """Return the problem as a projection on unit rows, and the lengths of the rows before."""
    M = _solved(problem.factor, problem.G.T).T
    lengths = np.sqrt(np.einsum("kn,kn->k", M, M))
    lengths = np.where(lengths > 0.0, lengths, 1.0)  # a row of zeros stays one
    z_0 = _solved(problem.factor, -problem.q)
    return _Projection(z_0, M / lengths[:, None], problem.h / lengths), lengths


def _solved(factor: FloatArray, right: FloatArray) -> FloatArray:
    """Return factor^-1 @ right."""
    return np.linalg.solve(factor, right).astype(np.float64, copy=False)


def _least_squares(A: FloatArray, right: FloatArray) -> FloatArray:
    """Return the shortest x with the smallest |A x - right|."""
    return cast("FloatArray", np.linalg.lstsq(A, right)[0])


#: Distance to a row, over 1 + |h|, within which an answer without multipliers counts as on it.
_TIGHT: Final = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """What a method returned.

    Attributes:
        x: Approximate minimiser, shape (n,).
        multipliers: Multipliers of the stacked rows, shape (k,).
        status: What the method says about itself.
        iterations: Iterations it reports.
    """

    x: FloatArray
    multipliers: FloatArray
    status: SolveStatus
    iterations: int


class ApproximateSolver(SolverBase):
    """A method whose answers become exact by refinement, or are reported as a failure."""

    @abstractmethod
    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return the method's answer to a finite, strictly convex problem."""

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
        n = q.shape[0]
        problem = dense_problem(P, q, A, b, lower, upper)
        if problem is None:
            return failure(n, SolveStatus.BAD_INPUT)
        if problem.h.size:
            guess = self.guess(problem, warm_start=warm_start)
        else:  # nothing constrains x: refinement returns -P^-1 q, whatever the guess
            guess = Guess(q, problem.h, SolveStatus.OPTIMAL, 0)
        x = _refined(problem, guess)
        if x is not None:
            return judged(x, A, b, lower, upper, guess.iterations)
        claimed = guess.status is SolveStatus.OPTIMAL
        return failure(n, SolveStatus.NUMERICAL if claimed else guess.status, guess.iterations)


class SolveOnly(ApproximateSolver):
    """A foreign solver that offers ``solve(P, q, A, b, *, warm_start) -> (x, ms)`` only.

    Bounds on the variables reach it as rows, and what it raises for "no solution" is
    `ConcertoSafetyInfeasible`. Its answers are refined and judged like all others.

    Args:
        solver: The other solver.
    """

    def __init__(self, solver: Any) -> None:
        self._solver = solver
        self.name: str = str(getattr(solver, "name", type(solver).__name__))

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return its answer, with the rows that are tight there as the active ones."""
        G, h = problem.G, problem.h
        try:
            x, _ = self._solver.solve(problem.P, problem.q, G, h, warm_start=warm_start)
        except ConcertoSafetyInfeasible:
            return Guess(problem.q, np.zeros(h.shape), SolveStatus.INFEASIBLE, 0)
        x = np.asarray(x, dtype=np.float64)
        tight = h - G @ x <= _TIGHT * (1.0 + np.abs(h))
        return Guess(x, np.where(tight, 1.0, 0.0), SolveStatus.OPTIMAL, 0)


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


def _refined(problem: DenseProblem, guess: Guess) -> FloatArray | None:
    """Return the optimum if the guess leads to one; one that ran out of iterations may, too."""
    if guess.status not in (SolveStatus.OPTIMAL, SolveStatus.MAX_ITER):
        return None
    if not (np.all(np.isfinite(guess.x)) and np.all(np.isfinite(guess.multipliers))):
        return None
    return refine(problem, guess.x, guess.multipliers)


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

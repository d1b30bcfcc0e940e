"""Solvers of the filters' optimization problems: closed form, DAQP, and others by qpsolvers.

Problem:   min 1/2 x^T P x + q^T x   subject to   A x <= b,  lower <= x <= upper
Here:      P positive definite; mostly P = I, q = -u, the projection of a nominal action u.
Promise:   an answer called optimal meets every row to `RESIDUAL_TOLERANCE`, relative to |b|,
           whatever its method says about itself; anything else carries a status that says why.
DAQP:      dual active set; Arnstroem, Bemporad and Axehill, doi:10.1109/TAC.2022.3176430.
quadprog:  dual active set; Goldfarb and Idnani, doi:10.1007/BF02591962.
Clarabel:  interior point; Goulart and Chen, arXiv:2405.12762.
PIQP:      proximal interior point; Schwan, Jiang, Kuhn and Jones, arXiv:2304.00290.
OSQP:      operator splitting; Stellato et al., arXiv:1711.08013. Its polishing prints from C
           whatever the verbosity, so it stays off.
Axes:      n variables, m rows.
Adding one: its class, one line in `_CLASSES`, then the contract tests of the registered solvers.
"""

import contextlib
import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, cast, runtime_checkable

import daqp
import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError
from cadenza.core.extras import load_extra
from cadenza.safety.closed_form import ROUNDING, project_one_row, project_two_rows
from cadenza.safety.errors import ConcertoSafetyInfeasible

__all__ = [
    "RESIDUAL_TOLERANCE",
    "ROUNDING",
    "SUPPORTED_SOLVERS",
    "AutoSolver",
    "ClarabelSolver",
    "ClosedFormSolver",
    "DaqpSolver",
    "OSQPSolver",
    "PIQPSolver",
    "QPSolution",
    "QPSolver",
    "QuadprogSolver",
    "SolveStatus",
    "as_solver",
    "largest_residual",
    "make_solver",
    "project_one_row",
]

#: Largest accepted row residual over 1 + |b|. Active-set answers reach 1e-14.
RESIDUAL_TOLERANCE: Final = 1e-9
#: Bound of a variable that has none; anything beyond it means none as well.
UNBOUNDED: Final = 1e30
#: Tolerance of DAQP; its own default of 1e-6 would let rows be violated by that much.
_DAQP_TOLERANCE: Final = 1e-12


class SolveStatus(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    MAX_ITER = "max_iter"
    NUMERICAL = "numerical"
    BAD_INPUT = "bad_input"


#: Exit flags of DAQP that have a name here; every other one is a numerical failure.
_DAQP_STATUS: Final = {
    1: SolveStatus.OPTIMAL,
    -1: SolveStatus.INFEASIBLE,
    -4: SolveStatus.MAX_ITER,
    -5: SolveStatus.BAD_INPUT,  # the cost is not convex
}
#: What packages are told beside the problem: to come closer than their defaults of about 1e-8.
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "clarabel": {  # one thread: the same bits on every machine
        **dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12),
        "max_threads": 1,
    },
    "piqp": dict.fromkeys(
        ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"), 1e-12
    ),
    "osqp": {
        **dict.fromkeys(("eps_abs", "eps_rel"), 1e-11),
        "max_iter": 50_000,
        "polishing": False,
        "raise_error": False,
    },
}
#: Distance to a row, over 1 + |b|, within which a near answer counts as on it; a row too many only
#: costs time.
_TIGHT: Final = 1e-4
#: What another method may still settle; infeasible problems and bad numbers stay what they are.
_WORTH_ANOTHER: Final = (SolveStatus.MAX_ITER, SolveStatus.NUMERICAL)


@dataclass(frozen=True, slots=True, eq=False)
class QPSolution:
    """Answer of one solve.

    Attributes:
        x: Minimizer, shape (n,); meaningful only when ``status`` is OPTIMAL.
        status: How the solve ended.
        iterations: Iterations the solver reports; 0 where it reports none.
        residual: Largest (A x - b) / (1 + |b|); NaN when no answer was judged.
    """

    x: FloatArray
    status: SolveStatus
    iterations: int
    residual: float = math.nan


@runtime_checkable
class QPSolver(Protocol):
    """Solves one strictly convex quadratic program."""

    #: Name in the registry.
    name: str

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
        """Return the minimizer, or why there is none.

        Args:
            P: Cost, positive definite: its diagonal, shape (n,), or symmetric, shape (n, n).
            q: Linear cost, shape (n,).
            A: Rows, shape (m, n); m may be 0.
            b: Right-hand sides, shape (m,).
            lower: Lower bounds, shape (n,); -`UNBOUNDED` for none.
            upper: Upper bounds, shape (n,); `UNBOUNDED` for none.
            warm_start: Start from what the last problem of this shape left behind, where the
                method can; the default forgets it, so an answer depends on its problem only.

        Raises:
            InputError: Shapes that do not fit each other, or a problem the method cannot take.
        """
        ...

    def solve(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        *,
        warm_start: bool = True,
    ) -> tuple[FloatArray, float]:
        """Return the minimizer without bounds on the variables, and the time of the solve, ms."""
        ...


class SolverBase(QPSolver):
    """The part of `QPSolver` that every solver shares: `solve` on top of `run`."""

    def solve(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        *,
        warm_start: bool = True,
    ) -> tuple[FloatArray, float]:
        """Return the minimizer, shape (n,), and the milliseconds of the solve; see `QPSolver`.

        Raises:
            InputError: Shapes that do not fit each other.
            ConcertoSafetyInfeasible: No accepted solution; the message ends with the status.
        """
        cost, linear, rows, levels = (
            np.asarray(real_array(f"solve: {name}", values), dtype=np.float64)
            for name, values in (("P", P), ("q", q), ("A", A), ("b", b))
        )
        fits = linear.ndim == levels.ndim == 1 and rows.shape == levels.shape + linear.shape
        if not (fits and cost.shape in (linear.shape, linear.shape * 2)):
            raise InputError(
                "solve: expected P (n, n) or (n,), q (n,), A (m, n) and b (m,), got "
                f"{cost.shape}, {linear.shape}, {rows.shape} and {levels.shape}."
            )
        free = np.full(linear.shape, UNBOUNDED)
        started = time.perf_counter()
        solution = self.run(cost, linear, rows, levels, -free, free, warm_start=warm_start)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        if solution.status is not SolveStatus.OPTIMAL:
            raise ConcertoSafetyInfeasible(
                f"{self.name}: expected a solution, got none; use the braking fallback for this "
                f"step. Status: {solution.status.value}"
            )
        return solution.x, elapsed_ms


def largest_residual(A: FloatArray, b: FloatArray, x: FloatArray) -> float:
    """Return max over rows of (A x - b) / (1 + |b|); -inf without rows, NaN if x is."""
    if b.shape[0] == 0:
        return -math.inf
    return float(np.maximum.reduce((A @ x - b) / (1.0 + np.abs(b))))


def _failure(n: int, status: SolveStatus, iterations: int = 0) -> QPSolution:
    """Return the answer of a solve that found no point of n variables."""
    return QPSolution(np.full(n, np.nan), status, iterations)


def _judged(
    x: FloatArray,
    A: FloatArray,
    b: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    iterations: int,
) -> QPSolution:
    """Return ``x``, clipped to its bounds to the last bit, as optimal if it meets every row."""
    x = np.minimum(np.maximum(x, lower), upper)
    residual = largest_residual(A, b, x)
    # written this way round so that NaN fails too
    status = SolveStatus.OPTIMAL if residual <= RESIDUAL_TOLERANCE else SolveStatus.NUMERICAL
    return QPSolution(x, status, iterations, residual)


def _is_finite(*arrays: FloatArray) -> bool:
    """Return whether every entry is finite; sums that overflow count as not finite."""
    return math.isfinite(sum(float(array.sum()) for array in arrays))


class ClosedFormSolver(SolverBase):
    """Exact answers to the problems that have one in closed form; no memory between calls."""

    name = "closed_form"

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
        """Return the minimizer; see `QPSolver.run`.

        Raises:
            InputError: A problem without a closed form: a cost that is not diagonal, two rows
                with bounds, or more rows.
        """
        del warm_start  # nothing is iterated
        n, m = q.shape[0], b.shape[0]
        weights = P if P.ndim == 1 else np.diagonal(P)
        if P.ndim == 2 and np.count_nonzero(P - np.diag(weights)):
            raise InputError(
                "closed_form: expected a diagonal cost, got a full matrix; use make_solver('auto')."
            )
        bounded = bool(np.any(np.abs(lower) < UNBOUNDED) or np.any(np.abs(upper) < UNBOUNDED))
        if m > 2 or (m == 2 and bounded):
            raise InputError(
                "closed_form: expected one row with bounds or two rows without, got "
                f"{m} rows {'with' if bounded else 'without'} bounds; use make_solver('auto')."
            )
        if not _is_finite(weights, q, A, b, lower, upper) or not bool(np.all(weights > 0.0)):
            return _failure(n, SolveStatus.BAD_INPUT)
        if bool(np.any(lower > upper)):
            return _failure(n, SolveStatus.INFEASIBLE)
        scale = np.sqrt(weights)  # in the variables scale * x the cost is a distance
        u: list[float] = (-q / scale).tolist()
        rows: list[list[float]] = (A / scale).tolist()
        levels: list[float] = b.tolist()
        if m == 2:
            x, feasible = project_two_rows(u, rows, levels)
        else:
            row, level = (rows[0], levels[0]) if rows else ([0.0] * n, 0.0)
            low: list[float] = (lower * scale).tolist()
            high: list[float] = (upper * scale).tolist()
            x, feasible = project_one_row(u, row, level, low, high)
        if not feasible:
            return _failure(n, SolveStatus.INFEASIBLE)
        return _judged(np.array(x) / scale, A, b, lower, upper, iterations=0)


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
        """Return the minimizer; see `QPSolver.run`."""
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
        self._model = cast("Any", daqp).Model()  # it ships no types
        # Any feasible problem will do: setup refuses to allocate for one it finds infeasible.
        ones, sense = np.ones(n + m), np.zeros(n + m, dtype=np.int32)
        self._model.setup(np.eye(n), np.zeros(n), np.ones((m, n)), ones, -ones, sense)
        self._model.settings = {"primal_tol": _DAQP_TOLERANCE, "dual_tol": _DAQP_TOLERANCE}

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
            return _failure(n, SolveStatus.BAD_INPUT)
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
            return _failure(n, _DAQP_STATUS.get(refused, SolveStatus.NUMERICAL))
        answer: tuple[FloatArray, float, int, dict[str, Any]] = self._model.solve()
        x, _, flag, info = answer
        status = _DAQP_STATUS.get(flag, SolveStatus.NUMERICAL)
        iterations = int(info["iterations"])
        if status is SolveStatus.OPTIMAL:
            return _judged(x, A, b, lower, upper, iterations)
        return QPSolution(x, status, iterations)


class _StackingSolver(SolverBase):
    """A method that takes bounds as rows: min 1/2 x^T P x + q^T x subject to G x <= h.

    One that stops near the optimum says which rows are tight there. DAQP finds the optimum under
    these alone; where it meets the other rows, too, it is the optimum under all of them.
    """

    #: Its answers need no DAQP.
    _exact = False

    def __init__(self) -> None:
        self._daqp = DaqpSolver()

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
        """Return the minimizer; see `QPSolver.run`."""
        n = q.shape[0]
        shapes = (A.shape, lower.shape, upper.shape)
        if shapes != ((b.shape[0], n), (n,), (n,)) or P.shape not in ((n,), (n, n)):
            raise InputError(
                f"run: expected P, A, b, lower and upper to fit q {q.shape}, got {P.shape}, "
                f"{A.shape}, {b.shape}, {lower.shape} and {upper.shape}."
            )
        cost = np.diag(P) if P.ndim == 1 else P
        if not (_is_finite(P, q, A, b, lower, upper) and np.linalg.eigvalsh(cost)[0] > 0.0):
            return _failure(n, SolveStatus.BAD_INPUT)
        above, below, unit = upper < UNBOUNDED, lower > -UNBOUNDED, np.eye(n)
        G = np.concatenate([A, unit[above], -unit[below]])
        h = np.concatenate([b, upper[above], -lower[below]])
        if not h.size:  # nothing constrains x
            x = np.asarray(np.linalg.solve(cost, -q), dtype=np.float64)
            return QPSolution(x, SolveStatus.OPTIMAL, 0, -math.inf)
        x, status, iterations = self._stacked(cost, q, G, h, warm_start)
        if status is not SolveStatus.OPTIMAL:
            return _failure(n, status, iterations)
        if not self._exact:
            tight = A @ x - b >= -_TIGHT * (1.0 + np.abs(b))
            near = self._daqp.run(cost, q, A[tight], b[tight], lower, upper)
            x = near.x if near.status is SolveStatus.OPTIMAL and np.isfinite(x).all() else x
        return _judged(x, A, b, lower, upper, iterations)

    @abstractmethod
    def _stacked(
        self, P: FloatArray, q: FloatArray, G: FloatArray, h: FloatArray, warm_start: bool
    ) -> tuple[FloatArray, SolveStatus, int]:
        """Return the minimizer, how the solve ended, and its iterations; there is a row."""


class _LibrarySolver(_StackingSolver):
    """A solver of another package, called through qpsolvers and set up anew on every call.

    A warm start begins at the last answer of that shape; only OSQP can use it.

    Raises:
        MissingExtraError: The package or qpsolvers is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        load_extra(self.name)
        self._qpsolvers: Any = load_extra("qpsolvers")
        self._last: dict[tuple[int, ...], FloatArray] = {}

    def _stacked(
        self, P: FloatArray, q: FloatArray, G: FloatArray, h: FloatArray, warm_start: bool
    ) -> tuple[FloatArray, SolveStatus, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # qpsolvers warns of what the status says
            answer: Any = self._qpsolvers.solve_problem(
                self._qpsolvers.Problem(P, q, G, h),
                self.name,
                initvals=self._last.get(G.shape) if warm_start else None,
                **_OPTIONS.get(self.name, {}),
            )
        info: Any = answer.extras.get("info")
        iterations = answer.extras.get("iterations", [getattr(info, "iter", 0)])[0]
        if answer.found:
            status, self._last[G.shape] = SolveStatus.OPTIMAL, answer.x
        else:
            said = str(answer.extras.get("status", getattr(info, "status", "primal"))).lower()
            known = {"primal": SolveStatus.INFEASIBLE, "max": SolveStatus.MAX_ITER}
            status = next((s for word, s in known.items() if word in said), SolveStatus.NUMERICAL)
        return answer.x, status, int(iterations)


class QuadprogSolver(_LibrarySolver):
    """quadprog, exact to rounding."""

    name = "quadprog"
    _exact = True


class ClarabelSolver(_LibrarySolver):
    """Clarabel, an interior-point method."""

    name = "clarabel"


class PIQPSolver(_LibrarySolver):
    """PIQP, an interior-point method."""

    name = "piqp"


class OSQPSolver(_LibrarySolver):
    """OSQP, an operator-splitting method. Not safe to share between threads."""

    name = "osqp"


class _SolveOnly(_StackingSolver):
    """A foreign solver that offers ``solve(P, q, A, b, *, warm_start) -> (x, ms)`` only.

    What it raises for "no solution" is `ConcertoSafetyInfeasible`.
    """

    def __init__(self, solver: Any) -> None:
        super().__init__()
        self._solver = solver
        self.name: str = str(getattr(solver, "name", type(solver).__name__))

    def _stacked(
        self, P: FloatArray, q: FloatArray, G: FloatArray, h: FloatArray, warm_start: bool
    ) -> tuple[FloatArray, SolveStatus, int]:
        try:
            x, _ = self._solver.solve(P, q, G, h, warm_start=warm_start)
        except ConcertoSafetyInfeasible:
            return q, SolveStatus.INFEASIBLE, 0
        return np.asarray(x, dtype=np.float64), SolveStatus.OPTIMAL, 0


def as_solver(solver: object) -> QPSolver:
    """Return ``solver`` as a `QPSolver`: as it is, with its bounds as rows, or DAQP for None.

    Raises:
        ConfigurationError: It offers neither ``run`` nor ``solve``.
    """
    if solver is None:
        return DaqpSolver()
    if callable(getattr(solver, "run", None)):
        return cast("QPSolver", solver)
    if callable(getattr(solver, "solve", None)):
        return _SolveOnly(solver)
    raise ConfigurationError(
        f"solver: expected a QPSolver or None, got {type(solver).__name__}; take one from "
        "cadenza.safety.solvers.make_solver(name), or offer solve(P, q, A, b, *, warm_start)."
    )


class AutoSolver(SolverBase):
    """Closed form for one row, else DAQP; quadprog and Clarabel, if installed, when it fails.

    Not safe to share between threads.
    """

    name = "auto"

    def __init__(self) -> None:
        self._closed_form = ClosedFormSolver()
        self._daqp: QPSolver = DaqpSolver()
        #: Built once they are needed.
        self._fallbacks: list[QPSolver] | None = None

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
        """Return the first answer that no method can better, else DAQP's; see `QPSolver.run`."""
        problem = P, q, A, b, lower, upper
        if P.ndim == 1 and b.shape[0] <= 1:
            solution = self._closed_form.run(*problem)
            if solution.status not in _WORTH_ANOTHER:
                return solution
        first = self._daqp.run(*problem, warm_start=warm_start)
        if first.status not in _WORTH_ANOTHER:
            return first
        if self._fallbacks is None:
            self._fallbacks = []
            for fallback in (QuadprogSolver, ClarabelSolver):
                with contextlib.suppress(MissingExtraError):
                    self._fallbacks.append(fallback())
        answers = (solver.run(*problem) for solver in self._fallbacks)
        return next((each for each in answers if each.status not in _WORTH_ANOTHER), first)


_CLASSES: Final[dict[str, Callable[[], QPSolver]]] = {
    "auto": AutoSolver,
    "closed_form": ClosedFormSolver,
    "daqp": DaqpSolver,
    "quadprog": QuadprogSolver,
    "piqp": PIQPSolver,
    "clarabel": ClarabelSolver,
    "osqp": OSQPSolver,
}

#: Names `make_solver` takes.
SUPPORTED_SOLVERS: Final = tuple(_CLASSES)


def make_solver(name: str) -> QPSolver:
    """Return a fresh solver.

    Args:
        name: One of `SUPPORTED_SOLVERS`.

    Raises:
        ConfigurationError: Another name.
        MissingExtraError: Its library is not installed.
    """
    if not isinstance(cast("object", name), str) or name not in _CLASSES:
        raise ConfigurationError(
            f"Unknown solver {name!r}: expected one of {', '.join(SUPPORTED_SOLVERS)}."
        )
    return _CLASSES[name]()

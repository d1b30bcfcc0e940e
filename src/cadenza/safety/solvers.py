"""Solvers of the filters' optimization problems: closed form, DAQP, and others by qpsolvers.

Problem:   min 1/2 x^T P x + q^T x   subject to   A x <= b,  lower <= x <= upper
Here:      P positive definite; mostly P = I, q = -u, the projection of a nominal action u.
Promise:   an answer called optimal meets every row to `RESIDUAL_TOLERANCE`, relative to |b|,
           whatever its method says about itself; anything else carries a status that says why.
One row:   min |x - u|^2   subject to   a @ x <= b,  lower <= x <= upper
           Search over the breakpoints of a piecewise linear function; no tolerance, no limit.
Two rows:  min |x - u|^2   subject to   a_1 @ x <= b_1,  a_2 @ x <= b_2
           One of four sets of active rows satisfies the optimality conditions.
Metric:    for (x - u)^T W (x - u) with W diagonal, scale component k by sqrt(W_k) first.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

import daqp
import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError
from cadenza.core.extras import load_extra
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
#: Relative shortfall that is rounding of the sums, not a violated row.
ROUNDING: Final = 1e-12
#: Squared sine of the angle between two rows below which they count as parallel: float64 leaves
#: the directions of unit vectors uncertain by about 1e-16 each.
_PARALLEL: Final = 1e-30
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


def largest_residual(A: FloatArray, b: FloatArray, x: FloatArray) -> float:
    """Return max over rows of (A x - b) / (1 + |b|); -inf without rows, NaN if x is."""
    if b.shape[0] == 0:
        return -math.inf
    return float(np.maximum.reduce((A @ x - b) / (1.0 + np.abs(b))))


class _Problem(NamedTuple):
    """One problem, as `QPSolver.run` takes it; what a solver sees has been checked."""

    P: FloatArray
    q: FloatArray
    A: FloatArray
    b: FloatArray
    lower: FloatArray
    upper: FloatArray

    def judged(self, x: FloatArray, iterations: int = 0) -> QPSolution:
        """Return ``x``, clipped to its bounds to the last bit, as optimal if it meets every row."""
        x = np.minimum(np.maximum(x, self.lower), self.upper)
        residual = largest_residual(self.A, self.b, x)
        # written this way round so that NaN fails too
        status = SolveStatus.OPTIMAL if residual <= RESIDUAL_TOLERANCE else SolveStatus.NUMERICAL
        return QPSolution(x, status, iterations, residual)

    def failed(self, status: SolveStatus, iterations: int = 0) -> QPSolution:
        """Return the answer of a solve that found no point."""
        return QPSolution(np.full(self.q.shape, np.nan), status, iterations)


class SolverBase(QPSolver):
    """What every solver shares: the door, which checks a problem once, and `solve`."""

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
        """Return the minimizer, or why there is none; see `QPSolver.run`."""
        fits = A.shape == b.shape + q.shape and lower.shape == upper.shape == q.shape
        if not fits or P.shape not in (q.shape, q.shape * 2):
            raise InputError(
                f"run: expected P, A, b, lower and upper to fit q {q.shape}, got {P.shape}, "
                f"{A.shape}, {b.shape}, {lower.shape} and {upper.shape}."
            )
        problem = _Problem(P, q, A, b, lower, upper)
        # NaN compares false everywhere inside a solver, which may then call it optimal. A finite
        # sum of squares proves finite entries; only overflow needs the slow look.
        total = q.dot(q) + b.dot(b) + lower.dot(lower) + upper.dot(upper)
        total += np.vdot(A, A) + np.vdot(P, P)
        if not math.isfinite(total) and not all(np.isfinite(each).all() for each in problem):
            return problem.failed(SolveStatus.BAD_INPUT)
        return self._run(problem, warm_start)

    @abstractmethod
    def _run(self, problem: _Problem, warm_start: bool) -> QPSolution:
        """Return the minimizer of a problem whose numbers are finite and fit each other."""

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


def project_one_row(
    u: Sequence[float],
    a: Sequence[float],
    b: float,
    lower: Sequence[float],
    upper: Sequence[float],
) -> tuple[list[float], bool]:
    """Return the point of the box closest to ``u`` with ``a @ x <= b``.

    x(mu) = clip(u - mu a) with the smallest mu >= 0 that meets the row; a @ x(mu) falls
    piecewise linearly, so mu lies on the segment between two breakpoints and is exact.

    Returns:
        The projection and True; or, when no point of the box meets the row, the point of the
        box with the smallest ``a @ x`` closest to ``u``, and False.
    """
    if len(a) == 2:  # a sum of two is exact but for its last bit, as `fsum` is
        (u_0, u_1), (a_0, a_1), (low_0, low_1), (high_0, high_1) = u, a, lower, upper
        if low_0 <= u_0 <= high_0 and low_1 <= u_1 <= high_1:
            value, slope = a_0 * u_0 + a_1 * u_1 - b, a_0 * a_0 + a_1 * a_1
            if value > 0.0 < slope:
                mu = value / slope
                x_0, x_1 = u_0 - mu * a_0, u_1 - mu * a_1
                if low_0 < x_0 < high_0 and low_1 < x_1 < high_1:
                    return [x_0, x_1], True  # the box plays no part: no breakpoint to be sorted
        x = [
            low_0 if low_0 > u_0 else high_0 if high_0 < u_0 else u_0,
            low_1 if low_1 > u_1 else high_1 if high_1 < u_1 else u_1,
        ]
        value = a_0 * x[0] + a_1 * x[1] - b
    else:
        x = [min(max(u_k, low), high) for u_k, low, high in zip(u, lower, upper, strict=True)]
        value = math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)]) - b
        inner = _project_inside(x, a, value, lower, upper) if x == list(u) else None
        if inner is not None:
            return inner, True
    if value <= 0.0:
        return x, True
    # Component k moves while mu is between the two breakpoints of its clip.
    events: list[tuple[float, float]] = []
    slope = 0.0
    for u_k, a_k, low, high in zip(u, a, lower, upper, strict=True):
        if a_k == 0.0:
            continue
        near, far = (high, low) if a_k > 0.0 else (low, high)
        starts, ends = (u_k - near) / a_k, (u_k - far) / a_k
        if ends <= 0.0:
            continue
        if starts <= 0.0:
            slope += a_k * a_k
        else:
            events.append((starts, a_k * a_k))
        events.append((ends, -a_k * a_k))
    events.sort()
    mu = 0.0
    for position, change in events:
        drop = slope * (position - mu)
        if drop >= value:
            break
        value -= drop
        mu = position
        slope += change
    else:  # every component has reached its far bound
        corner = [
            low if a_k > 0.0 else high if a_k < 0.0 else x_k
            for a_k, x_k, low, high in zip(a, x, lower, upper, strict=True)
        ]
        return corner, value <= ROUNDING * (1.0 + abs(b))
    mu += value / slope
    moved = [u_k - mu * a_k for u_k, a_k in zip(u, a, strict=True)]
    return [
        low if low > x_k else high if high < x_k else x_k  # compared: shorter than min() and max()
        for x_k, low, high in zip(moved, lower, upper, strict=True)
    ], True


def _project_inside(
    u: list[float], a: Sequence[float], value: float, lower: Sequence[float], upper: Sequence[float]
) -> list[float] | None:
    """Return the answer if the box plays no part in it, else None: no breakpoint has to be sorted.

    ``u`` lies in the box and misses the row by ``value``.
    """
    slope = 0.0
    for a_k in a:
        slope += a_k * a_k
    if slope == 0.0 or value <= 0.0:
        return None
    mu = value / slope
    x = [u_k - mu * a[k] for k, u_k in enumerate(u)]
    for k, x_k in enumerate(x):
        if not lower[k] < x_k < upper[k]:
            return None
    return x


def project_two_rows(
    u: Sequence[float], a: Sequence[Sequence[float]], b: Sequence[float]
) -> tuple[list[float], bool]:
    """Return the point closest to ``u`` that meets two rows, without bounds.

    With unit rows, residuals r_j = a_j @ u - b_j and c = a_1 @ a_2, the candidates are u,
    u - r_1 a_1, u - r_2 a_2, and u - y_1 a_1 - y_2 a_2 with (1 - c^2) y_1 = r_1 - c r_2. The
    first that meets both rows with y >= 0 is the answer.

    Args:
        u: Nominal point, n numbers.
        a: Two rows of n numbers.
        b: Two right-hand sides.

    Returns:
        The projection and True; or, when no point meets both rows, ``u`` and False.
    """
    point = list(u)
    rows: list[tuple[list[float], float]] = []
    for row, level in zip(a, b, strict=True):
        length = math.hypot(*row)
        if length > 0.0:
            rows.append(([a_k / length for a_k in row], level / length))
        elif level < 0.0:  # 0 @ x <= b with b < 0
            return point, False
    residuals = [_dot(row, point) - level for row, level in rows]
    room = [ROUNDING * (1.0 + abs(level)) for _, level in rows]
    if all(residual <= 0.0 for residual in residuals):
        return point, True
    if len(rows) == 1:
        return _moved(point, rows[0][0], residuals[0]), True
    (first, _), (second, _) = rows
    c = _dot(first, second)
    if residuals[0] > 0.0 and residuals[1] - c * residuals[0] <= room[1]:
        return _moved(point, first, residuals[0]), True
    if residuals[1] > 0.0 and residuals[0] - c * residuals[1] <= room[0]:
        return _moved(point, second, residuals[1]), True
    # The part of the second row that is orthogonal to the first; its square is 1 - c^2 without
    # the cancellation.
    across = [s_k - c * f_k for f_k, s_k in zip(first, second, strict=True)]
    sine_squared = _dot(across, across)
    if sine_squared < _PARALLEL:
        return point, False
    y_second = (residuals[1] - c * residuals[0]) / sine_squared
    return _moved(_moved(point, first, residuals[0]), across, y_second), True


def _dot(a: Sequence[float], x: Sequence[float]) -> float:
    return math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)])


def _moved(u: list[float], direction: list[float], length: float) -> list[float]:
    """Return u - length * direction."""
    return [u_k - length * d_k for u_k, d_k in zip(u, direction, strict=True)]


class ClosedFormSolver(SolverBase):
    """Exact answers to the problems that have one in closed form; no memory between calls.

    InputError for others: a cost that is not diagonal, two rows with bounds, or more rows.
    """

    name = "closed_form"

    def _run(self, problem: _Problem, warm_start: bool) -> QPSolution:
        del warm_start  # nothing is iterated
        P, q, A, b, lower, upper = problem
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
        if not bool(np.all(weights > 0.0)):
            return problem.failed(SolveStatus.BAD_INPUT)
        if bool(np.any(lower > upper)):
            return problem.failed(SolveStatus.INFEASIBLE)
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
            return problem.failed(SolveStatus.INFEASIBLE)
        return problem.judged(np.array(x) / scale)


class DaqpSolver(SolverBase):
    """DAQP with one workspace per problem shape.

    By default the active set starts empty on every call, so an answer depends on its own problem
    only and a resumed run repeats an unbroken one bit for bit; ``warm_start=True`` continues from
    the active set of the last problem of that shape. Not safe to share between threads.
    """

    name = "daqp"

    def __init__(self) -> None:
        self._workspaces: dict[tuple[int, ...], _Workspace] = {}

    def _run(self, problem: _Problem, warm_start: bool) -> QPSolution:
        workspace = self._workspaces.get(problem.A.shape)
        if workspace is None:
            workspace = self._workspaces[problem.A.shape] = _Workspace(*problem.A.shape)
        return workspace.solve(problem, warm_start)


class _Workspace:
    """Arrays and solver memory for one shape; simple bounds come first, as DAQP wants them."""

    def __init__(self, m: int, n: int) -> None:
        self._P = np.eye(n)
        self._diagonal = np.einsum("ii->i", self._P)
        self._upper = np.zeros(n + m)
        self._lower = np.full(n + m, -UNBOUNDED)
        self._cold = np.zeros(n + m, dtype=np.int32)
        self._model = cast("Any", daqp).Model()  # it ships no types
        # Any feasible problem will do: setup refuses to allocate for one it finds infeasible.
        ones, sense = np.ones(n + m), np.zeros(n + m, dtype=np.int32)
        self._model.setup(np.eye(n), np.zeros(n), np.ones((m, n)), ones, -ones, sense)
        self._model.settings = {"primal_tol": _DAQP_TOLERANCE, "dual_tol": _DAQP_TOLERANCE}

    def solve(self, problem: _Problem, warm_start: bool) -> QPSolution:
        P, q, A, b, lower, upper = problem
        n = q.shape[0]
        self._upper[:n] = upper
        self._upper[n:] = b
        self._lower[:n] = lower
        if P.ndim == 1:
            self._diagonal[:] = P
            cost = self._P
        else:
            cost = np.ascontiguousarray(P)
        # An explicit cold start: without it DAQP continues from the last active set.
        sense = None if warm_start else self._cold
        rows = A if A.shape[0] else None
        refused: int = self._model.update(cost, q, rows, self._upper, self._lower, sense)
        if refused < 0:  # found while reading the data; `solve` would repeat the last problem
            return problem.failed(_DAQP_STATUS.get(refused, SolveStatus.NUMERICAL))
        answer: tuple[FloatArray, float, int, dict[str, Any]] = self._model.solve()
        x, _, flag, info = answer
        status = _DAQP_STATUS.get(flag, SolveStatus.NUMERICAL)
        iterations = int(info["iterations"])
        if status is SolveStatus.OPTIMAL:
            return problem.judged(x, iterations)
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

    def _run(self, problem: _Problem, warm_start: bool) -> QPSolution:
        P, q, A, b, lower, upper = problem
        cost = np.diag(P) if P.ndim == 1 else P
        if not np.linalg.eigvalsh(cost)[0] > 0.0:
            return problem.failed(SolveStatus.BAD_INPUT)
        above, below, unit = upper < UNBOUNDED, lower > -UNBOUNDED, np.eye(len(q))
        G = np.concatenate([A, unit[above], -unit[below]])
        h = np.concatenate([b, upper[above], -lower[below]])
        if not h.size:  # nothing constrains x
            return problem.judged(np.asarray(np.linalg.solve(cost, -q), dtype=np.float64))
        x, status, iterations = self._stacked(cost, q, G, h, warm_start)
        if status is not SolveStatus.OPTIMAL:
            return problem.failed(status, iterations)
        if not self._exact and np.isfinite(x).all():
            tight = A @ x - b >= -_TIGHT * (1.0 + np.abs(b))
            near = self._daqp.run(cost, q, A[tight], b[tight], lower, upper)
            x = near.x if near.status is SolveStatus.OPTIMAL else x
        return problem.judged(x, iterations)

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

    def _run(self, problem: _Problem, warm_start: bool) -> QPSolution:
        """Return the first answer that no method can better, else DAQP's."""
        if problem.P.ndim == 1 and problem.b.shape[0] <= 1:
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

"""What a solver of the filters' optimisation problems takes and returns.

Problem:   min 1/2 x^T P x + q^T x   subject to   A x <= b,  lower <= x <= upper
Here:      P positive definite; mostly P = I, q = -u, the projection of a nominal action u.
Axes:      n variables, m rows.
Accepting: a solution counts only if every row is met to `RESIDUAL_TOLERANCE`, relative to |b|,
           whatever the solver says about itself.
"""

import math
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, runtime_checkable

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_array
from cadenza.core.errors import InputError
from cadenza.safety.errors import ConcertoSafetyInfeasible

#: Largest accepted row residual over 1 + |b|. Active-set answers reach 1e-14; interior-point ones
#: about 1e-8, which this refuses.
RESIDUAL_TOLERANCE: Final = 1e-9
#: Relative shortfall that is rounding of the sums, not a violated row.
ROUNDING: Final = 1e-12
#: Bound of a variable that has none; anything beyond it means none as well.
UNBOUNDED: Final = 1e30


class SolveStatus(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    MAX_ITER = "max_iter"
    NUMERICAL = "numerical"
    BAD_INPUT = "bad_input"


@dataclass(frozen=True, slots=True, eq=False)
class QPSolution:
    """Answer of one solve.

    Attributes:
        x: Minimiser, shape (n,); meaningful only when ``status`` is OPTIMAL.
        status: How the solve ended.
        iterations: Iterations the solver reports.
        residual: Largest (A x - b) / (1 + |b|); NaN when no answer was judged.
    """

    x: FloatArray
    status: SolveStatus
    iterations: int
    residual: float = math.nan


@runtime_checkable
class QPSolver(Protocol):
    """Solves one strictly convex quadratic programme."""

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
        """Return the minimiser, or why there is none.

        Args:
            P: Cost, positive definite: its diagonal, shape (n,), or symmetric, shape (n, n).
            q: Linear cost, shape (n,).
            A: Rows, shape (m, n); m may be 0.
            b: Right-hand sides, shape (m,).
            lower: Lower bounds, shape (n,); -`UNBOUNDED` for none.
            upper: Upper bounds, shape (n,); `UNBOUNDED` for none.
            warm_start: Start from what the last problem of this shape left behind, where the
                method can; the default forgets it, so an answer depends on its problem only.
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
        """Return the minimiser without bounds on the variables, and the time of the solve, ms."""
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
        """Return the minimiser, shape (n,), and the milliseconds of the solve; see `QPSolver`.

        Raises:
            InputError: Shapes that do not fit each other.
            ConcertoSafetyInfeasible: No accepted solution; the message ends with the status.
        """
        cost, linear, rows, levels = (
            np.asarray(real_array(f"solve: {name}", values), dtype=np.float64)
            for name, values in (("P", P), ("q", q), ("A", A), ("b", b))
        )
        _require_shapes(cost, linear, rows, levels)
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


def failure(n: int, status: SolveStatus, iterations: int = 0) -> QPSolution:
    """Return the answer of a solve that found no point of n variables."""
    return QPSolution(np.full(n, np.nan), status, iterations)


def judged(
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


def is_finite(*arrays: FloatArray) -> bool:
    """Say whether every entry is finite; sums that overflow count as not finite."""
    return math.isfinite(sum(float(array.sum()) for array in arrays))


def _require_shapes(P: FloatArray, q: FloatArray, A: FloatArray, b: FloatArray) -> None:
    """Raise InputError unless the shapes are ((n, n) or (n,)), (n,), (m, n) and (m,)."""
    fits = q.ndim == 1 and b.ndim == 1 and A.shape == (b.shape[0], q.shape[0])
    if not (fits and P.shape in (q.shape, q.shape * 2)):
        raise InputError(
            "solve: expected P (n, n) or (n,), q (n,), A (m, n) and b (m,), got "
            f"{P.shape}, {q.shape}, {A.shape} and {b.shape}."
        )

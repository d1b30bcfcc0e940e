"""Projections onto linear rows and a box: the optimisation problems of the filters.

Problem:   min 1/2 x^T P x + q^T x   subject to   A x <= b,  lower <= x <= upper
Here:      P diagonal and positive; mostly P = I, q = -u, the projection of a nominal action u.
Solvers:   `project_one_row` is exact for one row and a box (search over the breakpoints of a
           piecewise linear function; no iteration limit, no tolerance). `DaqpSolver` takes any
           number of rows (dual active set, doi:10.1109/TAC.2022.3176430).
Axes:      n variables, m rows.
Accepting: a solution counts only if every row is met to `RESIDUAL_TOLERANCE`, relative to |b|,
           whatever the solver says about itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, cast

import daqp
import numpy as np

from cadenza.core.arrays import FloatArray

#: Largest accepted row residual over 1 + |b|. Active-set answers reach 1e-14; interior-point ones
#: about 1e-8, which this refuses.
RESIDUAL_TOLERANCE: Final = 1e-9
#: Relative shortfall that is rounding of the sums, not a violated row.
ROUNDING: Final = 1e-12


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
    """

    x: FloatArray
    status: SolveStatus
    iterations: int


class QPSolver(Protocol):
    """Solves one quadratic programme with a diagonal cost."""

    def run(
        self,
        P_diagonal: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> QPSolution:
        """Return the minimiser; shapes (n,), (n,), (m, n), (m,), (n,), (n,)."""
        ...


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

    Args:
        u: Nominal point, n numbers.
        a: Row, n numbers.
        b: Right-hand side.
        lower: Lower bounds, n numbers.
        upper: Upper bounds, n numbers.

    Returns:
        The projection and True; or, when no point of the box meets the row, the point of the
        box with the smallest ``a @ x`` closest to ``u``, and False.
    """
    x = [min(max(u_k, low), high) for u_k, low, high in zip(u, lower, upper, strict=True)]
    value = math.fsum([a_k * x_k for a_k, x_k in zip(a, x, strict=True)]) - b
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
    return [
        min(max(u_k - mu * a_k, low), high)
        for u_k, a_k, low, high in zip(u, a, lower, upper, strict=True)
    ], True


def largest_residual(A: FloatArray, b: FloatArray, x: FloatArray) -> float:
    """Return max over rows of (A x - b) / (1 + |b|); -inf without rows, NaN if x is."""
    if b.shape[0] == 0:
        return -math.inf
    return float(np.max((A @ x - b) / (1.0 + np.abs(b))))


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

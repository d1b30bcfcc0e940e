"""What a solver of the filters' optimisation problems takes and returns.

Problem:   min 1/2 x^T P x + q^T x   subject to   A x <= b,  lower <= x <= upper
Here:      P positive definite; mostly P = I, q = -u, the projection of a nominal action u.
Axes:      n variables, m rows.
Accepting: a solution counts only if every row is met to `RESIDUAL_TOLERANCE`, relative to |b|,
           whatever the solver says about itself.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

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


def largest_residual(A: FloatArray, b: FloatArray, x: FloatArray) -> float:
    """Return max over rows of (A x - b) / (1 + |b|); -inf without rows, NaN if x is."""
    if b.shape[0] == 0:
        return -math.inf
    return float(np.max((A @ x - b) / (1.0 + np.abs(b))))

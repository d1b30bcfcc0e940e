"""From an approximate answer to an exact one, through the rows that are active at it.

Why:     interior-point and splitting methods stop about 1e-8 from the optimum, on either side of a
         row. Their multipliers say which rows are active; the optimum given those is a projection.
Method:  in the variables z = L^T x, with P = L L^T, the problem is the projection of z_0 = -L^-1 q
         on M z <= h, M = G L^-T. For a set W of active rows, z = z_0 - M_W^T y with
         M_W z = h_W. A row with y < 0 leaves W, the most violated row enters, until the
         Karush-Kuhn-Tucker conditions hold, which proves the optimum.
Axes:    n variables, k rows.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers.dense_problem import DenseProblem
from cadenza.safety.solvers.interface import ROUNDING

#: Changes of the active set beyond the number of rows before the attempt is given up.
_SPARE_CHANGES: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class _Projection:
    """Projection of z_0 on M z <= h, rows of unit length."""

    z_0: FloatArray
    M: FloatArray
    h: FloatArray

    def on(self, active: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """Return z with the active rows met exactly, (n,), and their multipliers, (k,)."""
        rows = self.M[active]
        shift = np.linalg.lstsq(rows, rows @ self.z_0 - self.h[active])[0]
        multipliers = np.zeros(self.h.shape[0])
        multipliers[active] = np.linalg.lstsq(rows.T, shift)[0]
        return self.z_0 - shift, multipliers


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
    active: NDArray[np.bool_] = multipliers * lengths > np.maximum(spare, 0.0)
    room = ROUNDING * (1.0 + np.abs(projection.h))
    for _ in range(problem.h.shape[0] + _SPARE_CHANGES):
        z, y = projection.on(active)
        if y.min(initial=0.0) < -ROUNDING * (1.0 + y.max(initial=0.0)):
            active[int(np.argmin(y))] = False
            continue
        excess = projection.M @ z - projection.h - room
        if excess.max(initial=0.0) <= 0.0:
            return _solved(problem.factor.T, z)
        entering = int(np.argmax(excess))
        if active[entering]:  # the active rows contradict each other
            return None
        active[entering] = True
    return None


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

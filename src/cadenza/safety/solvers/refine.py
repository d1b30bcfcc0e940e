"""From an approximate answer to an exact one, through the rows that are active at it.

Why:     interior-point and splitting methods stop about 1e-8 from the optimum, on either side of a
         row. Their multipliers say which rows are active; the optimum given those is a projection.
Method:  in the variables z = L^T x, with P = L L^T, the problem is the projection of z_0 = -L^-1 q
         on M z <= h, M = G L^-T. For a set W of independent active rows, z = z_0 - M_W^T y with
         M_W z = h_W. Rows with y < 0 leave W. Then violated rows enter one by one, as in the dual
         method of Goldfarb and Idnani, doi:10.1007/BF02591962, which ends in the optimum.
Axes:    n variables, k rows.
"""

import math
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers.dense_problem import DenseProblem
from cadenza.safety.solvers.interface import ROUNDING

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

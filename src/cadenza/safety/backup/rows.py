"""The point nearest to a wanted one that meets a few linear rows.

Problem:  min |z - target|^2  subject to  n_i @ z >= level_i, |n_i| = 1.
Method:   the worst row alone in closed form, and where that breaks another one, the solver.
Use:      the answer is a candidate: whoever executes it checks it first.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from cadenza.safety.backup.base import Vector, dot, moved
from cadenza.safety.solvers import UNBOUNDED, QPSolver, SolveStatus

#: A unit normal n and a level: n @ z >= level.
Row: TypeAlias = tuple[Vector, float]
#: Shortfall of a row that is rounding.
MET: Final = 1e-12
#: Added to a level that is not met, so that rounding does not leave the answer on its wrong side.
INSIDE: Final = 1e-9


def nearest(target: Vector, rows: Sequence[Row], solver: QPSolver) -> Vector | None:
    """Return the point nearest to ``target`` that meets all rows; None if none does."""
    worst, normal = _worst(target, rows)
    if worst <= MET:
        return target
    point = moved(target, normal, worst + INSIDE)
    if _worst(point, rows)[0] <= MET:
        return point
    size = len(target)
    free = np.full(size, UNBOUNDED)
    solution = solver.run(
        np.ones(size),
        -np.array(target),
        -np.array([n for n, _ in rows]),
        -np.array([level + INSIDE for _, level in rows]),
        -free,
        free,
    )
    if solution.status is not SolveStatus.OPTIMAL:
        return None
    return tuple(solution.x.tolist())


def _worst(point: Vector, rows: Sequence[Row]) -> tuple[float, Vector]:
    """Return the largest shortfall, and the normal of its row."""
    worst, normal = 0.0, point
    for n, level in rows:
        short = level - dot(n, point)
        if short > worst:
            worst, normal = short, n
    return worst, normal

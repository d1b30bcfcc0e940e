"""Time of one small solve, for guards that ask whether a filter keeps up with its control rate.

Problem:  min 1/2 |x|^2 + q @ x, q = (0.1, -0.2), |x_k| <= 1; the minimiser is -q.
"""

import math
import time
from functools import cache
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers import QPSolver, make_solver

#: P, q, A, b of the problem, the box as four rows.
_PROBLEM: Final[tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = (
    np.eye(2),
    np.array([0.1, -0.2]),
    np.concatenate([np.eye(2), -np.eye(2)]),
    np.ones(4),
)


def solve_qp_stub(*args: object, **kwargs: object) -> tuple[float, float]:
    """Solve the problem with Clarabel and return what came out and how long it took.

    The name and the open signature are those of the function that guards have always been given;
    none of the arguments is read.

    Returns:
        Euclidean norm of the minimiser, and the seconds of the solve without loading the library.
    """
    del args, kwargs
    solver = _solver()
    started = time.perf_counter()
    x, _ = solver.solve(*_PROBLEM)
    elapsed_s = time.perf_counter() - started
    return math.hypot(*x.tolist()), elapsed_s


@cache
def _solver() -> QPSolver:
    """Return the solver, kept for the next call, after a first solve that loads its library."""
    solver = make_solver("clarabel")
    solver.solve(*_PROBLEM)
    return solver

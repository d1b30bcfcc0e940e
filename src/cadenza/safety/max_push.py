"""The action that separates an agent fastest from several others: exact, over the action box.

Problem:   max_u min_k  rows_k @ u + offset_k   subject to  |u_i| <= c
           rows_k = n_k^T J and offset_k = n_k^T beta: the acceleration away from agent k.
One row:   u_i = c sign(rows_i), in closed form: the box's support c |rows|_1 is reached.
Several:   a linear programme with n + 1 variables, solved by HiGHS through SciPy.
Ties:      components that push nobody away stay where ``start`` has them, so that a push does not
           throw the agent sideways.
Units:     rows in m/s^2 per action unit, offsets in m/s^2.
"""

import importlib
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray

#: Price of moving a component from ``start``, as a share of the largest entry of the rows. Far
#: below any push worth having, far above the solver's tolerance of 1e-7.
_TIE_PRICE: Final = 1e-5


def load_linear_programming() -> Any:
    """Import the solver now, so that the first emergency does not wait for it (0.2 s)."""
    return importlib.import_module("scipy.optimize")


def max_push_action(
    rows: FloatArray, offsets: FloatArray, c: float, start: FloatArray
) -> FloatArray:
    """Return the action with the largest smallest push, shape (n,), nearest to ``start``.

    Args:
        rows: Push per action unit away from each agent, shape (m, n), m >= 1.
        offsets: Push without any action, shape (m,), m/s^2.
        c: Half width of the action box, > 0.
        start: Action that ties are decided for, shape (n,), inside the box.
    """
    largest = float(np.abs(rows).max())
    if largest <= 0.0:
        return start.copy()
    if len(rows) > 1:
        scale = c * largest
        found = _solve(rows / largest, offsets / scale, start / c)
        if found is not None:
            return np.clip(c * found, -c, c)
        rows = rows[[int((rows @ start + offsets).argmin())]]  # the agent in most need
    gain = rows[0]
    worth = _TIE_PRICE * largest
    return np.where(gain > worth, c, np.where(gain < -worth, -c, start))


def _solve(rows: FloatArray, offsets: FloatArray, start: FloatArray) -> FloatArray | None:
    """Return the best action in the unit box; None if the solver gives up.

    Variables are (u, t, w): t is the smallest push, w bounds |u - start| from above.
    """
    m, n = rows.shape
    eye, zeros = np.eye(n), np.zeros((n, 1))
    constraints = np.block(
        [
            [-rows, np.ones((m, 1)), np.zeros((m, n))],
            [eye, zeros, -eye],
            [-eye, zeros, -eye],
        ]
    )
    limits = np.concatenate([offsets, start, -start])
    cost = np.concatenate([np.zeros(n), [-1.0], np.full(n, _TIE_PRICE)])
    bounds = [(-1.0, 1.0)] * n + [(None, None)] + [(0.0, None)] * n
    result = load_linear_programming().linprog(
        cost, A_ub=constraints, b_ub=limits, bounds=bounds, method="highs"
    )
    return None if result.x is None else np.asarray(result.x[:n], dtype=np.float64)

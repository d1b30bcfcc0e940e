"""A quadratic programme in one dense form, for solvers without bounds of their own.

Form:   min 1/2 x^T P x + q^T x   subject to   G x <= h
        G stacks the rows and the bounds that exist.
Axes:   n variables, k stacked rows.
"""

from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.solvers.interface import UNBOUNDED, is_finite


@dataclass(frozen=True, slots=True, eq=False)
class DenseProblem:
    """One quadratic programme.

    Attributes:
        P: Cost, shape (n, n), symmetric positive definite.
        factor: Its lower Cholesky factor, shape (n, n).
        q: Linear cost, shape (n,).
        G: Stacked rows, shape (k, n).
        h: Right-hand sides, shape (k,).
    """

    P: FloatArray
    factor: FloatArray
    q: FloatArray
    G: FloatArray
    h: FloatArray


def dense_problem(
    P: FloatArray, q: FloatArray, A: FloatArray, b: FloatArray, lower: FloatArray, upper: FloatArray
) -> DenseProblem | None:
    """Return the problem in dense form; None if an entry is not finite or P not definite.

    Args:
        P: Cost, shape (n, n) or its diagonal (n,).
        q: Linear cost, shape (n,).
        A: Rows, shape (m, n).
        b: Right-hand sides, shape (m,).
        lower: Lower bounds, shape (n,).
        upper: Upper bounds, shape (n,).

    Raises:
        InputError: Shapes that do not fit each other.
    """
    n = q.shape[0]
    shapes = (A.shape, lower.shape, upper.shape)
    if shapes != ((b.shape[0], n), (n,), (n,)) or P.shape not in ((n,), (n, n)):
        raise InputError(
            f"run: expected P, A, b, lower and upper to fit q {q.shape}, got {P.shape}, "
            f"{A.shape}, {b.shape}, {lower.shape} and {upper.shape}."
        )
    if not is_finite(P, q, A, b, lower, upper):
        return None
    cost = np.diag(P) if P.ndim == 1 else P
    try:
        factor: FloatArray = np.linalg.cholesky(cost).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return None
    above, below = upper < UNBOUNDED, lower > -UNBOUNDED
    unit = np.eye(n)
    return DenseProblem(
        P=cost,
        factor=factor,
        q=q,
        G=np.concatenate([A, unit[above], -unit[below]]),
        h=np.concatenate([b, upper[above], -lower[below]]),
    )

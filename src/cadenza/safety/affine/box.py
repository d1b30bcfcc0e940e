"""Box of an action from the forms a caller may give it in."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.solvers.interface import UNBOUNDED

#: Lower and upper bounds, numbers or shape (k,), infinite for none; or the agents' bounds, whose
#: `action_linf_component` bounds every component; None for no box.
Box: TypeAlias = tuple[ArrayLike, ArrayLike] | Bounds | None


def parse_box(box: Box, k: int) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds, shape (k,); `UNBOUNDED` in place of infinity.

    Raises:
        ConfigurationError: Shapes that do not fit, NaN, or a lower bound above its upper one.
    """
    if box is None:
        low, high = -np.inf, np.inf
    elif isinstance(box, Bounds):
        low, high = -box.action_linf_component, box.action_linf_component
    else:
        low, high = box
    lower, upper = _expanded("lower", low, k), _expanded("upper", high, k)
    if not (lower <= upper).all():
        raise ConfigurationError(
            f"AffineCBFFilter.box: expected lower <= upper, got {lower.tolist()} and "
            f"{upper.tolist()}."
        )
    return lower, upper


def _expanded(name: str, bound: ArrayLike, k: int) -> FloatArray:
    values = np.asarray(bound, dtype=np.float64)
    if values.shape not in ((), (k,)) or np.isnan(values).any():
        raise ConfigurationError(
            f"AffineCBFFilter.box: {name}: expected a number or shape ({k},), got "
            f"{values.tolist()}."
        )
    return np.clip(np.broadcast_to(values, (k,)), -UNBOUNDED, UNBOUNDED)

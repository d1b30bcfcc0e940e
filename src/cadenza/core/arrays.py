"""Array types of the package, and checks on arrays at public boundaries.

Each check names the array, what was expected and what came, and returns nothing: a caller writes
one line per argument and reads on.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError

#: Quantities in SI units.
FloatArray: TypeAlias = NDArray[np.float64]
#: Network inputs and outputs.
Float32Array: TypeAlias = NDArray[np.float32]


def require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise unless ``array`` has exactly ``shape``; ``name`` is how the message calls it.

    Raises:
        InputError: The shapes differ.
    """
    if array.shape != shape:
        raise InputError(f"{name}: expected shape {shape}, got {array.shape}.")


def require_finite(name: str, array: NDArray[Any]) -> None:
    """Raise if ``array``, of any shape, holds NaN or infinity; ``name`` is for the message.

    Raises:
        InputError: At least one entry is not finite; the message gives the first index.
    """
    # A finite sum of squares proves finite entries in one pass that raises no floating-point
    # warning; only overflow needs the slow look.
    if math.isfinite(float(np.vdot(array, array))):
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    raise InputError(
        f"{name}: expected finite numbers, got {array[first]} at index {first} "
        f"({int(finite.size - finite.sum())} of {finite.size} entries are not finite)."
    )

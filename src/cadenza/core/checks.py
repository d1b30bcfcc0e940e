"""Checks on arguments at public doors; what passed one is not looked at again.

A real number is Python's, NumPy's or a fraction; truth values, complex numbers, text and entries
under a mask are none, and neither is an integer beyond the range of floats.
"""

import numbers
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError


def is_real(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a real number that fits a float; NaN and infinity count."""
    if type(value) is float:
        return True
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:  # an integer has no upper limit
        return False
    return True


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether ``value`` is an integer, Python's or NumPy's."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def real_number(name: str, value: object) -> float:
    """Return a real number as a float; NaN and infinity pass.

    Raises:
        InputError: It is none.
    """
    if not is_real(value):
        raise InputError(f"{name}: expected a number, got {shown(value)}.")
    return float(value)


def real_array(name: str, values: object) -> NDArray[Any]:
    """Return real numbers as an array of their own dtype; NaN and infinity pass.

    Raises:
        InputError: They are none, not an array at all, or masked.
    """
    given, kind = cast("Any", values), type(values)
    if kind is list and {*map(type, given)} == {float}:
        return np.array(given)  # nothing can be wrong with it
    if issubclass(kind, np.ma.MaskedArray):
        raise InputError(
            f"{name}: expected real numbers without a mask, got a masked array; decide what stands "
            "for masked entries and pass .filled(...)."
        )
    array: NDArray[Any] = given
    if not issubclass(kind, np.ndarray):
        try:
            entries = object if issubclass(kind, list | tuple) else None
            array = np.asarray(given, dtype=entries)
            if all(map(is_real, array.flat)):
                array = array.astype(np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{name}: expected real numbers, got {shown(given)}.") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name}: expected real numbers, got {array.dtype}: {shown(given)}.")
    return array


def shown(value: object) -> str:
    """Return a value for a message, cut where it would fill a page."""
    if is_whole(value) and not is_real(value):
        return "an integer beyond the range of floats"
    try:
        text = repr(value)
    except ValueError:  # a list with such an integer may have too many digits to print
        return type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."

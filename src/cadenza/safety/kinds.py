"""Kinds of numbers that constructors ask for; True is none of them."""

import numbers
from typing import Any, TypeGuard

import numpy as np


def is_real(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a real number that fits a float; NaN and infinity count."""
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

"""Checks on arguments at public doors; what passed one is not looked at again.

A real number is Python's, NumPy's or a fraction; truth values, complex numbers, text and entries
under a mask are none, and neither is an integer beyond the range of floats.

``real_...`` and ``whole_number`` refuse arguments with an `InputError`. ``checked_...`` and
``require_...`` refuse settings: one of another type is a `ConfigurationTypeError`, one out of range
a `ConfigurationError`. ``name`` is how messages call it.
"""

import math
import numbers
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeGuard, cast, get_args

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, InputError, refuse


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


#: Widest range that actions are scaled to: its square still fits a float32.
WIDEST_RANGE: Final = 1e18


def is_scalable(low: NDArray[Any], high: NDArray[Any]) -> bool:
    """Return whether numbers in [−1, 1] can be scaled to [low, high], (A,) each.

    A component whose bounds are equal has no room and is fixed. Bounds that are infinite, or finite
    in name only, cannot be scaled to.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        room = np.asarray(high, np.float64) - np.asarray(low, np.float64)
    return bool(((room >= 0.0) & (room <= WIDEST_RANGE)).all())


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether ``value`` is an integer, Python's or NumPy's."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def whole_as_int(value: Any) -> Any:
    """Return a float that is whole, such as 1e6, as an int; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def real_number(name: str, value: object) -> float:
    """Return a real number as a float; NaN and infinity pass.

    Raises:
        InputError: It is none.
    """
    if not is_real(value):
        raise InputError(f"{name}: expected a number, got {shown(value)}.")
    return float(value)


def whole_number(name: str, value: object, *, least: int) -> int:
    """Return a whole number >= ``least`` as a plain integer.

    Raises:
        InputError: It is none, or too small.
    """
    if not is_whole(value) or value < least:
        raise InputError(f"{name}: expected an integer >= {least}, got {shown(value)}.")
    return int(value)


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
    """Return a value for a message, on one line, cut where it would fill a page."""
    if is_whole(value) and not is_real(value):
        return "an integer beyond the range of floats"
    try:
        text = repr(value)
    except ValueError:  # a list with such an integer may have too many digits to print
        return type(value).__name__
    if "\n" in text:  # of an array
        text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def checked_integer(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value``, a whole number >= ``least``, as a plain integer."""
    if not is_whole(value):
        raise ConfigurationTypeError(f"{name}: expected an integer >= {least}, got {value!r}.")
    if value < least:
        raise ConfigurationError(f"{name}: expected >= {least}, got {value}.")
    return int(value)


def checked_optional_integer(name: str, value: object, *, least: int = 1) -> int | None:
    """Do the same as `checked_integer`, and let None pass."""
    return None if value is None else checked_integer(name, value, least=least)


def checked_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """Return ``value``, a time that one can wait, s; 0 only if ``zero``."""
    bound = ">= 0" if zero else "> 0"
    expected = f"{name}: expected a finite number of seconds {bound}, got {value!r}."
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigurationTypeError(expected)
    number = float(value)
    if not 0.0 <= number <= threading.TIMEOUT_MAX or (number == 0.0 and not zero):
        raise ConfigurationError(expected)
    return number


def checked_flag(name: str, value: object) -> bool:
    """Return ``value``, True or False."""
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name}: expected True or False, got {value!r}.")
    return value


def checked_path(name: str, value: object) -> Path:
    """Return ``value``, not empty, as a path."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationTypeError(f"{name}: expected a path, got {value!r}.")
    text = cast("object", os.fspath(cast("Any", value)))
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{name}: expected the path of a file or folder, got {value!r}.")
    return Path(text)


def checked_names(name: str, value: object) -> list[str]:
    """Return the names in ``value``, at least one.

    Raises:
        InputError: It is no sequence of names, as a single one is not, or it is empty.
    """
    got = shown(value)
    is_listing = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    items = list(cast("Iterable[object]", value)) if is_listing else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise InputError(
            f"{name}: expected a list of names, dots between their levels, got {got}; "
            "write ['obs.state'] for the key ('obs', 'state')."
        )
    if not items:
        raise InputError(f"{name}: expected at least one key, got none; leave it out for all.")
    return cast("list[str]", items)


def require_instance(name: str, value: object, kind: type, advice: str) -> None:
    """Refuse anything but a ``kind``; ``advice`` ends the message."""
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"{name}: expected {kind.__name__}, got {shown(value)}; {advice}."
        )


def require_positive(name: str, value: object) -> None:
    """Refuse anything but a finite number > 0."""
    if not (is_real(value) and 0.0 < value < math.inf):
        raise ConfigurationError(f"{name}: expected a finite number > 0, got {shown(value)}.")


def require_counts(owner: str, **counts: int) -> None:
    """Refuse counts and sizes below one.

    Raises:
        InputError: One is.
    """
    if min(counts.values()) < 1:
        got = ", ".join(f"{name} = {count}" for name, count in counts.items())
        refuse(InputError, owner, expected="every size >= 1", got=got)


def require_kinds(owner: str, **arguments: tuple[object, Any]) -> None:
    """Refuse arguments of other kinds than each stands beside: a class, a union, or [class].

    The last asks for a sequence of its instances.
    """
    for name, (value, kind) in arguments.items():
        kinds = cast("list[Any]", kind) if isinstance(kind, list) else None
        parts: Sequence[object] | None = [value]
        if kinds is not None:
            listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            parts = cast("Sequence[object]", value) if listed else None
        each = cast("Any", kind) if kinds is None else kinds[0]
        if parts is None or not all(isinstance(part, each) for part in parts):
            known = cast("tuple[Any, ...]", get_args(each) or (each,))
            names = " or ".join("None" if one is NoneType else one.__name__ for one in known)
            raise ConfigurationTypeError(
                f"{owner}: {name}: expected {'a list of ' if kinds else ''}{names}, got "
                f"{shown(cast('object', value))}."
            )


def require_callable(name: str, value: object, expected: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ConfigurationTypeError(f"{name}: expected {expected}, got {shown(value)}.")

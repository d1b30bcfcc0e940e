"""Reading and checking the fields of stored rows."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, cast

from cadenza.core.errors import InputError, UnknownNameError


def require_keys(owner: str, payload: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Raise unless every name is a key of ``payload``.

    Raises:
        UnknownNameError: One is missing.
    """
    missing = [name for name in names if name not in payload]
    if missing:
        raise UnknownNameError(
            f"{owner}: expected the keys {', '.join(names)}, missing {', '.join(missing)}."
        )


def as_text(name: str, value: object) -> str:
    """Return ``value``, which must be UTF-8 text of at least one character.

    Raises:
        InputError: It is not.
    """
    if not isinstance(value, str) or not value:
        raise InputError(f"{name}: expected text, got {value!r}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: expected text that UTF-8 can express, got {value!r}.") from error
    return value


def as_count(name: str, value: object, *, high: int | None = None) -> int:
    """Return ``value`` as a count, >= 0 and at most ``high``.

    Raises:
        InputError: It is no whole number in that range.
    """
    limit = "" if high is None else f" and <= {high}"
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise InputError(f"{name}: expected a whole number >= 0{limit}, got {value!r}.")
    count = int(cast("int", value))
    if count < 0 or (high is not None and count > high):
        raise InputError(f"{name}: expected a count >= 0{limit}, got {count}.")
    return count


def as_number(name: str, value: object) -> float:
    """Return ``value`` as a finite float.

    Raises:
        InputError: It is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}.")
    return float(value)


def as_optional_number(name: str, value: object) -> float | None:
    """Return ``value`` as a finite float; None and NaN mean that there is none.

    Raises:
        InputError: It is infinite or no number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return as_number(name, value)


def as_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value``, which must be one of ``choices``.

    Raises:
        InputError: It is not.
    """
    if value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")
    return str(value)

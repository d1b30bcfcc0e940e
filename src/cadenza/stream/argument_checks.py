"""Refuses arguments where they are given, with one kind of message; callers may not be typed.

A value of another type is a `ConfigurationTypeError`, one out of range a `ConfigurationError`; the
first is one of the second. What also stands in calls that draw is an `InputError`.
"""

import os
import threading
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch

from cadenza.core.device import resolve_device
from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DeviceUnavailableError,
    InputError,
)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether ``value`` counts something, Python's or NumPy's; True counts nothing."""
    return type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral))


def checked_integer(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` as a plain integer.

    Args:
        name: Whose value it is, for messages: ``"Class.parameter"``.
        value: What was given.
        least: Smallest value allowed.

    Raises:
        ConfigurationTypeError: It is no integer.
        ConfigurationError: It is below ``least``.
    """
    if not is_integer(value):
        raise ConfigurationTypeError(f"{name}: expected an integer >= {least}, got {value!r}.")
    if value < least:
        raise ConfigurationError(f"{name}: expected >= {least}, got {value}.")
    return int(value)


def checked_optional_integer(name: str, value: object, *, least: int = 1) -> int | None:
    """Do the same as `checked_integer`, and let None pass."""
    if value is None:
        return None
    if not is_integer(value):
        raise ConfigurationTypeError(
            f"{name}: expected an integer or None, got {value!r}; if given, at least {least}."
        )
    return checked_integer(name, value, least=least)


def checked_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """Return ``value``, a finite time in s.

    Args:
        name: Whose value it is, for messages.
        value: What was given.
        zero: Whether 0 is allowed.

    Raises:
        ConfigurationTypeError: It is no number.
        ConfigurationError: It is negative, 0 where that is not allowed, NaN, or longer than
            anything can wait.
    """
    bound = ">= 0" if zero else "> 0"
    expected = f"{name}: expected a finite number of seconds {bound}, got {value!r}."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationTypeError(expected)
    number = float(value)
    if not 0.0 <= number <= threading.TIMEOUT_MAX or (number == 0.0 and not zero):
        raise ConfigurationError(expected)
    return number


def checked_flag(name: str, value: object) -> bool:
    """Return ``value``, True or False.

    Raises:
        ConfigurationTypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name}: expected True or False, got {value!r}.")
    return value


def checked_path(name: str, value: object) -> Path:
    """Return ``value`` as a path.

    Raises:
        ConfigurationTypeError: It is no path.
        ConfigurationError: It is empty.
    """
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
    items = list(cast("Iterable[object]", value)) if _is_listing(value) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise InputError(
            f"{name}: expected a list of names, dots between their levels, got {_short(value)}; "
            "write ['obs.state'] for the key ('obs', 'state')."
        )
    if not items:
        raise InputError(f"{name}: expected at least one key, got none; leave it out for all.")
    return cast("list[str]", items)


def require_instance(name: str, value: object, kind: type, advice: str) -> None:
    """Refuse anything but a ``kind``.

    Args:
        name: Whose value it is, for messages.
        value: What was given.
        kind: Class that it must be of.
        advice: What to give instead, the end of the message.

    Raises:
        ConfigurationTypeError: It is something else.
    """
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"{name}: expected {kind.__name__}, got {_short(value)}; {advice}."
        )


def require_callable(name: str, value: object, expected: str) -> None:
    """Refuse what cannot be called.

    Raises:
        ConfigurationTypeError: It cannot.
    """
    if not callable(value):
        raise ConfigurationTypeError(f"{name}: expected {expected}, got {_short(value)}.")


def generator_fault(value: object) -> str | None:
    """Return why nothing can be drawn with ``value``, None if it can: other errors, one text."""
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return None
    got = f"one of {value.device}" if isinstance(value, torch.Generator) else _short(value)
    return f"expected a torch.Generator of the CPU, got {got}; write torch.Generator()"


def _is_listing(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _short(value: object) -> str:
    """Return what ``value`` is, its type where it would fill a page."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def checked_device(name: str, value: str) -> torch.device:
    """Return the device that ``value`` names.

    Args:
        name: Whose value it is, for messages.
        value: What was given.

    Raises:
        ConfigurationError: It names none, or none that this machine has.
    """
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name}: expected the name of a device, got {value!r}."
        ) from error
    if device.type in ("cuda", "mps"):
        try:
            resolve_device(str(device))
        except DeviceUnavailableError as error:
            raise ConfigurationError(
                f"{name}: expected a device that this machine has ('cpu'), got {value!r}."
            ) from error
    return device

"""Checks of what a settings class is made of; NaN passes none of them.

Each names the class, the setting and the value it refuses: in a `ConfigurationTypeError` what is of
another type, in a `ConfigurationError` what is out of range; the first is one of the second.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, cast

from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, InputError

Settings = TypeVar("Settings")


def settings_of(owner: str, settings: Settings | None, kind: type[Settings]) -> Settings:
    """Return ``settings``, or the defaults for None.

    Args:
        owner: Whose settings they are, for the message.
        settings: What was given; callers may not be typed.
        kind: Class that they must be of.

    Raises:
        InputError: They are of another class.
    """
    if settings is None:
        return kind()
    if not isinstance(cast("object", settings), kind):
        raise InputError(
            f"{owner}.settings: expected {kind.__name__} or None, got "
            f"{type(settings).__name__}; write {owner}(..., settings={kind.__name__}(...))."
        )
    return settings


def require_step_count(owner: str, total_steps: Any) -> None:
    """Raise unless ``total_steps`` is a finite number; 1e6 is one.

    Raises:
        InputError: It is something else.
    """
    if not is_real(total_steps) or not abs(float(total_steps)) < float("inf"):
        raise InputError(
            f"{owner}.learn: expected total_steps, the environment steps of the whole run, got "
            f"{total_steps!r}; write {owner}.learn(100_000)."
        )


def refuse_setting(
    settings: object,
    name: str,
    expected: str,
    *,
    kind: type[ConfigurationError] = ConfigurationError,
) -> NoReturn:
    """Raise ``kind`` because setting ``name`` is not what is ``expected``."""
    raise kind(
        f"{type(settings).__name__}.{name}: expected {expected}, got {getattr(settings, name)!r}."
    )


def require_counts(settings: object, *names: str, least: int = 1, reason: str = "") -> None:
    """Raise unless every named setting is an integer >= ``least``; ``reason`` says why."""
    for name in names:
        value = getattr(settings, name)
        if not is_whole(value):
            expected = f"an integer >= {least}{reason}"
            refuse_setting(settings, name, expected, kind=ConfigurationTypeError)
        if not value >= least:
            refuse_setting(settings, name, f">= {least}{reason}")


def require_flags(settings: object, *names: str) -> None:
    """Raise unless every named setting is True or False."""
    for name in names:
        if not isinstance(getattr(settings, name), bool):
            refuse_setting(settings, name, "True or False", kind=ConfigurationTypeError)


def require_finite(settings: object, *names: str) -> None:
    """Raise unless every named setting is a finite number."""
    for name in names:
        if not abs(_number(settings, name, "a finite number")) < float("inf"):
            refuse_setting(settings, name, "a finite number")


def require_positive(settings: object, *names: str) -> None:
    """Raise unless every named setting is > 0."""
    for name in names:
        if not _number(settings, name, "a number > 0") > 0.0:
            refuse_setting(settings, name, "> 0")


def require_positive_or_none(settings: object, *names: str) -> None:
    """Raise unless every named setting is > 0 or None."""
    for name in names:
        if getattr(settings, name) is None:
            continue
        if not _number(settings, name, "a number > 0 or None") > 0.0:
            refuse_setting(settings, name, "> 0 or None")


def require_not_negative(settings: object, *names: str) -> None:
    """Raise unless every named setting is >= 0."""
    for name in names:
        if not _number(settings, name, "a number >= 0") >= 0.0:
            refuse_setting(settings, name, ">= 0")


def require_fractions(settings: object, *names: str) -> None:
    """Raise unless every named setting is in [0, 1]."""
    for name in names:
        if not 0.0 <= _number(settings, name, "a number in [0, 1]") <= 1.0:
            refuse_setting(settings, name, "in [0, 1]")


def require_widths(settings: object, *names: str) -> None:
    """Raise unless every entry of every named setting is an integer >= 1."""
    for name in names:
        value = getattr(settings, name)
        if not _is_listing(value) or not all(is_whole(width) for width in value):
            expected = "widths, a tuple of integers >= 1"
            refuse_setting(settings, name, expected, kind=ConfigurationTypeError)
        if min(value, default=1) < 1:
            refuse_setting(settings, name, "widths >= 1")


def _number(settings: object, name: str, expected: str) -> float:
    """Return the named setting if it is a number."""
    value: Any = getattr(settings, name)
    if not is_real(value):
        refuse_setting(settings, name, expected, kind=ConfigurationTypeError)
    return float(value)


def _is_listing(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)

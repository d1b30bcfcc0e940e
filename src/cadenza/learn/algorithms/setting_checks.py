"""Checks of the numbers that a settings class is made of; NaN passes none of them.

Each names the class, the setting and the value it refuses in a `ConfigurationError`.
"""

from typing import Any, NoReturn

from cadenza.core.errors import ConfigurationError


def refuse_setting(settings: object, name: str, expected: str) -> NoReturn:
    """Raise because setting ``name`` is not what is ``expected``."""
    raise ConfigurationError(
        f"{type(settings).__name__}.{name}: expected {expected}, got {getattr(settings, name)!r}."
    )


def require_counts(settings: object, *names: str) -> None:
    """Raise unless every named setting is >= 1."""
    for name in names:
        if not getattr(settings, name) >= 1:
            refuse_setting(settings, name, ">= 1")


def require_positive(settings: object, *names: str) -> None:
    """Raise unless every named setting is > 0."""
    for name in names:
        if not getattr(settings, name) > 0.0:
            refuse_setting(settings, name, "> 0")


def require_positive_or_none(settings: object, *names: str) -> None:
    """Raise unless every named setting is > 0 or None."""
    for name in names:
        value: Any = getattr(settings, name)
        if value is not None and not value > 0.0:
            refuse_setting(settings, name, "> 0 or None")


def require_not_negative(settings: object, *names: str) -> None:
    """Raise unless every named setting is >= 0."""
    for name in names:
        if not getattr(settings, name) >= 0.0:
            refuse_setting(settings, name, ">= 0")


def require_fractions(settings: object, *names: str) -> None:
    """Raise unless every named setting is in [0, 1]."""
    for name in names:
        if not 0.0 <= getattr(settings, name) <= 1.0:
            refuse_setting(settings, name, "in [0, 1]")


def require_widths(settings: object, *names: str) -> None:
    """Raise unless every entry of every named setting is >= 1."""
    for name in names:
        if min(getattr(settings, name), default=1) < 1:
            refuse_setting(settings, name, "widths >= 1")

"""Refuses settings outside the ranges that their docstrings name."""

from collections.abc import Mapping

from cadenza.core.errors import ConfigurationError


def require_ranges(settings: object, checks: Mapping[str, bool]) -> None:
    """Raise unless every check holds.

    Args:
        settings: Object with the attributes that are checked.
        checks: Whether an attribute is in its range, by name; write them so that NaN fails too.

    Raises:
        ConfigurationError: One is not.
    """
    for name, holds in checks.items():
        if not holds:
            raise ConfigurationError(
                f"{type(settings).__name__}.{name}: expected a value in the documented range, got "
                f"{getattr(settings, name)!r}; help({type(settings).__name__}) names the range."
            )

"""Kinds of option values, checked before their ranges, so that an error names the option."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from cadenza.core.checks import is_real, is_whole, shown
from cadenza.core.errors import ConfigurationError


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_reals(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_real, cast("tuple[object, ...]", value)))


#: What the kind of a default asks for, and how an error names it. Order matters: True is an int.
_KINDS: Final[tuple[tuple[type, Callable[[object], bool], str], ...]] = (
    (bool, _is_flag, "True or False"),
    (int, is_whole, "a whole number"),
    (float, is_real, "a number"),
    (str, _is_text, "text"),
    (tuple, _are_reals, "a tuple of numbers"),
)


def require_kinds(owner: str, values: Mapping[str, Any], optional: Mapping[str, object]) -> None:
    """Raise unless every value is of its default's kind.

    Args:
        owner: Class whose options these are.
        values: Pairs (value, default) by option.
        optional: For options whose default is None: another value of the kind they take.

    Raises:
        ConfigurationError: One is not; the message names it.
    """
    for name, (value, default) in values.items():
        or_none = ""
        if name in optional:
            if value is None:
                continue
            default, or_none = optional[name], " or None"
        for kind, fits, words in _KINDS:
            if isinstance(default, kind):
                if not fits(value):
                    raise ConfigurationError(
                        f"{owner}.{name}: expected {words}{or_none}, got {shown(value)}."
                    )
                break

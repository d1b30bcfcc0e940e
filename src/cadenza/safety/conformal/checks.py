"""Checks that the conformal rules share; each raises before anything is changed."""

import math
from collections.abc import Collection, Mapping

from cadenza.core.errors import InputError

Pair = tuple[str, str]


def require_positive(name: str, value: float) -> None:
    """Raise InputError unless ``value`` is a finite number > 0."""
    if not 0.0 < value < math.inf:
        raise InputError(f"conformal: {name} must be strictly positive and finite, got {value}.")


def require_rate(owner: str, value: float) -> None:
    """Raise InputError unless ``value`` is a rate in (0, 1)."""
    if not 0.0 < value < 1.0:
        raise InputError(f"{owner}: expected a miss rate in (0, 1), got {value}.")


def require_pairs(expected: Mapping[Pair, float], values: Mapping[Pair, float]) -> None:
    """Raise InputError unless ``values`` has a finite number for exactly the expected pairs."""
    if values.keys() != expected.keys():
        raise InputError(
            f"conformal: key set mismatch: expected {sorted(expected)}, got {sorted(values)}."
        )
    require_known_pairs(expected, values)


def require_known_pairs(known: Collection[Pair], values: Mapping[Pair, float]) -> None:
    """Raise InputError unless every entry of ``values`` is finite and of a known pair."""
    for key, value in values.items():
        if key not in known:
            raise InputError(f"conformal: expected a pair of {sorted(known)}, got {key}.")
        if not math.isfinite(value):
            raise InputError(f"conformal: value of {key}: expected a finite number, got {value}.")

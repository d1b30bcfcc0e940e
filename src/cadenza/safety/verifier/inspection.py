"""Asking a filter that may be anybody's: it sees copies, and its answer is looked at before use.

Axes: B episodes, N partners, d Cartesian dimensions.
"""

from typing import Final

import numpy as np

from cadenza.core.errors import InputError
from cadenza.safety.verifier.guards import Answer, Guard, Sight
from cadenza.safety.verifier.views import BoolArray

#: Largest component that counts as an action, m/s^2; the box is checked by the judge.
_LARGEST: Final = 1e6


def ask(guard: Guard, sight: Sight) -> tuple[Answer, BoolArray]:
    """Return what ``guard`` answers, and in which episodes that is an action, shape (B,).

    Elsewhere, where a component is not finite or beyond 1e6 m/s^2, the action is replaced by
    zero, so that the other episodes can go on. The guard may keep or change what it was given.

    Raises:
        InputError: The answer has other shapes or kinds than `Answer` asks for.
    """
    answer = guard(_copy(sight))
    action = _array("action", answer.action, sight.nominal.shape, "fiu").astype(np.float64)
    flags = [
        _array(name, getattr(answer, name), sight.nominal.shape[:1], "b").copy()
        for name in ("solved", "uncertified")
    ]
    usable: BoolArray = np.abs(action).max(axis=1) <= _LARGEST  # false for NaN
    action[~usable] = 0.0
    return Answer(action, *flags), usable


def _copy(sight: Sight) -> Sight:
    return Sight(
        nominal=sight.nominal.copy(),
        ego_position=sight.ego_position.copy(),
        ego_velocity=sight.ego_velocity.copy(),
        positions=sight.positions.copy(),
        velocities=sight.velocities.copy(),
        ages_s=sight.ages_s.copy(),
    )


def _array(name: str, value: object, shape: tuple[int, ...], kinds: str) -> np.ndarray:
    """Return ``value`` as an array of this shape and one of these kinds of numbers."""
    array = np.asarray(value)
    if array.shape != shape or array.dtype.kind not in kinds:
        wanted = "bool" if kinds == "b" else "real numbers"
        raise InputError(
            f"verifier: guard's {name}: expected {wanted} of shape {shape}, got {array.dtype} "
            f"{array.shape}."
        )
    return array

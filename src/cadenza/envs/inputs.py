"""Errors of the environments, and checks on what callers hand to one: uids, seeds and actions.

Every function either returns the checked value in the form the environments compute with, or raises
one `InputError` that names the environment and the offending uid.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.checks import whole_number
from cadenza.core.errors import CadenzaError, InputError


class ChamberEnvCompatibilityError(CadenzaError, RuntimeError):
    """A wrapper's assumption about its inner env fails, or a simulator is absent or broken.

    Raised instead of falling back in silence: a run with a wrapper that does nothing would look
    like evidence.
    """


class ObservationLayoutError(ChamberEnvCompatibilityError, TypeError):
    """An observation, or its space, lacks an entry that a wrapper reads, or has another kind."""


#: Components of one planar action.
PLANAR: tuple[int, ...] = (2,)

#: Seeds stay below this, so that adding copies and episodes cannot overflow 64 bits.
_SEED_BOUND = 1 << 62


def checked_agent_uids(owner: str, uids: object, *, low: int, high: int) -> tuple[str, ...]:
    """Return ``uids`` as a tuple of ``low`` ... ``high`` distinct, non-empty strings."""
    wanted = f"a {low}-tuple" if low == high else f"a tuple of {low} to {high}"
    if isinstance(uids, str) or not isinstance(uids, list | tuple):
        raise InputError(f"{owner}: expected agent_uids to be {wanted} of str, got {uids!r}.")
    entries = tuple(cast("Sequence[Any]", uids))
    if not all(isinstance(uid, str) and uid for uid in entries) or not low <= len(entries) <= high:
        raise InputError(
            f"{owner}: expected agent_uids to be {wanted} of non-empty str, got {entries!r}."
        )
    if len(set(entries)) != len(entries):
        raise InputError(f"{owner}: expected distinct agent_uids, got {entries!r}; rename one.")
    return entries


def checked_seed(owner: str, seed: object) -> int:
    """Return ``seed``, an episode's index, as an int in [0, 2^62)."""
    value = whole_number(f"{owner}.seed", seed, least=0)
    if value >= _SEED_BOUND:
        raise InputError(f"{owner}: expected seed < 2^62, got {value}.")
    return value


def checked_seeds(owner: str, seed: int | Sequence[int], copies: int) -> NDArray[np.int64]:
    """Return the first episode index of every copy, (N,): one each, or counted from copy 0's."""
    if not isinstance(seed, Sequence | np.ndarray):
        return checked_seed(owner, seed) + np.arange(copies, dtype=np.int64)
    if len(seed) != copies:
        raise InputError(f"{owner}: expected {copies} seeds, got {len(seed)}.")
    return np.array([checked_seed(owner, s) for s in seed], dtype=np.int64)


def checked_render_mode(owner: str, mode: str | None) -> str | None:
    """Return ``mode`` if the planar tasks can draw it."""
    if mode not in (None, "rgb_array"):
        raise InputError(f"{owner}: expected render_mode None or 'rgb_array', got {mode!r}.")
    return mode


def planar_action(owner: str, action: Mapping[str, Any], uid: str) -> tuple[float, float]:
    """Return ``action[uid]`` as two finite floats."""
    value = _entry(owner, action, uid)
    if type(value) is not np.ndarray or value.dtype.kind != "f":
        value = _as_float_array(owner, value, uid)
    if value.shape != PLANAR:
        raise InputError(
            f"{owner}: expected the action of {uid!r} to have shape (2,), got {value.shape}."
        )
    x, y = value.tolist()
    if not (math.isfinite(x) and math.isfinite(y)):
        raise InputError(
            f"{owner}: expected finite action of {uid!r}, got [{x}, {y}]; "
            "check the policy that produced it."
        )
    return x, y


def checked_action(
    owner: str, action: Mapping[str, Any], uid: str, shape: tuple[int, ...]
) -> FloatArray:
    """Return ``action[uid]`` as finite float64 of ``shape``."""
    array = _as_float_array(owner, _entry(owner, action, uid), uid)
    if array.shape != shape:
        raise InputError(
            f"{owner}: expected the action of {uid!r} to have shape {shape}, got {array.shape}."
        )
    finite = np.isfinite(array)
    if not finite.all():
        first = int(np.argwhere(~finite)[0, 0])
        where = f" in env {first}" if len(shape) > 1 else ""
        shown = array[first] if len(shape) > 1 else array
        raise InputError(
            f"{owner}: expected finite action of {uid!r}, got {shown.tolist()}{where}; "
            "check the policy that produced it."
        )
    return array


def vector_action(
    owner: str, action: Mapping[str, Any], uid: str, dim: int, *, rows: int = 1
) -> FloatArray:
    """Return ``action[uid]``, (dim,) for all rows or (rows, dim), as finite (rows, dim)."""
    array = _as_float_array(owner, _entry(owner, action, uid), uid)
    if array.shape not in ((dim,), (rows, dim)):
        raise InputError(
            f"{owner}: expected the action of {uid!r} to have shape ({dim},), got {array.shape}."
        )
    require_finite(f"{owner}: action of {uid!r}", array)
    return np.broadcast_to(array, (rows, dim))


def _entry(owner: str, action: Mapping[str, Any], uid: str) -> Any:
    """Return the action of ``uid``, whatever it is, or say what is there instead."""
    try:
        return action[uid]
    except (KeyError, IndexError, TypeError):
        raise InputError(missing_uid_message(owner, action, uid)) from None


def _as_float_array(owner: str, value: object, uid: str) -> NDArray[Any]:
    """Return real numbers; NumPy itself would read digits out of text and drop imaginary parts."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor that requires grad
        array = None
    if array is None or array.dtype.kind not in "fiub":
        got = type(value).__name__ + ("" if array is None else f" of {array.dtype}")
        raise InputError(
            f"{owner}: expected the action of {uid!r} to be an array of real numbers, got {got}."
        )
    return array.astype(np.float64, copy=False)


def missing_uid_message(owner: str, action: object, uid: str) -> str:
    """Return the message for an action without ``uid``: what is there instead."""
    if isinstance(action, Mapping):
        present = sorted(str(key) for key in cast("Mapping[object, object]", action))
        return f"{owner}: action is missing uid {uid!r}; got {present}."
    return (
        f"{owner}: expected action to map every uid to an array, got {type(action).__name__} "
        f"(missing uid {uid!r})."
    )

"""How a step ended, from the flags an environment or a training loop hands over.

Rule:  termination dominates. A step that both terminated and ran out of time has no future value;
       only a pure time limit continues with the value of its last observation (arXiv:1712.00378).
Axes:  N = parallel environments.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError


class ScalarFlags(NamedTuple):
    """End of one step: by the task itself, and in either way."""

    terminated: bool
    boundary: bool


class BatchFlags(NamedTuple):
    """As `ScalarFlags`, arrays of shape (N,)."""

    terminated: NDArray[np.bool_]
    boundary: NDArray[np.bool_]


def scalar_flags(
    done: Any, truncated: Any, terminated: Any | None, *, owner: str = "EgoPPOTrainer"
) -> ScalarFlags:
    """Return the flags of one environment's step.

    Args:
        done: The episode ended.
        truncated: A time limit ended it.
        terminated: The task ended it; None means ``done and not truncated``.
        owner: Learner that messages name.

    Raises:
        InputError: ``done`` is not ``terminated or truncated``.
    """
    boundary, cut = bool(done), bool(truncated)
    ended = boundary and not cut if terminated is None else bool(terminated)
    if boundary != (ended or cut):
        raise InputError(
            f"{owner}.observe: expected done = terminated or truncated, got "
            f"done = {boundary}, terminated = {ended}, truncated = {cut}."
        )
    return ScalarFlags(ended, boundary)


def batch_flags(
    done: Any,
    truncated: Any,
    terminated: Any | None,
    *,
    num_envs: int,
    owner: str = "EgoPPOTrainer",
) -> BatchFlags:
    """Return the flags of a batched step; a single flag stands for every environment.

    Args:
        done: The episodes ended, flag or shape (N,).
        truncated: A time limit ended them, flag or shape (N,).
        terminated: The task ended them, flag or shape (N,); None means ``done and not truncated``.
        num_envs: N.
        owner: Learner that messages name.

    Raises:
        InputError: Wrong shape, or ``done`` is not ``terminated or truncated`` everywhere.
    """
    boundary = _flags(f"{owner}.observe: expected done", done, num_envs)
    cut = _flags(f"{owner}.observe: expected truncated", truncated, num_envs)
    ended = (
        boundary & ~cut
        if terminated is None
        else _flags(f"{owner}.observe: expected terminated", terminated, num_envs)
    )
    wrong = boundary != (ended | cut)
    if wrong.any():
        raise InputError(
            f"{owner}.observe: expected done = terminated or truncated, got a contradiction "
            f"in environments {np.flatnonzero(wrong).tolist()}."
        )
    return BatchFlags(ended, boundary)


def _flags(name: str, value: Any, num_envs: int) -> NDArray[np.bool_]:
    flags = np.asarray(value, dtype=np.bool_)
    if flags.shape not in ((), (num_envs,)):
        raise InputError(f"{name} of shape ({num_envs},), got {flags.shape}.")
    return np.broadcast_to(flags, (num_envs,))

"""Reading a robot's own state out of an observation, whatever made it.

States come as numpy arrays or torch tensors, for one environment, shape (D,), or for N of them,
shape (N, D). The rank is kept: a batch of one, (1, D), is answered by a batch of one action.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError

#: Kinds of numpy dtype that hold real numbers: float, signed, unsigned.
_NUMBER_KINDS: Final = "fiu"


@runtime_checkable
class _Tensor(Protocol):
    """The part of `torch.Tensor` we need; the name `torch` is not imported for it."""

    def detach(self) -> "_Tensor": ...

    def cpu(self) -> "_Tensor": ...

    def double(self) -> "_Tensor": ...

    def numpy(self) -> NDArray[Any]: ...


def read_state(obs: Mapping[str, Any], uid: str) -> NDArray[Any]:
    """Return ``obs["agent"][uid]["state"]`` as a numpy array of rank 1 or 2.

    Args:
        obs: Nested observation.
        uid: The robot whose state is wanted.

    Returns:
        The state, (D,) or (N, D); never a copy of a numpy input, so do not write to it.

    Raises:
        InputError: The entry is missing, not an array of numbers or of another rank.
    """
    state = find_state(obs, uid)
    if state is None:
        found = type(_entry(obs, "agent", uid, "state")).__name__
        raise InputError(
            f"obs['agent'][{uid!r}]['state']: expected an array of numbers of shape (D,) or "
            f"(N, D), got {found}; check the option 'uid' against the robots of the environment."
        )
    return state


def find_state(obs: Mapping[str, Any], uid: str) -> NDArray[Any] | None:
    """As `read_state`, with None instead of an error."""
    state = as_numbers(_entry(obs, "agent", uid, "state"))
    return state if state is not None and state.ndim in (1, 2) else None


def find_position(obs: Mapping[str, Any], uid: str) -> NDArray[Any] | None:
    """Return ``obs["comm"]["pose"][uid]["xyz"]`` as numbers, (>= 2,) or (N, >= 2), or None."""
    xyz = as_numbers(_entry(obs, "comm", "pose", uid, "xyz"))
    return xyz if xyz is not None and xyz.ndim in (1, 2) and xyz.shape[-1] >= 2 else None


def as_numbers(value: object) -> NDArray[Any] | None:
    """Return an array, tensor, tuple or list of real numbers as a numpy array, else None."""
    array: NDArray[Any]
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
    elif isinstance(value, tuple | list):
        try:
            array = np.asarray(cast("Sequence[object]", value))
        except ValueError:  # ragged nesting
            return None
    elif isinstance(value, _Tensor):
        array = value.detach().cpu().double().numpy()
    else:
        return None
    return array if array.dtype.kind in _NUMBER_KINDS else None


def _entry(obs: object, *path: str) -> object:
    """Walk nested mappings; None where the path ends early."""
    node = obs
    for key in path:
        if not isinstance(node, Mapping):
            return None
        node = cast("Mapping[str, object]", node).get(key)
    return node

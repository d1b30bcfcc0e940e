"""Array libraries a vector environment can compute with: numpy, or torch on any device.

An environment writes its maths with the functions both libraries share (`clip`, `minimum`, `sqrt`,
`where`) and leaves creation, input and output of arrays to one of these classes.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError
from cadenza.envs.inputs import checked_action, missing_uid_message

Precision = Literal["float64", "float32"]


class ArrayBackend(Protocol):
    """What a vector environment asks of an array library."""

    #: Module with `clip`, `minimum`, `sqrt`, `where`.
    xp: Any

    def states(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised float array for positions and velocities."""
        ...

    def observations(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised float32 array."""
        ...

    def from_host(self, values: NDArray[Any]) -> Any:
        """Return ``values`` as an array of the backend; floats in the backend's precision."""
        ...

    def rows(self, indices: NDArray[np.int64]) -> Any:
        """Return ``indices`` as the backend wants them for indexing."""
        ...

    def copy(self, array: Any) -> Any:
        """Return an independent copy of ``array``."""
        ...

    def read_action(self, owner: str, action: Mapping[str, Any], uid: str, num_envs: int) -> Any:
        """Return ``action[uid]`` as a checked array, shape (N, 2)."""
        ...


class NumpyBackend:
    """numpy in float64: the bytes of the scalar environment."""

    xp: Any = np

    def states(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised float64 array."""
        return np.empty(shape, dtype=np.float64)

    def observations(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised float32 array."""
        return np.empty(shape, dtype=np.float32)

    def from_host(self, values: NDArray[Any]) -> Any:
        """Return ``values`` itself."""
        return values

    def rows(self, indices: NDArray[np.int64]) -> Any:
        """Return ``indices`` itself."""
        return indices

    def copy(self, array: Any) -> Any:
        """Return an independent copy of ``array``."""
        return array.copy()

    def read_action(self, owner: str, action: Mapping[str, Any], uid: str, num_envs: int) -> Any:
        """Return ``action[uid]`` as checked float64, shape (N, 2)."""
        return checked_action(owner, action, uid, (num_envs, 2))


class TorchBackend:
    """torch on a device; float64 gives the bytes of the scalar environment, float32 is faster.

    Actions may be tensors on any device or numpy arrays; everything returned stays on ``device``.
    """

    def __init__(self, *, device: str, precision: Precision) -> None:
        """Open the backend.

        Raises:
            InputError: The device name is malformed or the device is absent.
        """
        import torch

        try:
            self._device: Final = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
            raise InputError(
                f"TorchBackend: expected a usable torch device, got {device!r} ({error}); "
                "use 'cpu'."
            ) from error
        self.xp: Any = torch
        self._float: Final = torch.float64 if precision == "float64" else torch.float32

    def states(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised tensor in the backend's precision."""
        return self.xp.empty(shape, dtype=self._float, device=self._device)

    def observations(self, shape: tuple[int, ...]) -> Any:
        """Return an uninitialised float32 tensor."""
        return self.xp.empty(shape, dtype=self.xp.float32, device=self._device)

    def from_host(self, values: NDArray[Any]) -> Any:
        """Return ``values`` as a tensor; floats in the backend's precision."""
        dtype = self._float if values.dtype.kind == "f" else None
        return self.xp.as_tensor(values, dtype=dtype, device=self._device)

    def rows(self, indices: NDArray[np.int64]) -> Any:
        """Return ``indices`` as an index tensor."""
        return self.xp.as_tensor(indices, device=self._device)

    def copy(self, array: Any) -> Any:
        """Return an independent copy of ``array``."""
        return array.clone()

    def read_action(self, owner: str, action: Mapping[str, Any], uid: str, num_envs: int) -> Any:
        """Return ``action[uid]`` as a checked tensor, shape (N, 2), in the backend's precision."""
        try:
            value = action[uid]
        except (KeyError, IndexError, TypeError):
            raise InputError(missing_uid_message(owner, action, uid)) from None
        try:
            tensor = self.xp.as_tensor(value, dtype=self._float, device=self._device)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"{owner}: expected the action of {uid!r} to be a tensor of numbers, "
                f"got {type(value).__name__}."
            ) from None
        if tuple(tensor.shape) != (num_envs, 2):
            raise InputError(
                f"{owner}: expected the action of {uid!r} to have shape ({num_envs}, 2), "
                f"got {tuple(tensor.shape)}."
            )
        finite = tensor.isfinite()
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0, 0])
            raise InputError(
                f"{owner}: expected finite action of {uid!r}, got {tensor[row].tolist()} "
                f"in env {row}; check the policy that produced it."
            )
        return tensor.detach()


def array_backend(
    owner: str, name: str, *, device: str = "cpu", precision: Precision = "float64"
) -> ArrayBackend:
    """Return the backend called ``name``.

    Args:
        owner: Environment name for the message.
        name: ``"numpy"`` or ``"torch"``.
        device: Torch device; numpy lives on ``"cpu"``.
        precision: Floats of the state; numpy keeps ``"float64"``.

    Raises:
        InputError: Unknown name, precision or device.
    """
    if precision not in ("float64", "float32"):
        raise InputError(f"{owner}: expected precision 'float64' or 'float32', got {precision!r}.")
    if name == "torch":
        return TorchBackend(device=device, precision=precision)
    if name != "numpy":
        raise InputError(f"{owner}: expected backend 'numpy' or 'torch', got {name!r}.")
    if device != "cpu" or precision != "float64":
        raise InputError(
            f"{owner}: expected device 'cpu' and precision 'float64' with backend 'numpy', "
            f"got {device!r} and {precision!r}; use backend='torch'."
        )
    return NumpyBackend()

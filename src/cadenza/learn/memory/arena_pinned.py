"""Batches on their way to a GPU through page-locked memory.

A copy from page-locked memory runs beside the processor, which goes on at once; so the memory must
not be written again before the copy has read it. There are two buffers in turn, each with a mark
that its last copies have finished: filling one waits for its own mark only, while the copies of the
other may still run.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import torch
from numpy.typing import NDArray

from cadenza.learn.memory.core_types import from_numpy

#: Buffers that take turns.
_BUFFERS: Final = 2
#: Columns begin at multiples of so many bytes: those of a line of cache, and of any element.
_ALIGNMENT: Final = 64


class Copies(Protocol):
    """Copies that run on their own."""

    def page_locked(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes, uint8, that copies can read by themselves."""
        ...

    def start(self, staged: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device that becomes a copy of ``staged``."""
        ...

    def mark(self) -> Callable[[], object]:
        """Return a function that returns once all copies started so far have finished."""
        ...


class CudaCopies:
    """Copies to a CUDA device, in the order of the stream that is current in the calling thread.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def page_locked(self, size: int) -> torch.Tensor:
        """Return page-locked bytes."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def start(self, staged: torch.Tensor) -> torch.Tensor:
        """Return a tensor that later work on the stream sees as a copy of ``staged``."""
        return staged.to(self._device, non_blocking=True)

    def mark(self) -> Callable[[], object]:
        """Return a wait for all copies on the stream so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event.synchronize


class _Buffer:
    """Page-locked bytes, and when they may be written again."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.wait_until_free: Callable[[], object] | None = None


class PinnedTransfer:
    """Brings batches to a device; threads may share it.

    Args:
        copies: Makes the buffers and the copies.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._buffers = [_Buffer() for _ in range(_BUFFERS)]
        self._lock = threading.Lock()

    def __call__(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Return each array as a tensor of its own on the device; they need not be there yet."""
        with self._lock:
            buffer = self._buffers.pop(0)
            self._buffers.append(buffer)
            if buffer.wait_until_free is not None:
                buffer.wait_until_free()
                buffer.wait_until_free = None
            size = sum(_padded(array.nbytes) for array in arrays.values())
            if size > len(buffer.bytes):
                buffer.bytes = self._copies.page_locked(size)
            try:
                return self._start(arrays, buffer.bytes)
            finally:  # after an error, too, some copies may run
                buffer.wait_until_free = self._copies.mark()

    def _start(
        self, arrays: Mapping[str, NDArray[Any]], staging: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        offset = 0
        for name, array in arrays.items():
            values = from_numpy(array)
            staged = staging[offset : offset + array.nbytes].view(values.dtype).view(values.shape)
            staged.copy_(values)
            tensors[name] = self._copies.start(staged)
            offset += _padded(array.nbytes)
        return tensors


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

"""How batches come to the device that networks are on.

On CUDA a batch takes one of two turns in page-locked memory; while update k computes there, the
host samples batch k + 1 and a stream of its own copies it. The host waits for a copy only when the
slot comes round again, two batches later.

    host      sample 1   fill slot 1   sample 2   fill slot 0   ...
    copies                    slot 1 --->                  slot 0 --->
    device                           update 1                     update 2
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

#: Returns tensors on a device, in order; those of the device itself as they are.
Send: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]


def on_device(rows: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``rows`` as a tensor, on the CPU without a copy."""
    tensor = torch.from_numpy(rows)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
    return tensor if device.type == "cpu" else tensor.to(device)


def sending_to(device: torch.device) -> Send:
    """Return what sends batches to ``device``."""
    if device.type == "cpu":
        return list[Tensor]
    if device.type == "cuda":
        return Staging(device)
    return lambda tensors: [tensor.to(device) for tensor in tensors]


class Slots:
    """Two sets of host tensors in turn, page-locked if ``pinned``: one is filled, one is read."""

    def __init__(self, *, pinned: bool) -> None:
        self.turn: int = 0  # of the set that is filled next
        self._pinned = pinned
        self._sets: list[list[Tensor]] = [[], []]

    def fill(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return copies, which the second next call overwrites if shapes and types are the same."""
        own = self._sets[self.turn]
        wanted = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if [(tensor.shape, tensor.dtype) for tensor in own] != wanted:
            own[:] = [torch.empty(s, dtype=d, pin_memory=self._pinned) for s, d in wanted]
        for copy, tensor in zip(own, tensors, strict=True):
            copy.copy_(tensor)
        self.turn = 1 - self.turn
        return own


class Staging:
    """Sends batches to a CUDA device; see the head of this page."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots = Slots(pinned=True)
        self._copies = torch.cuda.Stream(device)
        self._read = torch.cuda.Event(), torch.cuda.Event()  # a slot's last copy is over

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors on the device, which what is computed there next waits for."""
        if all(tensor.is_cuda for tensor in tensors):
            return list(tensors)
        read = self._read[self._slots.turn]
        read.synchronize()
        host = self._slots.fill(tensors)
        with torch.cuda.stream(self._copies):
            sent = [tensor.to(self._device, non_blocking=True) for tensor in host]
            read.record()
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._copies)
        for tensor in sent:
            tensor.record_stream(current)  # the copies' stream must not reuse it before
        return sent

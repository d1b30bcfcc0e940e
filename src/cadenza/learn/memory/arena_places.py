"""Where the rows of a table lie, and how its batches get to its device.

``host``    rows in the processor's memory; batches are copied to the device, if it is another one.
``pinned``  rows there, too; batches go through page-locked memory to a CUDA device, and the
            processor goes on meanwhile.
``device``  rows on the device; batches are made there.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import torch

from cadenza.core.device import resolve_device
from cadenza.core.errors import ConfigurationError, DeviceUnavailableError
from cadenza.learn.memory.arena import RecordArena
from cadenza.learn.memory.arena_device import DeviceArena, DeviceGatherer
from cadenza.learn.memory.arena_pinned import CudaCopies, PinnedTransfer
from cadenza.learn.memory.core_types import SampleResult, from_numpy
from cadenza.learn.memory.gathering import EpisodeContents, Gatherer
from cadenza.learn.memory.table_layout import TableLayout

#: Where the rows of a table lie.
Storage: TypeAlias = Literal["host", "pinned", "device"]


class Place(Protocol):
    """Makes the parts of a table that depend on where its rows lie."""

    def contents(self, layout: TableLayout, capacity: int) -> EpisodeContents:
        """Return an empty content with ``capacity`` rows."""
        ...

    def gatherer(self, layout: TableLayout, contents: Callable[[], EpisodeContents]) -> Gatherer:
        """Return what makes batches from such contents."""
        ...

    def deliver(self, values: Mapping[str, Any]) -> SampleResult:
        """Return arrays and tensors as tensors on the device."""
        ...


class HostPlace:
    """Rows in the processor's memory.

    Args:
        device: Where batches go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stays = device.type == "cpu"

    def contents(self, layout: TableLayout, capacity: int) -> EpisodeContents:
        """Return an empty content; see `Place`."""
        return EpisodeContents(layout, RecordArena(layout.fields(), capacity))

    def gatherer(self, layout: TableLayout, contents: Callable[[], EpisodeContents]) -> Gatherer:
        """Return what makes batches; see `Place`."""
        return Gatherer(layout, contents)

    def deliver(self, values: Mapping[str, Any]) -> SampleResult:
        """Return arrays as tensors on the device."""
        if self._stays:
            return {name: from_numpy(array) for name, array in values.items()}
        return {name: from_numpy(array).to(self._device) for name, array in values.items()}


class PinnedPlace(HostPlace):
    """Rows in the processor's memory, batches through page-locked memory.

    Args:
        device: Where batches go.

    Raises:
        DeviceUnavailableError: It is no CUDA device, or there is none.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise DeviceUnavailableError(
                "storage 'pinned': expected a CUDA device that batches are copied to, got device "
                f"{str(device)!r} with CUDA {'' if torch.cuda.is_available() else 'not '}available;"
                " pass storage='host', or device='cuda' on a machine that has it."
            )
        super().__init__(device)
        self._transfer = PinnedTransfer(CudaCopies(device))

    def deliver(self, values: Mapping[str, Any]) -> SampleResult:
        """Return arrays as tensors on the device, which arrive in the order of its stream."""
        return self._transfer(values)


class DevicePlace:
    """Rows on the device.

    Args:
        device: Where rows and batches lie.

    Raises:
        DeviceUnavailableError: There is no such device.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type in ("cuda", "mps"):
            resolve_device(str(device))
        self._device = device

    def contents(self, layout: TableLayout, capacity: int) -> EpisodeContents:
        """Return an empty content; see `Place`."""
        return EpisodeContents(layout, DeviceArena(layout.fields(), capacity, self._device))

    def gatherer(self, layout: TableLayout, contents: Callable[[], EpisodeContents]) -> Gatherer:
        """Return what makes batches; see `Place`."""
        return DeviceGatherer(layout, contents, self._device)

    def deliver(self, values: Mapping[str, Any]) -> SampleResult:
        """Return all values as tensors on the device."""
        return {
            name: value if isinstance(value, torch.Tensor) else from_numpy(value).to(self._device)
            for name, value in values.items()
        }


_PLACES: dict[str, Callable[[torch.device], Place]] = {
    "host": HostPlace,
    "pinned": PinnedPlace,
    "device": DevicePlace,
}


def place_of(storage: Storage, device: torch.device) -> Place:
    """Return the place that ``storage`` names, for batches on ``device``.

    Raises:
        ConfigurationError: There is no such place.
        DeviceUnavailableError: The place needs a device that is not there.
    """
    made = _PLACES.get(storage)
    if made is None:
        raise ConfigurationError(f"storage: expected one of {sorted(_PLACES)}, got {storage!r}.")
    return made(device)

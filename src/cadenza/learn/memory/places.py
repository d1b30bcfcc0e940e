"""Where the rows of a table lie, and how its batches get to its device.

``host``    rows in the processor's memory; batches are copied to the device, if it is another one.
``pinned``  rows there, too; batches go through page-locked memory to a CUDA device. A copy from
            page-locked memory runs beside the processor, which goes on at once; so the memory must
            not be written again before the copy has read it. There are two buffers in turn, each
            with a mark that its last copies have finished: filling one waits for its own mark only,
            while the copies of the other may still run.
``device``  rows on the device, one tensor per column; batches are made there. Where windows may
            start stays on the host, since they are drawn there. A column whose type torch stores
            but hardly computes with (unsigned integers of more than a byte) is kept as the signed
            one of its size, bit for bit. The first rows of drawn windows, and which of them reach
            an episode's end, go to the device in one copy.

Axes:   N = rows, n = number of rows or windows, T = rows per window, B = n T, rollout-major.
Limits: work is queued on the stream that is current in the calling thread, so on CUDA all threads
        that use one table need the same stream, as they have unless they choose one.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.device import resolve_device
from cadenza.core.errors import ConfigurationError, DeviceUnavailableError
from cadenza.learn.memory.arena import (
    EpisodeContents,
    Gatherer,
    RecordArena,
    record_bytes,
    rows_of_output,
)
from cadenza.learn.memory.column import IndexArray, SampleResult, from_numpy
from cadenza.learn.memory.layout import Ends, Field, Shift, TableLayout
from cadenza.learn.memory.ring import RowMove, moved

#: Types that columns are kept as, where they are not kept as they are.
_KEPT_AS: Final[Mapping[torch.dtype, torch.dtype]] = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


class DeviceArena:
    """Values by row and column on one device; see `Arena`.

    Args:
        fields: The columns.
        capacity: Number of rows, N.
        device: Where they lie.
    """

    def __init__(self, fields: Sequence[Field], capacity: int, device: torch.device) -> None:
        self.row_bytes = record_bytes(fields)
        self._device = device
        self._fields = {field.name: field for field in fields}
        self._dtypes = {field.name: torch_dtype(field.dtype) for field in fields}
        self._remaining = np.zeros(capacity, np.int32)
        self._values = self._zeros(capacity)

    def _zeros(self, capacity: int) -> dict[str, torch.Tensor]:
        """Return columns of ``capacity`` rows, each of shape (N, *shape)."""
        return {
            name: torch.zeros(
                (capacity, *field.shape), dtype=self._kept_as(name), device=self._device
            )
            for name, field in self._fields.items()
        }

    def _kept_as(self, name: str) -> torch.dtype:
        return _KEPT_AS.get(self._dtypes[name], self._dtypes[name])

    def remaining(self) -> NDArray[np.int32]:
        """Return the array for `EpisodeRows.remaining`, shape (N,); it is on the host."""
        return self._remaining

    def select(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return a fresh tensor with a column's values at ``rows``, both on the device.

        Args:
            name: Column.
            rows: Indices, int64, shape (n,).

        Returns:
            Shape (n, *shape).
        """
        return self._values[name].index_select(0, rows).view(self._dtypes[name])

    def gather(self, name: str, rows: IndexArray) -> NDArray[Any]:
        """Return a fresh array with the values of a column at ``rows``; see `Arena.gather`."""
        return self.select(name, from_numpy(rows).to(self._device)).cpu().numpy()

    def read(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Return consecutive values of a column; see `Arena.read`."""
        values = self._values[name][start : start + count].view(self._dtypes[name])
        return values.cpu().numpy()

    def write(self, name: str, start: int, count: int, values: NDArray[Any]) -> None:
        """Set consecutive values of a column; see `Arena.write`."""
        self._values[name][start : start + count] = self._tensor(name, values)

    def scatter(self, name: str, rows: IndexArray, values: NDArray[Any]) -> None:
        """Set the values of a column at ``rows``; see `Arena.scatter`."""
        self._values[name].index_copy_(
            0, from_numpy(rows).to(self._device), self._tensor(name, values)
        )

    def _tensor(self, name: str, values: NDArray[Any]) -> torch.Tensor:
        """Return a copy of ``values`` on the device, as the column is kept."""
        own = np.array(values, self._fields[name].dtype, order="C")
        return from_numpy(own).view(self._kept_as(name)).to(self._device)

    def rows_moved(self, moves: Sequence[RowMove], capacity: int) -> None:
        """Bring the rows into new tensors; see `RowListener`."""
        values = self._zeros(capacity)
        for move in moves:
            source = slice(move.source, move.source + move.count)
            target = slice(move.target, move.target + move.count)
            for name, column in values.items():
                column[target] = self._values[name][source]
        self._remaining = moved(self._remaining, moves, capacity)
        self._values = values


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the type that tensors over arrays of ``dtype`` have."""
    return from_numpy(np.empty(0, dtype)).dtype


class DeviceGatherer(Gatherer):
    """Makes batches on the device that holds the rows.

    Args:
        layout: The table's columns.
        contents: Returns the table's present content, whose arena is a `DeviceArena`.
        device: Where it lies.
    """

    def __init__(
        self,
        layout: TableLayout,
        contents: Callable[[], EpisodeContents],
        device: torch.device,
    ) -> None:
        super().__init__(layout, contents)
        self._device = device

    def gather(self, starts: IndexArray, length: int) -> dict[str, Any]:
        """Return fresh tensors on the device, and arrays of the columns that mappers make.

        Args:
            starts: First rows of the windows, shape (n,).
            length: Rows per window, T.

        Returns:
            Values by column name, of shape (B, *shape), or (n, *shape) for one per window.
        """
        arena = cast("DeviceArena", self._contents().arena)
        outputs = self._layout.outputs
        sources = list(dict.fromkeys(o.source for o in outputs if isinstance(o, Ends)))
        final = [self._final(source, starts, length) for source in sources]
        first, *ends = from_numpy(np.stack((starts, *final))).to(self._device)
        final_of = dict(zip(sources, ends, strict=True))
        steps = torch.arange(length, device=self._device)
        shifted = {0: (first[:, None] + steps).reshape(-1)}  # (B,)
        result: dict[str, Any] = {}
        for output in outputs:
            if isinstance(output, Shift):
                at = rows_of_output(output, first, length, shifted)
                result[output.name] = arena.select(output.source, at)
            elif isinstance(output, Ends):
                result[output.name] = _flags(output, final_of[output.source], length)
            else:
                result[output.name] = self._map(output, starts, length)
        return result


def _flags(output: Ends, final: torch.Tensor, length: int) -> torch.Tensor:
    """Return episode ends as values, shape (B, *shape)."""
    dtype, shape = torch_dtype(output.field.dtype), output.field.shape
    values = torch.zeros((len(final), length), dtype=torch.bool, device=final.device)
    values[:, -1] = final.bool()
    return (values ^ output.mask).to(dtype).reshape(-1, *shape)


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

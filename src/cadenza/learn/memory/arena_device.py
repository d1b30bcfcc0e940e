"""Rows of a table on a compute device: one tensor per column.

What lies on the device is what batches copy; where windows may start stays on the host, since they
are drawn there. A column whose type torch stores but hardly computes with (unsigned integers of
more than a byte) is kept as the signed one of its size, bit for bit. The first rows of drawn
windows, and which of them reach an episode's end, go to the device in one copy.

Axes:   N = rows, n = number of rows or windows, T = rows per window, B = n T, rollout-major.
Limits: work is queued on the stream that is current in the calling thread, so on CUDA all threads
        that use one table need the same stream, as they have unless they choose one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.learn.memory.arena import Field, record_bytes
from cadenza.learn.memory.core_types import IndexArray, from_numpy
from cadenza.learn.memory.gathering import EpisodeContents, Gatherer, rows_of_output
from cadenza.learn.memory.row_moves import RowMove, moved
from cadenza.learn.memory.table_layout import Ends, Shift, TableLayout

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

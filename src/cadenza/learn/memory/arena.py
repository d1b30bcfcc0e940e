"""Rows of a table: all columns of one step side by side in memory.

A row holds one value of each stored column and ``remaining`` (see `EpisodeRows`), so sampling a
step touches one or two lines of memory whatever the number of columns. Columns of different types
share the row; each is read through a view of items as large as its row, which numpy copies fastest.

Axes: N = rows, n = number of rows gathered.
"""

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.learn.memory.core_types import IndexArray
from cadenza.learn.memory.row_moves import RowMove

#: Rows begin at multiples of this many bytes, so that every field can be aligned.
_ROW_ALIGNMENT: Final = 8
#: Arenas of at least this size ask for huge pages (2 MiB each).
_HUGE_BYTES: Final = 1 << 21
#: Items of these sizes are copied as numbers, others as opaque bytes.
_NUMBER_SIZES: Final = (1, 2, 4, 8)
#: Name of the field that holds `EpisodeRows.remaining`.
_REMAINING: Final = "\0remaining"


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an arena.

    Attributes:
        name: Column name.
        shape: Shape of one value.
        dtype: Element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    @property
    def alignment(self) -> int:
        """Largest power of two, at most 8, that divides the size."""
        return min(self.size & -self.size, _ROW_ALIGNMENT) if self.size else 1


class Arena(Protocol):
    """Values by row and column, wherever they lie; `RecordArena` and `DeviceArena` are two."""

    #: Bytes of a row as `RecordArena` stores it; decides how many rows a table begins with.
    row_bytes: int

    def remaining(self) -> NDArray[np.int32]:
        """Return the array for `EpisodeRows.remaining`, on the host, shape (N,)."""
        ...

    def read(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Return consecutive values of a column on the host, shape (count, *shape).

        They are to be read at once: they may be a view.
        """
        ...

    def gather(self, name: str, rows: IndexArray) -> NDArray[Any]:
        """Return a fresh array on the host with a column's values at ``rows``, (n, *shape)."""
        ...

    def write(self, name: str, start: int, count: int, values: NDArray[Any]) -> None:
        """Set consecutive values of a column; ``values`` has ``count`` rows, or one for all."""
        ...

    def scatter(self, name: str, rows: IndexArray, values: NDArray[Any]) -> None:
        """Set the values of a column at ``rows``, which are all different."""
        ...

    def rows_moved(self, moves: Sequence[RowMove], capacity: int) -> None:
        """Bring the values into a new ring; see `RowListener`."""
        ...


class RecordArena:
    """Values by row and column.

    Args:
        fields: The columns.
        capacity: Number of rows, N.
    """

    def __init__(self, fields: Sequence[Field], capacity: int) -> None:
        remaining = Field(_REMAINING, (), np.dtype(np.int32))
        self._fields = {field.name: field for field in (*fields, remaining)}
        self._offsets: dict[str, int] = {}
        offset = 0
        # Falling alignment leaves no gaps, as each size is a multiple of its alignment.
        for field in sorted(self._fields.values(), key=lambda field: -field.alignment):
            self._offsets[field.name] = offset
            offset += field.size
        self.row_bytes = record_bytes(fields)
        self._use(_zeros(capacity * self.row_bytes))

    def _use(self, buffer: NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._rows = len(buffer) // self.row_bytes
        self._values = {name: self._view(field) for name, field in self._fields.items()}
        self._readers = {
            name: (self._item_view(field) if field.size else None, field.dtype, field.shape)
            for name, field in self._fields.items()
        }
        self._beginnings = np.ndarray((self._rows,), np.uint8, buffer.data, 0, (self.row_bytes,))

    def _view(self, field: Field) -> NDArray[Any]:
        """Return the values of one column, shape (N, *shape)."""
        inner: list[int] = []
        step = field.dtype.itemsize
        for size in reversed(field.shape):
            inner.append(step)
            step *= size
        return np.ndarray(
            (self._rows, *field.shape),
            field.dtype,
            self._buffer.data,
            self._offsets[field.name],
            (self.row_bytes, *reversed(inner)),
        )

    def _item_view(self, field: Field) -> NDArray[Any]:
        """Return the values of one column as opaque items, shape (N,)."""
        kind = f"u{field.size}" if field.size in _NUMBER_SIZES else f"V{field.size}"
        return np.ndarray(
            (self._rows,),
            np.dtype(kind),
            self._buffer.data,
            self._offsets[field.name],
            (self.row_bytes,),
        )

    def remaining(self) -> NDArray[np.int32]:
        """Return the field for `EpisodeRows.remaining`, shape (N,)."""
        return self._values[_REMAINING]

    def read(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Return a view of consecutive values of a column; see `Arena.read`."""
        return self._values[name][start : start + count]

    def write(self, name: str, start: int, count: int, values: NDArray[Any]) -> None:
        """Set consecutive values of a column; see `Arena.write`."""
        self._values[name][start : start + count] = values

    def scatter(self, name: str, rows: IndexArray, values: NDArray[Any]) -> None:
        """Set the values of a column at ``rows``; see `Arena.scatter`."""
        self._values[name][rows] = values

    def gather(self, name: str, rows: IndexArray) -> NDArray[Any]:
        """Return a fresh array with the values of a column at ``rows``, shape (n, *shape)."""
        items, dtype, shape = self._readers[name]
        if items is None:
            return np.zeros((len(rows), *shape), dtype)
        values = items[rows].view(dtype)
        return values if shape == () else values.reshape(len(rows), *shape)

    def touch(self, rows: IndexArray) -> None:
        """Load the beginnings of ``rows`` into the processor's cache.

        One cheap pass waits for many lines of memory at once; the passes over wider items that
        follow would wait for them one by one.
        """
        self._beginnings[rows]

    def rows_moved(self, moves: Sequence[RowMove], capacity: int) -> None:
        """Bring the rows into a new buffer; see `RowListener`."""
        size = self.row_bytes
        buffer = _zeros(capacity * size)
        for move in moves:
            source = self._buffer[move.source * size : (move.source + move.count) * size]
            buffer[move.target * size : (move.target + move.count) * size] = source
        self._use(buffer)


def record_bytes(fields: Sequence[Field]) -> int:
    """Return the bytes of a row that holds ``fields`` and ``remaining``."""
    size = np.dtype(np.int32).itemsize + sum(field.size for field in fields)
    return -(-size // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def _zeros(size: int) -> NDArray[np.uint8]:
    """Return zeros; large ones on huge pages where the system has them.

    Random rows of a large arena lie on different pages each, and looking pages up takes as long as
    reading the rows unless the pages are huge. Memory is provided as rows are written.
    """
    if size < _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)

"""Rows of a table, all columns of one step side by side in memory, and batches made of them.

A row holds one value of each stored column and ``remaining`` (see `EpisodeRows`), so sampling a
step touches one or two lines of memory whatever the number of columns. Columns of different types
share the row; each is read through a view of items as large as its row, which numpy copies fastest.

Axes: N = rows, n = number of rows gathered or windows, T = rows per window, B = n T, rollout-major.
"""

import contextlib
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError
from cadenza.learn.memory.column import EpisodeArrays, IndexArray, TagProxy, VirtualStorage
from cadenza.learn.memory.layout import ROW_ALIGNMENT, Ends, Field, Mapped, Shift, TableLayout
from cadenza.learn.memory.ring import EpisodeRows, RowMove

#: Arenas of at least this size ask for huge pages (2 MiB each).
_HUGE_BYTES: Final = 1 << 21
#: Items of these sizes are copied as numbers, others as opaque bytes.
_NUMBER_SIZES: Final = (1, 2, 4, 8)
#: Name of the field that holds `EpisodeRows.remaining`.
_REMAINING: Final = "\0remaining"


class RecordArena:
    """Values by row and column."""

    def __init__(self, fields: Sequence[Field], capacity: int) -> None:
        remaining = Field(_REMAINING, (), np.dtype(np.int32))
        self._fields = {field.name: field for field in (*fields, remaining)}
        self._offsets: dict[str, int] = {}
        offset = 0
        # Falling alignment leaves no gaps, as each size is a multiple of its alignment.
        for field in sorted(self._fields.values(), key=lambda field: -field.alignment):
            self._offsets[field.name] = offset
            offset += field.size
        self.row_bytes: int = -(-offset // ROW_ALIGNMENT) * ROW_ALIGNMENT
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
        """Return a view of consecutive values of a column, shape (count, *shape)."""
        return self._values[name][start : start + count]

    def write(self, name: str, start: int, count: int, values: NDArray[Any]) -> None:
        """Set consecutive values of a column; ``values`` has ``count`` rows, or one for all."""
        self._values[name][start : start + count] = values

    def scatter(self, name: str, rows: IndexArray, values: NDArray[Any]) -> None:
        """Set the values of a column at ``rows``, which are all different."""
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


def _zeros(size: int) -> NDArray[np.uint8]:
    """Return zeros; large ones on huge pages where the system has them."""
    if size < _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


class EpisodeContents:
    """Where the rows of each episode and column are: the table's content at one time.

    ``extra`` has the rows beyond L of the flexible columns by slot, int32, (S, F).
    """

    def __init__(self, layout: TableLayout, arena: RecordArena) -> None:
        self.layout = layout
        self.arena = arena
        self.rows: EpisodeRows = EpisodeRows(
            len(arena.remaining()), external_remaining=arena.remaining
        )
        self.rows.add_listener(self.arena)
        self.extra: NDArray[np.int32] = np.zeros((0, len(layout.flexible)), np.int32)

    def counts(self, name: str, slots: IndexArray) -> IndexArray:
        """Return the rows that a stored column has in the episodes of ``slots``, shape (E,)."""
        stored = self.layout.stored[name]
        if stored.is_tag:
            return np.ones(len(slots), np.int64)
        steps = self.rows.slots.steps[slots]
        if name in self.layout.flexible:
            return steps + self.extra[slots, self.layout.flexible.index(name)]
        return steps + stored.least_extra

    def set_extra(self, slot: int, extra: list[int]) -> None:
        """Note the rows beyond L of the flexible columns of a new episode."""
        if slot >= len(self.extra):
            more = len(self.rows.slots.start) - len(self.extra)
            self.extra = np.concatenate((self.extra, np.zeros((more, len(extra)), np.int32)))
        self.extra[slot] = extra

    def episode(self, name: str, identity: int) -> NDArray[Any]:
        """Return one episode's rows of a stored column: a view, to be read at once."""
        slot = self.rows.slot(identity)
        start = int(self.rows.slots.start[slot])
        count = int(self.counts(name, np.array([slot]))[0])
        return self.arena.read(name, start, count)


class _ColumnView:
    """One stored column as mappers see it: arrays by episode id."""

    def __init__(self, contents: Callable[[], EpisodeContents], name: str, is_tag: bool) -> None:
        self._contents = contents
        self._name = name
        self._is_tag = is_tag

    def __getitem__(self, identity: int, /) -> Any:
        """Return the rows of one episode, read-only."""
        rows = self._contents().episode(self._name, identity)
        rows.flags.writeable = False
        return TagProxy(rows) if self._is_tag else rows


class Gatherer:
    """Makes batches."""

    def __init__(self, layout: TableLayout, contents: Callable[[], EpisodeContents]) -> None:
        self._layout = layout
        self._contents = contents
        self._steps = np.zeros(1, np.int64)
        self._mapped = self._make_storages()
        self._looks_ahead = any(
            isinstance(output, Shift) and (output.after or output.first == 1)
            for output in layout.outputs
        )

    def _make_storages(self) -> dict[str, VirtualStorage]:
        """Return the storages of mapped columns, which may read one another."""
        views: dict[str, EpisodeArrays] = {
            name: _ColumnView(self._contents, name, stored.is_tag)
            for name, stored in self._layout.stored.items()
        }
        mapped: dict[str, VirtualStorage] = {}
        for column, output in zip(self._layout.columns, self._layout.outputs, strict=True):
            if output.name in self._layout.stored:
                continue
            made_by: Any = output if isinstance(output, Mapped) else column
            mapper = made_by.mapper
            storage = mapper(views[output.source], tuple(column.shape), column.dtype)
            views[output.name] = storage
            if isinstance(output, Mapped):
                mapped[output.name] = storage
        return mapped

    def gather(self, starts: IndexArray, length: int) -> dict[str, Any]:
        """Return fresh arrays by column of windows with these first rows, (n,), of ``length`` rows.

        They are (B, *shape), or (n, *shape) for one value per window.
        """
        arena = self._contents().arena
        if length == 1:
            rows = starts
        else:
            if len(self._steps) != length:
                self._steps = np.arange(length)
            rows = (starts[:, None] + self._steps).reshape(-1)
        shifted: dict[int, IndexArray] = {0: rows}
        if length == 1 and self._looks_ahead:
            shifted[1] = rows + 1
            arena.touch(shifted[1])
        result: dict[str, NDArray[Any]] = {}
        final: dict[str, NDArray[np.bool_]] = {}
        for output in self._layout.outputs:
            if isinstance(output, Shift):
                at = _rows_of(output, starts, length, shifted)
                result[output.name] = arena.gather(output.source, at)
            elif isinstance(output, Ends):
                if output.source not in final:
                    final[output.source] = self._final(output.source, starts, length)
                result[output.name] = _flags(output, final[output.source], length)
            else:
                result[output.name] = self._map(output, starts, length)
        return result

    def _final(self, source: str, starts: IndexArray, length: int) -> NDArray[np.bool_]:
        """Return whether each window ends with the last row of ``source``, shape (n,)."""
        contents, stored = self._contents(), self._layout.stored[source]
        last = starts if length == 1 else starts + (length - 1)
        rows = contents.rows
        if self._layout.whole and stored.most_extra == 0:
            return rows.remaining[last] == 1
        slots = rows.slot_of_row[starts].astype(np.int64)
        return last - rows.slots.start[slots] == contents.counts(source, slots) - 1

    def _map(self, output: Mapped, starts: IndexArray, length: int) -> NDArray[Any]:
        """Return the values that a mapper gives, window by window."""
        storage = self._mapped[output.name]
        per_window = storage.sequence_length_transform(length)
        points = self._contents().rows.points(starts, length)
        shape = output.field.shape
        result = np.empty((len(points) * per_window, *shape), output.field.dtype)
        for index, (identity, start, stop) in enumerate(points):
            values = np.asarray(storage[identity][start:stop])
            try:
                result[index * per_window : (index + 1) * per_window] = values
            except ValueError as error:
                raise InputError(
                    f"sample: expected {per_window} rows of shape {shape} for column "
                    f"{output.name!r}, episode {identity}, slice [{start}:{stop}], got an array of "
                    f"shape {values.shape}; the episode has {self._describe(identity)}."
                ) from error
        return result

    def _describe(self, identity: int) -> str:
        """Return the shape of every stored column of one episode."""
        contents = self._contents()
        return ", ".join(
            f"{name} {contents.episode(name, identity).shape}" for name in self._layout.stored
        )


def _rows_of(
    output: Shift, starts: IndexArray, length: int, shifted: dict[int, IndexArray]
) -> IndexArray:
    """Return the rows that an output reads; ``shifted`` keeps those that others read too."""
    if output.single:
        return starts
    if output.after:
        return shifted[1] if length == 1 and 1 in shifted else starts + length
    at = shifted.get(output.first)
    if at is None:
        at = shifted[output.first] = shifted[0] + output.first
    return at


def _flags(output: Ends, final: NDArray[np.bool_], length: int) -> NDArray[Any]:
    """Return episode ends as values, shape (B, *shape)."""
    field, count = output.field, len(final)
    if length == 1:
        values = ~final if output.mask else final
        # A boolean result may be ``final`` itself, which other columns use too.
        return values.astype(field.dtype).reshape(count, *field.shape)
    values = np.full((count, length), output.mask, field.dtype)
    values[:, -1] = ~final if output.mask else final
    return values.reshape(count * length, *field.shape)

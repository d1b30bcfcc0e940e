"""A table of whole episodes that samples windows of them.

Start at `ArrayMemoryTable`. Its rows lie in a `RecordArena`, where they lie is in `EpisodeRows`,
and which windows are sampled and which episodes go is for the two strategies to say.

A snapshot, for files, holds the episodes from the oldest to the newest and nothing of their places.
The state for checkpoints also holds the places, since uniform sampling draws places: a table that
loads it samples the same windows as the one that made it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.load_switches import accepts_other_names
from cadenza.learn.memory.core_types import IndexArray, SampleResult, from_numpy
from cadenza.learn.memory.gathering import EpisodeContents
from cadenza.learn.memory.sequence_rows import require_finite_rows
from cadenza.learn.memory.serialisation import (
    TableSerializationVersion,
    read_snapshot,
    write_snapshot,
)
from cadenza.learn.memory.serialisation_checks import ReadOptions
from cadenza.learn.memory.snapshot import (
    ContentMark,
    IdPolicy,
    StoredRows,
    TableChanges,
    TableSnapshot,
)
from cadenza.learn.memory.strategy import EjectionStrategy, SampleStrategy, Strategy
from cadenza.learn.memory.table_base import EpisodeTable
from cadenza.learn.memory.table_layout import StoredColumn, TableLayout

if TYPE_CHECKING:
    from cadenza.learn.memory.adaptors import Adaptor

__all__ = ["ArrayMemoryTable", "MemoryTable", "TableSerializationVersion"]


class MemoryTable(Protocol):
    """What proxies and loaders need of a table."""

    adaptors: "list[Adaptor]"

    def sample(self, count: int, sequence_length: int) -> SampleResult:
        """Return ``count`` windows of ``sequence_length`` steps, column by column."""
        ...

    def size(self) -> int:
        """Return the number of stored transitions."""
        ...

    def full(self) -> bool:
        """Return whether adding may eject."""
        ...

    def add_sequence(self, identity: int, sequence: Mapping[str, Any]) -> None:
        """Add a finished episode."""
        ...

    def store(
        self, path: str, version: TableSerializationVersion = TableSerializationVersion.LATEST
    ) -> bool:
        """Write everything to ``<path>.zip``."""
        ...

    def restore(self, path: str, override_version: TableSerializationVersion | None = None) -> bool:
        """Replace the content by that of ``<path>.zip``."""
        ...


class ArrayMemoryTable(EpisodeTable):
    """Stores whole episodes and samples windows that never cross an episode's end.

    Thread-safe: any thread may add, sample, store or restore. `EpisodeTable` describes the
    arguments, adding and sampling; here is what saves and loads.
    """

    def store(
        self,
        path: str | Path,
        version: TableSerializationVersion | None = TableSerializationVersion.LATEST,
        *,
        compress: bool = False,
    ) -> bool:
        """Replace ``<path>.zip`` by a file with the whole content; adding goes on meanwhile.

        Args:
            path: File without its extension.
            version: Format; None means the latest.
            compress: Deflate the rows.

        Returns:
            True.

        Raises:
            ConfigurationError: ``version`` is not the latest: others are only read.
            StorageError: The file system refused.
        """
        write_snapshot(self.snapshot(), path, version, compress=compress)
        return True

    def restore(
        self,
        path: str | Path,
        override_version: TableSerializationVersion | None = None,
        *,
        allow_pickle: bool = False,
        id_policy: IdPolicy = "keep",
        max_unpacked_bytes: int | None = None,
    ) -> bool:
        """Replace the content by that of ``<path>.zip``; after an error nothing has changed.

        Args:
            path: File without its extension.
            override_version: Format to assume; None looks into the file.
            allow_pickle: Accept the legacy format, which is a pickle.
            id_policy: ``keep`` the ids of the file, or ``remap`` them to -1, -2, ..., so that
                collectors, which count from 0, never meet them.
            max_unpacked_bytes: Most bytes a compressed file may unpack to; None allows 1 GiB or
                64 times its size on disk, whichever is more.

        Returns:
            True.

        Raises:
            FileNotFoundError: There is no such file.
            IntegrityError: The file is damaged.
            InputError: It holds NaN or infinity; a table with ``check_finite=False`` takes it.
            ConfigurationError: It does not suit the table, or is a pickle and those are not
                allowed.
        """
        options = ReadOptions(
            columns=self.columns,
            length_key=self.length_key,
            maxlen=self._maxlen,
            sampler_type=type(self._sampler).__name__,
            ejector_type=type(self._ejector).__name__,
            allow_pickle=allow_pickle,
            max_unpacked_bytes=max_unpacked_bytes,
        )
        if id_policy not in ("keep", "remap"):
            raise ConfigurationError(f"id_policy: expected 'keep' or 'remap', got {id_policy!r}.")
        snapshot = read_snapshot(path, options, override_version)
        self.load_snapshot(snapshot if id_policy == "keep" else snapshot.with_fresh_identities())
        return True

    def snapshot(self) -> TableSnapshot:
        """Return a copy of the whole content."""
        with self._lock:
            return take_snapshot(self._contents, self._maxlen, self._sampler, self._ejector)

    def changes_since(self, mark: ContentMark | None) -> TableChanges:
        """Return the episodes that came after ``mark``, and which are stored now.

        Args:
            mark: From the changes before; None, or one from before a restore, gives everything.
        """
        with self._lock:
            rows = self._contents.rows
            is_whole = mark is None or mark.place is not rows
            first = 0 if mark is None or is_whole else mark.next_serial
            serials = rows.slots.serial[rows.live_slots()]
            added = take_snapshot(
                self._contents, self._maxlen, self._sampler, self._ejector, first_serial=first
            )
            after = ContentMark(place=rows, next_serial=int(serials.max(initial=first - 1)) + 1)
            return TableChanges(
                added=added,
                added_serials=serials[serials >= first],
                identities=tuple(rows.identities()),
                serials=serials,
                is_whole=is_whole,
                mark=after,
            )

    def load_snapshot(self, snapshot: TableSnapshot) -> None:
        """Replace the content by that of ``snapshot``; after an error nothing has changed.

        The newest episodes that fit are taken. The table keeps its columns, limit, strategies and
        adaptors; strategies of the snapshot's types take over their states.

        Raises:
            ConfigurationError: The snapshot's rows do not suit the columns.
            InputError: They hold NaN or infinity, and the table checks that.
            CheckpointError: The state of a strategy is malformed.
        """
        for name, part in snapshot.stored.items() if self._check_finite else ():
            require_finite_rows(f"{self._name}: column {name!r} of the loaded rows", part.rows)
        contents = contents_of(snapshot, self._layout, self._new_contents, self._maxlen)
        states: list[Mapping[str, Any] | None] = [
            snapshot.sampler_state if _is_type(self._sampler, snapshot.sampler_type) else None,
            snapshot.ejector_state if _is_type(self._ejector, snapshot.ejector_type) else None,
        ]
        with self._lock:
            self._swap(contents, states)
            self._filled = len(contents.rows) < len(snapshot.identities)

    def _swap(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Put ``contents`` in place and load the strategies, or leave everything as it was."""
        strategies: tuple[Strategy, ...] = (self._sampler, self._ejector)
        before = [strategy.state() for strategy in strategies]
        old = self._contents
        try:
            self._use(contents, states)
        except BaseException:
            self._use(old, before)
            raise

    def _use(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        rows = contents.rows
        for strategy, state in zip((self._sampler, self._ejector), states, strict=True):
            strategy.drop_all()
            strategy.attach(rows)
            strategy.begin_simple_import()
            if state is not None:
                strategy.load_state(state)
            for identity in rows.identities():
                strategy.track(identity, int(rows.slots.steps[rows.slot(identity)]))
            strategy.end_simple_import()
        self._contents = contents

    def state_dict(self) -> dict[str, Any]:
        """Return content, layout and strategies, so that sampling goes on exactly as it would."""
        with self._lock:
            return {
                "maxlen": self._maxlen,
                "filled": self._filled,
                "contents": contents_state(self._contents),
                "sampler": self._sampler.state(),
                "ejector": self._ejector.state(),
            }

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken; after an error nothing has changed.

        Args:
            state_dict: What `state_dict` gave, of a table with the same columns.
            load_network: Without effect: a table has no network.
            load_optimizer: Without effect: a table has no optimiser.
            load_hparams: Load at all.

        Raises:
            CheckpointError: It is no such state, or of a table with other columns.
        """
        del load_network, load_optimizer
        if not load_hparams:
            return
        maxlen, filled = (read_field(state_dict, key) for key in ("maxlen", "filled"))
        contents = load_contents_state(
            self._layout, read_field(state_dict, "contents"), self._empty_contents
        )
        if contents.rows.steps > int(maxlen):
            raise CheckpointError(
                f"{self._name}: expected at most maxlen = {maxlen} transitions, got "
                f"{contents.rows.steps}."
            )
        states = [read_field(state_dict, key) for key in ("sampler", "ejector")]
        with self._lock:
            self._swap(contents, states)
            self._maxlen, self._filled = int(maxlen), bool(filled)


def _is_type(strategy: Strategy, name: str) -> bool:
    return type(strategy).__name__ == name


def take_snapshot(
    contents: EpisodeContents,
    maxlen: int,
    sampler: SampleStrategy,
    ejector: EjectionStrategy,
    *,
    first_serial: int = 0,
) -> TableSnapshot:
    """Return a copy of all episodes, with the settings of their table.

    Args:
        contents: The episodes.
        maxlen: The table's limit.
        sampler: The table's sampler.
        ejector: The table's ejector.
        first_serial: Episodes that arrived before this number are left out.
    """
    layout, rows = contents.layout, contents.rows
    slots = rows.live_slots()
    slots = slots[rows.slots.serial[slots] >= first_serial]
    chosen: list[int] = slots.tolist()
    stored: dict[str, StoredRows] = {}
    for name in layout.stored:
        counts = contents.counts(name, slots)
        at = _row_indices(rows.slots.start[slots], counts)
        stored[name] = StoredRows(rows=contents.arena.gather(name, at), counts=counts)
    return TableSnapshot(
        columns=layout.columns,
        length_key=layout.length_key,
        maxlen=maxlen,
        identities=tuple(rows.slots.identity[slot] for slot in chosen),
        stored=stored,
        sampler_type=type(sampler).__name__,
        ejector_type=type(ejector).__name__,
        sampler_state=sampler.state(),
        ejector_state=ejector.state(),
    )


def contents_of(
    snapshot: TableSnapshot,
    layout: TableLayout,
    new_contents: Callable[[], EpisodeContents],
    maxlen: int,
) -> EpisodeContents:
    """Return the newest episodes of ``snapshot`` that fit together into ``maxlen`` transitions.

    Raises:
        ConfigurationError: The snapshot's rows do not suit the columns.
    """
    _require_same_columns(snapshot, layout)
    counts = {name: part.counts for name, part in snapshot.stored.items()}
    steps = snapshot.lengths()
    for name, column in layout.stored.items():
        _require_counts(column, counts[name], steps)
    if len(snapshot.identities) != len(steps) or len(set(snapshot.identities)) != len(steps):
        raise ConfigurationError(
            f"snapshot: expected {len(steps)} different ids, got {len(snapshot.identities)} of "
            f"which {len(set(snapshot.identities))} are different."
        )
    first = len(steps) - int(np.searchsorted(np.cumsum(steps[::-1]), maxlen, side="right"))
    contents = new_contents()
    starts = _add_episodes(contents, snapshot.identities, counts, steps, first)
    for name, column in layout.stored.items():
        part = snapshot.stored[name]
        skipped = int(part.counts[:first].sum())
        values = part.rows[skipped:]
        own = part.counts[first:]
        if column.is_tag:
            firsts = np.cumsum(own) - own
            own = contents.rows.slots.rows[contents.rows.live_slots()]
            values = np.repeat(values[firsts], own, axis=0)
        contents.arena.scatter(name, _row_indices(starts, own), values)
    return contents


def _add_episodes(
    contents: EpisodeContents,
    identities: tuple[int, ...],
    counts: Mapping[str, IndexArray],
    steps: IndexArray,
    first: int,
) -> IndexArray:
    """Give the episodes from ``first`` on their rows and return where each begins, shape (E,)."""
    layout, rows = contents.layout, contents.rows
    real = [name for name, column in layout.stored.items() if not column.is_tag]
    most, usable = steps, steps
    for name in real:
        most = np.maximum(most, counts[name])
        if layout.stored[name].reach:
            usable = np.minimum(usable, counts[name] - layout.stored[name].reach)
    usable = np.maximum(usable, 0)
    for index in range(first, len(steps)):
        rows.add(
            identities[index],
            int(steps[index]),
            usable=int(usable[index]),
            rows=int(most[index]),
        )
        if layout.flexible:
            extra = [int(counts[name][index] - steps[index]) for name in layout.flexible]
            contents.set_extra(rows.slot(identities[index]), extra)
    return rows.slots.start[rows.live_slots()]


def _require_same_columns(snapshot: TableSnapshot, layout: TableLayout) -> None:
    """Raise unless the snapshot has rows of exactly the stored columns.

    Raises:
        ConfigurationError: It has not.
    """
    if snapshot.length_key != layout.length_key and snapshot.length_key not in layout.stored:
        raise ConfigurationError(
            f"snapshot: expected the length column {layout.length_key!r}, got "
            f"{snapshot.length_key!r}."
        )
    if snapshot.stored.keys() != layout.stored.keys():
        raise ConfigurationError(
            f"snapshot: expected rows of the columns {sorted(layout.stored)}, got "
            f"{sorted(snapshot.stored)}; load it into a table with the same columns."
        )
    for name, column in layout.stored.items():
        rows, field = snapshot.stored[name].rows, column.field
        if rows.shape[1:] != field.shape or rows.dtype != field.dtype:
            raise ConfigurationError(
                f"snapshot: expected column {name!r} of shape {field.shape} and type "
                f"{field.dtype}, got {rows.shape[1:]} and {rows.dtype}."
            )


def _require_counts(column: StoredColumn, counts: IndexArray, steps: IndexArray) -> None:
    """Raise unless every episode has a right number of rows of ``column``.

    Raises:
        ConfigurationError: One has not.
    """
    if len(counts) != len(steps):
        raise ConfigurationError(
            f"snapshot: expected rows of {len(steps)} episodes in column {column.field.name!r}, "
            f"got {len(counts)}."
        )
    extra = counts - steps
    wrong = (
        counts < 1
        if column.is_tag
        else (extra < column.least_extra) | (extra > column.most_extra) | (steps < 1)
    )
    if wrong.any():
        index = int(np.argmax(wrong))
        raise ConfigurationError(
            f"snapshot: expected column {column.field.name!r} to have "
            f"{'at least 1 row' if column.is_tag else _range(column)} in every episode, got "
            f"{counts[index]} in episode number {index} of {steps[index]} transitions."
        )


def _range(column: StoredColumn) -> str:
    return f"{column.least_extra} to {column.most_extra} rows more than transitions (at least 1)"


def _row_indices(starts: IndexArray, counts: IndexArray) -> IndexArray:
    """Return ``starts[i] ... starts[i] + counts[i] - 1`` for every i, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def contents_state(contents: EpisodeContents) -> dict[str, Any]:
    """Return episodes and places as tensors, numbers and lists.

    Equal episodes at equal places give equal bytes, whatever lay there before them.
    """
    slots = contents.rows.live_slots()
    return {
        "places": contents.rows.state_dict(),
        "columns": {
            name: from_numpy(_rows_at_places(contents, name, slots))
            for name in contents.layout.stored
        },
        "extra": from_numpy(
            contents.extra[slots]
            if len(contents.extra)
            else np.zeros((len(slots), len(contents.layout.flexible)), np.int32)
        ),
    }


def _rows_at_places(contents: EpisodeContents, name: str, slots: IndexArray) -> NDArray[Any]:
    """Return a column's rows at the places of all episodes, zeros where an episode has none."""
    rows = contents.rows.slots.rows[slots]
    values = contents.arena.gather(name, _row_indices(contents.rows.slots.start[slots], rows))
    if not contents.layout.stored[name].is_tag:
        counts = contents.counts(name, slots)
        values[_row_indices(np.cumsum(rows) - rows + counts, rows - counts)] = 0
    return values


def load_contents_state(
    layout: TableLayout,
    state: Mapping[str, Any],
    empty_contents: Callable[[int], EpisodeContents],
) -> EpisodeContents:
    """Return the content that `contents_state` described.

    Args:
        layout: The table's columns.
        state: What `contents_state` gave.
        empty_contents: Returns an empty content with that many rows.

    Raises:
        CheckpointError: It is no such state, or of a table with other columns.
    """
    places = read_field(state, "places")
    contents = empty_contents(int(read_field(places, "capacity")))
    contents.rows.load_state_dict(places)
    slots = contents.rows.live_slots()
    at = _row_indices(contents.rows.slots.start[slots], contents.rows.slots.rows[slots])
    columns: Mapping[str, torch.Tensor] = read_field(state, "columns")
    if columns.keys() != layout.stored.keys():
        raise CheckpointError(
            f"table: expected the columns {sorted(layout.stored)}, got {sorted(columns)}; load the "
            "state into a table with the same columns."
        )
    for name, column in layout.stored.items():
        values = columns[name].numpy()
        wanted = ((len(at), *column.field.shape), column.field.dtype)
        if (values.shape, values.dtype) != wanted:
            raise CheckpointError(
                f"table: expected column {name!r} of shape {wanted[0]} and type {wanted[1]}, got "
                f"{values.shape} and {values.dtype}."
            )
        contents.arena.scatter(name, at, values)
    extra: NDArray[np.int32] = read_field(state, "extra").numpy()
    if extra.shape != (len(slots), len(layout.flexible)):
        raise CheckpointError(
            f"table: expected extra rows of shape {(len(slots), len(layout.flexible))}, got "
            f"{extra.shape}."
        )
    for slot, row in zip(slots.tolist(), extra.tolist(), strict=True):
        if row:
            contents.set_extra(slot, row)
    return contents


def read_field(state: Mapping[str, Any], key: str) -> Any:
    """Return ``state[key]``.

    Raises:
        CheckpointError: It is missing.
    """
    try:
        return state[key]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"table: expected the field {key!r} in a saved state, got "
            f"{sorted(state) if isinstance(state, Mapping) else type(state).__name__}."  # pyright: ignore[reportUnnecessaryIsInstance]
        ) from error

"""The whole content of a table at one instant, apart from the table.

A table makes one under its lock and goes on; files are written from it at leisure. A file is read
into one, checked completely, and only then does a table take it over.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.learn.memory.column import (
    Column,
    IndexArray,
    StoredColumn,
    TableLayout,
    from_numpy,
)
from cadenza.learn.memory.ring import EpisodeContents
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    SampleStrategy,
)

#: What happens to the ids of a file: kept, or replaced by fresh ones.
IdPolicy: TypeAlias = Literal["keep", "remap"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class StoredRows:
    """Rows of one stored column, (R, *shape), episode after episode, and rows per episode, (E,)."""

    rows: NDArray[Any]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        total = int(self.counts.sum())
        if self.counts.ndim != 1 or (self.counts < 0).any() or total != len(self.rows):
            raise InputError(
                f"StoredRows: expected counts >= 0 of shape (E,) that sum to {len(self.rows)} "
                f"rows, got shape {self.counts.shape} and sum {total}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class TableSnapshot:
    """A table's episodes, from the oldest to the newest, and settings.

    Rows are there for the columns that hold data, in declared order; strategies by class name and
    ``state()``.
    """

    columns: tuple[Column, ...]
    length_key: str
    maxlen: int
    identities: tuple[int, ...]
    stored: Mapping[str, StoredRows]
    sampler_type: str
    ejector_type: str
    sampler_state: Mapping[str, Any] | None = None
    ejector_state: Mapping[str, Any] | None = None

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of transitions of each episode, shape (E,)."""
        return self.stored[self.length_key].counts

    def with_fresh_identities(self) -> "TableSnapshot":
        """Return the same episodes with the ids -1, -2, ..., which no collector gives out.

        The strategies' states stay behind, since they name the old ids.
        """
        identities = tuple(range(-1, -len(self.identities) - 1, -1))
        return replace(self, identities=identities, sampler_state=None, ejector_state=None)

    def episodes(self) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield id and rows by column name of each episode, from the oldest; the rows are views."""
        stops = {name: np.cumsum(part.counts) for name, part in self.stored.items()}
        for index, identity in enumerate(self.identities):
            yield (
                identity,
                {
                    name: part.rows[stops[name][index] - part.counts[index] : stops[name][index]]
                    for name, part in self.stored.items()
                },
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContentMark:
    """An instant in a table's life: what goes with its content, and the next arrival's number."""

    place: object
    next_serial: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableChanges:
    """What happened to a table since a `ContentMark`: what came and is still there, and what is.

    Serials are numbers of arrival, ascending; identities go from the oldest to the newest. With
    ``is_whole`` the added ones are all: there was no mark, or the content was replaced.
    """

    added: TableSnapshot
    added_serials: NDArray[np.int64]
    identities: tuple[int, ...]
    serials: NDArray[np.int64]
    is_whole: bool
    mark: ContentMark


def take_snapshot(
    contents: EpisodeContents,
    maxlen: int,
    sampler: SampleStrategy,
    ejector: EjectionStrategy,
    *,
    first_serial: int = 0,
) -> TableSnapshot:
    """Return a copy of the episodes from arrival ``first_serial`` on, with settings."""
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
        ConfigurationError: The snapshot's rows do not suit the columns, or its ids the rows.
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
    """Raise unless the snapshot has rows of exactly the stored columns."""
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
    """Raise unless every episode has a right number of rows of ``column``."""
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
        more = f"{column.least_extra} to {column.most_extra} rows more than transitions"
        raise ConfigurationError(
            f"snapshot: expected column {column.field.name!r} to have "
            f"{'at least 1 row' if column.is_tag else f'{more} (at least 1)'} in every episode, "
            f"got {counts[index]} in episode number {index} of {steps[index]} transitions."
        )


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
    """Return the content that `contents_state` described."""
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
    """Return ``state[key]``, or raise `CheckpointError` if it is missing."""
    try:
        return state[key]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"table: expected the field {key!r} in a saved state, got "
            f"{sorted(state) if isinstance(state, Mapping) else type(state).__name__}."  # pyright: ignore[reportUnnecessaryIsInstance]
        ) from error

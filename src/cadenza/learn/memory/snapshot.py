"""The whole content of a table at one instant, apart from the table.

A table makes one under its lock and goes on; files are written from it at leisure. A file is read
into one, checked completely, and only then does a table take it over.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError

if TYPE_CHECKING:
    from cadenza.learn.memory.column import Column

#: What happens to the ids of a file: kept, or replaced by fresh ones.
IdPolicy: TypeAlias = Literal["keep", "remap"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class StoredRows:
    """Rows of one stored column for every episode, one episode after the other.

    Attributes:
        rows: Shape (R, *column.shape) in the column's dtype.
        counts: Rows per episode, int64, shape (E,), summing to R.
    """

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
    """A table's episodes and settings.

    Attributes:
        columns: Every column, the virtual ones too, in declared order.
        length_key: Column that defines the length of an episode.
        maxlen: Most transitions the table may hold.
        identities: Episode ids from the oldest to the newest, E of them, all different.
        stored: Rows by name of the columns that hold data, in declared order.
        sampler_type: Class name of the sample strategy.
        ejector_type: Class name of the ejection strategy.
        sampler_state: What the sampler's ``state()`` gave.
        ejector_state: What the ejector's ``state()`` gave.
    """

    columns: "tuple[Column, ...]"
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
    """An instant in a table's life.

    Attributes:
        place: Object that is replaced with the whole content.
        next_serial: Number of the first episode that arrives after it.
    """

    place: object
    next_serial: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableChanges:
    """What happened to a table since a `ContentMark`.

    Attributes:
        added: The episodes that arrived since and are still there.
        added_serials: Their numbers of arrival, ascending.
        identities: Ids of all episodes, from the oldest to the newest.
        serials: Numbers of arrival of all episodes, ascending.
        is_whole: ``added`` is everything: there was no mark, or the content was replaced.
        mark: This instant.
    """

    added: TableSnapshot
    added_serials: NDArray[np.int64]
    identities: tuple[int, ...]
    serials: NDArray[np.int64]
    is_whole: bool
    mark: ContentMark

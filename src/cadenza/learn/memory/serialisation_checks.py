"""What every file of a memory says about itself, and whether that suits the table that reads it.

A difference that changes what rows mean (columns, shapes, types) is an error. One that only changes
how they are used (strategies, limits, virtual columns) is a warning, and the table keeps its own.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar, cast

import numpy as np

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.learn.memory.column import Column, VirtualColumn, numpy_dtype
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")

#: Most rows of one column in a file: far beyond any memory, and sums of it fit 64 bits.
MAX_ROWS: Final = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a table accepts from a file.

    Attributes:
        columns: The table's columns. The file must hold rows for each that stores data, and for no
            others, in the same shape and dtype.
        length_key: Column that defines the length of an episode.
        maxlen: Most transitions the table may hold; the newest episodes that fit are read.
        sampler_type: Class name of the table's sample strategy.
        ejector_type: Class name of the table's ejection strategy.
        allow_pickle: Accept the legacy format, which is a pickle.
        max_unpacked_bytes: Most bytes a compressed file may unpack to; None allows 1 GiB or
            64 times its size on disk, whichever is more.
    """

    columns: Sequence[Column]
    length_key: str
    maxlen: int
    sampler_type: str
    ejector_type: str
    allow_pickle: bool = False
    max_unpacked_bytes: int | None = None

    def stored_columns(self) -> dict[str, Column]:
        """Return the columns that store data, by name, in declared order."""
        return stored_columns(self.columns)


def stored_columns(columns: Sequence[Column]) -> dict[str, Column]:
    """Return the columns that store data, by name, in declared order."""
    return {column.name: column for column in columns if not isinstance(column, VirtualColumn)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHeader:
    """One column as a file describes it.

    Attributes:
        kind: Class name.
        state: Shape, dtype, and for virtual columns the target.
        is_stored: Whether the file holds rows of it.
    """

    kind: str
    state: Mapping[str, Any]
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """A table as a file describes it.

    Attributes:
        source: How messages call the file.
        length_key: Column that defined the length of an episode.
        maxlen: Most transitions the table held.
        identities: Episode ids from the oldest to the newest.
        columns: Columns by name, in declared order.
        sampler_type: Class name of the sample strategy.
        ejector_type: Class name of the ejection strategy.
        sampler_state: Its state, if it had one.
        ejector_state: Its state, if it had one.
    """

    source: str
    length_key: str
    maxlen: int
    identities: tuple[int, ...]
    columns: Mapping[str, ColumnHeader] = field(default_factory=dict[str, ColumnHeader])
    sampler_type: str
    ejector_type: str
    sampler_state: Mapping[str, Any] | None
    ejector_state: Mapping[str, Any] | None

    @classmethod
    def from_record(
        cls,
        record: Mapping[str, Any],
        source: str,
        *,
        identities: tuple[int, ...],
        columns: Mapping[str, ColumnHeader],
    ) -> "FileHeader":
        """Return the header with the settings in ``record``.

        Args:
            record: What the file says about the table.
            source: How messages call the file.
            identities: Episode ids from the oldest to the newest.
            columns: Columns by name, in declared order.

        Raises:
            IntegrityError: A setting is missing or of another type.
        """
        return cls(
            source=source,
            length_key=take(record, "length_key", str, source),
            maxlen=take(record, "maxlen", int, source),
            identities=identities,
            columns=columns,
            sampler_type=take(record, "sampler_type", str, source),
            ejector_type=take(record, "ejector_type", str, source),
            sampler_state=take_optional_state(record, "sampler_state", source),
            ejector_state=take_optional_state(record, "ejector_state", source),
        )

    def with_rows(
        self, options: ReadOptions, identities: tuple[int, ...], stored: Mapping[str, StoredRows]
    ) -> TableSnapshot:
        """Return the episodes ``identities`` with the columns that read them."""
        return TableSnapshot(
            columns=tuple(options.columns),
            length_key=options.length_key,
            maxlen=self.maxlen,
            identities=identities,
            stored=stored,
            sampler_type=self.sampler_type,
            ejector_type=self.ejector_type,
            sampler_state=self.sampler_state,
            ejector_state=self.ejector_state,
        )


def take(record: Mapping[str, Any], key: str, kind: type[T], source: str) -> T:
    """Return ``record[key]`` if it is a ``kind``; booleans are no integers.

    Raises:
        IntegrityError: The field is missing or of another type.
    """
    value = record.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = "nothing" if key not in record else f"{type(value).__name__} {str(value)[:60]!r}"
        raise IntegrityError(f"{source}: expected {key!r} to be {kind.__name__}, got {got}.")
    return value


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value out of JSON is an object."""
    return isinstance(value, dict)


def take_optional_state(
    record: Mapping[str, Any], key: str, source: str
) -> Mapping[str, Any] | None:
    """Return the strategy state ``record[key]``, or None where there is none."""
    if record.get(key) is None:
        return None
    return cast("dict[str, Any]", take(record, key, dict, source))


def take_identities(record: Mapping[str, Any], key: str, source: str) -> tuple[int, ...]:
    """Return ``record[key]`` as different integers.

    Raises:
        IntegrityError: It is something else.
    """
    values = cast("list[object]", take(record, key, list, source))
    if not all(type(value) is int for value in values):
        raise IntegrityError(f"{source}: expected {key!r} to hold integers only, got others.")
    identities = cast("list[int]", values)
    if len(set(identities)) != len(identities):
        raise IntegrityError(f"{source}: expected different ids in {key!r}, got repeated ones.")
    return tuple(identities)


def check_header(header: FileHeader, options: ReadOptions) -> None:
    """Compare a file with the table that reads it; differing settings are warnings.

    Raises:
        ConfigurationError: The stored columns, their shapes or types differ.
        IntegrityError: A column's description is malformed.
    """
    check_columns(header, options)
    _warn_about_settings(header, options)


def check_columns(header: FileHeader, options: ReadOptions) -> None:
    """Compare the stored columns of a file with those of the table that reads it.

    Raises:
        ConfigurationError: The stored columns, their shapes or types differ.
        IntegrityError: A column's description is malformed.
    """
    mine = options.stored_columns()
    theirs = {name for name, column in header.columns.items() if column.is_stored}
    if theirs != mine.keys():
        raise ConfigurationError(
            f"{header.source}: expected rows of the columns {sorted(mine)}, got "
            f"{sorted(theirs)}; restore into a table with the same columns."
        )
    for name, column in mine.items():
        _check_column(header, name, column)


def _check_column(header: FileHeader, name: str, column: Column) -> None:
    state = header.columns[name].state
    found = Column(name, (), np.float32)
    try:
        found.load_state(state)
    except InputError as error:
        raise IntegrityError(f"{header.source}: {error}") from error
    wanted = (tuple(column.shape), numpy_dtype(column.dtype))
    if (found.shape, numpy_dtype(found.dtype)) != wanted:
        raise ConfigurationError(
            f"{header.source}: expected column {name!r} of shape {wanted[0]} and type {wanted[1]}, "
            f"got {found.shape} and {numpy_dtype(found.dtype)}; restore into a table with the same "
            "columns."
        )


def _warn_about_settings(header: FileHeader, options: ReadOptions) -> None:
    """Log one warning for each setting that differs and that the table keeps."""
    mine = {column.name: type(column).__name__ for column in options.columns}
    theirs = {name: column.kind for name, column in header.columns.items()}
    pairs = {
        "ejector type": (options.ejector_type, header.ejector_type),
        "sampler type": (options.sampler_type, header.sampler_type),
        "length key": (options.length_key, header.length_key),
        "maxlen": (options.maxlen, header.maxlen),
    }
    pairs |= {
        f"type of column {name!r}": (mine.get(name, "no such column"), kind)
        for name, kind in theirs.items()
    }
    for what, (expected, got) in pairs.items():
        if expected != got:
            _LOGGER.warning(
                "%s: %s of the table is %s, of the file %s; the table keeps its own, which may "
                "lead to unexpected behavior",
                header.source,
                what,
                expected,
                got,
            )


def first_kept(lengths: "NDArray[np.int64]", maxlen: int, source: str) -> int:
    """Return the index of the oldest episode that is kept: the newest that fit together stay.

    Args:
        lengths: Transitions per episode from the oldest, shape (E,).
        maxlen: Most transitions to keep.
        source: How messages call the file.

    Raises:
        ConfigurationError: Not even the newest episode fits.
    """
    if len(lengths) and lengths[-1] > maxlen:
        raise ConfigurationError(
            f"{source}: expected episodes of at most {maxlen} transitions, the table's maxlen, got "
            f"{lengths[-1]}; use a larger table."
        )
    newest_first = np.cumsum(lengths[::-1])
    dropped = len(lengths) - int(np.searchsorted(newest_first, maxlen, side="right"))
    if dropped:
        _LOGGER.warning(
            "%s: the table holds %d transitions at most, so the %d oldest of %d episodes stay out",
            source,
            maxlen,
            dropped,
            len(lengths),
        )
    return dropped

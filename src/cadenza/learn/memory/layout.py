"""What follows from a table's columns: which are stored, how many rows each needs, what is sampled.

A stored column has L rows per episode, or L + 1 where it also holds the state after the last step;
a column that a virtual one looks ``reach`` rows ahead in has up to L + reach. Windows use as many
steps as every look ahead leaves. `checked_sequence` checks an episode completely before anything
is stored, so a bad one changes nothing.

Axes: L = transitions of an episode (rows of the length column).
"""

import math
from cmath import isfinite
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.memory.column import (
    Column,
    LastElementMapper,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    SyntheticMasks,
    TagColumn,
    UnknownKeyError,
    VirtualColumn,
    numpy_dtype,
    resolved_mapper,
)

#: Rows begin at multiples of this many bytes, so that every field can be aligned.
ROW_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an arena."""

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
        return min(self.size & -self.size, ROW_ALIGNMENT) if self.size else 1


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column that holds data, one value per episode if a tag.

    It has ``least_extra`` to ``most_extra`` rows beyond L, and virtual columns look ``reach``
    ahead.
    """

    field: Field
    is_tag: bool = False
    least_extra: int = 0
    most_extra: int = 0
    reach: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """Sampled values that are rows of a stored column.

    They begin ``first`` rows after the window's first, or ``after`` the window; the latter and
    ``single`` ones are one per window.
    """

    name: str
    source: str
    first: int = 0
    after: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """Sampled flags of the ends of ``source``; a ``mask`` is 1 where no end is."""

    name: str
    source: str
    field: Field
    mask: bool


@dataclass(frozen=True, slots=True)
class Mapped:
    """Sampled values that a mapper of the user's makes."""

    name: str
    source: str
    field: Field
    mapper: Any


Output = Shift | Ends | Mapped


class TableLayout:
    """Roles of a table's columns.

    Attributes:
        stored: Columns with data by name, in declared order.
        virtual: Names of the columns without.
        outputs: What a sample consists of, in declared order.
        flexible: Stored columns whose number of rows beyond L is not the same in every episode.
        whole: Whether windows may use every step of every episode.

    Raises:
        ConfigurationError: The columns contradict each other.
    """

    def __init__(self, columns: Sequence[Column], length_key: str) -> None:
        self.columns: tuple[Column, ...] = tuple(columns)
        self.length_key = length_key
        _require_names(self.columns, length_key)
        self.outputs: list[Output] = [_output(column, self.columns) for column in self.columns]
        reach = {column.name: 0 for column in self.columns}
        for output in self.outputs:
            if isinstance(output, Shift):
                ahead = 1 if output.after else output.first
                reach[output.source] = max(reach[output.source], ahead)
        self.stored: dict[str, StoredColumn] = {
            column.name: _stored(column, reach[column.name], length_key)
            for column in self.columns
            if not isinstance(column, VirtualColumn)
        }
        self.virtual: set[str] = {column.name for column in self.columns} - self.stored.keys()
        self.flexible: list[str] = [
            name
            for name, stored in self.stored.items()
            if not stored.is_tag and stored.least_extra < stored.most_extra
        ]
        self.whole: bool = reach[length_key] == 0 and max(reach.values()) <= 1

    def fields(self) -> list[Field]:
        """Return name, shape and dtype of the stored columns, those that are looked ahead in first.

        At the front of a row, the next row's value is nearest to this one's.
        """
        ordered = sorted(self.stored.values(), key=lambda stored: -stored.reach)
        return [stored.field for stored in ordered]


def _require_names(columns: tuple[Column, ...], length_key: str) -> None:
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"columns: expected different names, got {names}.")
    kinds = {column.name: type(column) for column in columns}
    kind = kinds.get(length_key)
    if kind is None or issubclass(kind, TagColumn | VirtualColumn):
        got = "no such column" if kind is None else f"a {kind.__name__}"
        raise ConfigurationError(
            f"length_key {length_key!r}: expected a column that stores one row per transition, got "
            f"{got}; the columns are {names}."
        )


def _field(column: Column) -> Field:
    shape = tuple(int(size) for size in column.shape)
    return Field(column.name, shape, numpy_dtype(column.dtype, name=f"column {column.name!r}"))


def _stored(column: Column, reach: int, length_key: str) -> StoredColumn:
    if isinstance(column, TagColumn):
        return StoredColumn(_field(column), is_tag=True)
    if column.name == length_key:
        return StoredColumn(_field(column), reach=reach)
    return StoredColumn(
        _field(column), least_extra=min(reach, 1), most_extra=max(reach, 1), reach=reach
    )


def _output(column: Column, columns: tuple[Column, ...]) -> Output:
    """Return how the values of ``column`` are made from stored rows."""
    if isinstance(column, TagColumn):
        return Shift(column.name, column.name, single=True)
    if not isinstance(column, VirtualColumn):
        return Shift(column.name, column.name)
    before = columns[: next(i for i, other in enumerate(columns) if other is column)]
    target = next((other for other in before if other.name == column.target_name), None)
    if target is None:
        raise ConfigurationError(
            f"column {column.name!r}: expected a target declared before it, got "
            f"{column.target_name!r}; the columns before it are {[c.name for c in before]}."
        )
    source, field, mapper = target.name, _field(column), resolved_mapper(column.mapper)
    if isinstance(target, TagColumn | VirtualColumn) or not isinstance(mapper, type):
        return Mapped(column.name, source, field, mapper)
    if mapper in (SyntheticDones, SyntheticMasks):
        if math.prod(field.shape) != 1:
            raise ConfigurationError(
                f"column {column.name!r}: expected the shape of one number, as () or (1,), got "
                f"{field.shape}."
            )
        return Ends(column.name, source, field, mask=mapper is SyntheticMasks)
    if not _copies(field, _field(target)):
        return Mapped(column.name, source, field, mapper)
    if mapper is NextElementMapper:
        return Shift(column.name, source, first=1)
    if mapper is LastElementMapper:
        return Shift(column.name, source, after=True)
    if (
        issubclass(mapper, NextNElementWrapper)
        and mapper.__getitem__ is NextNElementWrapper.__getitem__
    ):
        return Shift(column.name, source, first=mapper.n)
    return Mapped(column.name, source, field, mapper)


def _copies(field: Field, target: Field) -> bool:
    """Return whether values of ``target`` need no conversion to be values of ``field``."""
    return field.shape == target.shape and np.dtype(field.dtype) == target.dtype


class SequenceRows(NamedTuple):
    """A checked episode: L steps, those that windows may use, rows of the longest column.

    Then its values, (rows, *shape) by column, and the rows beyond L of flexible ones, in order.
    """

    steps: int
    usable: int
    rows: int
    values: dict[str, NDArray[Any]]
    extra: list[int]


def checked_sequence(
    layout: TableLayout, sequence: Mapping[str, Any], *, finite: bool = False
) -> SequenceRows:
    """Return ``sequence`` as rows; keys of virtual columns are ignored."""
    stored, key = layout.stored, layout.length_key
    if sequence.keys() != stored.keys():
        _require_columns(layout, sequence)
    steps = _length(key, sequence[key])
    if steps < 1:
        raise InputError(f"sequence[{key!r}]: expected at least 1 row, got 0.")
    values: dict[str, NDArray[Any]] = {}
    usable = rows = steps
    for name, column in stored.items():
        value: NDArray[Any] | Sequence[Any] = sequence[name]
        if column.is_tag:
            array = _tag(column, value)
        else:
            count = _length(name, value)
            extra = count - steps
            if not column.least_extra <= extra <= column.most_extra:
                raise _wrong_length(column, count, steps, key)
            field = column.field
            if (
                isinstance(value, np.ndarray)
                and value.dtype == field.dtype
                and value.shape[1:] == field.shape
            ):
                array = value
            else:
                array = _rows(column, value, count)
            if count > rows:
                rows = count
            if column.reach:
                usable = min(usable, count - column.reach)
        if finite:
            require_finite_rows(f"sequence[{name!r}]", array)
        values[name] = array
    flexible = layout.flexible
    extra_rows = [len(values[name]) - steps for name in flexible] if flexible else []
    return SequenceRows(steps, max(usable, 0), rows, values, extra_rows)


def require_finite_rows(name: str, array: NDArray[Any]) -> None:
    """Raise `InputError` if ``array`` holds NaN or infinity."""
    # A finite sum of squares is proof enough; else `require_finite` tells NaN from overflow.
    if array.dtype.kind in "fc" and not isfinite(np.vdot(array, array)):
        require_finite(name, array)


def _require_columns(layout: TableLayout, sequence: Mapping[str, Any]) -> None:
    """Raise unless ``sequence`` has every stored column and no unknown one."""
    unknown = sorted(str(name) for name in sequence.keys() - layout.stored.keys() - layout.virtual)
    if unknown:
        raise UnknownKeyError(
            f"sequence: expected the columns {sorted(layout.stored)}, got the unknown {unknown}; "
            "remove them or add columns to the table."
        )
    missing = sorted(layout.stored.keys() - sequence.keys())
    if missing:
        raise InputError(
            f"sequence: expected the columns {sorted(layout.stored)}, got none of {missing}; add "
            "them to every step."
        )


def _length(name: str, value: Any) -> int:
    """Return the number of rows of ``value``."""
    try:
        return len(value)
    except TypeError as error:
        raise InputError(
            f"sequence[{name!r}]: expected one row per step, got a {type(value).__name__}."
        ) from error


def _wrong_length(column: StoredColumn, count: int, steps: int, key: str) -> InputError:
    least, most = steps + column.least_extra, steps + column.most_extra
    wanted = f"{least}" if least == most else f"{least} to {most}"
    return InputError(
        f"sequence[{column.field.name!r}]: expected {wanted} rows, as {key!r} has {steps}, got "
        f"{count}."
    )


def _rows(column: StoredColumn, value: Any, count: int) -> NDArray[Any]:
    """Return ``value`` in shape (count, *shape) and the column's dtype."""
    field = column.field
    array = _converted(field.name, value, field.dtype)
    if array.shape[1:] == field.shape:
        return array
    try:
        return array.reshape(count, *field.shape)
    except ValueError as error:
        raise InputError(
            f"sequence[{field.name!r}]: expected {count} rows of shape {field.shape}, got an array "
            f"of shape {array.shape}."
        ) from error


def _tag(column: StoredColumn, value: Any) -> NDArray[Any]:
    """Return the first of the values in shape (1, *shape)."""
    field = column.field
    array = _converted(field.name, value, field.dtype)
    try:
        tags = array.reshape(-1, *field.shape)
    except ValueError as error:
        raise InputError(
            f"sequence[{field.name!r}]: expected values of shape {field.shape}, got an array of "
            f"shape {array.shape}."
        ) from error
    if len(tags) == 0:
        raise InputError(f"sequence[{field.name!r}]: expected a value, got none.")
    return tags[:1]


def _converted(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as an array of ``dtype``, unless that would change its meaning."""
    try:
        array = np.asarray(value)
        if array.dtype == dtype:
            return array
        if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
            raise InputError(
                f"sequence[{name!r}]: expected numbers that fit {dtype}, got {array.dtype}."
            )
        with np.errstate(invalid="ignore", over="ignore"):
            result = array.astype(dtype)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"sequence[{name!r}]: expected rows of numbers that fit {dtype}, all of one shape: "
            f"{error}"
        ) from error
    if dtype.kind in "biu" and array.dtype.kind in "iuf" and not np.array_equal(result, array):
        raise InputError(
            f"sequence[{name!r}]: expected whole numbers within the range of {dtype}, got others; "
            "give the column a type that can hold them."
        )
    return result

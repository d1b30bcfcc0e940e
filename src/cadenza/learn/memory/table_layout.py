"""What follows from a table's columns: which are stored, how many rows each needs, what is sampled.

A stored column has L rows per episode, or L + 1 where it also holds the state after the last step;
a column that a virtual one looks ``reach`` rows ahead in has up to L + reach. Windows use as many
steps as every look ahead leaves.

Axes: L = transitions of an episode (rows of the length column).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadenza.core.errors import ConfigurationError
from cadenza.learn.memory.arena import Field
from cadenza.learn.memory.column import Column, TagColumn, VirtualColumn, numpy_dtype
from cadenza.learn.memory.storage import (
    LastElementMapper,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    SyntheticMasks,
    resolved_mapper,
)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column that holds data.

    Attributes:
        field: Name, shape and dtype.
        is_tag: One value per episode.
        least_extra: Fewest rows beyond L.
        most_extra: Most rows beyond L.
        reach: Rows that virtual columns look ahead in it.
    """

    field: Field
    is_tag: bool = False
    least_extra: int = 0
    most_extra: int = 0
    reach: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """Sampled values that are rows of a stored column.

    Attributes:
        name: Key in the batch.
        source: Stored column.
        first: Rows after the window's first row at which the values begin.
        after: The values begin behind the window instead, and are one per window.
        single: One value per window, at its first row.
    """

    name: str
    source: str
    first: int = 0
    after: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """Sampled flags of episode ends.

    Attributes:
        name: Key in the batch.
        source: Column whose last row is the end.
        field: Shape and dtype of the values.
        mask: The values are 1 where no end is.
    """

    name: str
    source: str
    field: Field
    mask: bool


@dataclass(frozen=True, slots=True)
class Mapped:
    """Sampled values that a mapper of the user's makes.

    Attributes:
        name: Key in the batch.
        source: Column that the mapper reads.
        field: Shape and dtype of the values.
        mapper: Makes the values.
    """

    name: str
    source: str
    field: Field
    mapper: Any


Output = Shift | Ends | Mapped


class TableLayout:
    """Roles of a table's columns.

    Args:
        columns: All columns, targets before the virtual ones that read them.
        length_key: Stored column whose rows are the transitions.

    Attributes:
        columns: As given.
        length_key: As given.
        stored: Columns with data by name, in declared order.
        virtual: Names of the columns without.
        outputs: What a sample consists of, in declared order.
        flexible: Stored columns whose number of rows beyond L is not the same in every episode.
        whole: Whether windows may use every step of every episode.

    Raises:
        ConfigurationError: The columns contradict each other.
    """

    def __init__(self, columns: Sequence[Column], length_key: str) -> None:
        self.columns = tuple(columns)
        self.length_key = length_key
        _require_names(self.columns, length_key)
        self.outputs = [_output(column, self.columns) for column in self.columns]
        reach = {column.name: 0 for column in self.columns}
        for output in self.outputs:
            if isinstance(output, Shift):
                ahead = 1 if output.after else output.first
                reach[output.source] = max(reach[output.source], ahead)
        self.stored = {
            column.name: _stored(column, reach[column.name], length_key)
            for column in self.columns
            if not isinstance(column, VirtualColumn)
        }
        self.virtual = {column.name for column in self.columns} - self.stored.keys()
        self.flexible = [
            name
            for name, stored in self.stored.items()
            if not stored.is_tag and stored.least_extra < stored.most_extra
        ]
        self.whole = reach[length_key] == 0 and max(reach.values()) <= 1

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

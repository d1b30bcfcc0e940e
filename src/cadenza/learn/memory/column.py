"""What a table stores per step, and what follows from it.

Columns:  `BaseStorage` and `TagStorage` are dictionaries by episode id on their own; a table shows
          its rows to mappers through the same interface. The mappers define what a virtual column
          means: ``mapper(storage, shape, dtype)[identity][index]``. A table computes the ones below
          as index arithmetic and asks any other mapper window by window.
Layout:   a stored column has L rows per episode, or L + 1 where it also holds the state after the
          last step; one that a virtual column looks ``reach`` rows ahead in has up to L + reach.
          Windows use as many steps as every look ahead leaves.
Checks:   `checked_sequence` checks an episode completely before anything is stored, so a bad one
          changes nothing.
Axes:     n = number of windows in a sample, T = rows per window, B = n T rows, rollout-major
          (row = window T + t), L = transitions of an episode (rows of the length column; for a
          mapper, rows of its target column), N = rows of a table.
"""

import math
from cmath import isfinite
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, refuse

Number = TypeVar("Number")

#: A sampled batch: tensors by column name; adaptors may nest them.
SampleResult: TypeAlias = dict[str, Any]
#: Episode id, first step and one past the last step of a window.
SamplePoint: TypeAlias = tuple[int, int, int]
#: Indices of rows or slots.
IndexArray: TypeAlias = NDArray[np.int64]

#: Tensor over the memory of an array.
from_numpy: Final[Callable[[NDArray[Any]], torch.Tensor]] = cast("Any", torch).from_numpy


class Matrix(Generic[Number]):
    """Nominal type of a two-dimensional array of ``Number``; only for annotations."""


class UnknownKeyError(InputError, KeyError):
    """A column name or an episode id that the table does not have."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class NoWindowError(NotReadyError, ValueError):
    """No stored episode is long enough for the windows asked for."""


class SegmentTreeError(InputError, AssertionError, IndexError):
    """A segment tree was given a size, index or sum outside its range."""


def numpy_dtype(dtype: Any, *, name: str = "dtype") -> np.dtype[Any]:
    """Return ``dtype``, of numpy, torch or Python, as a numpy dtype.

    Raises:
        InputError: No fixed-size type of numbers or booleans.
    """
    try:
        if isinstance(dtype, torch.dtype):
            return np.dtype(torch.empty(0, dtype=dtype).numpy().dtype)
        found = np.dtype(dtype)
    except TypeError:
        wanted, do = "a numpy or torch type of numbers", "choose one that both know"
        refuse(InputError, name, expected=wanted, got=repr(dtype), do=do)
    if found.kind not in "biufc":
        wanted, do = "a type of numbers or booleans", "encode other values as numbers"
        refuse(InputError, name, expected=wanted, got=str(found), do=do)
    return found


class EpisodeArrays(Protocol):
    """Arrays by episode id."""

    def __getitem__(self, identity: int, /) -> Any:
        """Return the rows of one episode."""
        ...


class _RowWorkspace:
    """A buffer of rows that grows and is used again; one per storage, not thread-safe."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__()
        self._shape = shape
        self._dtype = dtype
        self._rows: NDArray[Any] = np.empty((0, *shape), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self._shape

    def get_empty_storage(self, count: int, length: int) -> NDArray[Any]:
        """Return ``count * length`` rows of this storage's workspace; the next call reuses them."""
        rows = count * length
        if rows > len(self._rows):
            self._rows = np.empty((rows, *self._shape), self._dtype)
        return self._rows[:rows]

    def sequence_length_transform(self, length: int) -> int:
        """Return how many rows one window of ``length`` steps gives."""
        return length


class BaseStorage(_RowWorkspace, dict[int, Any]):
    """One array of shape (L, *shape) per episode id."""

    def post_import(self) -> None:
        """Drop negative ids and give every other one the id ``-id - 1``.

        Then ids of an imported file cannot meet the ids of new agents.
        """
        kept = {-abs(identity) - 1: rows for identity, rows in self.items() if identity >= 0}
        self.clear()
        self.update(kept)


class _View:
    """One episode's rows seen through another index."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows that are seen."""
        return np.shape(self._data)


class TagProxy(_View):
    """One episode's tag: any index or slice gives the first element."""

    def __getitem__(self, key: object) -> Any:
        """Return the tag."""
        return self._data[0]


class TagStorage(BaseStorage):
    """One value per episode id."""

    def __getitem__(self, identity: int) -> TagProxy:
        """Return the tag of one episode, whatever step is asked for."""
        return TagProxy(super().__getitem__(identity))

    def sequence_length_transform(self, length: int) -> int:
        """Return 1: a window has one tag."""
        del length
        return 1


class VirtualStorage(_RowWorkspace):
    """Values made from another storage; writing to it does nothing."""

    def __init__(self, storage: EpisodeArrays, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(shape, dtype)
        self._storage = storage

    def __getitem__(self, identity: int) -> Any:
        """Return an object that gives the values of one episode by index."""
        return self._storage[identity]

    def __setitem__(self, identity: int, value: object) -> None:
        """Do nothing: there is no data of its own."""

    def __delitem__(self, identity: int) -> None:
        """Do nothing: there is no data of its own."""

    def post_import(self) -> None:
        """Do nothing: there is no data of its own."""


class _Shifted(_View):
    """Rows ``shift`` later; an index outside the episode is an error, never a shorter slice."""

    def __init__(self, data: Any, shift: int) -> None:
        super().__init__(data)
        self._shift = shift

    def __getitem__(self, key: Any) -> Any:
        """Return the rows at ``key`` plus the shift; of a tuple, every index is shifted."""
        shift, length = self._shift, len(self._data)
        moved: Any
        if isinstance(key, slice):
            window = cast("slice[Any, Any, Any]", key)
            if window.start is None or window.stop is None:
                wanted, got = "a slice with both ends", f"{window}"
                refuse(InputError, "shifted column", expected=wanted, got=got)
            first, last = window.start + shift, window.stop - 1 + shift
            moved = slice(first, last + 1, window.step)
        elif isinstance(key, tuple):
            moved = tuple(int(index) + shift for index in cast("tuple[Any, ...]", key))
            first = last = moved[0]
        elif isinstance(key, Integral):
            first = last = moved = int(key) + shift
        else:
            wanted = "an integer, a slice or a tuple of integers"
            refuse(InputError, "shifted column", expected=wanted, got=type(key).__name__)
        if not 0 <= first < length or last >= length:
            raise IndexError(
                f"shifted column: expected an index in [0, {length}) after the shift by {shift}, "
                f"got {first} to {last}; the window ends too close to the episode's end."
            )
        return self._data[moved]


class _OnlyLast(_View):
    """The one row after a window."""

    def __getitem__(self, key: Any) -> Any:
        """Return row ``key + 1``; of a tuple only its last index; of a slice ``[stop:stop+step]``.

        The slice keeps its step, so the result has one row.
        """
        if isinstance(key, slice):
            window = cast("slice[Any, Any, Any]", key)
            step = 1 if window.step is None else window.step
            return self._data[window.stop : window.stop + step : step]
        return self._data[(key[-1] if isinstance(key, tuple) else key) + 1]


class LastElementMapper(VirtualStorage):
    """The target's row after the window: one row per window."""

    def __getitem__(self, identity: int) -> Any:
        """Return the row after each slice of one episode."""
        return _OnlyLast(self._storage[identity])

    def sequence_length_transform(self, length: int) -> int:
        """Return 1: only the row after the window."""
        del length
        return 1


class NextNElementWrapper(VirtualStorage):
    """Row k is the target's row k + n; `with_n` makes the class for one n."""

    #: Shift n, in rows.
    n: ClassVar[int] = 1

    def __getitem__(self, identity: int) -> Any:
        """Return the shifted rows of one episode."""
        return _Shifted(self._storage[identity], self.n)

    @staticmethod
    def with_n(n: int) -> "type[NextNElementWrapper]":
        """Return a mapper class that shifts by ``n`` rows.

        Raises:
            InputError: ``n`` is below 1.
        """
        if n < 1:
            refuse(InputError, "NextNElementWrapper.with_n", expected="n >= 1", got=n)
        return type(f"Next{n}ElementWrapper", (NextNElementWrapper,), {"n": n})


class NextElementMapper(NextNElementWrapper):
    """Row k is the target's row k + 1."""

    @staticmethod
    def with_only_last(
        storage: EpisodeArrays, shape: tuple[int, ...], dtype: Any
    ) -> LastElementMapper:
        """Return the mapper that gives only the row after each window."""
        return LastElementMapper(storage, shape, dtype)


class SyntheticDones(VirtualStorage):
    """1 at the last step of each episode, else 0."""

    _mask: ClassVar[bool] = False

    def __getitem__(self, identity: int) -> Any:
        """Return the flags of one episode, (L, *shape)."""
        length = len(self._storage[identity])
        flags = (np.arange(length) == length - 1) ^ self._mask
        return flags.astype(self._dtype).reshape(length, *self._shape)

    @staticmethod
    def as_mask(storage: EpisodeArrays, shape: tuple[int, ...], dtype: Any) -> "SyntheticMasks":
        """Return the mapper that gives ``1 - done``."""
        return SyntheticMasks(storage, shape, dtype)


class SyntheticMasks(SyntheticDones):
    """0 at the last step of each episode, else 1."""

    _mask: ClassVar[bool] = True


#: Classes that mappers which are functions make.
_MADE_BY: Mapping[Any, type[VirtualStorage]] = {
    NextElementMapper.with_only_last: LastElementMapper,
    SyntheticDones.as_mask: SyntheticMasks,
}


@dataclass
class Column:
    """Real data: one array per episode, of this shape per step; ``()`` is a number."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    def state(self) -> dict[str, Any]:
        """Return shape and type as JSON values."""
        dtype = numpy_dtype(self.dtype, name=f"column {self.name!r}")
        return {"shape": list(self.shape), "dtype": dtype.name}

    def load_state(self, config: Mapping[str, Any]) -> None:
        """Take shape and type from what `state` gave.

        Raises:
            InputError: A field is missing or malformed; nothing has changed then.
        """
        where, shape, dtype_name = f"column {self.name!r}", config.get("shape"), config.get("dtype")
        sizes = cast("list[object]", shape) if isinstance(shape, list | tuple) else [None]
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            refuse(InputError, where, expected="a shape of integers >= 0", got=f"{shape!r}")
        if not isinstance(dtype_name, str):
            refuse(InputError, where, expected="the name of a dtype", got=dtype_name)
        dtype = numpy_dtype(dtype_name, name=where)
        self.shape = tuple(int(cast("int", size)) for size in sizes)
        self.dtype = bool if dtype == np.bool_ else dtype.type


@dataclass
class TagColumn(Column):
    """One value per episode; of several values in a sequence the first counts."""


@dataclass
class VirtualColumn(Column):
    """Data made while sampling from the column ``target_name``, which is declared before it.

    ``mapper`` makes them: a `VirtualStorage` class or another callable ``(storage, shape, dtype)``.
    """

    target_name: str
    mapper: type[VirtualStorage]

    def state(self) -> dict[str, Any]:
        """Return shape, type and target as JSON values."""
        return {**super().state(), "target_name": self.target_name}

    def load_state(self, config: Mapping[str, Any]) -> None:
        """Take shape, type and target from what `state` gave.

        Raises:
            InputError: A field is missing or malformed; nothing has changed then.
        """
        target = config.get("target_name")
        if not isinstance(target, str):
            refuse(InputError, f"column {self.name!r}", expected="a target_name", got=target)
        super().load_state(config)
        self.target_name = target


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column that holds data, one value per episode if a tag.

    It has ``least_extra`` to ``most_extra`` rows beyond L, and virtual columns look ``reach``
    ahead.
    """

    field: Column
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
    field: Column
    mask: bool


@dataclass(frozen=True, slots=True)
class Mapped:
    """Sampled values that a mapper of the user's makes."""

    name: str
    source: str
    field: Column
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

    def fields(self) -> list[Column]:
        """Return name, shape and dtype of the stored columns, those that are looked ahead in first.

        At the front of a row, the next row's value is nearest to this one's.
        """
        ordered = sorted(self.stored.values(), key=lambda stored: -stored.reach)
        return [stored.field for stored in ordered]


def _require_names(columns: tuple[Column, ...], length_key: str) -> None:
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        refuse(ConfigurationError, "columns", expected="different names", got=str(names))
    kinds = {column.name: type(column) for column in columns}
    kind = kinds.get(length_key)
    if kind is None or issubclass(kind, TagColumn | VirtualColumn):
        wanted = "a column that stores one row per transition"
        got = f"{'no such column' if kind is None else f'a {kind.__name__}'} among {names}"
        refuse(ConfigurationError, f"length_key {length_key!r}", expected=wanted, got=got)


def _field(column: Column) -> Column:
    """Return ``column`` with a numpy dtype."""
    shape = tuple(int(size) for size in column.shape)
    return Column(column.name, shape, numpy_dtype(column.dtype, name=f"column {column.name!r}"))


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
    where = f"column {column.name!r}"
    if target is None:
        got = f"{column.target_name!r}; the columns before it are {[c.name for c in before]}"
        refuse(ConfigurationError, where, expected="a target declared before it", got=got)
    source, field = target.name, _field(column)
    mapper: Any = _MADE_BY.get(column.mapper, column.mapper)
    if isinstance(target, TagColumn | VirtualColumn) or not isinstance(mapper, type):
        return Mapped(column.name, source, field, mapper)
    if mapper in (SyntheticDones, SyntheticMasks):
        if math.prod(field.shape) != 1:
            wanted = "the shape of one number, as () or (1,)"
            refuse(ConfigurationError, where, expected=wanted, got=field.shape)
        return Ends(column.name, source, field, mask=mapper is SyntheticMasks)
    if (field.shape, field.dtype) != (_field(target).shape, _field(target).dtype):
        return Mapped(column.name, source, field, mapper)
    if mapper is LastElementMapper:
        return Shift(column.name, source, after=True)
    if (
        issubclass(mapper, NextNElementWrapper)
        and mapper.__getitem__ is NextNElementWrapper.__getitem__
    ):
        return Shift(column.name, source, first=mapper.n)
    return Mapped(column.name, source, field, mapper)


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
        refuse(InputError, f"sequence[{key!r}]", expected="at least 1 row", got="0")
    values: dict[str, NDArray[Any]] = {}
    usable = rows = steps
    for name, column in stored.items():
        value: NDArray[Any] | Sequence[Any] = sequence[name]
        if column.is_tag:
            array = _rows(column.field, value, -1)[:1]
            if not len(array):
                refuse(InputError, f"sequence[{name!r}]", expected="a value", got="none")
        else:
            count = _length(name, value)
            extra = count - steps
            if not column.least_extra <= extra <= column.most_extra:
                least, most = steps + column.least_extra, steps + column.most_extra
                wanted = f"{least}" if least == most else f"{least} to {most}"
                wanted += f" rows, as {key!r} has {steps}"
                refuse(InputError, f"sequence[{name!r}]", expected=wanted, got=count)
            field = column.field
            if (
                isinstance(value, np.ndarray)
                and value.dtype == field.dtype
                and value.shape[1:] == field.shape
            ):
                array = value
            else:
                array = _rows(field, value, count)
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
    wanted = f"the columns {sorted(layout.stored)}"
    if unknown:
        do = "remove them or add columns to the table"
        got = f"the unknown {unknown}"
        refuse(UnknownKeyError, "sequence", expected=wanted, got=got, do=do)
    missing = sorted(layout.stored.keys() - sequence.keys())
    if missing:
        do = "add them to every step"
        refuse(InputError, "sequence", expected=wanted, got=f"none of {missing}", do=do)


def _length(name: str, value: Any) -> int:
    """Return the number of rows of ``value``."""
    try:
        return len(value)
    except TypeError:
        got = f"a {type(value).__name__}"
        refuse(InputError, f"sequence[{name!r}]", expected="one row per step", got=got)


def _rows(field: Column, value: Any, count: int) -> NDArray[Any]:
    """Return ``value`` in shape (count, *shape), or any count if -1, and the column's dtype."""
    array = converted(field.name, value, field.dtype)
    try:
        return array.reshape(count, *field.shape)
    except ValueError:
        wanted = f"{count if count >= 0 else 'any'} rows of shape {field.shape}"
        got = f"an array of shape {array.shape}"
        refuse(InputError, f"sequence[{field.name!r}]", expected=wanted, got=got)


def converted(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as an array of ``dtype``, unless that would change its meaning."""
    where = f"sequence[{name!r}]"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        wanted, got = f"rows of numbers that fit {dtype}, all of one shape", f"others: {error}"
        refuse(InputError, where, expected=wanted, got=got)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        refuse(InputError, where, expected=f"numbers that fit {dtype}", got=str(array.dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        result = array.astype(dtype)
    if dtype.kind in "biu" and array.dtype.kind in "iuf" and not np.array_equal(result, array):
        wanted, do = f"whole numbers within the range of {dtype}", "give it a type that holds them"
        refuse(InputError, where, expected=wanted, got="others", do=do)
    return result

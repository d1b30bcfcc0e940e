"""One episode as a caller gives it, checked completely and turned into rows.

Nothing is stored before every column has passed, so a bad episode changes nothing.

Axes: L = transitions of the episode.
"""

from cmath import isfinite
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite
from cadenza.core.errors import InputError
from cadenza.learn.memory.errors import UnknownColumnError
from cadenza.learn.memory.table_layout import StoredColumn, TableLayout


class SequenceRows(NamedTuple):
    """A checked episode.

    Attributes:
        steps: Transitions, L >= 1.
        usable: Steps that windows may use.
        rows: Rows of the longest column.
        values: Rows by column name, each of shape (rows, *shape); tags one row.
        extra: Rows beyond L of the flexible columns, in their order.
    """

    steps: int
    usable: int
    rows: int
    values: dict[str, NDArray[Any]]
    extra: list[int]


def checked_sequence(
    layout: TableLayout, sequence: Mapping[str, Any], *, finite: bool = False
) -> SequenceRows:
    """Return ``sequence`` as rows.

    Args:
        layout: The table's columns.
        sequence: Values by column name; keys of virtual columns are ignored.
        finite: Also refuse NaN and infinity.

    Raises:
        UnknownColumnError: A key is no column of the table.
        InputError: A column is missing, or has another length, shape or type than it should.
    """
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
    """Raise if ``array`` holds NaN or infinity.

    Raises:
        InputError: It does.
    """
    # A finite sum of squares is proof enough; else `require_finite` tells NaN from overflow.
    if array.dtype.kind in "fc" and not isfinite(np.vdot(array, array)):
        require_finite(name, array)


def _require_columns(layout: TableLayout, sequence: Mapping[str, Any]) -> None:
    """Raise unless ``sequence`` has every stored column and no unknown one."""
    unknown = sorted(str(name) for name in sequence.keys() - layout.stored.keys() - layout.virtual)
    if unknown:
        raise UnknownColumnError(
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

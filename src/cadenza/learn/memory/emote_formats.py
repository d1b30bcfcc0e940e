"""Reading the memories that Emote wrote; ours are in `files`.

Version 1 is a zip file with ``version`` (ASCII ``1``), ``configuration.json`` (strategy types and
states, length key, maxlen, ids, columns, part keys) and per stored column ``<name>.ranges.npy``,
int64 (E, 3): id, first row, number of rows, and ``<name>.npy``, (R, *shape): the rows of all.

The legacy format before it has ``data.pickle`` (strategies, length key, maxlen, columns, lengths by
id, filled flag) and, per column, ``<name>.npy``: a pickled dictionary from id to rows, bare or in
the object array that ``np.save`` makes of it. Pickles can name any code, so `load_plain_pickle`
runs none: only containers, numbers, text and numpy arrays come alive. Objects of the package that
wrote them become `Inert`; any other class or function is refused before it is imported. Even so,
pickles are only read if the caller allows them.
"""

import io
import pickle
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import IO, Any, Final, cast

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_magic
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.learn.memory.archive import (
    MAX_ROWS,
    VERSION_ENTRY,
    ArchiveReader,
    ColumnHeader,
    FileHeader,
    ReadOptions,
    check_columns,
    first_kept,
    is_object,
    read_settings,
    take,
    warn_about_settings,
)
from cadenza.learn.memory.column import Column, numpy_dtype
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

#: Package whose objects become inert.
_FOREIGN: Final = "emote"
_BUILTINS: Final = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, slice)
_CONTAINERS: Final = (OrderedDict, defaultdict, deque)
_NUMPY_MODULES: Final = ("numpy.core", "numpy._core")
_NUMPY_FUNCTIONS: Final = {
    ("multiarray", "_reconstruct"),
    ("multiarray", "scalar"),
    ("numeric", "_frombuffer"),
}
#: What unpickling raises on data that are damaged or hostile.
_ERRORS: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class Inert(dict[Any, Any]):
    """An object of another package, reduced to its items and state."""

    inert_state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.inert_state = state


def _inert_attribute(owner: object, name: str) -> type[Inert]:
    """Stand in for ``getattr``, which pickles use to name methods of classes."""
    del name
    if not (isinstance(owner, type) and issubclass(owner, Inert)):
        raise pickle.UnpicklingError(f"an attribute of {owner!r} is asked for")
    return owner


class _RestrictedUnpickler(pickle.Unpickler):
    """Knows the harmless types only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the type or function that a pickle names, if it is harmless."""
        if module_name == _FOREIGN or module_name.startswith(f"{_FOREIGN}."):
            return type(global_name, (Inert,), {})
        for known in (*_BUILTINS, *_CONTAINERS):
            if (known.__module__, known.__name__) == (module_name, global_name):
                return known
        if (module_name, global_name) == ("builtins", "getattr"):
            return _inert_attribute
        package, _, module = module_name.rpartition(".")
        if package in _NUMPY_MODULES and (module, global_name) in _NUMPY_FUNCTIONS:
            return super().find_class(f"numpy._core.{module}", global_name)
        found: Any = getattr(np, global_name, None) if module_name == "numpy" else None
        if isinstance(found, type) and issubclass(found, np.ndarray | np.dtype | np.generic):
            return cast("Any", found)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def load_plain_pickle(stream: IO[bytes], *, source: str) -> dict[Any, Any]:
    """Return the dictionary that a pickle holds."""
    try:
        value: object = _RestrictedUnpickler(stream).load()
    except _ERRORS as error:
        raise IntegrityError(
            f"{source}: expected a pickle of plain data, got an error: {error}."
        ) from error
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        value = array.item() if array.shape == () else array  # `np.save` of a dictionary
    if not isinstance(value, dict):
        raise IntegrityError(f"{source}: expected a dictionary, got {type(value).__name__}.")
    return cast("dict[Any, Any]", value)


_CONFIGURATION: Final = "configuration.json"
_LEGACY_DATA: Final = "data.pickle"
#: Largest pickle that is read, bytes: it is held in memory while it is read.
_MAX_PICKLE_BYTES: Final = 1 << 34


def _entries(column: str) -> tuple[str, str]:
    return f"{column}.ranges.npy", f"{column}.npy"


def read_v1(archive: ArchiveReader, options: ReadOptions) -> TableSnapshot:
    """Return the content of a version 1 file."""
    data = archive.read_bytes(_CONFIGURATION, max_bytes=MAX_JSON_BYTES)
    record = parse_json_object(data, source=f"{archive.source}: {_CONFIGURATION}")
    header = _header(record, archive, options)
    check_columns(header, options)
    warn_about_settings(header, options)
    stored = options.stored_columns()
    archive.require_entries(
        [VERSION_ENTRY, _CONFIGURATION, *(entry for name in stored for entry in _entries(name))]
    )
    ranges = {name: _read_ranges(archive, name, header.table.identities) for name in stored}
    dropped = first_kept(ranges[options.length_key][:, 1], options.maxlen, archive.source)
    parts: dict[str, StoredRows] = {}
    for name, column in stored.items():
        rows = _read_rows(
            archive, name, numpy_dtype(column.dtype), tuple(column.shape), ranges[name], dropped
        )
        parts[name] = StoredRows(rows=rows, counts=ranges[name][dropped:, 1].copy())
    return header.with_rows(options, header.table.identities[dropped:], parts)


def _header(
    configuration: Mapping[str, Any], archive: ArchiveReader, options: ReadOptions
) -> FileHeader:
    source = archive.source
    part_keys = {
        str(key) for key in cast("list[Any]", take(configuration, "part_keys", list, source))
    }
    columns: dict[str, ColumnHeader] = {}
    for entry in cast("list[Any]", take(configuration, "columns", list, source)):
        match entry:
            case [str(name), str(kind), state] if name not in columns and is_object(state):
                columns[name] = ColumnHeader(kind=kind, state=state, is_stored=name in part_keys)
            case _:
                archive.refuse(
                    "expected columns as [name, class, state] with different names, got "
                    f"{str(entry)[:80]!r}."
                )
    if not part_keys <= columns.keys():
        archive.refuse(f"expected part_keys among {sorted(columns)}, got {part_keys}.")
    settings = read_settings(configuration, source, options, ids="ids")
    return FileHeader(source=source, columns=columns, table=settings)


def _read_ranges(
    archive: ArchiveReader, name: str, identities: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return first row and number of rows per episode in the order of ``identities``, (E, 2)."""
    entry = _entries(name)[0]
    ranges = archive.read_array(entry, dtype=np.dtype(np.int64), shape=(len(identities), 3))
    position = {int(identity): index for index, identity in enumerate(ranges[:, 0])}
    if position.keys() != set(identities):
        archive.refuse(f"entry {entry!r}: expected one range for each of the ids, got others.")
    order = np.array([position[identity] for identity in identities], np.int64)
    ordered = ranges[order, 1:]
    if (ordered < 0).any() or sum(ordered[:, 1].tolist()) > MAX_ROWS:
        archive.refuse(
            f"entry {entry!r}: expected first rows and counts >= 0 and at most {MAX_ROWS} rows in "
            "all, got others."
        )
    return ordered


def _read_rows(
    archive: ArchiveReader,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    ranges: NDArray[np.int64],
    dropped: int,
) -> NDArray[Any]:
    """Return the rows of the episodes from index ``dropped`` on, one after the other."""
    entry = _entries(name)[1]
    starts, counts = ranges[:, 0], ranges[:, 1]
    total = int(counts.sum())
    file_shape = (total, *shape)
    if np.array_equal(starts, np.cumsum(counts) - counts):
        skip = int(counts[:dropped].sum())
        return archive.read_array(entry, dtype=dtype, shape=file_shape, skip=skip)
    rows = archive.read_array(entry, dtype=dtype, shape=file_shape)
    if any(start + count > total for start, count in ranges.tolist()):
        archive.refuse(f"entry {entry!r}: expected ranges within {total} rows, got others.")
    kept = [rows[start : start + count] for start, count in ranges[dropped:].tolist()]
    return np.concatenate(kept) if kept else rows[:0]


def read_legacy(archive: ArchiveReader, options: ReadOptions) -> TableSnapshot:
    """Return the content of a legacy file.

    Every id becomes ``-id - 1``, so that it cannot meet the id of a new agent; episodes that have
    a negative id were themselves imported and stay out.
    """
    if not options.allow_pickle:
        raise ConfigurationError(
            f"{archive.source}: expected a file of version V1 or V2, got a legacy one, which is a "
            "pickle; pass allow_pickle=True if you trust it, then store it again."
        )
    data = _legacy_entry(archive, _LEGACY_DATA)
    lengths, maxlen = data.get("lengths"), data.get("maxlen")
    if not isinstance(lengths, dict) or not isinstance(maxlen, int):
        archive.refuse(
            f"entry {_LEGACY_DATA!r}: expected lengths and maxlen, got {list(data)[:8]}."
        )
    identities = cast("dict[object, object]", lengths)
    old = [i for i in identities if isinstance(i, int) and i >= 0]
    columns = options.stored_columns()
    stored = {name: _legacy_rows(archive, column, old) for name, column in columns.items()}
    dropped = first_kept(
        np.array([len(rows) for rows in stored[options.length_key]], np.int64),
        options.maxlen,
        archive.source,
    )
    return TableSnapshot(
        columns=tuple(options.columns),
        length_key=options.length_key,
        maxlen=maxlen,
        identities=tuple(-identity - 1 for identity in old[dropped:]),
        stored={name: _joined(columns[name], rows[dropped:]) for name, rows in stored.items()},
        sampler_type="",
        ejector_type="",
    )


def _legacy_entry(archive: ArchiveReader, entry: str) -> dict[Any, Any]:
    stream = io.BytesIO(archive.read_bytes(entry, max_bytes=_MAX_PICKLE_BYTES))
    if stream.getvalue().startswith(MAGIC_PREFIX):
        read_magic(stream)
        read_array_header_1_0(stream)  # the pickle of the array follows
    return load_plain_pickle(stream, source=f"{archive.source}: entry {entry!r}")


def _legacy_rows(
    archive: ArchiveReader, column: Column, identities: list[int]
) -> list[NDArray[Any]]:
    """Return the rows of each episode of one column."""
    entry = f"{column.name}.npy"
    storage = _legacy_entry(archive, entry)
    dtype, shape = numpy_dtype(column.dtype), tuple(column.shape)
    rows: list[NDArray[Any]] = []
    for identity in identities:
        found = storage.get(identity)
        if not isinstance(found, np.ndarray):
            archive.refuse(f"entry {entry!r}: expected an array for id {identity}, got none.")
        array = cast("NDArray[Any]", found)
        if array.dtype != dtype or array.shape[1:] != shape or array.ndim == 0:
            archive.refuse(
                f"entry {entry!r}: expected {dtype} of shape {('any', *shape)} for id {identity}, "
                f"got {array.dtype} of shape {array.shape}."
            )
        rows.append(array)
    return rows


def _joined(column: Column, rows: list[NDArray[Any]]) -> StoredRows:
    empty = np.empty((0, *column.shape), numpy_dtype(column.dtype))
    counts = np.array([len(array) for array in rows], np.int64)
    return StoredRows(rows=np.concatenate([empty, *rows]), counts=counts)

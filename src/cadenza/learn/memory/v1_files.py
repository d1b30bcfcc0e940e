"""Version 1 of the file format: the one that Emote writes.

Layout of the zip file, uncompressed, in this order:
    ``version``            ASCII ``1``
    ``configuration.json`` strategy types and states, length key, maxlen, ids, columns, part keys
    per stored column      ``<name>.ranges.npy``, int64 (E, 3): id, first row, number of rows
                           ``<name>.npy``, (R, *shape): the rows of all episodes

Limits: no checksums beyond the zip's own CRC; ids must fit 64 bits.
"""

import json
from collections.abc import Mapping
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.learn.memory.column import numpy_dtype
from cadenza.learn.memory.serialisation_archive import ArchiveReader, ArchiveWriter
from cadenza.learn.memory.serialisation_checks import (
    MAX_ROWS,
    ColumnHeader,
    FileHeader,
    ReadOptions,
    check_header,
    first_kept,
    is_object,
    take,
    take_identities,
)
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

VERSION_ENTRY: Final = "version"
_CONFIGURATION: Final = "configuration.json"


def write_v1(snapshot: TableSnapshot, file: IO[bytes]) -> None:
    """Write ``snapshot`` in version 1.

    Raises:
        ConfigurationError: An id or a column name that this version cannot express.
    """
    entries = [entry for name in snapshot.stored for entry in _entries(name)]
    bounds = np.iinfo(np.int64)
    odd = [i for i in snapshot.identities if not bounds.min <= i <= bounds.max]
    if odd or len(set(entries)) != len(entries):
        raise ConfigurationError(
            "write_v1: expected ids of 64 bits and columns whose entries differ, got ids "
            f"{odd[:3]} and columns {list(snapshot.stored)}; store in version V2."
        )
    configuration = json.dumps(_configuration(snapshot), allow_nan=False)
    identities = np.array(snapshot.identities, np.int64)
    with ArchiveWriter(file) as archive:
        archive.add_bytes(VERSION_ENTRY, b"1")
        archive.add_bytes(_CONFIGURATION, configuration.encode())
        for name, part in snapshot.stored.items():
            ranges_entry, rows_entry = _entries(name)
            starts = np.cumsum(part.counts) - part.counts
            ranges = np.stack([identities, starts, part.counts], axis=1)
            archive.add_array(ranges_entry, ranges)
            archive.add_array(rows_entry, part.rows)


def _entries(column: str) -> tuple[str, str]:
    return f"{column}.ranges.npy", f"{column}.npy"


def _configuration(snapshot: TableSnapshot) -> dict[str, Any]:
    configuration: dict[str, Any] = {
        "ejector_type": snapshot.ejector_type,
        "sampler_type": snapshot.sampler_type,
        "length_key": snapshot.length_key,
        "maxlen": snapshot.maxlen,
        "ids": list(snapshot.identities),
    }
    if snapshot.ejector_state is not None:
        configuration["ejector_state"] = snapshot.ejector_state
    if snapshot.sampler_state is not None:
        configuration["sampler_state"] = snapshot.sampler_state
    configuration["columns"] = [
        [column.name, type(column).__name__, column.state()] for column in snapshot.columns
    ]
    configuration["part_keys"] = list(snapshot.stored)
    return configuration


def read_v1(archive: ArchiveReader, options: ReadOptions) -> TableSnapshot:
    """Return the content of a version 1 file.

    Raises:
        IntegrityError: The file is damaged.
        ConfigurationError: It does not suit the table.
    """
    data = archive.read_bytes(_CONFIGURATION, max_bytes=MAX_JSON_BYTES)
    header = _header(parse_json_object(data, source=f"{archive.source}: {_CONFIGURATION}"), archive)
    check_header(header, options)
    stored = options.stored_columns()
    archive.require_entries(
        [VERSION_ENTRY, _CONFIGURATION, *(entry for name in stored for entry in _entries(name))]
    )
    ranges = {name: _read_ranges(archive, name, header.identities) for name in stored}
    dropped = first_kept(ranges[options.length_key][:, 1], options.maxlen, archive.source)
    parts: dict[str, StoredRows] = {}
    for name, column in stored.items():
        rows = _read_rows(
            archive, name, numpy_dtype(column.dtype), tuple(column.shape), ranges[name], dropped
        )
        parts[name] = StoredRows(rows=rows, counts=ranges[name][dropped:, 1].copy())
    return header.with_rows(options, header.identities[dropped:], parts)


def _header(configuration: Mapping[str, Any], archive: ArchiveReader) -> FileHeader:
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
    identities = take_identities(configuration, "ids", source)
    return FileHeader.from_record(configuration, source, identities=identities, columns=columns)


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

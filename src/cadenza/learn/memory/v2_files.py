"""Version 2 of the file format: checksums, compression, ids of any size, mapper names.

Layout of the zip file, in this order:
    ``version``                 ASCII ``2``
    per stored column i         ``columns/<i>.counts.npy``, int64 (E,): rows per episode
                                ``columns/<i>.npy``, (R, *shape): the rows of all episodes
    ``manifest.json``           everything else, with the SHA-256 of each entry above
    ``manifest.sha256``         SHA-256 of ``manifest.json``, hex

The manifest is canonical JSON (sorted keys), so equal tables give equal bytes.
"""

from collections.abc import Mapping
from typing import IO, Any, Final, cast

import numpy as np

from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.learn.memory.column import Column, VirtualColumn, numpy_dtype
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

_FORMAT: Final = "cadenza-memory"
_VERSION: Final = 2
VERSION_ENTRY: Final = "version"
MANIFEST: Final = "manifest.json"
SEAL: Final = "manifest.sha256"


def write_v2(snapshot: TableSnapshot, file: IO[bytes], *, compress: bool = False) -> None:
    """Write ``snapshot`` in version 2, with deflated rows if ``compress``."""
    checksums: dict[str, dict[str, str]] = {}
    with ArchiveWriter(file, compress=compress) as archive:
        archive.add_bytes(VERSION_ENTRY, str(_VERSION).encode())
        for position, (name, part) in enumerate(snapshot.stored.items()):
            counts_entry, rows_entry = _entries(position)
            checksums[name] = {
                "counts_sha256": archive.add_array(counts_entry, part.counts),
                "rows_sha256": archive.add_array(rows_entry, part.rows),
            }
        add_manifest(archive, manifest_of(snapshot, checksums))


def add_manifest(archive: ArchiveWriter, manifest: Mapping[str, Any]) -> None:
    """Add the manifest and its checksum."""
    data = canonical_json(manifest)
    archive.add_bytes(MANIFEST, data)
    archive.add_bytes(SEAL, sha256_bytes(data).encode())


def manifest_of(
    snapshot: TableSnapshot, checksums: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the manifest of ``snapshot``, with the checksums of its stored columns by name."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "length_key": snapshot.length_key,
        "maxlen": snapshot.maxlen,
        "identities": list(snapshot.identities),
        "sampler_type": snapshot.sampler_type,
        "sampler_state": snapshot.sampler_state,
        "ejector_type": snapshot.ejector_type,
        "ejector_state": snapshot.ejector_state,
        "columns": [
            _column_record(column, checksums.get(column.name)) for column in snapshot.columns
        ],
    }


def _entries(position: int) -> tuple[str, str]:
    return f"columns/{position}.counts.npy", f"columns/{position}.npy"


def _column_record(column: Column, checksums: Mapping[str, str] | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": column.name,
        "kind": type(column).__name__,
        "state": column.state(),
        "stored": None if checksums is None else dict(checksums),
    }
    if isinstance(column, VirtualColumn):
        record["mapper"] = getattr(column.mapper, "__qualname__", str(column.mapper))
    return record


def read_v2(archive: ArchiveReader, options: ReadOptions) -> TableSnapshot:
    """Return the content of a version 2 file that holds its rows itself.

    Raises:
        IntegrityError: The file is damaged, or was changed after it was written.
        ConfigurationError: It does not suit the table.
    """
    header, checksums = read_header(archive, read_manifest(archive))
    check_header(header, options)
    return read_rows(archive, options, header, checksums, maxlen=options.maxlen)


def read_manifest(archive: ArchiveReader) -> dict[str, Any]:
    """Return the manifest, whose checksum is right.

    Raises:
        IntegrityError: The file is damaged, or was changed after it was written.
    """
    data = archive.read_bytes(MANIFEST, max_bytes=MAX_JSON_BYTES)
    seal = archive.read_bytes(SEAL, max_bytes=64)
    if seal != sha256_bytes(data).encode():
        archive.refuse(
            f"entry {MANIFEST!r}: expected the SHA-256 that {SEAL!r} holds, got "
            f"{sha256_bytes(data)}; the file was changed after it was written."
        )
    manifest = parse_json_object(data, source=f"{archive.source}: {MANIFEST}")
    if manifest.get("format") != _FORMAT or manifest.get("version") != _VERSION:
        archive.refuse(
            f"expected format {_FORMAT!r} version {_VERSION}, got {manifest.get('format')!r} "
            f"version {manifest.get('version')!r}."
        )
    return manifest


def read_rows(
    archive: ArchiveReader,
    options: ReadOptions,
    header: FileHeader,
    checksums: Mapping[str, Mapping[str, str]],
    *,
    maxlen: int,
) -> TableSnapshot:
    """Return the rows of the newest episodes that fit into ``maxlen`` transitions.

    Raises:
        IntegrityError: The file is damaged.
    """
    positions = {name: index for index, name in enumerate(checksums)}
    names = [entry for index in positions.values() for entry in _entries(index)]
    archive.require_entries([VERSION_ENTRY, MANIFEST, SEAL, *names])
    return _read_parts(archive, options, header, checksums, positions, maxlen)


def _read_parts(
    archive: ArchiveReader,
    options: ReadOptions,
    header: FileHeader,
    checksums: Mapping[str, Mapping[str, str]],
    positions: Mapping[str, int],
    maxlen: int,
) -> TableSnapshot:
    """Return the snapshot with the rows of the newest episodes that fit ``maxlen``."""
    counts = {
        name: archive.read_array(
            _entries(positions[name])[0],
            dtype=np.dtype(np.int64),
            shape=(len(header.identities),),
            sha256=checksums[name]["counts_sha256"],
        )
        for name in checksums
    }
    for name, values in counts.items():
        if (values < 0).any() or sum(values.tolist()) > MAX_ROWS:
            archive.refuse(
                f"column {name!r}: expected counts >= 0 and at most {MAX_ROWS} rows, got others."
            )
    dropped = first_kept(counts[options.length_key], maxlen, archive.source)
    parts: dict[str, StoredRows] = {}
    for name, column in options.stored_columns().items():
        rows = archive.read_array(
            _entries(positions[name])[1],
            dtype=numpy_dtype(column.dtype),
            shape=(int(counts[name].sum()), *column.shape),
            skip=int(counts[name][:dropped].sum()),
            sha256=checksums[name]["rows_sha256"],
        )
        parts[name] = StoredRows(rows=rows, counts=counts[name][dropped:].copy())
    return header.with_rows(options, header.identities[dropped:], parts)


def read_header(
    archive: ArchiveReader, manifest: Mapping[str, Any]
) -> tuple[FileHeader, dict[str, Mapping[str, str]]]:
    """Return what the manifest says about the table, and the checksums by stored column."""
    source = archive.source
    columns: dict[str, ColumnHeader] = {}
    checksums: dict[str, Mapping[str, str]] = {}
    for record in cast("list[Any]", take(manifest, "columns", list, source)):
        match record:
            case {
                "name": str(name),
                "kind": str(kind),
                "state": state,
                "stored": ({"counts_sha256": str(), "rows_sha256": str()} | None) as stored,
            } if name not in columns and is_object(state):
                columns[name] = ColumnHeader(kind=kind, state=state, is_stored=stored is not None)
                if stored is not None:
                    checksums[name] = cast("dict[str, str]", stored)
            case _:
                archive.refuse(
                    "expected columns with different names, class, state and checksums, got "
                    f"{str(record)[:80]!r}."
                )
    identities = take_identities(manifest, "identities", source)
    header = FileHeader.from_record(manifest, source, identities=identities, columns=columns)
    return header, checksums

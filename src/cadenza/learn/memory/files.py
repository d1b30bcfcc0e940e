"""Reading and writing the files of memory tables.

Every file is ``<path>.zip``. Reading checks the whole file against the table that asks before it
hands anything over. We write version 2; older ones are in `emote_formats`.

Whole:    in this order ``version`` (ASCII ``2``); per stored column i ``columns/<i>.counts.npy``,
          int64 (E,), rows per episode, and ``columns/<i>.npy``, (R, *shape), rows of all episodes;
          ``manifest.json``, canonical JSON of everything else, with the SHA-256 of each entry;
          ``manifest.sha256``, its SHA-256 in hex.
Pieces:   an export that writes only what is new: ``<path>.zip`` is an index, with ``index`` (``1``)
          instead of rows, and ``<path>.segments/<16 hex>.zip`` are segments, whole files that never
          change. Per segment the index has its file name, the SHA-256 of its manifest, and the
          positions of the episodes that were stored when the index was written.
Promise:  the index is replaced after the segments it lists are durable, and segments that it no
          longer lists are removed after that; killed at any point, the file on disk is whole.
"""

import enum
import re
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_writer, canonical_json, confined_path, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.learn.memory.archive import (
    MAX_ROWS,
    VERSION_ENTRY,
    ArchiveReader,
    ArchiveWriter,
    ColumnHeader,
    FileHeader,
    ReadOptions,
    check_columns,
    first_kept,
    is_object,
    open_archive,
    read_settings,
    take,
    warn_about_settings,
)
from cadenza.learn.memory.column import Column, VirtualColumn, numpy_dtype
from cadenza.learn.memory.emote_formats import read_legacy, read_v1
from cadenza.learn.memory.snapshot import (
    ContentMark,
    StoredRows,
    TableChanges,
    TableSnapshot,
)

_FORMAT: Final = "cadenza-memory"
_VERSION: Final = 2
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
    """Return the content of a version 2 file that holds its rows itself."""
    header, checksums = read_header(archive, read_manifest(archive), options)
    warn_about_settings(header, options)
    return read_rows(archive, options, header, checksums, maxlen=options.maxlen)


def read_manifest(archive: ArchiveReader) -> dict[str, Any]:
    """Return the manifest, whose checksum is right."""
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
    """Return the rows of the newest episodes that fit into ``maxlen`` transitions."""
    positions = {name: index for index, name in enumerate(checksums)}
    names = [entry for index in positions.values() for entry in _entries(index)]
    archive.require_entries([VERSION_ENTRY, MANIFEST, SEAL, *names])
    counts = {
        name: archive.read_array(
            _entries(positions[name])[0],
            dtype=np.dtype(np.int64),
            shape=(len(header.table.identities),),
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
    return header.with_rows(options, header.table.identities[dropped:], parts)


def read_header(
    archive: ArchiveReader, manifest: Mapping[str, Any], options: ReadOptions
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
    settings = read_settings(manifest, source, options, ids="identities")
    header = FileHeader(source=source, columns=columns, table=settings)
    check_columns(header, options)
    return header, checksums


_INDEX: Final = "index"
_SEGMENT_NAME: Final = re.compile(r"[0-9a-f]{16}\.zip")
#: More segments than this, or more dead than live episodes in them, are written anew as one.
MAX_SEGMENTS: Final = 64
#: Everyone may read stored memories, whatever the umask: other users import them.
_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: array == is ambiguous
class _Segment:
    """A segment on disk: file name, SHA-256 of its manifest, and numbers of arrival, ascending."""

    name: str
    manifest_sha256: str
    serials: NDArray[np.int64]


class ChangingTable(Protocol):
    """What a table must tell: `ArrayMemoryTable` does."""

    def changes_since(self, mark: ContentMark | None) -> TableChanges:
        """Return the episodes that came after ``mark``, and which are stored now."""
        ...


class SegmentedFile:
    """Writes one table again and again to one place.

    The first write of each object is whole, whatever is there: only the table that wrote a segment
    knows what its episodes are now.
    """

    def __init__(self, path: str | Path, *, compress: bool = False) -> None:
        self._file = Path(f"{path}.zip")
        self._folder = Path(f"{path}.segments")
        self._compress = compress
        self._segments: list[_Segment] = []
        self._mark: ContentMark | None = None

    def write(self, table: ChangingTable) -> None:
        """Make the files hold what ``table`` holds, which must be the same at each call.

        Raises:
            StorageError: The file system refused; the files hold what they held before.
        """
        changes = table.changes_since(self._mark)
        written = sum(len(segment.serials) for segment in self._segments)
        live = len(changes.serials) - len(changes.added_serials)
        if len(self._segments) >= MAX_SEGMENTS or written > 2 * live:
            changes = table.changes_since(None)
        segments = [] if changes.is_whole else list(self._segments)
        if len(changes.added_serials):
            segments.append(self._add_segment(changes))
        kept = [np.flatnonzero(np.isin(part.serials, changes.serials)) for part in segments]
        listed = [pair for pair in zip(segments, kept, strict=True) if len(pair[1])]
        manifest = manifest_of(
            replace(changes.added, identities=changes.identities),
            {name: {"counts_sha256": "", "rows_sha256": ""} for name in changes.added.stored},
        )
        manifest["segments"] = [
            {
                "file": segment.name,
                "manifest_sha256": segment.manifest_sha256,
                "kept": places.tolist(),
            }
            for segment, places in listed
        ]
        with atomic_writer(self._file, mode=_MODE) as file, ArchiveWriter(file) as archive:
            archive.add_bytes(VERSION_ENTRY, b"2")
            archive.add_bytes(_INDEX, b"1")
            add_manifest(archive, manifest)
        self._segments = [segment for segment, _ in listed]
        self._mark = changes.mark
        names = {segment.name for segment in self._segments}
        for file in self._folder.glob("*.zip"):
            if _SEGMENT_NAME.fullmatch(file.name) and file.name not in names:
                file.unlink(missing_ok=True)

    def _add_segment(self, changes: TableChanges) -> _Segment:
        name = f"{secrets.token_hex(8)}.zip"
        target = self._folder / name
        with atomic_writer(target, mode=_MODE) as file:
            write_v2(changes.added, file, compress=self._compress)
        with open_archive(target, max_unpacked_bytes=MAX_ROWS) as archive:
            digest = sha256_bytes(archive.read_bytes(MANIFEST, max_bytes=MAX_JSON_BYTES))
        return _Segment(name, digest, changes.added_serials)


def is_index(archive: ArchiveReader) -> bool:
    """Return whether a version 2 file keeps its rows in segments."""
    return _INDEX in archive.entries


def read_index(archive: ArchiveReader, options: ReadOptions, file: Path) -> TableSnapshot:
    """Return the content of an index and its segments."""
    manifest = read_manifest(archive)
    header, _ = read_header(archive, manifest, options)
    warn_about_settings(header, options)
    archive.require_entries([VERSION_ENTRY, _INDEX, MANIFEST, SEAL])
    records = cast("list[Any]", take(manifest, "segments", list, archive.source))
    folder = file.with_suffix(".segments")
    parts: list[TableSnapshot] = []
    room = options.maxlen
    seen: set[str] = set()
    for record in reversed(records):  # the newest first, so that no more is read than fits
        name, digest, kept = _segment_record(archive, record)
        if name in seen:
            archive.refuse(f"expected each segment once, got {name} twice.")
        seen.add(name)
        part = _read_segment(archive, options, folder, name, digest)
        parts.insert(0, _selected(archive, part, kept))
        room -= int(parts[0].lengths().sum())
        if room <= 0:
            break
    identities = tuple(identity for part in parts for identity in part.identities)
    first = len(header.table.identities) - len(identities) if len(parts) < len(records) else 0
    if identities != header.table.identities[max(first, 0) :]:
        archive.refuse("expected segments with the ids of the index, got others.")
    joined = header.with_rows(options, identities, _joined(options, parts))
    dropped = first_kept(joined.lengths(), options.maxlen, archive.source)
    return _selected(archive, joined, np.arange(dropped, len(identities))) if dropped else joined


def _segment_record(archive: ArchiveReader, record: Any) -> tuple[str, str, NDArray[np.int64]]:
    """Return file name, checksum and kept positions of one entry of the index."""
    match record:
        case {"file": str(name), "manifest_sha256": str(digest), "kept": [*kept]} if (
            _SEGMENT_NAME.fullmatch(name) and all(type(position) is int for position in kept)
        ):
            positions = np.array([min(max(p, -1), MAX_ROWS) for p in kept], np.int64)
        case _:
            archive.refuse(
                "expected segments with file, manifest_sha256 and kept positions, got "
                f"{str(record)[:80]!r}."
            )
    if len(positions) == 0 or positions[0] < 0 or (np.diff(positions) <= 0).any():
        archive.refuse(f"segment {name}: expected ascending positions >= 0, got others.")
    return name, digest, positions


def _read_segment(
    archive: ArchiveReader, options: ReadOptions, folder: Path, name: str, digest: str
) -> TableSnapshot:
    """Return all episodes of one segment."""
    file = confined_path(folder, name)
    if not file.is_file():
        archive.refuse(f"expected its segment {file}, got no such file; copy the folder too.")
    with open_archive(file, max_unpacked_bytes=options.max_unpacked_bytes) as segment:
        manifest = read_manifest(segment)
        found = sha256_bytes(segment.read_bytes(MANIFEST, max_bytes=MAX_JSON_BYTES))
        if found != digest:
            segment.refuse(
                f"expected the segment whose manifest has SHA-256 {digest}, got {found}."
            )
        header, checksums = read_header(segment, manifest, options)
        return read_rows(segment, options, header, checksums, maxlen=MAX_ROWS)


def _selected(
    archive: ArchiveReader, part: TableSnapshot, positions: NDArray[np.int64]
) -> TableSnapshot:
    """Return the episodes at ``positions`` of a segment."""
    if positions[-1] >= len(part.identities):
        archive.refuse(
            f"expected positions below {len(part.identities)} in a segment, got {positions[-1]}."
        )
    stored: dict[str, StoredRows] = {}
    for name, rows in part.stored.items():
        chosen = np.zeros(len(part.identities), bool)
        chosen[positions] = True
        stored[name] = StoredRows(
            rows=rows.rows[np.repeat(chosen, rows.counts)], counts=rows.counts[positions]
        )
    places: list[int] = positions.tolist()
    identities = tuple(part.identities[place] for place in places)
    return replace(part, identities=identities, stored=stored)


def _joined(options: ReadOptions, parts: list[TableSnapshot]) -> dict[str, StoredRows]:
    """Return the rows of all parts by column, one part after the other."""
    stored: dict[str, StoredRows] = {}
    for name, column in options.stored_columns().items():
        rows = [np.empty((0, *column.shape), numpy_dtype(column.dtype))]
        counts = [np.zeros(0, np.int64)]
        for part in parts:
            rows.append(part.stored[name].rows)
            counts.append(part.stored[name].counts)
        stored[name] = StoredRows(rows=np.concatenate(rows), counts=np.concatenate(counts))
    return stored


class TableSerializationVersion(enum.Enum):
    """The version of the memory serialization format.

    We write `V2`, which has checksums and ids of any size; `V1` and `Legacy`, which Emote writes,
    are only read.
    """

    Legacy = 0
    V1 = 1
    V2 = 2
    LATEST = V2


def write_snapshot(
    snapshot: TableSnapshot,
    path: str | Path,
    version: TableSerializationVersion | None = TableSerializationVersion.LATEST,
    *,
    compress: bool = False,
) -> None:
    """Replace ``<path>.zip`` by a file with the content of ``snapshot``, mode 0644.

    Killed at any point, the old file is still there. ``version`` None means the latest.

    Raises:
        ConfigurationError: ``version`` is not the latest.
        StorageError: The file system refused.
    """
    if version not in (None, TableSerializationVersion.LATEST):
        raise ConfigurationError(
            f"version: expected V2 to write a memory, got {version}; the others are only read."
        )
    with atomic_writer(Path(f"{path}.zip"), mode=_MODE) as file:
        write_v2(snapshot, file, compress=compress)


def read_snapshot(
    path: str | Path,
    options: ReadOptions,
    override_version: TableSerializationVersion | None = None,
) -> TableSnapshot:
    """Return the content of ``<path>.zip``, checked completely, in the format that it says itself.

    ``override_version`` is the format to assume instead.

    Raises:
        FileNotFoundError: There is no such file.
        IntegrityError: The file is damaged, cut off, tampered with or hostile.
        ConfigurationError: It does not suit the table, or is a pickle and those are not allowed.
    """
    file = Path(f"{path}.zip")
    with open_archive(file, max_unpacked_bytes=options.max_unpacked_bytes) as archive:
        match _version_of(archive) if override_version is None else override_version:
            case TableSerializationVersion.V1:
                return read_v1(archive, options)
            case TableSerializationVersion.V2 if is_index(archive):
                return read_index(archive, options, file)
            case TableSerializationVersion.V2:
                return read_v2(archive, options)
            case TableSerializationVersion.Legacy:
                warnings.warn(
                    "The legacy memory format is a pickle; store the memory again.",
                    DeprecationWarning,
                    stacklevel=3,
                )
                return read_legacy(archive, options)
            case _:
                names = [known.name for known in TableSerializationVersion]
                raise ConfigurationError(
                    f"version: expected one of {names}, got {override_version!r}."
                )


def _version_of(archive: ArchiveReader) -> TableSerializationVersion:
    """Return the version that the file names; the oldest files name none."""
    if VERSION_ENTRY not in archive.entries:
        return TableSerializationVersion.Legacy
    text = archive.read_bytes(VERSION_ENTRY, max_bytes=16).strip()
    versions = {b"1": TableSerializationVersion.V1, b"2": TableSerializationVersion.V2}
    if text not in versions:
        archive.refuse(f"expected version 1 or 2, got {text!r}; is it from a newer release?")
    return versions[text]

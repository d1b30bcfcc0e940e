"""Version 2 in pieces: an index and segments, so that an export writes only what is new.

Layout:   ``<path>.zip`` is the index: ``version`` (``2``), ``index`` (``1``), ``manifest.json`` and
          ``manifest.sha256`` as in a whole file, without rows. Its manifest also lists segments.
          ``<path>.segments/<16 hex>.zip`` are segments: whole version 2 files, never changed.
          Per segment the index has its file name, the SHA-256 of its manifest, and the positions of
          the episodes that were stored when the index was written.
Promise:  the index is replaced after the segments it lists are durable, and segments that it no
          longer lists are removed after that; killed at any point, the index on disk is whole.
"""

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.files import atomic_writer, confined_path, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES
from cadenza.learn.memory.column import numpy_dtype
from cadenza.learn.memory.serialisation_archive import ArchiveReader, ArchiveWriter, open_archive
from cadenza.learn.memory.serialisation_checks import (
    MAX_ROWS,
    ReadOptions,
    check_columns,
    check_header,
    first_kept,
    take,
)
from cadenza.learn.memory.snapshot import (
    ContentMark,
    StoredRows,
    TableChanges,
    TableSnapshot,
)
from cadenza.learn.memory.v2_files import (
    MANIFEST,
    SEAL,
    VERSION_ENTRY,
    add_manifest,
    manifest_of,
    read_header,
    read_manifest,
    read_rows,
    write_v2,
)

_INDEX: Final = "index"
_SEGMENT_NAME: Final = re.compile(r"[0-9a-f]{16}\.zip")
#: More segments than this, or more dead than live episodes in them, are written anew as one.
MAX_SEGMENTS: Final = 64
#: Everyone may read, as for whole files.
_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: array == is ambiguous
class _Segment:
    """One segment on disk.

    Attributes:
        name: File name.
        manifest_sha256: SHA-256 of its manifest.
        serials: Numbers of arrival of its episodes, ascending.
    """

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

    Args:
        path: File without its extension.
        compress: Deflate the rows.
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
        if self._is_wasteful(changes):
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
        self._remove_others()

    def _is_wasteful(self, changes: TableChanges) -> bool:
        """Return whether the segments are too many, or mostly of episodes that are gone."""
        written = sum(len(segment.serials) for segment in self._segments)
        live = len(changes.serials) - len(changes.added_serials)
        return len(self._segments) >= MAX_SEGMENTS or written > 2 * live

    def _add_segment(self, changes: TableChanges) -> _Segment:
        name = f"{secrets.token_hex(8)}.zip"
        target = self._folder / name
        with atomic_writer(target, mode=_MODE) as file:
            write_v2(changes.added, file, compress=self._compress)
        with open_archive(target, max_unpacked_bytes=MAX_ROWS) as archive:
            digest = sha256_bytes(archive.read_bytes(MANIFEST, max_bytes=MAX_JSON_BYTES))
        return _Segment(name, digest, changes.added_serials)

    def _remove_others(self) -> None:
        """Delete segments that the index no longer lists."""
        listed = {segment.name for segment in self._segments}
        for file in self._folder.glob("*.zip"):
            if _SEGMENT_NAME.fullmatch(file.name) and file.name not in listed:
                file.unlink(missing_ok=True)


def is_index(archive: ArchiveReader) -> bool:
    """Return whether a version 2 file keeps its rows in segments."""
    return _INDEX in archive.entries


def read_index(archive: ArchiveReader, options: ReadOptions, file: Path) -> TableSnapshot:
    """Return the content of an index and its segments.

    Args:
        archive: The index.
        options: What the table accepts.
        file: Where the index lies.

    Raises:
        IntegrityError: The index or a segment is damaged, missing, or was changed.
        ConfigurationError: It does not suit the table.
    """
    manifest = read_manifest(archive)
    header, _ = read_header(archive, manifest)
    check_header(header, options)
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
    first = len(header.identities) - len(identities) if len(parts) < len(records) else 0
    if identities != header.identities[max(first, 0) :]:
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
        header, checksums = read_header(segment, manifest)
        check_columns(header, options)
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

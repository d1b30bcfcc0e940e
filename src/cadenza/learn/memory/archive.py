"""Zip files of arrays, read without trusting them, and what files of memories say about themselves.

An archive is never extracted; its entries are read by exact name. Whatever is wrong with it is one
`IntegrityError` that names the file and the entry.

A header that differs from the table in what rows mean (columns, shapes, types) is an error. One
that differs only in how they are used (strategies, limits, virtual columns) is a warning, and the
table keeps its own.
"""

import hashlib
import io
import logging
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.learn.memory.column import Column, VirtualColumn, numpy_dtype
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

#: Bytes moved at once.
_CHUNK_BYTES: Final = 1 << 20
#: Files may always unpack to this much, and to this multiple of their size on disk. Images of one
#: colour reach about 1000; sensor data rarely exceeds 10.
_FREE_UNPACKED_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 64
#: All entries carry this time, so that equal tables give equal bytes.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
#: Entry that names the version of a memory's file; the oldest files have none.
VERSION_ENTRY: Final = "version"
#: What zipfile raises on archives that are foreign, hostile or damaged.
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,  # an offset before the start of the file
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    MemoryError,
)


class ArchiveWriter:
    """Adds entries to a new zip file, in the order of the calls; used in a ``with`` block.

    The directory of entries, without which the file is no archive, is written when the block ends.
    """

    def __init__(self, file: IO[bytes], *, compress: bool = False) -> None:
        self._archive = zipfile.ZipFile(file, "w", allowZip64=True)
        self._method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED

    def __enter__(self) -> "ArchiveWriter":
        """Return itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the directory; after an error the file is thrown away, so that may fail too."""
        with suppress(OSError, ValueError) if exc_type else nullcontext():
            self._archive.close()

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a small entry, never compressed."""
        self._archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_STORED)

    def add_array(self, name: str, array: NDArray[Any]) -> str:
        """Add ``array`` in npy format and return the SHA-256 of the entry's content."""
        info = zipfile.ZipInfo(name, _EPOCH)
        info.compress_type = self._method
        digest = hashlib.sha256()
        with self._archive.open(info, "w", force_zip64=True) as entry:
            for chunk in _npy_chunks(array):
                digest.update(chunk)
                entry.write(chunk)
        return digest.hexdigest()


def _npy_chunks(array: NDArray[Any]) -> Iterable[bytes]:
    """Yield the npy file of ``array`` without a second copy of it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    )
    yield header.getvalue()
    rows_at_once = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows_at_once):
        yield np.ascontiguousarray(array[start : start + rows_at_once]).tobytes()


class ArchiveReader:
    """Reads the entries of a zip file by name; made by `open_archive`."""

    def __init__(self, archive: zipfile.ZipFile, source: str) -> None:
        self._archive = archive
        #: How messages call the file.
        self.source = source
        self.entries: dict[str, zipfile.ZipInfo] = {
            info.filename: info for info in archive.infolist()
        }

    def refuse(self, reason: str) -> NoReturn:
        """Raise `IntegrityError` about this file."""
        raise IntegrityError(f"{self.source}: {reason}")

    def require_entries(self, expected: Iterable[str]) -> None:
        """Raise `IntegrityError` unless the entries are exactly the ``expected``."""
        names = set(expected)
        if names != self.entries.keys():
            missing = sorted(names - self.entries.keys())[:5]
            extra = sorted(self.entries.keys() - names)[:5]
            self.refuse(
                f"expected {len(names)} entries, got missing ones {missing} and unknown ones "
                f"{extra}; the file is damaged or no memory of this package."
            )

    def read_bytes(self, name: str, *, max_bytes: int) -> bytes:
        """Return the content of a small entry, of at most ``max_bytes``."""
        with self._open(name) as entry:
            data = entry.read(max_bytes + 1)
            if len(data) > max_bytes:
                self.refuse(f"entry {name!r}: expected at most {max_bytes} bytes, got more.")
        return data

    def read_array(
        self,
        name: str,
        *,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        skip: int = 0,
        sha256: str | None = None,
    ) -> NDArray[Any]:
        """Return the rows of an array of exactly this type and shape, without the first ``skip``.

        A first size of -1 accepts any; ``sha256`` is that of the whole entry.
        """
        with self._open(name) as entry:
            source = _Hashed(entry)
            header = self._header(name, source, dtype, shape)
            row_bytes = dtype.itemsize * int(np.prod(header[1:], dtype=object))
            # What the directory promises, so that a header alone cannot ask for memory.
            promised = self.entries[name].file_size - source.position
            if promised != header[0] * row_bytes:
                self.refuse(
                    f"entry {name!r}: expected {header[0] * row_bytes} bytes for shape {header} "
                    f"of {dtype}, got {promised}."
                )
            source.discard(skip * row_bytes)
            array = np.empty((header[0] - skip, *header[1:]), dtype)
            source.fill(array.reshape(-1).view(np.uint8))
            source.read(1)  # reaching the end compares the CRC
        if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            self.refuse(f"entry {name!r}: expected booleans as bytes 0 and 1, got others.")
        if sha256 is not None and source.hexdigest() != sha256:
            self.refuse(
                f"entry {name!r}: expected SHA-256 {sha256}, got {source.hexdigest()}; the file "
                "was changed after it was written."
            )
        return array

    def _header(
        self, name: str, source: "_Hashed", dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the shape in the npy header after comparing it with what is expected."""
        version = np.lib.format.read_magic(source)
        if version not in ((1, 0), (2, 0)):
            self.refuse(f"entry {name!r}: expected npy version 1.0 or 2.0, got {version}.")
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        found, fortran_order, found_dtype = read_header(source)
        fits = len(found) == len(shape) and found[1:] == shape[1:] and shape[0] in (-1, found[0])
        if found_dtype != dtype or not fits or (fortran_order and len(found) > 1):
            order = " in Fortran order" if fortran_order else ""
            wanted = str(shape).replace("(-1", "(any", 1)
            self.refuse(
                f"entry {name!r}: expected {dtype} of shape {wanted}, got {found_dtype} of shape "
                f"{found}{order}."
            )
        return found

    @contextmanager
    def _open(self, name: str) -> Generator[IO[bytes]]:
        """Open an entry; whatever goes wrong inside the block is an `IntegrityError`."""
        if name not in self.entries:
            self.refuse(f"expected an entry {name!r}, got {sorted(self.entries)[:8]}.")
        try:
            with self._archive.open(self.entries[name]) as entry:
                yield entry
        except IntegrityError:
            raise
        except _ZIP_ERRORS as error:
            raise IntegrityError(
                f"{self.source}: entry {name!r}: expected readable data, got an error: {error}."
            ) from error


class _Hashed:
    """A stream that remembers position and SHA-256 of what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.position = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes."""
        data = self._stream.read(size)
        self._digest.update(data)
        self.position += len(data)
        return data

    def discard(self, size: int) -> None:
        """Read ``size`` bytes and forget them."""
        for start in range(0, size, _CHUNK_BYTES):
            self.fill(np.empty(min(_CHUNK_BYTES, size - start), np.uint8))

    def fill(self, target: NDArray[np.uint8]) -> None:
        """Read exactly as many bytes as ``target`` has, into it."""
        done = 0
        while done < len(target):
            data = self.read(min(_CHUNK_BYTES, len(target) - done))
            if not data:
                raise EOFError(f"the data end {len(target) - done} bytes too early")
            target[done : done + len(data)] = np.frombuffer(data, np.uint8)
            done += len(data)

    def hexdigest(self) -> str:
        """Return the SHA-256 of everything read so far."""
        return self._digest.hexdigest()


@contextmanager
def open_archive(path: Path, *, max_unpacked_bytes: int | None) -> Generator[ArchiveReader]:
    """Open a zip file for reading after checking its directory.

    Entries may unpack to ``max_unpacked_bytes``; None allows 1 GiB or 64 times the size on disk,
    whichever is more.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a stored memory, got no such file.")
    try:
        archive = zipfile.ZipFile(path)
    except _ZIP_ERRORS as error:
        raise IntegrityError(
            f"{path}: expected a zip file of a stored memory, got none ({error}); the file is cut "
            "off or foreign."
        ) from error
    with archive:
        reader = ArchiveReader(archive, str(path))
        _check_directory(reader, path.stat().st_size, archive.infolist(), max_unpacked_bytes)
        yield reader


def _check_directory(
    reader: ArchiveReader,
    size: int,
    infos: list[zipfile.ZipInfo],
    max_unpacked_bytes: int | None,
) -> None:
    """Refuse repeated names, overlapping entries and bombs."""
    if len(infos) != len(reader.entries):
        reader.refuse("expected different names for its entries, got a name twice.")
    if sum(info.compress_size for info in infos) > size:
        reader.refuse(
            f"expected entries of together at most {size} bytes, the file's size, got "
            f"{sum(info.compress_size for info in infos)}: they overlap."
        )
    unpacked = sum(info.file_size for info in infos)
    methods = {info.compress_type for info in infos}
    if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        reader.refuse(f"expected entries stored or deflated, got compression {sorted(methods)}.")
    stored = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    if stored and any(info.file_size != info.compress_size for info in infos):
        reader.refuse("expected equal sizes packed and unpacked of stored entries, got others.")
    limit = max_unpacked_bytes
    if limit is None:
        limit = size if stored else max(_FREE_UNPACKED_BYTES, _MAX_RATIO * size)
    if unpacked > limit:
        reader.refuse(
            f"expected at most {limit} bytes unpacked, got {unpacked}; raise max_unpacked_bytes "
            "if you trust the file."
        )


_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")

#: Most rows of one column in a file: far beyond any memory, and sums of it fit 64 bits.
MAX_ROWS: Final = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a table accepts from a file, and how it does itself.

    The file must hold rows for each column that stores data, and for no others, in the same shape
    and dtype; the newest episodes that fit into ``maxlen`` are read.
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
        return {c.name: c for c in self.columns if not isinstance(c, VirtualColumn)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHeader:
    """One column as a file describes it: class name, `Column.state`, and whether it has rows."""

    kind: str
    state: Mapping[str, Any]
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """A table as a file describes it: settings and ids, without rows yet, and columns by name."""

    source: str
    columns: Mapping[str, ColumnHeader]
    table: TableSnapshot

    def with_rows(
        self, options: ReadOptions, identities: tuple[int, ...], stored: Mapping[str, StoredRows]
    ) -> TableSnapshot:
        """Return the episodes ``identities`` with their rows."""
        key = options.length_key
        return replace(self.table, length_key=key, identities=identities, stored=stored)


def read_settings(
    record: Mapping[str, Any], source: str, options: ReadOptions, *, ids: str
) -> TableSnapshot:
    """Return what ``record``, whose key ``ids`` holds the episodes, says about a table."""
    return TableSnapshot(
        columns=tuple(options.columns),
        length_key=take(record, "length_key", str, source),
        maxlen=take(record, "maxlen", int, source),
        identities=take_identities(record, ids, source),
        stored={},
        sampler_type=take(record, "sampler_type", str, source),
        ejector_type=take(record, "ejector_type", str, source),
        sampler_state=take_optional_state(record, "sampler_state", source),
        ejector_state=take_optional_state(record, "ejector_state", source),
    )


def take(record: Mapping[str, Any], key: str, kind: type[T], source: str) -> T:
    """Return ``record[key]`` if it is a ``kind``; booleans are no integers."""
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
    """Return ``record[key]`` as different integers."""
    values = cast("list[object]", take(record, key, list, source))
    if not all(type(value) is int for value in values):
        raise IntegrityError(f"{source}: expected {key!r} to hold integers only, got others.")
    identities = cast("list[int]", values)
    if len(set(identities)) != len(identities):
        raise IntegrityError(f"{source}: expected different ids in {key!r}, got repeated ones.")
    return tuple(identities)


def check_columns(header: FileHeader, options: ReadOptions) -> None:
    """Raise `ConfigurationError` unless the stored columns of a file are those of the table."""
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


def warn_about_settings(header: FileHeader, options: ReadOptions) -> None:
    """Log one warning for each setting that differs and that the table keeps."""
    mine = {column.name: type(column).__name__ for column in options.columns}
    theirs = {name: column.kind for name, column in header.columns.items()}
    pairs = {
        "ejector type": (options.ejector_type, header.table.ejector_type),
        "sampler type": (options.sampler_type, header.table.sampler_type),
        "length key": (options.length_key, header.table.length_key),
        "maxlen": (options.maxlen, header.table.maxlen),
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
    """Return the index of the oldest episode that is kept: the newest that fit together stay."""
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

"""Zip files of arrays: written and read as streams, and read without trusting them.

An archive is never extracted; its entries are read by exact name. Whatever is wrong with it (cut
off, damaged, overlapping, unpacking to far too much, other entries than expected) is one
`IntegrityError` that names the file and the entry.
"""

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import IntegrityError

#: Bytes moved at once.
_CHUNK_BYTES: Final = 1 << 20
#: Files may always unpack to this much, and to this multiple of their size on disk. Images of one
#: colour reach about 1000; sensor data rarely exceeds 10.
_FREE_UNPACKED_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 64
#: All entries carry this time, so that equal tables give equal bytes.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
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

    Args:
        file: Open for writing and seeking.
        compress: Deflate entries of arrays.
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
    header = _BytesList()
    np.lib.format.write_array_header_1_0(
        header, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    )
    yield from header.parts
    rows_at_once = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows_at_once):
        yield np.ascontiguousarray(array[start : start + rows_at_once]).tobytes()


class _BytesList:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.parts.append(data)


class ArchiveReader:
    """Reads the entries of a zip file by name; made by `open_archive`."""

    def __init__(self, archive: zipfile.ZipFile, source: str) -> None:
        self._archive = archive
        #: How messages call the file.
        self.source = source
        self.entries = {info.filename: info for info in archive.infolist()}

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
        """Return the content of a small entry.

        Raises:
            IntegrityError: The entry is missing, larger than ``max_bytes`` or damaged.
        """
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
        """Return the last ``shape[0] - skip`` rows of an array of exactly this type and shape.

        Args:
            name: Entry in npy format.
            dtype: Expected element type.
            shape: Expected shape; ``shape[0]`` None-like -1 accepts any number of rows.
            skip: Leading rows that are read and dropped.
            sha256: Expected SHA-256 of the whole entry; None skips the comparison.

        Raises:
            IntegrityError: The array is another one, or damaged.
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
            self.refuse(
                f"entry {name!r}: expected {dtype} of shape {_any_rows(shape)}, got {found_dtype} "
                f"of shape {found}{order}."
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


def _any_rows(shape: tuple[int, ...]) -> str:
    return str(shape).replace("(-1", "(any", 1)


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
        self._take(size, lambda _data, _done: None)

    def fill(self, target: NDArray[np.uint8]) -> None:
        """Read exactly as many bytes as ``target`` has, into it."""

        def copy(data: bytes, done: int) -> None:
            target[done : done + len(data)] = np.frombuffer(data, np.uint8)

        self._take(len(target), copy)

    def _take(self, size: int, use: Callable[[bytes, int], None]) -> None:
        done = 0
        while done < size:
            data = self.read(min(_CHUNK_BYTES, size - done))
            if not data:
                raise EOFError(f"the data end {size - done} bytes too early")
            use(data, done)
            done += len(data)

    def hexdigest(self) -> str:
        """Return the SHA-256 of everything read so far."""
        return self._digest.hexdigest()


@contextmanager
def open_archive(path: Path, *, max_unpacked_bytes: int | None) -> Generator[ArchiveReader]:
    """Open a zip file for reading after checking its directory.

    Args:
        path: The file.
        max_unpacked_bytes: Most bytes the entries may unpack to; None allows 1 GiB or 64 times the
            size on disk, whichever is more.

    Raises:
        FileNotFoundError: There is no such file.
        IntegrityError: The directory is not one of an honest archive.
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

"""Durable file writes and confined paths.

A finished write survives a power cut: temporary file in the same folder, fsync, rename, fsync of
the folder. A reader sees the old bytes or the new ones, never a mixture.
"""

import fcntl
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from cadenza.core.errors import IntegrityError, StorageError

#: Bytes read at once while hashing.
_CHUNK_BYTES: Final = 1 << 20
#: Ending of the files a write leaves behind when its process is killed.
TEMPORARY_SUFFIX: Final = ".cadenza-tmp"
#: Seconds between two tries for a lock.
_LOCK_POLL_S: Final = 0.01
#: Longest file name that common file systems take.
_MAX_NAME_BYTES: Final = 255


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one durable step, creating parent folders.

    Raises:
        StorageError: The file system refused (disk full, read-only); ``path`` is unchanged.
    """
    with atomic_writer(path) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path, *, mode: int | None = None) -> Generator[BinaryIO]:
    """Open a file that replaces ``path`` in one durable step when the block ends without an error.

    For contents too large to hold in memory; parent folders are created. After an error, or a kill
    at any point, ``path`` is unchanged. ``mode`` are permission bits; None takes the user's umask.

    Raises:
        StorageError: The file system refused (disk full, read-only).
    """
    temporary = temporary_for(path)
    try:
        make_folder(path.parent)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{path}: expected to write this file, got '{error.strerror}'; free space or choose "
            "another folder and run again (earlier files are intact)",
        ) from error


def temporary_for(path: Path) -> Path:
    """Return an unused name beside ``path``: hidden, and told by that of ``path`` if it fits."""
    ending = f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    named = f".{path.name}{ending}"
    return path.parent / (named if len(os.fsencode(named)) <= _MAX_NAME_BYTES else ending)


def atomic_write_text(path: Path, text: str) -> None:
    """Replace ``path`` by UTF-8 ``text`` in one durable step; errors as `atomic_write_bytes`."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Replace ``path`` by canonical JSON in one durable step; errors as `atomic_write_bytes`."""
    atomic_write_bytes(path, canonical_json(value) + b"\n")


def canonical_json(value: object) -> bytes:
    """Return ``value`` as JSON with sorted keys, no spaces, UTF-8: equal values, equal bytes.

    Raises:
        ValueError: ``value`` holds NaN or infinity, which JSON cannot express.
        TypeError: ``value`` holds something JSON cannot express.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents so that a power cut cannot undo it."""
    missing: list[Path] = []
    current = folder
    while not current.exists():
        missing.append(current)
        current = current.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        fsync_folder(new.parent)


def require_writable(folder: Path) -> None:
    """Create ``folder`` and try a file in it, so that a long job need not end in a refusal.

    Raises:
        StorageError: The file system refused: ``folder`` is a file, read-only, full.
    """
    probe = folder / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        make_folder(folder)
        try:
            probe.touch(exist_ok=False)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{folder}: expected a folder to write to, got '{error.strerror}'; choose another one",
        ) from error


def require_room_for(folder: Path) -> None:
    """Raise unless ``folder`` can be written to, or made; nothing is left behind.

    Raises:
        StorageError: The file system refuses: a file is in its place, read-only, full.
    """
    try:
        found = next(
            p for p in (folder, *folder.absolute().parents) if p.exists() or p.is_symlink()
        )
        probe = found / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{folder}: expected a folder to write to, or room for one, got '{error.strerror}'; "
            "choose another one",
        ) from error


def finite_or_none(value: float) -> float | None:
    """Return ``value``, or None for NaN and infinity, which JSON cannot express."""
    return value if math.isfinite(value) else None


def fsync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path, *, prefixes: tuple[str, ...] = ("",)) -> int:
    """Delete what killed writers left in ``folder``; return the number of files.

    Only what was to become a file whose name begins with one of ``prefixes``; nobody may be writing
    such a file now.
    """
    hidden = tuple(f".{prefix}" for prefix in prefixes)
    leftovers = [
        path for path in folder.glob(f".*{TEMPORARY_SUFFIX}") if path.name.startswith(hidden)
    ]
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


def append_at(descriptor: int, data: bytes, *, end: int, sync: bool) -> None:
    """Write ``data`` at the ``end`` of a file, durably with ``sync``; an `OSError` leaves the end.

    What was written before the error is cut off; where it cannot be, the next write covers it.
    """
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], end + written)
        if sync:
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, end)
        raise


def lock_file(descriptor: int, *, wait_s: float) -> bool:
    """Own an open file until it is closed; False if others still do after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_S)
        else:
            return True


def sha256_bytes(data: bytes) -> str:
    """Return the lower-case hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def is_safetensors(path: Path) -> bool:
    """Return whether ``path`` begins as such a file does, whatever its name is."""
    try:
        with path.open("rb") as file:
            return file.read(9)[8:] == b"{"  # after the length of its header
    except OSError:
        return False


def sha256_file(path: Path) -> str:
    """Return the lower-case hex SHA-256 of the bytes of ``path``."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def confined_path(root: Path, relative: str) -> Path:
    """Return ``root / relative`` if it stays inside ``root``, links resolved.

    Raises:
        StorageError: ``relative`` is absolute, leads outside ``root`` or cannot be a path.
    """
    if "\0" in relative:
        raise StorageError(f"path {relative!r}: expected no NUL character; use a plain file name.")
    resolved_root = root.resolve()
    candidate = (resolved_root / relative).resolve()
    if Path(relative).is_absolute() or not candidate.is_relative_to(resolved_root):
        raise StorageError(
            f"path {relative!r}: expected a path inside {resolved_root}, got {candidate}; "
            "use a relative path without '..'."
        )
    return candidate


def tree_digest(root: Path) -> str:
    """Return the SHA-256 over the files below ``root``: relative names, sizes, digests, sorted.

    Empty folders do not count; equal contents give equal digests wherever the folder lies.

    Raises:
        IntegrityError: ``root`` is no folder, holds no file, or holds a link, pipe or device.
    """
    if not root.is_dir():
        raise IntegrityError(f"{root}: expected a folder, got none; check the path.")
    digest = hashlib.sha256()
    count = 0
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise IntegrityError(
                f"{path}: expected plain files and folders alone, got a link or special file; "
                "copy the folder without links."
            )
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0{sha256_file(path)}\n".encode())
        count += 1
    if not count:
        raise IntegrityError(f"{root}: expected at least one file, got an empty folder.")
    return digest.hexdigest()

"""Whose an SQLite file is, found out without changing a byte of it or leaving a file beside it.

An ordinary connection may change a file that it only reads: it switches on the write-ahead log if
asked to, and it brings what a killed program left in the log into the file.

Source:  header of the file, https://www.sqlite.org/fileformat.html#the_database_header;
         ``mode`` and ``immutable``, https://www.sqlite.org/uri.html
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from cadenza.loop.errors import StoreCorruptError, StoreUnavailableError

_MAGIC: Final = b"SQLite format 3\0"
#: Place of the version that readers must understand; 2 is the write-ahead log.
_READ_VERSION: Final = 19


def table_names(path: Path, *, timeout_s: float) -> frozenset[str]:
    """Return the names of the tables in a file; an empty file has none.

    Args:
        path: The file.
        timeout_s: Seconds to wait for a writer.

    Raises:
        StoreUnavailableError: It cannot be read, or stayed locked.
        StoreCorruptError: It is no SQLite database, or a damaged one.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_READ_VERSION + 1)
        if not header:
            return frozenset()
        if not header.startswith(_MAGIC):
            raise StoreCorruptError(
                f"job store {path}: expected a sound database, got 'file is not a database'; name "
                "another file."
            )
        return _names_in(path, header, timeout_s=timeout_s)
    except (OSError, sqlite3.OperationalError) as error:
        raise StoreUnavailableError(
            f"job store {path}: expected to read it, got '{error}'; see that you may read it and "
            "no other program holds a lock on it."
        ) from error
    except sqlite3.DatabaseError as error:
        raise StoreCorruptError(
            f"job store {path}: expected a sound database, got '{error}'; restore it from a copy, "
            "or name another file."
        ) from error


def _names_in(path: Path, header: bytes, *, timeout_s: float) -> frozenset[str]:
    """Return the names of the tables in a database.

    With a write-ahead log, a reader creates the log's files if there are none, and leaves them
    behind. Without them nobody has the file open and it is complete: then it is read as it is, and
    once more with locks if somebody opened it meanwhile.
    """
    before = _trace(path)
    has_log, *_ = before
    if header[_READ_VERSION : _READ_VERSION + 1] == b"\2" and not has_log:
        try:
            names = _read_names(path, "mode=ro&immutable=1", timeout_s=timeout_s)
        except sqlite3.DatabaseError:
            if _trace(path) == before:
                raise
        else:
            if _trace(path) == before:
                return names
    return _read_names(path, "mode=ro", timeout_s=timeout_s)


def _trace(path: Path) -> tuple[bool, int, int]:
    """Return what shows that somebody has the file open, or had since the last look."""
    status = path.stat()
    return path.with_name(f"{path.name}-wal").exists(), status.st_size, status.st_mtime_ns


def _read_names(path: Path, options: str, *, timeout_s: float) -> frozenset[str]:
    place = f"{path.absolute().as_uri()}?{options}"
    with closing(sqlite3.connect(place, uri=True, timeout=timeout_s)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return frozenset(name for (name,) in rows if not name.startswith("sqlite_"))

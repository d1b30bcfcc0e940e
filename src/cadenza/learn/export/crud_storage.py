"""Files of one folder behind numbered handles: create, read, update, delete.

Names:    ``{prefix}{YYYY-mm-dd_HH-MM, local time}_{handle}.{extension}``
Promise:  a file appears under its name complete and durable or not at all, and never in the place
          of another one; every method may be called from several threads.
Limits:   the index is in memory, and files that were there before are not part of the storage; the
          folder must be on a file system with hard links.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Generic, TypeVar

from cadenza.core.errors import PreconditionError, StorageError, refuse
from cadenza.core.files import atomic_write_bytes, fsync_folder, make_folder

T = TypeVar("T")

#: Time part of a file name.
_TIME_FORMAT: Final = "%Y-%m-%d_%H-%M"
#: Folders in which files grow before they get their names.
_SCRATCH_PREFIX: Final = ".saving-"


@dataclass(frozen=True, slots=True)
class StorageItemHandle(Generic[T]):
    """Name of a stored item that may be shown to users; it is guessable, so no secret.

    ``str(handle)`` and `from_string` convert it from and to text.
    """

    handle: int

    def __str__(self) -> str:
        """Return the number in decimal."""
        return str(self.handle)

    @staticmethod
    def from_string(value: str) -> "StorageItemHandle[T] | None":
        """Return the handle that ``value`` spells, or None if it is no integer."""
        try:
            return StorageItemHandle(int(value))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class StorageItem(Generic[T]):
    """One stored file: its handle, when it was created (UTC, aware), its absolute path."""

    handle: StorageItemHandle[T]
    timestamp: datetime
    filepath: str


class CRUDStorage(Generic[T]):
    """Owns a set of files in one folder.

    Args:
        extension: End of every file name, without the dot.
        keep_last: Delete the oldest items beyond this number after each creation; None keeps all.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        prefix: str = "",
        extension: str = "bin",
        *,
        keep_last: int | None = None,
    ) -> None:
        if not extension or "." in extension:
            owner, expected = "CRUDStorage.extension", "a non-empty text without dots"
            refuse(PreconditionError, owner, expected=expected, got=repr(extension))
        for part, text in (("prefix", prefix), ("extension", extension)):
            if {"/", os.sep, "\0"} & set(text):
                owner, expected = f"CRUDStorage.{part}", "a text without path separators"
                refuse(PreconditionError, owner, expected=expected, got=repr(text))
        if keep_last is not None and keep_last < 1:
            owner, expected = "CRUDStorage.keep_last", ">= 1 or None (keep all)"
            refuse(PreconditionError, owner, expected=expected, got=keep_last)
        self._directory = Path(directory).absolute()
        with _storing(f"a folder at {self._directory}"):
            make_folder(self._directory)
            if not self._directory.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        self._prefix, self._extension, self._keep_last = prefix, extension, keep_last
        self._lock = threading.RLock()
        self._items: dict[StorageItemHandle[T], StorageItem[T]] = {}
        self._next_handle = 0

    def create_with_data(self, data: bytes | bytearray) -> StorageItem[T]:
        """Create a file with the given content; errors as of `create_with_saver`."""
        return self.create_with_saver(lambda path: atomic_write_bytes(Path(path), bytes(data)))

    def create_with_saver(self, saver: Callable[[str], object]) -> StorageItem[T]:
        """Create a file by letting ``saver`` write it.

        The saver gets a path in a scratch folder beside the final place; the name is the final
        one unless another creation takes it meanwhile. What the saver raises comes through, and
        nothing is stored then.

        Raises:
            StorageError: The folder has vanished, the saver wrote no file, or the file system
                refused.
        """
        with _storing(f"to write to {self._directory}"):
            scratch = Path(mkdtemp(prefix=_SCRATCH_PREFIX, dir=self._directory))
        try:
            draft = scratch / self._file_name(self._next_handle, datetime.now(UTC))
            saver(str(draft))
            if not draft.is_file():
                expected, got = f"the saver to write {draft.name}", "no such file"
                advice = "write to exactly the path the saver is given"
                refuse(StorageError, "CRUDStorage", expected=expected, got=got, do=advice)
            with _storing(f"to create a file in {self._directory}"):
                with draft.open("rb") as file:
                    os.fsync(file.fileno())
                return self._publish(draft)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def create_from_filepath(self, filepath: str | os.PathLike[str]) -> StorageItem[T]:
        """Take over a file that already lies in the folder, under any name.

        A file that is part of the storage already keeps its handle.
        """
        path = Path(filepath).absolute()
        if not path.is_file() or path.parent.resolve() != self._directory.resolve():
            owner, expected = "CRUDStorage.create_from_filepath", f"a file in {self._directory}"
            refuse(StorageError, owner, expected=expected, got=str(path), do="write it there first")
        with self._lock:
            path = self._directory / path.name
            known = next((i for i in self._items.values() if i.filepath == str(path)), None)
            return known or self._register(self._next_handle, path, datetime.now(UTC))

    def update(self, handle: StorageItemHandle[T], data: bytes | bytearray) -> None:
        """Replace the content of a file in one durable step; name and timestamp stay.

        Raises:
            PreconditionError: The storage has no such item.
            StorageError: The file system refused; the old content is intact.
        """
        with self._lock:
            item = self._items.get(handle)
            if item is None:
                expected = f"a handle of {[known.handle for known in self._items]}"
                refuse(PreconditionError, "CRUDStorage.update", expected=expected, got=str(handle))
            atomic_write_bytes(Path(item.filepath), bytes(data))

    def items(self) -> Sequence[StorageItem[T]]:
        """Return all items, in the order of creation; a copy."""
        with self._lock:
            return list(self._items.values())

    def get(self, handle: StorageItemHandle[T]) -> StorageItem[T] | None:
        """Return the item of ``handle``, or None if the storage has none."""
        with self._lock:
            return self._items.get(handle)

    def latest(self) -> StorageItem[T] | None:
        """Return the item created last among those that remain, or None if there are none."""
        with self._lock:
            return next(reversed(self._items.values()), None)

    def delete(self, handle: StorageItemHandle[T]) -> bool:
        """Delete an item and its file; return False if the storage has no such item.

        Raises:
            StorageError: Somebody else removed the file already; the item is forgotten.
        """
        with self._lock:
            item = self._items.pop(handle, None)
            if item is not None:
                with _storing(f"the file of handle {handle} at {item.filepath}"):
                    Path(item.filepath).unlink()
            return item is not None

    def _publish(self, draft: Path) -> StorageItem[T]:
        """Give ``draft`` the next free name, register it, and delete what is too many."""
        with self._lock:
            handle, now = self._next_handle, datetime.now(UTC)
            while True:
                path = self._directory / self._file_name(handle, now)
                try:
                    path.hardlink_to(draft)
                    break
                except FileExistsError:
                    handle += 1
            fsync_folder(self._directory)
            item = self._register(handle, path, now)
            surplus = 0 if self._keep_last is None else len(self._items) - self._keep_last
            for oldest in list(self._items)[: max(0, surplus)]:
                Path(self._items.pop(oldest).filepath).unlink(missing_ok=True)
            return item

    def _register(self, handle: int, path: Path, timestamp: datetime) -> StorageItem[T]:
        """Add an item; the caller holds the lock."""
        key: StorageItemHandle[T] = StorageItemHandle(handle)
        item = self._items[key] = StorageItem(key, timestamp, str(path))
        self._next_handle = max(self._next_handle, handle + 1)
        return item

    def _file_name(self, handle: int, timestamp: datetime) -> str:
        time = timestamp.astimezone().strftime(_TIME_FORMAT)
        return f"{self._prefix}{time}_{handle}.{self._extension}"


@contextmanager
def _storing(what: str) -> Generator[None]:
    """Turn what the file system refuses into a `StorageError` with its ``errno``."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            error.errno,
            f"CRUDStorage: expected {what}, got '{error.strerror}'; free space, or choose a folder "
            "of yours on a file system with hard links",
        ) from error

"""A new folder for a dataset, told apart from others until the dataset is there.

A marker lies in the folder from the moment it appears until `DatasetFolder.keep`, and is locked
while its writer lives. So what a killed writer left is known by a marker that nobody locks: the
next writer takes it over and removes the files that a first flush makes, and those only.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from cadenza.core.errors import StorageError
from cadenza.core.files import fsync_folder, make_folder, remove_temporaries

MARKER: Final = ".cadenza-unfinished"


class DatasetFolder:
    """Holds the folder of a dataset that is to be written, against other writers too.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: Path, *, description: Path, others: Sequence[Path]) -> None:
        """Take a folder that does not exist, or that a killed writer left without a dataset.

        Args:
            root: The folder.
            description: File, relative to ``root``, whose presence makes it a dataset.
            others: What else a killed writer may have written, relative to ``root``.

        Raises:
            StorageError: ``root`` holds something else, another writer is at work there, or the
                file system refused.
        """
        self.root = root
        with _storage_errors(f"{root}: expected to create this folder", "choose another one"):
            if not os.path.lexists(root):
                self._marker = _new(root)
                return
            self._marker = _taken_over(root, description)
            try:
                _remove_leftovers(root, description, others)
            except OSError:
                self._marker.close()
                raise

    def keep(self) -> None:
        """Leave the folder as it is: the dataset is there. A second call does nothing.

        Raises:
            StorageError: The file system refused.
        """
        if self._marker.closed:
            return
        with _storage_errors(f"{self.root}: expected to remove {MARKER}", "remove it by hand"):
            (self.root / MARKER).unlink(missing_ok=True)
            fsync_folder(self.root)
        self._marker.close()

    def give_back(self) -> None:
        """Remove the folder, in which no dataset came to be, unless others put files into it.

        Raises:
            StorageError: The file system refused.
        """
        self.keep()
        if not any(self.root.iterdir()):
            self.root.rmdir()


def _new(root: Path) -> BinaryIO:
    """Create ``root`` with a locked marker, in one step."""
    make_folder(root.parent)
    draft = root.parent / f".{secrets.token_hex(8)}{MARKER}"
    draft.mkdir()
    try:
        file = (draft / MARKER).open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        draft.rename(root)
    except OSError:
        (draft / MARKER).unlink(missing_ok=True)
        draft.rmdir()
        raise
    fsync_folder(root.parent)
    return file


def _taken_over(root: Path, description: Path) -> BinaryIO:
    """Lock the marker that a killed writer left.

    Raises:
        StorageError: There is none, a dataset is there, or the writer lives.
    """
    marker = root / MARKER
    if marker.is_symlink() or not marker.is_file() or (root / description).exists():
        raise StorageError(
            errno.EEXIST,
            f"{root}: expected a folder that does not exist yet, got one that does; choose another "
            "name or move the old dataset away",
        )
    file = marker.open("r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_free = False
    else:
        is_free = os.fstat(file.fileno()).st_nlink > 0  # else its writer has just finished
    if not is_free:
        file.close()
        raise StorageError(
            errno.EBUSY,
            f"{root}: expected no other writer in this folder, got one at work; wait for it or "
            "choose another name",
        )
    return file


def _remove_leftovers(root: Path, description: Path, others: Sequence[Path]) -> None:
    """Empty ``root`` except for the marker.

    Raises:
        StorageError: It holds anything that no killed writer left; nothing was removed then but
            temporary files.
    """
    files = [root / path for path in others]
    folders = {
        parent
        for file in [root / description, *files]
        for parent in file.parents
        if root in parent.parents
    }
    links = [path for path in root.rglob("*") if path.is_symlink()]
    if not links:
        for file in [root / description, *files]:
            remove_temporaries(file.parent, prefixes=(f"{file.name}.",))
    foreign = links or sorted(set(root.rglob("*")) - {root / MARKER, *files, *folders})
    if foreign:
        raise StorageError(
            errno.EEXIST,
            f"{root}: expected only what a killed writer left, got {foreign[0].relative_to(root)} "
            "as well; move that away, or choose another name",
        )
    for file in files:
        file.unlink(missing_ok=True)
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        if folder.exists():
            folder.rmdir()


@contextmanager
def _storage_errors(expected: str, advice: str) -> Generator[None]:
    """Say what was wanted when the file system refuses in the block."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.errno, f"{expected}, got '{error.strerror}'; {advice}") from error

"""Memory that several processes map, without a name that could outlive them.

A file is made in the memory file system (``/dev/shm`` where there is one), sized, mapped and
unlinked at once. Processes get its descriptor, so the kernel frees the memory when the last of them
is gone, however it ended; nothing has to be cleaned up.
"""

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast

from cadenza.core.errors import InputError, StorageError

#: Where Linux keeps files in memory.
MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 -- the file is created exclusively and unlinked
#: Bytes left free in the memory file system for everybody else.
RESERVE: Final = 16 * 2**20


class _Duplicate(Protocol):
    """What `multiprocessing` sends instead of a descriptor."""

    def detach(self) -> int:
        """Return the descriptor in the receiving process."""
        ...


class SharedFile:
    """A block of bytes shared by processes.

    It may be inherited (fork) or passed as an argument of a new process (spawn, forkserver).
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map an open file; use `create` to make one."""
        self._descriptor = descriptor
        self.size = size
        self.map = mmap.mmap(descriptor, size)
        self._threads = threading.Lock()

    @classmethod
    def create(cls, size: int, folder: Path | None = None) -> Self:
        """Reserve ``size`` zeroed bytes.

        Args:
            size: Bytes, >= 1.
            folder: A folder in a memory file system; None takes ``/dev/shm``, or the folder of
                temporary files where there is none.

        Raises:
            InputError: ``size`` is below one.
            StorageError: There is less room than that.
        """
        if size < 1:
            raise InputError(f"SharedFile.create: expected size >= 1 byte, got {size}.")
        place = folder or (MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir()))
        state = os.statvfs(place)
        free = state.f_bavail * state.f_frsize
        if free < size + RESERVE:
            raise StorageError(
                f"shared memory: expected {size + RESERVE} bytes free in {place}, got {free}; make "
                "the buffer smaller, stop what fills it, or give the container more (docker run "
                "--shm-size)."
            )
        descriptor, name = tempfile.mkstemp(prefix="cadenza-", dir=place)
        try:
            Path(name).unlink()
            # Takes the pages now: a full file system must not kill a process that writes later.
            os.posix_fallocate(descriptor, 0, size)
            return cls(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"shared memory: expected to reserve {size} bytes in {place}: {error}."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new process needs; only multiprocessing may ask."""
        return {"descriptor": reduction.DupFd(self._descriptor), "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file in a new process."""
        duplicate = cast("_Duplicate", state["descriptor"])
        self.__init__(duplicate.detach(), state["size"])

    @contextmanager
    def locked(self) -> Generator[None]:
        """Exclude other processes, and other threads of this one, from the block.

        The kernel frees the lock when its holder dies.
        """
        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

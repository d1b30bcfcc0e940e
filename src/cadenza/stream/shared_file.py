"""Memory that several processes map, without a name that could outlive them.

A file is made without a name in the memory file system (``/dev/shm`` where there is one), sized and
mapped. Processes get its descriptor, so the kernel frees the memory when the last of them
is gone, however it ended; nothing has to be cleaned up.
"""

import errno
import fcntl
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast

from cadenza.core.errors import InputError, StorageError


class ThreadLock:
    """Lets the threads of a process take turns; a thread may take its turn twice.

    A fork copies memory, but of the threads only the one that forked: a plain lock that another
    thread held at that moment would stay held in the new process for ever.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def here(self) -> threading.RLock:
        """Return the lock of this process; use it in a ``with`` block."""
        pid = os.getpid()
        lock = self._locks.get(pid)
        # Of two threads that come first at once, both get what one of them has put in.
        return self._locks.setdefault(pid, threading.RLock()) if lock is None else lock


#: Where Linux keeps files in memory.
MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 -- the file is created exclusively and unlinked
#: Most bytes left free in the memory file system for everybody else; a smaller block leaves as many
#: as it has.
RESERVE: Final = 16 * 2**20
#: Seconds that `SharedFile.locked` waits. Holders change a few words, so a longer wait means that
#: one of them was stopped in the middle.
LOCK_TIMEOUT: Final = 30.0
#: Seconds between two attempts to lock.
_LOCK_PAUSE: Final = 0.0002
#: What file systems and kernels answer that cannot make a file without a name, see open(2).
_NEEDS_NAME: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class SentDescriptor(Protocol):
    """What `multiprocessing.reduction.DupFd` sends instead of a descriptor."""

    def detach(self) -> int:
        """Return the descriptor in the receiving process."""
        ...


class SharedFile:
    """A block of bytes shared by processes.

    It may be inherited (fork) or passed as an argument of a new process (spawn, forkserver).

    Attributes:
        size: Bytes.
        map: The block.
    """

    def __init__(self, opened: list[int], size: int) -> None:
        """Map the open file in ``opened``, which is emptied on closing; `create` makes one."""
        self.size = size
        self._descriptor = opened[0]
        self._close_descriptor = weakref.finalize(self, close_all, opened)
        self.map = mmap.mmap(self._descriptor, size)
        self._threads = ThreadLock()

    @classmethod
    def create(cls, size: int, folder: Path | None = None) -> Self:
        """Reserve ``size`` zeroed bytes in a memory file system.

        ``folder`` None takes ``/dev/shm``, or the folder of temporary files where there is none.

        Raises:
            InputError: ``size`` is below one.
            StorageError: There is less room than that, or no such folder.
        """
        if size < 1:
            raise InputError(f"SharedFile.create: expected size >= 1 byte, got {size}.")
        place = folder or memory_folder()
        opened: list[int] = []
        try:
            _require_room(size, place)
            open_unnamed(place, opened)
            # Takes the pages now: a full file system must not kill a process that writes later.
            os.posix_fallocate(opened[0], 0, size)
            return cls(opened, size)
        except BaseException as error:
            close_all(opened)
            if not isinstance(error, OSError) or isinstance(error, StorageError):
                raise
            raise StorageError(
                f"shared memory: expected to reserve {size} bytes in {place}, got: {error}."
            ) from error

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called in this process."""
        return not self._close_descriptor.alive

    def close(self) -> None:
        """Give the block up in this process; a second call does nothing.

        The descriptor is closed now. The memory is unmapped now too, or with the last array that
        still views it.
        """
        self._close_descriptor()
        try:
            self.map.close()
        except BufferError:  # arrays view it: unmapped when they go
            self.map = mmap.mmap(-1, 1)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new process needs; only multiprocessing may ask."""
        self._check_open()
        return {"descriptor": reduction.DupFd(self._descriptor), "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file in a new process."""
        duplicate = cast("SentDescriptor", state["descriptor"])
        self.__init__([duplicate.detach()], state["size"])

    @contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT) -> Generator[None]:
        """Exclude other processes, and other threads of this one; wait ``timeout`` s at most.

        The kernel frees the lock when its holder dies.

        Raises:
            StorageError: Somebody else held the lock all the time, or the file is closed.
        """
        self._check_open()
        lock, taken = self._threads.here(), list[bool]()
        deadline = time.monotonic() + timeout
        try:
            # Takes the lock and notes so in one call: an interrupt comes before or after both.
            taken.extend(map(lock.acquire, (True,), (timeout,)))
            if True not in taken:
                raise _lock_error(timeout)
            while not self._try_lock():
                if time.monotonic() >= deadline:
                    raise _lock_error(timeout)
                time.sleep(_LOCK_PAUSE)
            yield
        finally:
            if True in taken:
                try:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)  # does nothing if it is not ours
                finally:
                    lock.release()

    def _try_lock(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # what POSIX allows for a lock that is held
            return False
        return True

    def _check_open(self) -> None:
        if self.is_closed:
            raise StorageError("SharedFile: expected an open block, got a closed one; create anew.")


def memory_folder() -> Path:
    """Return where files in memory are made, or the folder of temporary files."""
    return MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir())


def open_unnamed(place: Path, opened: list[int]) -> None:
    """Make a file in the folder ``place`` and append its descriptor to ``opened``.

    It never has a name, where the file system can do that, and opens and appends in one call: an
    interrupt comes before or after both, and leaves nothing that the caller does not know of.

    Raises:
        OSError: The file system refused.
    """
    try:
        opened.extend(map(os.open, (place,), (os.O_RDWR | os.O_TMPFILE,), (0o600,)))
    except OSError as error:
        if error.errno not in _NEEDS_NAME:
            raise
        descriptor, name = tempfile.mkstemp(prefix="cadenza-", dir=place)
        try:
            opened.append(descriptor)
        finally:
            Path(name).unlink()


def close_all(opened: list[int]) -> None:
    """Close the descriptors in ``opened`` and take them out; a second call does nothing."""
    while opened:
        os.close(opened.pop())


def _require_room(size: int, place: Path) -> None:
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    needed = size + min(size, RESERVE)
    if free < needed:
        raise StorageError(
            f"shared memory: expected {needed} bytes free in {place}, got {free}; make "
            "the buffer smaller, stop what fills it, or give the container more (docker run "
            "--shm-size)."
        )


def _lock_error(timeout: float) -> StorageError:
    return StorageError(
        f"SharedFile.locked: expected the lock within {timeout:g} s, got none; a process that "
        "holds it is stopped: let it go on or end it."
    )


def full_fence() -> None:
    """Let no read or write pass from one side of this call to the other."""
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()

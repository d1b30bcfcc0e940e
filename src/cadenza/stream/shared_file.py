"""Memory that several processes map, without a name that could outlive them.

A file is made without a name in the memory file system (``/dev/shm`` where there is one), sized and
mapped. Processes get its descriptor, so the kernel frees the memory when the last of them
is gone, however it ended; nothing has to be cleaned up.
"""

import errno
import fcntl
import mmap
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol, Self, cast

import numpy as np

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
#: Files of a control group's limit and use, and what its statistics call the pages of files, those
#: of shared memory among them, and the latter, by version.
_GROUP_FILES: Final = {
    2: ("memory.max", "memory.current", "file", "shmem"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
}
#: Most bytes left free in the memory file system for everybody else; a smaller block leaves as many
#: as it has.
RESERVE: Final = 16 * 2**20
#: What file systems and kernels answer that cannot make a file without a name, see open(2).
_NEEDS_NAME: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
#: A number that was given: its kind, and what tells its record from all others.
_MARK_BYTES: Final = 12
_RECORD: Final = struct.Struct(f"<i{_MARK_BYTES}s")


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
        self.map: mmap.mmap = mmap.mmap(self._descriptor, size)

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
    def claimed(self, place: int) -> Generator[bool]:
        """Try to be the only process that is in such a block for ``place``, and say whether it is.

        It never waits: another process may be stopped in its block for as long as it likes. The
        kernel frees the places of one that dies.
        """
        self._check_open()
        try:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):  # what POSIX allows for a lock that is held
                yield False
            else:
                yield True
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)  # does nothing if not ours

    def _check_open(self) -> None:
        if self.is_closed:
            raise StorageError(
                "SharedFile: expected an open block, got a closed one; make another."
            )


class UnnamedFile:
    """A file in memory that processes pass on as `SharedFile`; it ends with the last of them."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Make a file; ``descriptor`` is that of one which another process made."""
        self._opened = [] if descriptor is None else [descriptor]
        if descriptor is None:
            open_unnamed(memory_folder(), self._opened)
        self._descriptor = self._opened[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new process needs; only multiprocessing may ask."""
        return {"descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file in a new process."""
        self.__init__(cast("SentDescriptor", state["descriptor"]).detach())

    def __del__(self) -> None:
        """Give the file free."""
        close_all(getattr(self, "_opened", []))


class Tally(UnnamedFile):
    """Counts in which no two calls get the same number, whichever processes make them.

    No lock guards it: the kernel puts appended records one after another, and a number is the place
    of its record among those of its kind.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Begin to count; ``descriptor`` as of `UnnamedFile`."""
        super().__init__(descriptor)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, os.O_APPEND)

    def next(self, kind: int = 0) -> int:
        """Return how many numbers of ``kind`` were given before, and give one more."""
        mine = _RECORD.pack(kind, os.urandom(_MARK_BYTES))
        os.write(self._descriptor, mine)
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        kinds = np.frombuffer(data, "<i4", data.index(mine) // 4)[:: _RECORD.size // 4]
        return int(np.count_nonzero(kinds == kind))


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
    """Refuse what the file system cannot hold, or, in memory, this process may not use.

    The kernel kills a process that writes more than its control group may have, without a word.
    """
    state = os.statvfs(place)
    free = {f"free in {place}": state.f_bavail * state.f_frsize}
    if place == MEMORY_FOLDER:
        free |= usable_memory()
    needed = size + min(size, RESERVE)
    where, least = min(free.items(), key=lambda entry: entry[1])
    if least < needed:
        raise StorageError(
            f"shared memory: expected {needed} bytes {where}, got {least}; make the buffer "
            "smaller, stop what fills it, or give the machine or container more (docker run "
            "--memory for its memory, --shm-size for /dev/shm)."
        )


def usable_memory(root: Path = Path("/")) -> dict[str, int]:
    """Return the bytes that this process may still use, by what limits them.

    Limits are the machine's available memory and those of the control groups above the process,
    of version 2 (``memory.max``) and 1 (``memory.limit_in_bytes``), less what is in use there;
    pages of files, which the kernel gives up, do not count. ``root`` is where ``/proc`` and
    ``/sys`` are.
    """
    found: dict[str, int] = {}
    lines = _text(root / "proc/meminfo").splitlines()
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    if available:
        found["of available memory (/proc/meminfo)"] = int(available[0]) * 1024
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = _GROUP_FILES[1 if controllers else 2]
        inside = PurePosixPath(group.lstrip("/"))
        # In a container the group's own path may not be there: its root is the group then.
        for folder in {mounted, *(mounted / part for part in (inside, *inside.parents))}:
            limit, used = (_text(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                stat = dict(
                    each.rsplit(" ", 1) for each in _text(folder / "memory.stat").splitlines()
                )
                files = int(stat.get(names[2], 0)) - int(stat.get(names[3], 0))
                found[f"of {folder / names[0]}"] = int(limit) - int(used) + max(files, 0)
    return found


def _text(path: Path) -> str:
    """Return what a file of the kernel says, nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def full_fence() -> None:
    """Let no read or write pass from one side of this call to the other."""
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()

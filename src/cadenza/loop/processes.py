"""Processes of this machine, by what the kernel says of them; light, for the host of a job.

A number of a dead process may be given to a new one. A signal is therefore sent through a
descriptor of the process, after asking again whether it is the one that is meant; and an owner in
the store is named by machine, boot, process-id namespace, process id and start time.

Source:  proc(5): `/proc/<pid>/stat`, `/proc/<pid>/environ`; pidfd_open(2); prctl(2).
Limits:  Linux. Processes of other users cannot be looked into and are never touched. Of processes
         elsewhere nothing is known, and they count as alive.
"""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
#: Fields of a process's state behind its name, counted from field 3.
_STATE, _PARENT, _START = 0, 1, 19
#: States of a process that has ended: zombie, dead.
_ENDED: Final = frozenset("ZX")
#: States of a process that is held: by SIGSTOP or Ctrl-Z, by a debugger.
_HELD: Final = frozenset("Tt")
#: From <linux/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Exit status of a child whose parent died before the child could ask to die with it.
_PARENT_DIED: Final = 125


def _fields_of(pid: int) -> list[str] | None:
    """Return the state of a process that has not ended; None if there is none."""
    try:
        status = (_PROCESSES / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, half a letter included: it is cut at 15 bytes.
    fields = status.rpartition(b")")[2].decode().split()
    return None if fields[_STATE] in _ENDED else fields


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot; None if there is none."""
    fields = _fields_of(pid)
    return None if fields is None else int(fields[_START])


def is_held(pid: int) -> bool:
    """Return whether a live process is stopped (SIGSTOP, Ctrl-Z, a debugger) and does nothing."""
    fields = _fields_of(pid)
    return fields is not None and fields[_STATE] in _HELD


def running_pids() -> list[int]:
    """Return the numbers of all processes, ended ones included."""
    return [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdecimal()]


def environment_of(pid: int) -> frozenset[bytes]:
    """Return the ``NAME=value`` strings that a process began with; none if it is gone or secret."""
    try:
        return frozenset((_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return frozenset()


def children_of(parent: int) -> list[int]:
    """Return the live children of a process."""
    return [
        pid
        for pid in running_pids()
        if (fields := _fields_of(pid)) is not None and int(fields[_PARENT]) == parent
    ]


def kill_if(pid: int, is_meant: Callable[[int], bool], *, wait_s: float) -> bool:
    """Kill a process if it is the one that is meant, and wait for its end.

    Args:
        pid: Its number.
        is_meant: Says of a number whether its process is meant; asked while the number is held.
        wait_s: Longest wait for the end, s.

    Returns:
        Whether it was killed.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_ticks(pid) is None or not is_meant(pid):
            return False
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], wait_s)
    finally:
        os.close(descriptor)
    return True


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die."""
    _process_control()(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a new child calls first so that the kernel kills it when ``parent`` dies.

    To be called by the thread that starts the child: the kernel means its end.
    """
    control = _process_control()  # the child of a process with threads must import nothing

    def prepare() -> None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(_PARENT_DIED)

    return prepare


def _process_control() -> Callable[[int, int], None]:
    """Return prctl(2) for options with one argument; it raises `OSError`."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def control(option: int, value: int) -> None:
        if prctl(option, value, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")

    return control


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """Return the name of the calling process."""
    pid = os.getpid()
    return f"{_machine()}/{pid}/{start_ticks(pid)}"


def readable(owner: str) -> str:
    """Return an owner as people say it: ``process 4242 on host``; odd names as they are."""
    parts = owner.split("/")
    if len(parts) < 5 or not parts[-2].isdecimal():
        return owner
    return f"process {parts[-2]} on {parts[0]}"


def is_gone(owner: str) -> bool:
    """Return whether ``owner`` is known to be dead; False for other machines and odd names."""
    pid = _pid_here(owner)
    return pid is not None and str(start_ticks(pid)) != owner.rpartition("/")[2]


def is_frozen(owner: str) -> bool:
    """Return whether ``owner`` is known to be alive and stopped (SIGSTOP, Ctrl-Z, a debugger)."""
    pid = _pid_here(owner)
    return pid is not None and not is_gone(owner) and is_held(pid)


def _pid_here(owner: str) -> int | None:
    """Return the number of a process of this machine; None for other machines and odd names."""
    machine, _, process = owner.rpartition("/")[0].rpartition("/")
    return int(process) if machine == _machine() and process.isdecimal() else None


def _machine() -> str:
    boot = _BOOT_ID.read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return f"{socket.gethostname()}/{boot}/{namespace}"

"""Names of processes that tell whether the process is gone, on the machine that it ran on.

A process is named by machine, boot, process-id namespace, process id and start time: the number of
a dead process may be given to a new one, the whole name never is.

Source:  proc(5): `/proc/<pid>/stat`, field 3 (state) and field 22 (start time in clock ticks).
Limits:  Linux. Of processes elsewhere nothing is known, and they count as alive.
"""

import os
import socket
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: Fields of a process's state behind its name, counted from field 3.
_STATE, _START = 0, 19
#: States of a process that has ended: zombie, dead.
_ENDED: Final = frozenset("ZX")


def this_process() -> str:
    """Return the name of the calling process."""
    pid = os.getpid()
    return f"{_machine()}/{pid}/{_start_of(pid)}"


def readable(owner: str) -> str:
    """Return an owner as people say it: ``process 4242 on host``; odd names as they are."""
    parts = owner.split("/")
    if len(parts) < 5 or not parts[-2].isdecimal():
        return owner
    return f"process {parts[-2]} on {parts[0]}"


def is_gone(owner: str) -> bool:
    """Return whether ``owner`` is known to be dead; False for other machines and odd names."""
    machine, _, process = owner.rpartition("/")[0].rpartition("/")
    start = owner.rpartition("/")[2]
    if machine != _machine() or not process.isdecimal():
        return False
    return _start_of(int(process)) != start


def _machine() -> str:
    boot = _BOOT_ID.read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _start_of(pid: int) -> str | None:
    """Return the start time of a live process in clock ticks since boot; None if there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = status.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return None if fields[_STATE] in _ENDED else fields[_START]

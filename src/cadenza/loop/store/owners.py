"""Names of processes that tell whether the process is gone, on the machine that it ran on.

A process is named by machine, boot, process-id namespace, process id and start time: the number of
a dead process may be given to a new one, the whole name never is.

Limits:  Linux. Of processes elsewhere nothing is known, and they count as alive.
"""

import os
import socket
from pathlib import Path
from typing import Final

from cadenza.loop.jobs.processes import is_held, start_ticks

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

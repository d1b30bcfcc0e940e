"""Who a process number belongs to: numbers come again, the moment of their start does not."""

import os
from pathlib import Path


def started_at(pid: int) -> int:
    """Return when process ``pid`` started, in clock ticks since boot; 0 when it does not run.

    A process that has ended and waits to be collected does not run. Where the system has no
    ``/proc`` every running process started at 1.
    """
    if pid <= 0:
        return 0
    if not Path("/proc/self/stat").is_file():
        return int(_answers(pid))
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name in parentheses may hold anything; the state is the first word after it.
    words = text.rpartition(")")[2].split()
    return 0 if words[0] in "ZX" else int(words[19])


def is_same_process(pid: int, start: int) -> bool:
    """Return whether the process ``pid`` that started at ``start`` still runs."""
    return start > 0 and started_at(pid) == start


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

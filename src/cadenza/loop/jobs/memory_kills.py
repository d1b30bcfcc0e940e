"""How often the kernel killed for want of memory, of the control group of this process.

A job runs in the group of its host, so a count that rose tells a job that needs too much memory
from one that a person or a shutdown killed.

Source:  `memory.events` (cgroup v2) and `memory.oom_control` (cgroup v1) of the Linux kernel.
Limits:  the kernel counts the whole group, other programs in it included. Where memory is not
         controlled by groups, and where a program such as earlyoom does the killing, nothing is
         known.
"""

from pathlib import Path
from typing import Final

_GROUPS: Final = Path("sys/fs/cgroup")
#: Key of the count, in the files of both versions.
_COUNT: Final = "oom_kill"


def memory_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of this group were killed so far; None if nobody counts them.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    for path in _candidates(root):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == _COUNT and count.isdecimal():
                return int(count)
    return None


def _candidates(root: Path) -> list[Path]:
    """Return the files that may hold the count, best first.

    In a container the name of the group is often that outside, but its files are at the top.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, name = root / _GROUPS / "memory", "memory.oom_control"
        elif not controllers:
            folder, name = root / _GROUPS, "memory.events"
        else:
            continue
        found += [folder / group.lstrip("/") / name, folder / name]
    return found

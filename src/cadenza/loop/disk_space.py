"""Room on the disk that runs write to: how much there is, and when that is short.

Units:   GiB = 2^30 bytes, as free to this user.
Limits:  nobody knows what the next job writes. The marks stand for what is common: a native cycle
         writes some ten MB, one checkpoint of a large LeRobot policy with its optimizer several GB.
"""

import shutil
from pathlib import Path
from typing import Final

from pydantic import Field

from cadenza.loop.config import BackendName
from cadenza.loop.contracts.records import Record

#: Less than this may not last for a job that is about to begin.
SHORT_GIB: Final[dict[BackendName, float]] = {"native": 1.0, "lerobot": 10.0}
_GIB: Final = float(1 << 30)


class DiskSpace(Record):
    """Room on the disk of a folder.

    Attributes:
        free_gib: What is free, GiB.
        short_gib: Less than this is short, GiB.
    """

    free_gib: float = Field(ge=0.0)
    short_gib: float

    @property
    def is_short(self) -> bool:
        """Whether the next job may not have room."""
        return self.free_gib < self.short_gib


def free_gib(folder: Path) -> float:
    """Return what is free on the disk of a folder that is there, GiB.

    Raises:
        OSError: It is not there, or may not be looked at.
    """
    return shutil.disk_usage(folder).free / _GIB


def disk_space(folder: Path, backend: BackendName) -> DiskSpace | None:
    """Return the room that a run has; None where its folder cannot be seen.

    Args:
        folder: Folder of all runs.
        backend: Training stack of the run.
    """
    try:
        return DiskSpace(free_gib=free_gib(folder), short_gib=SHORT_GIB[backend])
    except OSError:
        return None


def shortage(space: DiskSpace | None, folder: Path) -> str:
    """Return what to tell of a disk that is nearly full; empty for one that is not.

    Args:
        space: Its room; None if unknown.
        folder: Folder of all runs.
    """
    if space is None or not space.is_short:
        return ""
    return (
        f"disk nearly full: {space.free_gib:.1f} GiB left at {folder}, less than "
        f"{space.short_gib:g} GiB may not last for the next job; make room, a full disk fails the "
        "run (docs/loop.md tells which files of runs may be deleted)"
    )


def obstacle(folder: Path) -> Path | None:
    """Return the file, or the link to nothing, that keeps ``folder`` from being one; else None."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return None
        if path.exists() or path.is_symlink():
            return path
    return None

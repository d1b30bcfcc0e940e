"""The mark that every process of a job carries, and the end of all that carry it.

A job's command and whatever it starts inherit two variables: the key of the job and the folder
that its attempts are kept in. Both must match to the letter before a process is touched, so that a
run of the same name elsewhere is safe.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cadenza.loop.processes import environment_of, kill_if, running_pids

#: Variables that mark the processes of a job.
KEY_VARIABLE: Final = "CADENZA_JOB"
FOLDER_VARIABLE: Final = "CADENZA_JOB_FOLDER"
#: Longest wait for killed processes to be gone, s; the kernel takes milliseconds.
_REAP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobMark:
    """What tells the processes of a job from all others.

    Attributes:
        key: ``<run>/<cycle>/<stage>``.
        folder: Absolute path of the folder of its attempts.
    """

    key: str
    folder: str

    @classmethod
    def of(cls, run_id: str, cycle: int, stage: str, folder: Path) -> Self:
        """Return the mark of a job."""
        return cls(f"{run_id}/{cycle}/{stage}", str(folder.absolute()))

    def variables(self) -> dict[str, str]:
        """Return the variables that carry the mark."""
        return {KEY_VARIABLE: self.key, FOLDER_VARIABLE: self.folder}

    def is_on(self, pid: int) -> bool:
        """Return whether a process carries this very mark."""
        wanted = {os.fsencode(f"{name}={value}") for name, value in self.variables().items()}
        return wanted <= environment_of(pid)


def find_marked(mark: JobMark) -> list[int]:
    """Return the processes that carry ``mark``, the calling one left out."""
    me = os.getpid()
    return [pid for pid in running_pids() if pid != me and mark.is_on(pid)]


def reap(mark: JobMark, *, wait_s: float = _REAP_S) -> list[int]:
    """Kill every process that carries ``mark``, those they start meanwhile included.

    Args:
        mark: Whose processes.
        wait_s: Longest wait until all are gone, s.

    Returns:
        The killed processes.
    """
    killed: list[int] = []
    deadline = time.monotonic() + wait_s
    while marked := find_marked(mark):
        left_s = max(0.0, deadline - time.monotonic())
        killed += [pid for pid in marked if kill_if(pid, mark.is_on, wait_s=left_s)]
        if left_s == 0.0:
            break
    return killed

"""How long a job has left no trace: nothing new in its log, nothing new in its folder.

A command that hangs lives on, and its host with it; only what it leaves tells. Light, for the host
of a job.

Limits:  a job that works for long without output looks the same. Files are told apart by their
         number, sizes and times of change; a folder is looked through only while the log is silent.
"""

import math
import os
from pathlib import Path
from typing import Final

#: Pause between two looks through the folder, s; a short limit asks for more of them.
_FOLDER_S: Final = 30.0
#: Looks through the folder per limit.
_PER_LIMIT: Final = 4
#: Most seconds that count between two looks: those that this process slept through tell nothing.
_LONGEST_STEP_S: Final = 5.0


class Silence:
    """Watches what one attempt of a job leaves.

    Attributes:
        seconds: Seconds since something changed, as far as was looked.
    """

    def __init__(self, log_path: Path, folder: Path, *, limit_s: float | None) -> None:
        """Watch a log and a folder; both may come later.

        Args:
            log_path: The log.
            folder: The job's folder.
            limit_s: Silence that counts as a hang, s; None if none does.
        """
        self.seconds = 0.0
        self._log_path = log_path
        self._folder = folder
        self._limit_s = limit_s
        of_limit_s = math.inf if limit_s is None else limit_s / _PER_LIMIT
        self._folder_every_s = min(_FOLDER_S, of_limit_s)
        self._log = _size_and_time(log_path)
        self._files: tuple[int, int, int] | None = None
        self._looked_at_s = 0.0  # silence at the last look through the folder
        self._moment: float | None = None

    @property
    def too_long(self) -> bool:
        """Whether it counts as a hang."""
        return self._limit_s is not None and self.seconds >= self._limit_s

    def look(self, moment: float) -> None:
        """Look again at ``moment``, seconds of any clock that does not jump."""
        passed_s = 0.0 if self._moment is None else moment - self._moment
        self._moment = moment
        log = _size_and_time(self._log_path)
        if log != self._log:
            self._log = log
            self._begin_anew()
            return
        self.seconds += min(passed_s, _LONGEST_STEP_S)
        if self.seconds - self._looked_at_s >= self._folder_every_s:
            self._look_through_folder()

    def _look_through_folder(self) -> None:
        files = _files_below(self._folder)
        changed = self._files is not None and files != self._files
        self._files = files
        self._looked_at_s = self.seconds
        if changed:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.seconds = self._looked_at_s = 0.0


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _files_below(folder: Path) -> tuple[int, int, int]:
    """Return number, sum of sizes and newest time of the files below a folder."""
    number = size = newest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            bytes_of, time_of = _size_and_time(Path(place, name))
            number, size, newest = number + 1, size + bytes_of, max(newest, time_of)
    return number, size, newest

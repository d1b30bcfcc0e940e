"""Tells the loader workers of a process whether it records, and where.

Workers get the session with their copy of the engine, when they start. Which recording runs *now*
stands in shared memory, so that a worker also notices one that began or ended since.
"""

import multiprocessing
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cadenza.core.errors import NotReadyError
from cadenza.stream.shared_file import SharedFile

_WORD_BYTES: Final = 8


class RecordingSession:
    """The recordings of one process, one at a time."""

    def __init__(self) -> None:
        self._file = SharedFile.create(_WORD_BYTES)
        self._pid = os.getpid()
        self._begun = 0
        self._folder: Path | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this process made it."""
        return os.getpid() == self._pid

    @property
    def is_of_parent(self) -> bool:
        """Whether the process that started this one made it."""
        parent = multiprocessing.parent_process()
        return parent is not None and parent.pid == self._pid

    @property
    def running(self) -> int:
        """Number of the recording that goes on, from 1 on; 0 for none."""
        return int.from_bytes(self._file.map[:_WORD_BYTES], sys.byteorder)

    def folder(self, running: int) -> Path:
        """Return where recording ``running`` is written.

        Raises:
            NotReadyError: It began after this process had got the session.
        """
        if self._folder is None or running != self._begun:
            raise NotReadyError(
                "OnlineDataEngine.recording: expected loader workers that were started inside the "
                "block, got one from before, whose first batches were not written down; make the "
                "loader's iterator inside."
            )
        return self._folder

    @contextmanager
    def opened(self, folder: Path) -> Generator[None]:
        """Let the block be a recording in ``folder``.

        Raises:
            NotReadyError: One goes on.
        """
        is_ours = False
        try:
            with self._file.locked():  # of two threads, one is refused
                if self.running:
                    raise NotReadyError(
                        "OnlineDataEngine.recording: expected one recording of a process at a "
                        f"time, got another while draws go to {self._folder}; end that one first."
                    )
                is_ours = True
                self._begun += 1
                self._folder = folder
                self._set_running(self._begun)
            yield
        finally:
            if is_ours:
                self._set_running(0)

    def _set_running(self, number: int) -> None:
        self._file.map[:_WORD_BYTES] = number.to_bytes(_WORD_BYTES, sys.byteorder)

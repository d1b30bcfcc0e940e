"""Tells the loader workers of a process whether it records, and where; which iterator draws.

Workers get the session with their copy of the engine, when they start. Which recording runs *now*
stands in shared memory, so that a worker also notices one that began or ended since.
"""

import multiprocessing
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cadenza.core.errors import NotReadyError
from cadenza.stream.shared_file import SharedFile

_FOLDER: Final = "dataset-{:04d}-epoch-{:06d}-worker-{:04d}-of-{:04d}"
_PATTERN: Final = re.compile(r"dataset-(\d+)-epoch-(\d+)-worker-(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IteratorPlace:
    """Place of an iterator among all that one process makes over a stream; equal in every rerun.

    Attributes:
        dataset: Datasets that were made over the stream before its own.
        epoch: Iterators that its dataset made before, in workers of its number.
        worker: Number of its loader worker; 0 without one.
        workers: Workers of its loader; 0 for an iterator in the process that made the dataset.
    """

    dataset: int
    epoch: int
    worker: int = 0
    workers: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that its draws are recorded in."""
        return _FOLDER.format(self.dataset, self.epoch, self.worker, self.workers)

    @classmethod
    def from_folder(cls, name: str) -> Self | None:
        """Return the place that a folder is named after, None if it is named otherwise."""
        found = _PATTERN.fullmatch(name)
        if found is None:
            return None
        dataset, epoch, worker, workers = (int(number) for number in found.groups())
        return cls(dataset=dataset, epoch=epoch, worker=worker, workers=workers)


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

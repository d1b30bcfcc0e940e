"""Writes recordings, see `cadenza.core.recordings`: where, for whom, and durably."""

import multiprocessing
import os
import re
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

from cadenza.core.errors import NotReadyError, StorageError
from cadenza.core.files import canonical_json, fsync_folder, make_folder, sha256_bytes
from cadenza.core.recordings import (
    FORMAT_VERSION,
    JOURNAL_NAME,
    WORKERS_FOLDER,
    Arrays,
    line_seal,
)
from cadenza.core.strict_json import parse_json_object
from cadenza.stream.layout import StoreLayout
from cadenza.stream.processes import ALONE, Rank
from cadenza.stream.shared_file import SharedFile, ThreadLock

EPISODE_FOLDER: Final = "episodes"
#: Threads that wait for the disk: 2000 files take 0.3 s with 16 and 6 s with one (ext4).
_SYNC_THREADS: Final = 16


class JournalWriter:
    """Appends lines, each sealed together with all lines before it."""

    def __init__(self, folder: Path, layout: StoreLayout, rank: Rank) -> None:
        """Begin a journal of the draws of ``rank`` in ``folder``, which is created.

        Raises:
            StorageError: There is a journal already, or the file system refused.
        """
        self._folder = folder
        make_folder(folder / EPISODE_FOLDER)
        path = folder / JOURNAL_NAME
        try:
            # Without a buffer: it would keep what an interrupt left in it.
            self._file = path.open("xb", buffering=0)
        except FileExistsError as error:
            raise StorageError(
                f"{path}: expected a folder without a recording, got one; choose another folder."
            ) from error
        self._seal, self._bytes, self._last = "", 0, ""
        self._episodes = 0
        header: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "byteorder": sys.byteorder,
            "layout": asdict(layout),
        }
        if rank != ALONE:
            header["rank"] = list(rank)
        self.append("stream", header)

    @property
    def is_ended(self) -> bool:
        """Whether no more lines come: the last one is written, or could not be."""
        return self._last == "end" or self._file.closed

    def append(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system.

        A line that an exception ended does not count: the next one takes its place.

        Raises:
            StorageError: The file system refused.
        """
        sealed = {"kind": kind, **body}
        seal = line_seal(self._seal, sealed)
        line = canonical_json({"body": sealed, "sha256": seal}) + b"\n"
        try:
            self._file.truncate(self._bytes)
            self._file.seek(self._bytes)
            left = memoryview(line)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise _write_error(self._folder / JOURNAL_NAME, len(line), error) from error
        end = self._bytes + len(line)
        # All at once: no call comes between, and so no interrupt.
        self._seal, self._bytes, self._last = seal, end, kind

    def add_episode(self, facts: Mapping[str, Any], arrays: Arrays) -> None:
        """Write an episode's file, then its line; closing makes both durable.

        A file that waits for the disk takes milliseconds, in which producers replace episodes.

        Raises:
            StorageError: The file system refused.
        """
        data = b"".join(array.tobytes() for array in arrays.values())
        name = f"{EPISODE_FOLDER}/{self._episodes:08d}.bin"
        self._episodes += 1  # before there is a file: one that an interrupt leaves stays alone
        path = self._folder / name
        try:
            with path.open("xb") as file:
                file.write(data)
        except OSError as error:
            raise _write_error(path, len(data), error) from error
        self.append("episode", {**facts, "file": name, "file_sha256": sha256_bytes(data)})

    def close(self, *, durable: bool = True) -> None:
        """Write the last line; a second call does nothing.

        Args:
            durable: Make everything durable, recordings of loader workers below as well.

        Raises:
            StorageError: The file system refused; what was recorded before is there, unfinished.
        """
        if self._file.closed:
            return
        try:
            if not self.is_ended:
                names = worker_folders(self._folder)
                self.append("end", {"workers": names, "until": _unfinished(self._folder, names)})
        except StorageError:
            self._file.close()
            raise
        self._file.close()
        if durable:
            try:
                _make_durable(self._folder)
            except OSError as error:
                raise StorageError(
                    error.errno,
                    f"{self._folder}: expected to make the recording durable, got "
                    f"'{error.strerror}'; check the disk and record again",
                ) from error


def _write_error(path: Path, size: int, error: OSError) -> StorageError:
    return StorageError(
        error.errno,
        f"{path}: expected to write {size} bytes, got '{error.strerror}'; free space or choose "
        "another folder and record again",
    )


def worker_folders(folder: Path) -> list[str]:
    """Return the names of the folders of loader workers that have begun a journal."""
    return sorted(path.parent.name for path in folder.glob(f"{WORKERS_FOLDER}/*/{JOURNAL_NAME}"))


def _unfinished(folder: Path, names: list[str]) -> dict[str, str]:
    """Return the seal of the last line of each worker whose iterator goes on, by folder."""
    seals: dict[str, str] = {}
    for name in names:
        path = folder / WORKERS_FOLDER / name / JOURNAL_NAME
        lines = path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines[-2:] if line.endswith(b"\n")]  # the last may be half there
        if whole:
            entry = parse_json_object(whole[-1], source=str(path))
            body, seal = cast("dict[str, Any]", entry["body"]), str(entry["sha256"])
            if body["kind"] != "end":
                seals[name] = seal
    return seals


def _make_durable(folder: Path) -> None:
    """Wait until the disk has everything in ``folder``; many threads at once share its waits."""
    paths = list(folder.rglob("*"))
    with ThreadPoolExecutor(_SYNC_THREADS) as threads:
        list(threads.map(_sync, (path for path in paths if path.is_file())))
    for path in (*(path for path in paths if path.is_dir()), folder):
        fsync_folder(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


_FOLDER: Final = "dataset-{:04d}-epoch-{:06d}-worker-{:04d}-of-{:04d}"
_PATTERN: Final = re.compile(r"dataset-(\d+)-epoch-(\d+)-worker-(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IteratorPlace:
    """Place of an iterator among all that one process makes over a stream; equal in every rerun.

    ``epoch`` counts the iterators that its dataset made before in workers of its number;
    ``workers`` is 0 for an iterator in the process that made the dataset.
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
        self._turn = ThreadLock()
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
            with self._turn.here():  # of two threads, one is refused
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

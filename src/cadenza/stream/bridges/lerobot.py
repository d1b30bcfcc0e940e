"""Writes episodes as a LeRobotDataset v3.0 that LeRobot's own training reads.

Durability:  the folder appears with the first flush, in one step; then every file appears whole,
             and the description last, so that what it describes is there whenever a process is
             killed. Episodes since the last `LeRobotWriter.flush` are lost then; a draft of the
             folder is removed by its next writer.
Limits:      images are embedded in the data files; there are no videos.

Axes:  L = steps of an episode.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.checks import checked_integer, checked_path, require_instance
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, StorageError
from cadenza.core.files import (
    TEMPORARY_SUFFIX,
    atomic_write_text,
    fsync_folder,
    make_folder,
    require_writable,
    temporary_for,
)
from cadenza.core.lerobot_dataset import CODEBASE_VERSION, IMAGE, INDEX_COLUMNS, INFO, TASKS
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot_features import Feature
from cadenza.stream.bridges.lerobot_files import (
    DATA_PATTERN,
    EPISODES_PATTERN,
    STATS,
    FilePlace,
    episodes_table,
    frames_table,
    tasks_table,
    write_tables,
)
from cadenza.stream.bridges.lerobot_stats import (
    ImageStatistics,
    NumberStatistics,
    Statistics,
)

_MEGABYTE: Final = 2**20


class LeRobotWriter:
    """Grows a dataset by whole episodes.

    Use as a context manager, or call `close`. The files hold the episodes up to the last `flush`,
    which also happens whenever a data file is full.

    Attributes:
        root: Folder of the dataset.
        features: Its columns.
        episodes: Episodes added.
        frames: Frames added.
    """

    def __init__(
        self,
        root: str | Path,
        features: Sequence[Feature],
        *,
        fps: int,
        robot_type: str | None = None,
        chunks_size: int = 1000,
        data_files_size_in_mb: int = 100,
    ) -> None:
        """Describe the dataset; the first flush makes its folder ``root``, which must not exist.

        Args:
            root: Folder of the dataset.
            features: Columns, e.g. from `features_of`.
            fps: Steps per second.
            robot_type: Name of the robot, for readers.
            chunks_size: Most files in one folder.
            data_files_size_in_mb: Size of the frames at which a new data file begins, before
                compression, MB; a longer episode has a file of its own.

        Raises:
            ConfigurationError: A number is below one, or two features have one key.
            ConfigurationTypeError: An argument is of another type.
            StorageError: ``root`` exists, or nothing can be written beside it.
        """
        limits = {"fps": fps, "chunks_size": chunks_size}
        limits["data_files_size_in_mb"] = data_files_size_in_mb
        self._limits = {n: checked_integer(f"LeRobotWriter.{n}", v) for n, v in limits.items()}
        self.features: tuple[Feature, ...] = _checked_features(features)
        self.root: Path = checked_path("LeRobotWriter.root", root)
        if robot_type is not None:
            require_instance("LeRobotWriter.robot_type", robot_type, str, "or leave it out")
        self._robot_type = robot_type
        if os.path.lexists(self.root):
            raise _exists(self.root)
        require_writable(self.root.parent)
        self.episodes: int = 0
        self.frames: int = 0
        self._tasks: dict[str, int] = {}
        self._statistics: dict[str, ImageStatistics | NumberStatistics] = {
            feature.key: ImageStatistics(feature.shape[-1])
            if feature.dtype == IMAGE
            else NumberStatistics(feature.shape)
            for feature in self.features
        }
        self._statistics |= {name: NumberStatistics((1,)) for name in INDEX_COLUMNS}
        self._data_place = FilePlace()
        self._tables: list[Any] = []  # frames of the data file that is not written yet
        self._rows_place = FilePlace()
        self._row_tables: list[Any] = []  # episodes of the file that may still grow
        self._rows: list[dict[str, Any]] = []  # episodes that are not written yet
        self._is_closed = False

    def add(self, episode: Episode, task: str) -> int:
        """Add an episode in which ``task``, in words, was to be done; return its number.

        Raises:
            InputError: ``task`` says nothing, or the episode is none, or does not suit a feature;
                nothing has changed then.
            UnknownNameError: The episode lacks a field; nothing has changed then.
            StorageError: The file system refused the full data file.
            NotReadyError: The writer is closed.
        """
        if self._is_closed:
            raise NotReadyError("LeRobotWriter.add: expected an open dataset, got a closed one.")
        if not isinstance(cast("object", task), str) or not task.strip():
            raise InputError(f"LeRobotWriter.add: expected a task in words, got {task!r}.")
        if not isinstance(cast("object", episode), Episode):
            raise InputError(
                f"LeRobotWriter.add: expected an Episode, got {type(episode).__name__}; take it "
                "from an EpisodeReader."
            )
        columns = {feature.key: feature.values(episode) for feature in self.features}
        task_index = self._tasks.get(task, len(self._tasks))
        columns |= self._index_columns(episode.length, task_index)
        table = frames_table(self.features, columns)
        if self._tables and sum(t.nbytes for t in [*self._tables, table]) > self._limit_bytes():
            self.flush()
        self._tasks[task] = task_index
        self._rows.append(self._row(episode.length, task, self._count(columns)))
        self._tables.append(table)
        self.episodes += 1
        self.frames += episode.length
        return self.episodes - 1

    def flush(self) -> None:
        """Make everything added so far part of the dataset on disk.

        Raises:
            StorageError: The file system refused, or somebody else made the folder; the dataset is
                as it was, and a later call tries again.
        """
        if not self._tables:
            return
        if self._rows_place == self._data_place == FilePlace():
            with new_folder(self.root) as draft:
                rows = self._write(draft)
        else:
            rows = self._write(self.root)
        self._tables, self._rows, self._row_tables = [], [], rows
        self._data_place = self._data_place.following(self._limits["chunks_size"])
        if sum(table.nbytes for table in rows) >= self._limit_bytes():
            self._row_tables = []
            self._rows_place = self._rows_place.following(self._limits["chunks_size"])

    def _write(self, root: Path) -> list[Any]:
        """Write what was added into the dataset at ``root``; return the tables of its episodes."""
        write_tables(root / self._data_place.path(DATA_PATTERN), self._tables)
        write_tables(root / TASKS, [tasks_table(list(self._tasks))])
        rows = [*self._row_tables, episodes_table(self._rows)]
        write_tables(root / self._rows_place.path(EPISODES_PATTERN), rows)
        totals = {key: statistics.total() for key, statistics in self._statistics.items()}
        atomic_write_text(root / STATS, _as_json(totals))
        atomic_write_text(root / INFO, _as_json(self._info()))
        return rows

    def close(self) -> None:
        """Flush and end; a dataset without episodes leaves nothing behind.

        Raises:
            StorageError: The file system refused.
        """
        if not self._is_closed:
            self.flush()
            self._is_closed = True

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; episodes that were added are kept after an error too."""
        self.close()

    def _limit_bytes(self) -> int:
        return self._limits["data_files_size_in_mb"] * _MEGABYTE

    def _index_columns(self, length: int, task_index: int) -> dict[str, NDArray[Any]]:
        """Return the columns that say which frame this is, each (L,)."""
        frame = np.arange(length)
        return {
            "timestamp": (frame / self._limits["fps"]).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, self.episodes),
            "index": self.frames + frame,
            "task_index": np.full(length, task_index),
        }

    def _count(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, Statistics]:
        """Add an episode to the statistics and return its own; index columns are numbers (1,)."""
        counted: dict[str, Statistics] = {}
        for key, statistics in self._statistics.items():
            values = columns[key]
            counted[key] = statistics.add(values[:, None] if key in INDEX_COLUMNS else values)
        return counted

    def _row(self, length: int, task: str, statistics: Mapping[str, Statistics]) -> dict[str, Any]:
        """Return what is noted about an episode."""
        row: dict[str, Any] = {
            "episode_index": self.episodes,
            "tasks": [task],
            "length": length,
            "data/chunk_index": self._data_place.chunk_index,
            "data/file_index": self._data_place.file_index,
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + length,
        }
        for key, values in statistics.items():
            row |= {f"stats/{key}/{name}": value for name, value in values.items()}
        row["meta/episodes/chunk_index"] = self._rows_place.chunk_index
        row["meta/episodes/file_index"] = self._rows_place.file_index
        return row

    def _info(self) -> dict[str, Any]:
        """Return the dataset's description."""
        features = {feature.key: feature.as_json() for feature in self.features}
        for name, dtype in INDEX_COLUMNS.items():
            features[name] = {"dtype": dtype, "shape": [1], "names": None}
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": self._robot_type,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._tasks),
            **self._limits,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": DATA_PATTERN,
            "video_path": None,
            "features": features,
        }


@contextmanager
def new_folder(root: Path) -> Generator[Path]:
    """Yield a draft that becomes the folder ``root``, in one durable step, if the block succeeds.

    Its writer holds a lock on it; drafts of ``root`` that nobody holds are removed.

    Raises:
        StorageError: The file system refused, or there is such a folder by then.
    """
    draft = temporary_for(root)
    with ExitStack() as held:
        try:
            _remove_left_drafts(root)
            make_folder(root.parent)
            draft.mkdir()
            held.callback(shutil.rmtree, draft, ignore_errors=True)
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, lock)
            with suppress(OSError):  # a file system that has no locks; nothing is swept there
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield draft
            draft.rename(root)
            fsync_folder(root.parent)
        except StorageError:
            raise
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                raise _exists(root) from error
            raise StorageError(
                error.errno,
                f"{root}: expected to create this folder, got '{error.strerror}'; choose another "
                "one",
            ) from error


def _remove_left_drafts(root: Path) -> None:
    """Remove what killed writers of ``root`` left; an empty draft may be about to be locked."""
    for draft in root.parent.glob(f".{escape(root.name)}.{'?' * 16}{TEMPORARY_SUFFIX}"):
        with suppress(OSError), ExitStack() as held:
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(draft.iterdir()):
                shutil.rmtree(draft)


def _exists(root: Path) -> StorageError:
    return StorageError(
        errno.EEXIST,
        f"{root}: expected a folder that does not exist yet, got one that does; choose another "
        "name or move the old dataset away",
    )


def _checked_features(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """Return the features if they can be columns beside one another."""
    require_instance("LeRobotWriter.features", features, Sequence, "give a list of features")
    for feature in features:
        require_instance("LeRobotWriter.features", feature, Feature, "see features_of")
    keys = [feature.key for feature in features]
    if not keys or len(set(keys)) != len(keys):
        raise ConfigurationError(
            f"LeRobotWriter.features: expected features with distinct keys, got {keys}."
        )
    return tuple(features)


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n"

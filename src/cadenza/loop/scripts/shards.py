"""Data files of a dataset in format v3.0: which ones hold given episodes, and fetching those.

Only the ends of the files are read, where each says which episodes its parts hold. The mapping in
the dataset's own metadata is not used: a public dataset was found with a stale one.
"""

import importlib
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .files import ScriptError

#: First and last episode of a file.
Span = tuple[int, int]


class Store(Protocol):
    """Where a dataset's files are."""

    def first_tasks(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return the numbers of all episodes, and the first task text of each."""
        ...

    def data_files(self) -> list[str]:
        """Return the data files, in order."""
        ...

    def span(self, file: str) -> Span:
        """Return which episodes a data file holds, from its end alone."""
        ...

    def here(self, file: str) -> bool:
        """Return whether the file lies on this machine."""
        ...

    def fetch(self, files: Sequence[str]) -> None:
        """Bring files to this machine."""
        ...


class LocalStore:
    """A dataset in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def first_tasks(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return episodes and their first task texts."""
        return _first_tasks(sorted((self.root / "meta" / "episodes").rglob("*.parquet")))

    def data_files(self) -> list[str]:
        """Return the data files."""
        found = sorted((self.root / "data").rglob("*.parquet"))
        return [path.relative_to(self.root).as_posix() for path in found]

    def span(self, file: str) -> Span:
        """Return the file's episodes."""
        return episode_span(self.root / file)

    def here(self, file: str) -> bool:
        """Return True: what is listed is here."""
        return (self.root / file).is_file()

    def fetch(self, files: Sequence[str]) -> None:
        """Refuse: a folder has what it has.

        Raises:
            ScriptError: Always, unless there is nothing to fetch.
        """
        if files:
            raise ScriptError(f"expected {files[0]} in {self.root}, got no such file")


class HubStore:
    """A dataset on the hub, copied as far as needed to where LeRobot looks for it."""

    def __init__(self, repo_id: str) -> None:
        constants = importlib.import_module("lerobot.utils.constants")
        self.repo_id = repo_id
        self.root = Path(constants.HF_LEROBOT_HOME) / repo_id
        self._hub: Any = importlib.import_module("huggingface_hub")

    def first_tasks(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return episodes and their first task texts; the metadata are downloaded."""
        self._download(["meta/*"])
        return LocalStore(self.root).first_tasks()

    def data_files(self) -> list[str]:
        """Return the data files that the hub has."""
        listed = self._hub.list_repo_files(self.repo_id, repo_type="dataset")
        return sorted(f for f in listed if f.startswith("data/") and f.endswith(".parquet"))

    def span(self, file: str) -> Span:
        """Return the file's episodes; of a file that is not here, only the end is downloaded."""
        if self.here(file):
            return episode_span(self.root / file)
        with self._hub.HfFileSystem().open(f"datasets/{self.repo_id}/{file}", "rb") as remote:
            return episode_span(remote)

    def here(self, file: str) -> bool:
        """Return whether the file was downloaded."""
        return (self.root / file).is_file()

    def fetch(self, files: Sequence[str]) -> None:
        """Download files."""
        if files:
            self._download(list(files))

    def _download(self, patterns: list[str]) -> None:
        self._hub.snapshot_download(
            self.repo_id, repo_type="dataset", local_dir=self.root, allow_patterns=patterns
        )


def fetch_shards(store: Store, selected: NDArray[np.int64], *, download: bool) -> tuple[int, int]:
    """Bring the data files of the selected episodes here.

    Args:
        store: The dataset.
        selected: Episodes in ascending order, at least one.
        download: Whether to fetch what is missing.

    Returns:
        How many files were fetched, and how many are needed.

    Raises:
        ScriptError: No file holds one of the episodes.
    """
    spans = spans_around(store, selected)
    lost = missing_episodes(selected, spans)
    if len(lost):  # files out of order: look into every one
        spans = {file: store.span(file) for file in store.data_files()}
        lost = missing_episodes(selected, spans)
    if len(lost):
        raise ScriptError(
            f"expected data files with all of {len(selected)} episodes, got none with episode "
            f"{lost[0]} and {len(lost) - 1} more; the dataset is not whole."
        )
    needed = files_covering(selected, spans)
    absent = [file for file in needed if not store.here(file)] if download else []
    store.fetch(absent)
    return len(absent), len(needed)


def spans_around(store: Store, selected: NDArray[np.int64]) -> dict[str, Span]:
    """Return the episodes of the files from the first selected episode's to the last one's."""
    files = store.data_files()
    known: dict[int, Span] = {}

    def last(index: int) -> int:
        known.setdefault(index, store.span(files[index]))
        return known[index][1]

    index = bisect_left(range(len(files)), int(selected[0]), key=last)
    while index < len(files):
        if last(index) >= selected[-1]:
            break
        index += 1
    return {files[i]: span for i, span in known.items()}


def files_covering(selected: NDArray[np.int64], spans: dict[str, Span]) -> list[str]:
    """Return the files that hold some of the selected episodes, in order."""
    return sorted(file for file, span in spans.items() if _inside(selected, span).any())


def missing_episodes(selected: NDArray[np.int64], spans: dict[str, Span]) -> NDArray[np.int64]:
    """Return the selected episodes that no file holds."""
    held = np.zeros(len(selected), dtype=bool)
    for span in spans.values():
        held |= _inside(selected, span)
    return selected[~held]


def _inside(selected: NDArray[np.int64], span: Span) -> NDArray[np.bool_]:
    return (selected >= span[0]) & (selected <= span[1])


def _parquet(source: Any) -> Any:
    return importlib.import_module("pyarrow.parquet").ParquetFile(source)


def episode_span(source: Any) -> Span:
    """Return the first and last episode of a data file, from the statistics at its end.

    Raises:
        ScriptError: It has none.
    """
    metadata = _parquet(source).metadata
    names = [metadata.schema.column(i).name for i in range(metadata.num_columns)]
    column = names.index("episode_index") if "episode_index" in names else -1
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    parts = [group.column(column).statistics for group in groups]
    if column < 0 or not parts or any(part is None or not part.has_min_max for part in parts):
        raise ScriptError(f"expected statistics of episode_index in {source}, got none")
    return min(int(part.min) for part in parts), max(int(part.max) for part in parts)


def _first_tasks(files: Sequence[Path]) -> tuple[NDArray[np.int64], list[str]]:
    numbers: list[NDArray[np.int64]] = []
    texts: list[str] = []
    for file in files:
        table = _parquet(file).read(columns=["episode_index", "tasks"])
        numbers.append(np.asarray(table["episode_index"], dtype=np.int64))
        texts += [tasks[0] if tasks else "" for tasks in table["tasks"].to_pylist()]
    if not numbers:
        raise ScriptError("expected descriptions of episodes below meta/episodes, got no file")
    return np.concatenate(numbers), texts

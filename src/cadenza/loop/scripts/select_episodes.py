"""Chooses episodes of a suite from a dataset, evenly over its tasks or more of those in focus.

    run.py select --repo-id=ID [--root=DIR] --suite=libero_spatial [--limit=N]
        [--focus=libero_spatial_3,...] [--instructions=FILE] [--no-download] --result-json=FILE

An episode belongs to the task whose instruction is its first task text, case and blanks aside; the
instructions come from FILE, JSON ``{"suite": ["instruction of task 0", ...]}``, else from LIBERO.
Shards:   which data files hold the chosen episodes is read from the files themselves: a public
          dataset was found with a stale mapping in its metadata. Missing files are downloaded.
Result:   ``{episodes, selected, suite_tasks, tasks_covered, per_task, shards_fetched,
          shards_needed}``; choosing nothing is an error.
"""

import argparse
import importlib
import json
import re
import sys
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .files import ScriptError, start, write_result

#: First and last episode of a file.
Span = tuple[int, int]


class LocalStore:
    """A dataset in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def first_tasks(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return the numbers of all episodes, and the first task text of each."""
        return _first_tasks(sorted((self.root / "meta" / "episodes").rglob("*.parquet")))

    def data_files(self) -> list[str]:
        """Return the data files, in order."""
        found = sorted((self.root / "data").rglob("*.parquet"))
        return [path.relative_to(self.root).as_posix() for path in found]

    def span(self, file: str) -> Span:
        """Return which episodes a data file holds, from its end alone."""
        return episode_span(self.root / file)

    def fetch(self, files: Sequence[str]) -> int:
        """Bring files here; return how many were not."""
        absent = [file for file in files if not (self.root / file).is_file()]
        if absent:
            self._download(absent)
        return len(absent)

    def _download(self, files: list[str]) -> None:
        raise ScriptError(f"expected {files[0]} in {self.root}, got no such file")


class HubStore(LocalStore):
    """A dataset on the hub, copied as far as needed to where LeRobot looks for it."""

    def __init__(self, repo_id: str) -> None:
        constants = importlib.import_module("lerobot.utils.constants")
        super().__init__(Path(constants.HF_LEROBOT_HOME) / repo_id)
        self.repo_id = repo_id
        self._hub: Any = importlib.import_module("huggingface_hub")

    def first_tasks(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return episodes and their first task texts; the metadata are downloaded."""
        self._download(["meta/*"])
        return super().first_tasks()

    def data_files(self) -> list[str]:
        """Return the data files that the hub has."""
        listed = self._hub.list_repo_files(self.repo_id, repo_type="dataset")
        return sorted(f for f in listed if f.startswith("data/") and f.endswith(".parquet"))

    def span(self, file: str) -> Span:
        """Return the file's episodes; of a file that is not here, only the end is downloaded."""
        if (self.root / file).is_file():
            return super().span(file)
        with self._hub.HfFileSystem().open(f"datasets/{self.repo_id}/{file}", "rb") as remote:
            return episode_span(remote)

    def _download(self, files: list[str]) -> None:
        self._hub.snapshot_download(
            self.repo_id, repo_type="dataset", local_dir=self.root, allow_patterns=files
        )


def fetch_shards(
    store: LocalStore, selected: NDArray[np.int64], *, download: bool
) -> tuple[int, int]:
    """Bring the data files of the selected episodes here, in ascending order and at least one.

    ``download`` says whether to fetch what is missing. Returned is how many files were fetched, and
    how many are needed.
    """
    files, span = store.data_files(), cache(store.span)
    first = bisect_left(files, int(selected[0]), key=lambda file: span(file)[1])
    last = bisect_left(files, int(selected[-1]), first, key=lambda file: span(file)[1])
    spans = {file: span(file) for file in files[first : last + 1]}
    if len(missing_episodes(selected, spans)):  # files out of order: look into every one
        spans = {file: span(file) for file in files}
    lost = missing_episodes(selected, spans)
    if len(lost):
        raise ScriptError(
            f"expected data files with all of {len(selected)} episodes, got none with episode "
            f"{lost[0]} and {len(lost) - 1} more; the dataset is incomplete."
        )
    needed = files_covering(selected, spans)
    return store.fetch(needed) if download else 0, len(needed)


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
    """Return first and last episode by the statistics at a file's end, or raise `ScriptError`."""
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


#: Turns of a task in focus for one turn of another.
FOCUS_TURNS = 2


def main(words: Sequence[str]) -> int:
    """Return the exit code: 1 if nothing was chosen or found."""
    given = _parser().parse_args(words)
    try:
        result = _select(given)
    except ScriptError as error:
        sys.stderr.write(f"select: {error}\n")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    if given.result_json is not None:
        write_result(given.result_json, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="select", allow_abbrev=False)
    parser.add_argument("--repo-id", required=True)
    parser.add_argument("--root", type=Path, help="folder of a local dataset")
    parser.add_argument("--suite", required=True)
    parser.add_argument("--limit", type=int, help="most episodes; all if left out")
    parser.add_argument("--focus", default="", help="tasks to take more of, comma-separated")
    parser.add_argument("--instructions", type=Path, help="JSON file of suites")
    parser.add_argument("--no-download", action="store_true")
    parser.add_argument("--result-json", type=Path)
    return parser


def _select(given: argparse.Namespace) -> dict[str, Any]:
    instructions = suite_instructions(given.suite, given.instructions)
    store = HubStore(given.repo_id) if given.root is None else LocalStore(given.root)
    episodes, texts = store.first_tasks()
    focus = [name for name in given.focus.split(",") if name]
    weights = focus_weights(given.suite, len(instructions), focus)
    chosen, tasks = select_balanced(
        episodes, match_tasks(texts, instructions), weights=weights, limit=given.limit
    )
    if not len(chosen):
        raise ScriptError(
            f"expected episodes of the suite {given.suite} in {given.repo_id}, got none among "
            f"{len(episodes)}; compare its task texts with the instructions."
        )
    fetched, needed = fetch_shards(store, chosen, download=not given.no_download)
    counts = np.bincount(tasks, minlength=len(instructions))
    return {
        "episodes": [int(episode) for episode in chosen],
        "selected": len(chosen),
        "suite_tasks": len(instructions),
        "tasks_covered": int(np.count_nonzero(counts)),
        "per_task": {f"{given.suite}_{i}": int(n) for i, n in enumerate(counts)},
        "shards_fetched": fetched,
        "shards_needed": needed,
    }


def suite_instructions(suite: str, path: Path | None) -> list[str]:
    """Return the instructions of a suite by task, or raise `ScriptError` if nobody knows them."""
    if path is None:
        return _libero_instructions(suite)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = document.get(suite)
    except (OSError, ValueError, AttributeError) as error:
        raise ScriptError(f"expected JSON of suites in {path}, got {error!r}") from error
    words = cast("list[object]", found) if isinstance(found, list) else []
    if not words or not all(isinstance(word, str) for word in words):
        raise ScriptError(
            f"expected a list of instructions for {suite!r} in {path}, got {found!r}; it has "
            f"{sorted(document)}."
        )
    return cast("list[str]", words)


def _libero_instructions(suite: str) -> list[str]:
    try:
        suites = importlib.import_module("libero.libero.benchmark").get_benchmark_dict()
    except ImportError as error:
        raise ScriptError(
            f"expected the package libero, which knows its suites, got {error}; install it, or "
            "give the suite's instructions in a file."
        ) from error
    if suite not in suites:
        raise ScriptError(f"expected one of {', '.join(sorted(suites))}, got {suite!r}")
    made = suites[suite]()
    return [made.get_task(number).language for number in range(made.n_tasks)]


def normalised(text: str) -> str:
    """Return ``text`` in small letters, with single blanks."""
    return re.sub(r"\s+", " ", text).strip().lower()


def match_tasks(texts: Sequence[str], instructions: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of the task of each text, -1 for one of no task."""
    numbers = {normalised(text): number for number, text in enumerate(instructions)}
    distinct, which = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    of_distinct = [numbers.get(normalised(str(text)), -1) for text in distinct]
    return np.asarray(of_distinct, dtype=np.int64)[which.reshape(-1)]


def focus_weights(suite: str, count: int, focus: Sequence[str]) -> NDArray[np.int64]:
    """Return how many turns each task has; a `ScriptError` for a focus on another one."""
    names = [f"{suite}_{number}" for number in range(count)]
    strangers = sorted(set(focus) - set(names))
    if strangers:
        raise ScriptError(f"--focus: expected tasks {names[0]} to {names[-1]}, got {strangers}")
    return np.where(np.isin(names, list(focus)), FOCUS_TURNS, 1).astype(np.int64)


def select_balanced(
    episodes: NDArray[np.int64],
    tasks: NDArray[np.int64],
    *,
    weights: NDArray[np.int64],
    limit: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chosen episodes in order, and the task of each; at most ``limit``.

    Tasks take turns in the order of their first episode, and take ``weights[task]`` episodes at a
    turn, in the order of the dataset. ``episodes`` and ``tasks``, -1 for none, have the shape (E,).
    """
    mine = tasks >= 0
    episodes, tasks = episodes[mine], tasks[mine]
    by_task = np.argsort(tasks, kind="stable")
    _, first, sizes = np.unique(tasks[by_task], return_index=True, return_counts=True)
    place = np.empty(len(tasks), dtype=np.int64)  # of an episode within its task
    place[by_task] = np.arange(len(tasks)) - np.repeat(first, sizes)
    appearance = np.full(len(weights), len(tasks), dtype=np.int64)
    np.minimum.at(appearance, tasks, np.arange(len(tasks)))
    order = np.lexsort((place, appearance[tasks], place // weights[tasks]))[:limit]
    chosen = order[np.argsort(episodes[order], kind="stable")]
    return episodes[chosen], tasks[chosen]


if __name__ == "__main__":
    start("select", main)

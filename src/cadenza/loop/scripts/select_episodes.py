"""Chooses episodes of a suite from a dataset, evenly over its tasks or more of those in focus.

    run.py select --repo-id=ID [--root=DIR] --suite=libero_spatial [--limit=N]
        [--focus=libero_spatial_3,...] [--instructions=FILE] [--no-download] --result-json=FILE

An episode belongs to the task whose instruction is its first task text, case and blanks aside.
The instructions come from FILE, JSON ``{"suite": ["instruction of task 0", ...]}``, else from the
package libero. Without this choice the first N episodes of a dataset ordered by suite would be of
the wrong tasks, which no metric shows.
Shards:   which data files hold the chosen episodes is read from the files themselves, whose own
    statistics cannot be stale; the missing ones are downloaded unless ``--no-download``.
Result:   ``{episodes, selected, suite_tasks, tasks_covered, per_task, shards_fetched,
    shards_needed}``; choosing nothing is an error.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .files import ScriptError, write_result
from .shards import HubStore, LocalStore, Store, fetch_shards
from .starting import start

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
    store: Store = HubStore(given.repo_id) if given.root is None else LocalStore(given.root)
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
    """Return the instructions of a suite, task by task.

    Raises:
        ScriptError: The suite is unknown, or the file is no mapping of suites to instructions.
    """
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
    """Return how many turns each task has.

    Raises:
        ScriptError: The focus names a task that the suite does not have.
    """
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
    """Return chosen episodes in order, and the task of each.

    Tasks take turns in the order of their first episode, and take ``weights[task]`` episodes at a
    turn, in the order of the dataset.

    Args:
        episodes: Numbers of the episodes, (E,).
        tasks: Task of each, -1 for none, (E,).
        weights: Episodes at a turn, by task.
        limit: Most episodes; None for all.
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

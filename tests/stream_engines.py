"""Engines over the worlds of `tests.stream_worlds`, and a check that nothing of them is left."""

import gc
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from cadenza.core.errors import NotReadyError
from cadenza.stream.config import OnlineDataEngineCfg
from cadenza.stream.engine import OnlineDataEngine
from cadenza.stream.shared_file import MEMORY_FOLDER
from tests.e2e.commands import LIMIT_S, REPOSITORY, Started

WORLDS = "tests.stream_worlds"
HALF = {"factory": f"{WORLDS}:HalfPolicy"}


def small_cfg(
    num_envs: int = 2, worlds: dict[str, Any] | None = None, **settings: Any
) -> OnlineDataEngineCfg:
    """Return settings of a small engine with a policy that always answers 0.5.

    Args:
        num_envs: Environments per producer.
        worlds: Arguments of `stream_worlds.counting`.
        settings: Fields of the configuration.
    """
    gym = {"factory": f"{WORLDS}:counting", "num_envs": num_envs, "kwargs": worlds or {}}
    defaults: dict[str, Any] = {
        "buffer_size": 4,
        "max_episode_steps": 8,
        "policy": HALF,
        "restart_backoff": 0.01,
        "initialization_timeout": 800.0,
        "stop_timeout": 800.0,
        "draw_timeout": 800.0,
    }
    return OnlineDataEngineCfg(gym_config=gym, **(defaults | settings))


def start_from(engine: OnlineDataEngine, answers: SimpleQueue[str]) -> None:
    """Start and stop an engine of another process and tell how it refused."""
    for call in (engine.start, engine.stop):
        try:
            call()
        except NotReadyError as error:
            answers.put(str(error))


def failing(how: str, after: int, **places: Path) -> dict[str, Any]:
    """Return a policy that fails at its answer number ``after``."""
    named = {name: str(place) for name, place in places.items()}
    return {"factory": f"{WORLDS}:FailingPolicy", "kwargs": {"how": how, "after": after, **named}}


def program(folder: Path, text: str, *words: str) -> Started:
    """Start a program of its own session in ``folder``, as a terminal does."""
    script = folder / "program.py"
    script.write_text(text)
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    return Started(script, *words, cwd=folder, variables=variables, new_session=True)


def all_run(engine: OnlineDataEngine) -> bool:
    """Return whether every producer writes: one of them may fill the buffer alone."""
    return all(row["state"] == "RUNNING" for row in engine.status()["producers"])


@contextmanager
def nothing_left(has_failed: Callable[[], bool] = lambda: False) -> Generator[None]:
    """Fail if the block leaves a producer running or a file in shared memory.

    A test that ``has_failed`` may: its frames are kept for the report, with the arrays in them.
    """
    files, processes = _shared_files(), _producers()
    yield
    eventually(lambda: _producers() <= processes, "producers are left")
    eventually(lambda: has_failed() or _holds_only(files), "blocks of shared memory are left")


def eventually(condition: Callable[[], object], what: str, pause_s: float = 0.02) -> None:
    """Wait until ``condition`` holds, looking every ``pause_s``; fail after `LIMIT_S`."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


def descendants(pid: int) -> set[int]:
    """Return the processes below ``pid``, zombies left out."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue
        words = text.rpartition(")")[2].split()
        if words[0] not in "ZX":
            parents[int(folder.name)] = int(words[1])
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def _producers() -> set[int]:
    """Return the processes that a forkserver below this process made."""
    mine = descendants(os.getpid())
    return {pid for pid in mine if "forkserver" in _command(pid) and _parent_is(pid, mine)}


def _parent_is(pid: int, pids: set[int]) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return int(text.rpartition(")")[2].split()[1]) in pids


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def is_block(target: str) -> bool:
    """Return whether a file that a process has open or maps is a block of shared memory."""
    return target.startswith((f"{MEMORY_FOLDER}/#", f"{MEMORY_FOLDER}/cadenza-"))


def _holds_only(files: set[str]) -> bool:
    """Return whether there are no other blocks; only what seems left is worth a collection."""
    if not _shared_files() <= files:
        gc.collect()
    return _shared_files() <= files


def open_blocks() -> dict[str, int]:
    """Return the bytes that each block takes which this process holds open."""
    held: dict[str, int] = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target, taken = str(descriptor.readlink()), 512 * descriptor.stat().st_blocks
        except OSError:  # closed meanwhile
            continue
        if is_block(target):
            held[target] = taken
    return held


def _shared_files() -> set[str]:
    """Return the blocks held open, which have no name any more, and those that have one."""
    return {*open_blocks(), *(str(path) for path in MEMORY_FOLDER.glob("cadenza-*"))}

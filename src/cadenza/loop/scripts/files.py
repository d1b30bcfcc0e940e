"""What the scripts share: files left whole or not at all, descriptions of datasets, and the start.

`start` is for ``python -m cadenza.loop.scripts.NAME``, as LeAgents does. The loop itself starts
`run.py`, which needs no `cadenza` in LeRobot's environment; the former needs both in one.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast


class ScriptError(Exception):
    """A script cannot do its work; the text says what to do."""


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write the result of a script, as its last act."""
    data = json.dumps(document, allow_nan=False, sort_keys=True, indent=1).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _fsync(path.parent)


def partial_of(out: Path) -> Path:
    """Return the folder that becomes ``out`` when it is whole; remains of both are removed."""
    partial = out.with_name(f"{out.name}.partial")
    for folder in (partial, out):
        if folder.is_dir():
            shutil.rmtree(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    return partial


def publish(partial: Path, out: Path) -> None:
    """Make ``partial`` durable and give it its name ``out``."""
    for path in sorted(partial.rglob("*")):
        _fsync(path)
    partial.rename(out)
    _fsync(out.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Facts, besides features, that datasets must share to be joined.
_SHARED: Final = ("codebase_version", "fps", "robot_type")


def read_info(root: Path) -> dict[str, Any]:
    """Return the description of the dataset in ``root``, or raise `ScriptError` without one."""
    try:
        info = json.loads((root / "meta" / "info.json").read_text(encoding="utf-8"))
        features = info["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScriptError(f"expected a dataset in {root}, got {error!r}") from error
    if not isinstance(features, dict):
        raise ScriptError(f"expected features in {root}/meta/info.json, got {features!r}")
    return cast("dict[str, Any]", info)


def difference(
    first: Mapping[str, Any], second: Mapping[str, Any], *, labels: bool = True
) -> str | None:
    """Return how the second description of a dataset differs from the first; None if it does not.

    ``labels`` says whether the kind of robot and the names of axes count.
    """
    for key in _SHARED if labels else _SHARED[:-1]:
        if first.get(key) != second.get(key):
            return f"{key} {second.get(key)!r} instead of {first.get(key)!r}"
    mine, others = first["features"], second["features"]
    for key in sorted(mine.keys() | others.keys()):
        if key not in others:
            return f"no {key}"
        if key not in mine:
            return f"{key} as well"
        for fact in sorted(mine[key].keys() | others[key].keys()):
            wanted, found = mine[key].get(fact), others[key].get(fact)
            if wanted != found and (labels or fact != "names"):
                return f"{key} with {fact} {found} instead of {wanted}"
    return None


def start(word: str, main: Callable[[list[str]], int]) -> NoReturn:
    """Run a script with the words of this process and end with its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        sys.exit(main(sys.argv[1:]))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lerobot":
            raise
    run = Path(__file__).resolve().with_name("run.py")
    sys.stderr.write(
        f"{word}: expected LeRobot in the environment of {sys.executable}, got none; start "
        f"`PYTHON {run} {word} ...` with the Python that has it.\n"
    )
    sys.exit(2)

"""Files that a script leaves: whole or not at all."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ScriptError(Exception):
    """A script cannot do its work; the text says what to do."""


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write the result of a script, as its last act.

    Raises:
        ValueError: A number is not finite.
    """
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

"""Run the `cadenza` command the way a person does: a fresh process, its streams, its exit code."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a finished command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        return json.loads(self.out)


def arguments(*words: str | Path) -> list[str]:
    """Return the command line of ``cadenza <words>``."""
    return [sys.executable, "-m", "cadenza", *(str(word) for word in words)]


def environment() -> dict[str, str]:
    """Return an environment without a terminal's width and with one thread per library."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "dumb"}


def cadenza(*words: str | Path, cwd: Path, timeout: float = 240.0) -> Outcome:
    """Run ``cadenza <words>`` in ``cwd`` until it ends."""
    done = subprocess.run(
        arguments(*words),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)

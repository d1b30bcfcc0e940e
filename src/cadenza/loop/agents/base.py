"""Running a command as a plain call: the runner that workers take, and two of them.

The names and signatures are those of LeAgents, so that runners written for it work here.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass
class RunResult:
    """How a command ended.

    Attributes:
        cmd: Program and arguments.
        exit_code: Exit status; negative for the signal that ended it.
        duration_s: Seconds it took.
        log_path: File with its output; None if it has none.
    """

    cmd: list[str]
    exit_code: int
    duration_s: float
    log_path: Path | None = None


#: Runs a command to its end, with its output going to a log file.
Runner: TypeAlias = Callable[[Sequence[str], Path], RunResult]


def subprocess_runner(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Run ``cmd`` without a shell; its output goes straight to ``log_path``, which is replaced.

    Raises:
        OSError: The program is not there or may not be run.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log_path.open("wb") as log:
        done = subprocess.run(  # noqa: S603 - cleared by the constitution; no shell
            list(cmd), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    return RunResult(list(cmd), done.returncode, time.monotonic() - began, log_path)


def dry_runner(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Note in ``log_path`` what would be run, and run nothing."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_text(f"DRY RUN: {shlex.join(cmd)}\n", encoding="utf-8")
    return RunResult(list(cmd), 0, 0.0, log_path)

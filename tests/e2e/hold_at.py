"""Runs a command of `cadenza` that holds itself as soon as a certain file is in place.

``python hold_at.py <pattern of the file's name> <words after cadenza>``

It stops as by Ctrl-Z, so that a test may kill or end it at this very moment, however slow or fast
the machine is.
"""

import os
import runpy
import signal
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


def holder(pattern: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that holds this process once a file was renamed to ``pattern``."""
    coming = there = False

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal coming, there
        if there:
            return
        if coming:  # the first event after the renaming
            there = True
            os.kill(os.getpid(), signal.SIGSTOP)
        elif event == "os.rename":
            coming = fnmatch(Path(os.fsdecode(arguments[1])).name, pattern)

    return look


if __name__ == "__main__":
    _, wanted, *sys.argv[1:] = sys.argv
    sys.path[0] = str(Path.cwd())
    sys.addaudithook(holder(wanted))
    runpy.run_module("cadenza", run_name="__main__", alter_sys=True)

"""Runs a command of `cadenza` that holds itself wherever its files have changed or are to change.

``python stepped_training.py <words after cadenza>``

It stops as by Ctrl-Z behind each line of a log, and before each file or folder is made durable. So
a test may look at the files in peace, however slow or fast the machine is, and kill it there.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

make_durable, write_at = os.fsync, os.pwrite


def hold() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_and_make_durable(descriptor: int) -> None:
    hold()
    make_durable(descriptor)


def write_at_and_hold(descriptor: int, data: bytes, place: int) -> int:
    written = write_at(descriptor, data, place)
    hold()
    return written


if __name__ == "__main__":
    os.fsync, os.pwrite = hold_and_make_durable, write_at_and_hold
    sys.path[0] = str(Path.cwd())
    runpy.run_module("cadenza", run_name="__main__", alter_sys=True)

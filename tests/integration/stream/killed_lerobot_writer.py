"""Writes datasets and is killed at every moment at which something has reached the disk.

    python killed_lerobot_writer.py FOLDER

``FOLDER/0`` is of a writer killed at its first fsync, ``FOLDER/1`` at its second, and so on; the
last one was not killed. A program of its own, so that nothing but the writer runs before a fork.
"""

import os
import signal
import sys
from itertools import count
from pathlib import Path

import numpy as np

from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature

FEATURES = [Feature(key="action", source="x", shape=(2,), dtype="float32")]
EPISODE = Episode(steps={"x": np.arange(6, dtype=np.float32).reshape(3, 2)}, states={})


def write(root: Path) -> None:
    """Write one episode and leave the writer open."""
    writer = LeRobotWriter(root, FEATURES, fps=10)
    writer.add(EPISODE, "count")
    writer.flush()


def killed_at(number: int, root: Path) -> bool:
    """Write in a process that is killed at its fsync ``number``; return whether that came."""
    child = os.fork()
    if child == 0:
        left = count(number, -1)
        fsync = os.fsync

        def dying(descriptor: int) -> None:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(descriptor)

        os.fsync = dying
        write(root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    next(number for number in count() if not killed_at(number, folder / str(number)))

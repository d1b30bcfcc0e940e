"""A lock between the threads of one process that a fork cannot leave held."""

import os
import threading


class ThreadLock:
    """Lets the threads of a process take turns; a thread may take its turn twice.

    A fork copies memory, but of the threads only the one that forked: a plain lock that another
    thread held at that moment would stay held in the new process for ever.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def here(self) -> threading.RLock:
        """Return the lock of this process; use it in a ``with`` block."""
        pid = os.getpid()
        lock = self._locks.get(pid)
        # Of two threads that come first at once, both get what one of them has put in.
        return self._locks.setdefault(pid, threading.RLock()) if lock is None else lock

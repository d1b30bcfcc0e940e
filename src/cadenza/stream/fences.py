"""Order of reads and writes between processes that share memory without a lock.

A processor may let other processors see its writes in another order than the program makes them,
and may read ahead. `full_fence` stops both: what stands before it in the program is done before
what stands after it, as every other process sees it.

Why it works: the lock below is always held by its thread. Releasing it is a release operation and
taking it again an acquire operation on the same word; nothing moves down past the first or up past
the second, and the two keep their order. Python offers no fence of its own.
"""

import threading


class _HeldLock(threading.local):
    """A lock per thread that nobody else touches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_held = _HeldLock()


def full_fence() -> None:
    """Let no read or write pass from one side of this call to the other."""
    lock = _held.lock
    lock.release()
    lock.acquire()

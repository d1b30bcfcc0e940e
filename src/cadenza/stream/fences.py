"""Order of reads and writes between processes that share memory without a lock.

A processor may let other processors see its writes in another order than the program makes them,
and may read ahead. `full_fence` stops both: what stands before it in the program is done before
what stands after it, as every other process sees it.

Why it works: releasing a lock is a release operation and taking it again an acquire operation on
the same word; nothing moves down past the first or up past the second, and the two keep their
order. Python offers no fence of its own.

Every call has a lock of its own, which nobody else sees: it never waits, and a call that an
interrupt ends halfway leaves nothing behind that could make the next one fail.
"""

import threading


def full_fence() -> None:
    """Let no read or write pass from one side of this call to the other."""
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()

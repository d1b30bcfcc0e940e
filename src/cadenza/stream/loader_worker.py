"""How a worker process of a PyTorch loader ends: at once, and without a word.

A worker hands batches to a thread of `multiprocessing` that sends them. Its loader does not want
the last ones any more, so the worker ends while they are on their way. Where it was spawned, the
interpreter is taken down then, and Python ends every thread that asks for the interpreter after
that. PyTorch, which the thread has called to share a tensor, cannot be ended so, and the C++
library aborts the worker: ``terminate called without an active exception``. Forked workers, and
those of a fork server, leave without taking the interpreter down.
"""

import gc
import multiprocessing
import multiprocessing.synchronize
import multiprocessing.util
import threading
import time
from functools import cache
from typing import Final

#: Longest wait of a worker for the batches on their way, s. A loader kills its workers after five.
SENDING_S: Final = 3.0
#: Name that `multiprocessing.Queue` gives the thread that sends.
_SENDER: Final = "QueueFeederThread"
#: Place among what a process does at its end: after the queues were closed, which have at least -5.
_AFTER_QUEUES: Final = -10


def prepare_end() -> None:
    """Let this worker end well; a second call does nothing."""
    if not gc.get_freeze_count():
        # What a worker has imported lives as long as it does. Without this a worker that was
        # spawned searches all of it for cycles when it ends: 1.1 instead of 0.2 s of work.
        gc.freeze()
    if multiprocessing.get_start_method(allow_none=True) == "spawn":
        _await_senders_at_the_end()


def loader_ends() -> bool:
    """Return whether the loader of this worker has told its workers to end.

    It does so by an event that is an argument of the worker's process; there is no public way to
    it. Where none is found, the worker waits on.
    """
    arguments = vars(multiprocessing.current_process()).get("_args", ())
    return any(a.is_set() for a in arguments if isinstance(a, multiprocessing.synchronize.Event))


@cache
def _await_senders_at_the_end() -> None:
    multiprocessing.util.Finalize(None, await_senders, exitpriority=_AFTER_QUEUES)


def await_senders(limit_s: float = SENDING_S) -> None:
    """Wait until queues that were closed have sent what is in them.

    Args:
        limit_s: Longest wait, s. One that nobody reads never gets done, and does no harm: it does
            not come back from the pipe.
    """
    deadline = time.monotonic() + limit_s
    for thread in threading.enumerate():
        if thread.name == _SENDER:
            thread.join(max(deadline - time.monotonic(), 0.0))

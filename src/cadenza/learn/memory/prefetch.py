"""Values made ahead of time by a background thread.

A `Prefetcher` gives what its producer gives, in order; at most ``depth`` finished values wait. The
thread ends when the prefetcher is closed or nobody holds it any more. An error of the producer
arrives at the ``next`` call that would have got the value.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from cadenza.core.errors import ConfigurationError

T = TypeVar("T")

#: How often a waiting producer looks whether it should stop, s.
_POLL_S: Final = 0.05
#: How long `Prefetcher.close` waits for the value that is being made, s.
_JOIN_S: Final = 10.0


class _Failure:
    """What the producer raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Iterator[T], Generic[T]):
    """Calls ``produce`` in a thread, up to ``depth`` values ahead of the consumer.

    Args:
        produce: Makes one value; called by one thread only.
        depth: Most values that wait, at least 1.

    Raises:
        ConfigurationError: ``depth`` is below 1.
    """

    def __init__(self, produce: Callable[[], T], *, depth: int) -> None:
        if depth < 1:
            raise ConfigurationError(f"Prefetcher: expected depth >= 1, got {depth}.")
        self._values: queue.Queue[T | _Failure] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        # The thread must not hold `self`, or a forgotten prefetcher would never end.
        self._thread = threading.Thread(
            target=_fill, args=(produce, self._values, self._stop), name="prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __next__(self) -> T:
        """Return the next value, waiting for it if need be.

        Raises:
            StopIteration: The prefetcher was closed, or has raised an error before.
        """
        while not self._stop.is_set():
            try:
                value = self._values.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(value, _Failure):
                self.close()
                raise value.error
            return value
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and wait for it; calling twice is fine."""
        self._stop.set()
        self._thread.join(timeout=_JOIN_S)


def _fill(
    produce: Callable[[], T], values: "queue.Queue[T | _Failure]", stop: threading.Event
) -> None:
    """Put values into the queue until told to stop or until one cannot be made."""
    while not stop.is_set():
        try:
            value: T | _Failure = produce()
        except BaseException as error:  # noqa: BLE001 -- the consumer's thread raises it again
            value = _Failure(error)
        while not stop.is_set():
            try:
                values.put(value, timeout=_POLL_S)
                break
            except queue.Full:
                continue
        if isinstance(value, _Failure):
            return

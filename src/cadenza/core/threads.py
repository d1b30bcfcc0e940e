"""Small values that several threads share."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LockedResource(Generic[T]):
    """Gives access to a value only while its lock is held.

    ``with resource as value: ...`` locks; an exception inside releases the lock and goes on.
    """

    def __init__(self, data: T) -> None:
        self._data = data
        self._lock = threading.Lock()

    def __enter__(self) -> T:
        """Lock and return the value."""
        self._lock.acquire()
        return self._data

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Unlock."""
        self._lock.release()

    def swap(self, new_resource: T) -> T:
        """Put ``new_resource`` in place and return the value before, in one step."""
        with self._lock:
            previous, self._data = self._data, new_resource
            return previous


class AtomicContainer:
    """A place for one value that threads put and take."""

    def __init__(self, initial_data: Any = None) -> None:
        self._data = initial_data
        self._lock = threading.Lock()

    def take(self) -> Any:
        """Return the value and leave None."""
        with self._lock:
            data, self._data = self._data, None
            return data

    def read(self) -> Any:
        """Return the value and leave it."""
        with self._lock:
            return self._data

    def set(self, value: Any) -> None:
        """Replace the value."""
        with self._lock:
            self._data = value


class AtomicInt:
    """An integer that threads add to; ``+=`` and ``-=`` change it in place."""

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._lock = threading.Lock()

    def __iadd__(self, value: int) -> "AtomicInt":
        """Add ``value``."""
        self.increment(value)
        return self

    def __isub__(self, value: int) -> "AtomicInt":
        """Subtract ``value``."""
        self.increment(-value)
        return self

    def read(self) -> int:
        """Return the value."""
        with self._lock:
            return self._value

    def swap(self, value: int) -> int:
        """Replace the value and return the one before."""
        with self._lock:
            previous, self._value = self._value, value
            return previous

    def increment(self, value: int = 1) -> int:
        """Add ``value`` and return the number before."""
        with self._lock:
            previous = self._value
            self._value += value
            return previous


class TracedLock:
    """A lock that knows how long threads waited for it and how long it was held.

    Works with re-entrant locks too: the inner acquisitions of one thread count as one.
    """

    def __init__(
        self, lock_class: Callable[[], AbstractContextManager[Any]] = threading.Lock
    ) -> None:
        self._lock = lock_class()
        self._depth = 0
        self._held_since = 0.0
        self._blocked_s = 0.0
        self._held_s = 0.0

    @property
    def blocked_s(self) -> float:
        """Seconds that threads have waited for the lock, summed."""
        return self._blocked_s

    @property
    def held_s(self) -> float:
        """Seconds that the lock has been held, summed over finished blocks."""
        return self._held_s

    def __enter__(self) -> "TracedLock":
        """Take the lock."""
        asked = time.perf_counter()
        self._lock.__enter__()
        # Only the holder comes here, so the sums need no second lock.
        now = time.perf_counter()
        self._blocked_s += now - asked
        if self._depth == 0:
            self._held_since = now
        self._depth += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        self._depth -= 1
        if self._depth == 0:
            self._held_s += time.perf_counter() - self._held_since
        self._lock.__exit__(exc_type, exc, traceback)

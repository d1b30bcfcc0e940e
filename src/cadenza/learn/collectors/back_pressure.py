"""Keeps two threads in step: the one that inserts transitions and the one that samples them.

Rule:    with I transitions inserted and S rows sampled since the first sample, and a target of r
         rows per transition, inserting waits while r I > S + tolerance, and sampling waits while
         S > r I + tolerance. Both cannot hold at once, so the threads cannot block each other.
Source:  the sample-to-insert limiter of Reverb, arXiv:2102.04736, section 3.4.
"""

import threading
from collections.abc import Callable

from cadenza.core.errors import ConfigurationError


class SampleInsertRatio:
    """Makes whoever runs ahead wait for the other.

    Inserts before the first sample are free: they fill the memory.
    """

    def __init__(self, samples_per_insert: float, *, tolerance: float = 0.0) -> None:
        """Set the target.

        Args:
            samples_per_insert: Sampled rows per inserted transition, > 0.
            tolerance: Rows that either side may be ahead, >= 0, on top of one call's worth.

        Raises:
            ConfigurationError: A number out of range.
        """
        if not samples_per_insert > 0.0 or not tolerance >= 0.0:
            raise ConfigurationError(
                "SampleInsertRatio: expected samples_per_insert > 0 and tolerance >= 0, got "
                f"{samples_per_insert} and {tolerance}."
            )
        self._target = samples_per_insert
        self._tolerance = tolerance
        self._changed = threading.Condition()
        self._inserted = 0
        self._sampled = 0
        self._free: int | None = None
        self._is_closed = False

    @property
    def inserted(self) -> int:
        """Transitions inserted so far."""
        return self._inserted

    @property
    def sampled(self) -> int:
        """Rows sampled so far."""
        return self._sampled

    def insert(self, count: int) -> None:
        """Count ``count`` inserted transitions."""
        with self._changed:
            self._inserted += count
            self._changed.notify_all()

    def sample(self, count: int) -> None:
        """Count ``count`` sampled rows."""
        with self._changed:
            if self._free is None:
                self._free = self._inserted
            self._sampled += count
            self._changed.notify_all()

    def wait_to_insert(self, timeout_s: float | None = None) -> bool:
        """Wait until inserting is due; return whether it is, False after a time-out or `close`."""
        return self._wait(lambda: self._ahead() <= self._tolerance, timeout_s)

    def wait_to_sample(self, timeout_s: float | None = None) -> bool:
        """Wait until sampling is due; return whether it is, False after a time-out or `close`."""
        return self._wait(lambda: -self._ahead() <= self._tolerance, timeout_s)

    def close(self) -> None:
        """Wake all who wait, for good."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def open(self) -> None:
        """Begin again after `close`, with free inserts until the next sample."""
        with self._changed:
            self._is_closed = False
            self._inserted = self._sampled = 0
            self._free = None

    def _ahead(self) -> float:
        """Return by how many rows inserting is ahead of sampling."""
        if self._free is None:
            return 0.0
        return self._target * (self._inserted - self._free) - self._sampled

    def _wait(self, is_due: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or is_due(), timeout_s)
            return not self._is_closed and is_due()

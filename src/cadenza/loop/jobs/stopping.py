"""Ways to ask a run to stop: signals to the controller, and a request in the store."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import Any, Final, Self, TypeAlias

from cadenza.loop.errors import StoreUnavailableError

_logger = logging.getLogger(__name__)

#: Pause between two questions to the store, s.
_ASK_EVERY_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopLevel(IntEnum):
    """How urgently a run is asked to stop."""

    #: Not at all.
    NONE = 0
    #: Let the job end itself, then stop.
    END = 1
    #: Kill the job and stop.
    KILL = 2


#: Says how urgently the run is asked to stop; called often.
StopCheck: TypeAlias = Callable[[], StopLevel]


def never() -> StopLevel:
    """Return that nobody asks to stop."""
    return StopLevel.NONE


class StopSignals:
    """A stop check: the first SIGINT or SIGTERM within the block asks to end, the second to kill.

    The third raises `KeyboardInterrupt`, for a program that does not get to ask. SIGHUP, by which a
    closed terminal tells its programs, asks to end and no more, since it may come twice: once it
    came, it is ignored after the block, too. Who ignored it before (``nohup``) goes on ignoring it.
    For the main thread, which alone may handle signals.

    Attributes:
        first: The first signal; None before.
    """

    def __init__(self, tell: Callable[[StopLevel], object] | None = None) -> None:
        """Take signals within the block.

        Args:
            tell: Told each new level, inside the signal's handler; an `OSError` of it is ignored.
        """
        self.first: signal.Signals | None = None
        self._level = StopLevel.NONE
        self._hung_up = False
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if number is not signal.SIGHUP:
                signal.signal(number, handler)
        if signal.SIGHUP in self._before:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that came counts from here on
            if not self._hung_up:
                signal.signal(signal.SIGHUP, self._before[signal.SIGHUP])

    def __call__(self) -> StopLevel:
        """Return how urgently signals ask to stop."""
        return self._level

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._hung_up = self._hung_up or number == signal.SIGHUP
        if number == signal.SIGHUP and self._level:
            return
        if self._level is StopLevel.KILL:
            raise KeyboardInterrupt
        self.first = self.first or signal.Signals(number)
        self._level = StopLevel.KILL if self._level else StopLevel.END
        if self._tell is not None:
            with suppress(OSError):  # nobody hears it, as a terminal is gone; we stop all the same
                self._tell(self._level)


@contextmanager
def signals_kept() -> Generator[None]:
    """Put back, after the block, who handles signals that ask to stop: a library takes them over.

    Programs that the block starts ignore SIGHUP, so that they outlive a terminal and can be ended
    in order; this process ignores it meanwhile, too. Outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def asked_in_store(stop_requested: Callable[[], bool]) -> StopCheck:
    """Return a check that asks ``stop_requested`` of a store, at most once a second.

    While the store does not answer, what it said last holds: an outage shall end no job.
    """
    next_time = -1.0
    level = StopLevel.NONE

    def check() -> StopLevel:
        nonlocal next_time, level
        moment = time.monotonic()
        if moment >= next_time:
            next_time = moment + _ASK_EVERY_S
            try:
                level = StopLevel.END if stop_requested() else StopLevel.NONE
            except StoreUnavailableError as error:
                _logger.warning("whether the run is asked to stop is unknown: %s", error)
        return level

    return check


def most_urgent(*checks: StopCheck) -> StopCheck:
    """Return a check that answers with the most urgent of ``checks``."""
    return lambda: max((check() for check in checks), default=StopLevel.NONE)

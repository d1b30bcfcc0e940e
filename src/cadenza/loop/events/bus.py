"""An event log and its subscribers, without a store: for tools beside a run, and for tests.

A run itself emits through `cadenza.loop.events.journal.EventJournal`.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from cadenza.core.errors import IntegrityError, NotReadyError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import EventLogError
from cadenza.loop.events.event import Event, event_line
from cadenza.loop.events.log_file import LogFile

_LOGGER: Final = logging.getLogger(__name__)

#: Somebody who is told every event.
Subscriber: TypeAlias = Callable[[Event], object]


class EventSink(Protocol):
    """Where the workers of a loop emit their events."""

    @property
    def log_path(self) -> Path:
        """The log file."""
        ...

    def emit(self, event: Event) -> None:
        """Record an event, then tell the subscribers."""
        ...

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` every event from now on, after those who subscribed before."""
        ...


class Subscribers:
    """Those who are told every event, in the order in which they subscribed."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._subscribers: list[Subscriber] = []

    def add(self, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` too, after the others."""
        self._subscribers.append(subscriber)

    def tell(self, event: Event) -> None:
        """Tell everybody; one who fails is logged and keeps nobody from being told."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:  # a subscriber may fail in any way, and must not stop the run
                _LOGGER.exception(
                    "subscriber %r failed on %s/%s", subscriber, event.stage, event.kind
                )


class EventBus:
    """Appends events to a log and tells its subscribers; one bus at a time per log."""

    def __init__(self, log_path: Path | str) -> None:
        """Create the log's folder; the log is opened, and owned, from the first event on."""
        self._path = Path(log_path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._subscribers = Subscribers()
        self._lock = threading.RLock()
        self._log: LogFile | None = None
        self._sink: EventSink | None = None
        self._seq = 0
        self._own_from: int | None = None

    @property
    def log_path(self) -> Path:
        """The log file."""
        return self._path

    @property
    def own_from(self) -> int | None:
        """Number of the first of this bus's events at the end of the log; None for none."""
        return self._own_from

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` every event from now on, after those who subscribed before."""
        self._subscribers.add(subscriber)

    @contextmanager
    def routed(self, sink: EventSink) -> Generator[None]:
        """Hand all events to ``sink``, who owns the log, while the block lasts.

        A run does so with its journal: workers keep the bus that they were made with. Subscribers
        are told by ``sink``, whose rules apply: a journal takes events within its steps.

        Raises:
            NotReadyError: The events go elsewhere already.
        """
        with self._lock:
            if self._sink is not None:
                raise NotReadyError(
                    f"event bus of {self._path}: expected a bus of no run, got one whose events a "
                    "run takes; make a bus for each run."
                )
            self.close()
            sink.subscribe(self._subscribers.tell)
            self._sink = sink
        try:
            yield
        finally:
            self._sink = None

    def emit(self, event: Event) -> None:
        """Append the event, durably, then tell the subscribers in turn.

        Raises:
            EventLogError: Another writer owns the log, or the file system refused.
            EventError: The payload is too long.
        """
        with self._lock:
            sink = self._sink  # may change as soon as the lock is free
            if sink is None:
                self._append(event)
        if sink is not None:
            sink.emit(event)

    def _append(self, event: Event) -> None:
        if self._log is None:
            log = LogFile(self._path)
            seq = last_seq(log, self._path)
            if self._own_from is None or seq != self._seq:
                self._own_from = seq + 1
            self._seq, self._log = seq, log
        self._log.append(event_line(event, seq=self._seq + 1, mono=time.monotonic()))
        self._seq += 1
        self._subscribers.tell(event)

    def close(self) -> None:
        """Give the log free; the next event opens it again."""
        with self._lock:
            if self._log is not None:
                self._log.close()
            self._log = None


def last_seq(log: LogFile, path: Path) -> int:
    """Return the number of the log's last event; 0 for an empty log.

    Raises:
        EventLogError: The last line is no event.
    """
    line = log.last_line()
    if line is None:
        return 0
    try:
        seq = parse_json_object(line, source=str(path)).get("seq")
    except IntegrityError as error:
        raise EventLogError(f"{path}: expected an event in the last line, {error}") from error
    if not isinstance(seq, int) or seq < 1:
        raise EventLogError(
            f"{path}: expected a seq >= 1 in the last line, got {seq!r}; this log is of another "
            "program: move it away."
        )
    return seq

"""The events of a run: first into the store, then into the log, then to the subscribers.

A repeated step of the run takes the events that it recorded before for its own, in order, as long
as stage, kind and cycle agree; what it emits beyond them is appended.

The table is the truth; after a kill at any point the log gets what it lacks from it. Subscribers
are told at least once: a kill may repeat the last ones.
"""

import json
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cadenza.core.errors import NotReadyError
from cadenza.loop.errors import EventError, EventLogError, StoreError
from cadenza.loop.events.bus import Event, EventSink, LogFile, event_line
from cadenza.loop.store.rows import Lease, StoredEvent

if TYPE_CHECKING:
    from cadenza.loop.store.jobstore import JobStore


def require_free_log(path: Path, run_id: str) -> None:
    """Raise `EventLogError` if a log has another writer, or events of an unknown run."""
    if not path.exists():
        return
    log = LogFile(path)
    try:
        seq = log.last_seq()
    finally:
        log.close()
    if seq:
        raise EventLogError(
            f"{path}: expected a log without a run, got the {seq} events of a run that the "
            f"store does not know; give the new run another id than {run_id!r}, or name the "
            "store that the old one was begun with."
        )


_logger = logging.getLogger(__name__)
#: Events read from the table at once.
_PAGE: Final = 1_000


class EventJournal(EventSink):
    """Records the events of one run under the lease of its controller."""

    def __init__(self, store: "JobStore", lease: Lease, log_path: Path) -> None:
        """Own the log of the lease's run and append what it lacks, or raise `EventLogError`."""
        super().__init__(log_path)
        self._table = store.events
        self._run_id = lease.run_id
        self._lease = lease
        self._step_key: str | None = None
        self._ordinal = 0
        self._recorded: dict[int, StoredEvent] = {}
        self._log = LogFile(self._path)
        try:
            self._written = self._check_log()
            self._told = self._marked = self._table.published_up_to(self._run_id)
            while events := self._table.after(self._run_id, self._written, limit=_PAGE):
                self._write(events)
        except BaseException:
            self._log.close()
            raise

    @contextmanager
    def step(self, step_key: str) -> Generator[Self]:
        """Say which step of the run emits inside the block; a `NotReadyError` if another is open.

        ``step_key`` is unique within the run, and equal whenever the step is repeated.
        """
        with self._lock:
            if self._step_key is not None:
                raise NotReadyError(
                    f"step {step_key!r}: expected no open step, got {self._step_key!r}; steps do "
                    "not nest."
                )
            recorded = self._table.of_step(self._run_id, step_key)
            self._recorded = {event.ordinal: event for event in recorded}
            self._step_key, self._ordinal = step_key, 0
        try:
            yield self
        finally:
            self._step_key = None

    def emit(self, event: Event) -> None:
        """Record the event, unless this step recorded it before, and publish it; errors as `draft`.

        Raises:
            StaleLeaseError: Another controller took the run over; nothing is recorded.
            EventLogError: The file system refused; the event is recorded, and published later.
        """
        with self._lock:
            stored = self.draft(event)
            added: list[StoredEvent] = []
            if stored.seq == 0:
                told = range(self._marked + 1, self._told + 1)
                added = self._table.append(self._lease, [stored], published=told)
                self._marked = self._told
            up_to_date = self._written == self._told
            if up_to_date and [event.seq for event in added] == [self._written + 1]:
                self._deliver(added)  # the table has nothing else that is new
            else:
                self.publish()

    def draft(self, event: Event) -> StoredEvent:
        """Return the event with its place, to be committed by the store; then call `publish`.

        Raises:
            NotReadyError: No step is open.
            EventError: The event is of another run, or too long.
        """
        if event.run_id != self._run_id:
            raise EventError(
                f"event {event.stage}/{event.kind}: expected run {self._run_id!r}, got "
                f"{event.run_id!r}; a journal records its own run."
            )
        with self._lock:
            if self._step_key is None:
                raise NotReadyError(
                    f"event {event.stage}/{event.kind}: expected an open step, got none; emit "
                    "inside `with journal.step(key)`."
                )
            what = (event.stage, event.kind, event.cycle)
            while (recorded := self._recorded.get(self._ordinal)) is not None:
                self._ordinal += 1
                if (recorded.stage, recorded.kind, recorded.cycle) == what:
                    return recorded
            stored = StoredEvent(
                step_key=self._step_key,
                ordinal=self._ordinal,
                stage=event.stage,
                kind=event.kind,
                cycle=event.cycle,
                payload=event.payload_json(),
                ts=event.ts,
                mono=time.monotonic(),
            )
            self._ordinal += 1
            return stored

    def publish(self) -> None:
        """Write missing events to the log, then publish those that subscribers have not seen.

        After an `EventLogError` the next call tries again.
        """
        with self._lock:
            full = True
            while full:
                start = min(self._written, self._told)
                events = self._table.after(self._run_id, start, limit=_PAGE)
                self._deliver(events)
                full = len(events) == _PAGE

    def close(self) -> None:
        """Record what was published, and release the log."""
        try:
            if self._told > self._marked:
                self._table.mark_published(self._lease, range(self._marked + 1, self._told + 1))
                self._marked = self._told
        except StoreError as error:  # the run's next controller tells them again
            _logger.info("the record of published events was not written: %s", error)
        finally:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deliver(self, events: Sequence[StoredEvent]) -> None:
        """Write and tell what is new among ``events``, which follow one another."""
        self._write([stored for stored in events if stored.seq > self._written])
        for stored in events:
            if stored.seq > self._told:  # a subscriber that emits gets here before us
                self._told = stored.seq
                self.tell(_event_of(self._run_id, stored))

    def _write(self, events: Sequence[StoredEvent]) -> None:
        if events:
            self._log.append(b"".join(_line_of(self._run_id, stored) for stored in events))
            self._written = events[-1].seq

    def _check_log(self) -> int:
        """Return the number of the log's last event, which must be the table's too."""
        seq = self._log.last_seq()
        if seq == 0:
            return 0
        stored = self._table.after(self._run_id, seq - 1, limit=1)
        if not stored or _line_of(self._run_id, stored[0]) != self._log.last_line():
            raise EventLogError(
                f"{self._path}: expected event {seq} as the store has it in the last line, got "
                "another; log and store are of different runs: move the log away and resume, and "
                "it is written anew."
            )
        return seq


def _event_of(run_id: str, stored: StoredEvent) -> Event:
    payload = json.loads(stored.payload)
    return Event(run_id, stored.stage, stored.kind, stored.cycle, payload, stored.ts)


def _line_of(run_id: str, stored: StoredEvent) -> bytes:
    return event_line(_event_of(run_id, stored), seq=stored.seq, mono=stored.mono)

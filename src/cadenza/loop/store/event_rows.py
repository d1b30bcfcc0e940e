"""Events in the table: numbered 1, 2, 3, ... within a run, each (step, ordinal) once."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from cadenza.loop.store.database import Database
from cadenza.loop.store.leases import require_lease
from cadenza.loop.store.models import EventRow
from cadenza.loop.store.rows import Lease, StoredEvent

_COLUMNS: Final = (
    EventRow.step_key,
    EventRow.ordinal,
    EventRow.stage,
    EventRow.kind,
    EventRow.cycle,
    EventRow.payload,
    EventRow.ts,
    EventRow.mono,
    EventRow.seq,
)


class EventTable:
    """Reads events, appends them, and marks those that log file and subscribers have."""

    def __init__(self, database: Database) -> None:
        """Look at the events of ``database``."""
        self._database = database

    def append(
        self, lease: Lease, events: Sequence[StoredEvent], *, published: range = range(0)
    ) -> list[StoredEvent]:
        """Append what is not there yet, in one transaction, and return it with its numbers.

        Args:
            lease: Lease of the run.
            events: What a step emits.
            published: Numbers of earlier events to mark as published on the way.

        Raises:
            StaleLeaseError: Another controller took the run over; nothing is appended.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            _mark(connection, lease.run_id, published)
            return append_events(connection, lease.run_id, events)

    def of_kind(self, run_id: str, stage: str, kind: str) -> list[StoredEvent]:
        """Return the run's events of one kind, in order."""
        condition = (EventRow.run_id == run_id, EventRow.stage == stage, EventRow.kind == kind)
        return self._select(*condition, order=EventRow.seq)

    def of_step(self, run_id: str, step_key: str) -> list[StoredEvent]:
        """Return the events of one step by ordinal."""
        condition = (EventRow.run_id == run_id, EventRow.step_key == step_key)
        return self._select(*condition, order=EventRow.ordinal)

    def after(self, run_id: str, seq: int, *, limit: int = 10_000) -> list[StoredEvent]:
        """Return at most ``limit`` events behind number ``seq``, in order."""
        condition = (EventRow.run_id == run_id, EventRow.seq > seq)
        return self._select(*condition, order=EventRow.seq, limit=limit)

    def last_seq(self, run_id: str) -> int:
        """Return the number of the run's last event; 0 for none."""
        last = select(func.max(EventRow.seq)).where(EventRow.run_id == run_id)
        with self._database.read() as connection:
            return connection.scalar(last) or 0

    def published_up_to(self, run_id: str) -> int:
        """Return the number up to which all events are marked as published."""
        of_run = EventRow.run_id == run_id
        with self._database.read() as connection:
            first = connection.scalar(
                select(func.min(EventRow.seq)).where(of_run, EventRow.published == 0)
            )
            last = connection.scalar(select(func.max(EventRow.seq)).where(of_run))
        return (last or 0) if first is None else first - 1

    def mark_published(self, lease: Lease, numbers: range) -> None:
        """Mark the events of these numbers as published.

        Raises:
            StaleLeaseError: Another controller took the run over; it publishes now.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            _mark(connection, lease.run_id, numbers)

    def _select(self, *condition: Any, order: Any, limit: int | None = None) -> list[StoredEvent]:
        statement = select(*_COLUMNS).where(*condition).order_by(order).limit(limit)
        with self._database.read() as connection:
            return [StoredEvent(**row) for row in connection.execute(statement).mappings()]


def append_events(
    connection: Connection, run_id: str, events: Sequence[StoredEvent]
) -> list[StoredEvent]:
    """Append what is not there yet and return it; the caller's transaction holds the run's lock."""
    if not events:
        return []
    present = _places(connection, run_id, events)
    fresh: list[StoredEvent] = []
    for event in events:
        if (event.step_key, event.ordinal) not in present:
            present.add((event.step_key, event.ordinal))
            fresh.append(event)
    if not fresh:
        return []
    of_run = EventRow.run_id == run_id
    last = connection.scalar(select(func.max(EventRow.seq)).where(of_run)) or 0
    numbered = [replace(event, seq=last + place) for place, event in enumerate(fresh, start=1)]
    connection.execute(insert(EventRow), [{"run_id": run_id, **asdict(row)} for row in numbered])
    return numbered


def _places(
    connection: Connection, run_id: str, events: Sequence[StoredEvent]
) -> set[tuple[str, int]]:
    """Return where the steps of ``events`` have events, from the first ordinal asked for on."""
    rows = connection.execute(
        select(EventRow.step_key, EventRow.ordinal).where(
            EventRow.run_id == run_id,
            EventRow.step_key.in_({event.step_key for event in events}),
            EventRow.ordinal >= min(event.ordinal for event in events),
        )
    )
    return {(row.step_key, row.ordinal) for row in rows}


def _mark(connection: Connection, run_id: str, numbers: range) -> None:
    if not numbers:
        return
    connection.execute(
        update(EventRow)
        .where(EventRow.run_id == run_id, EventRow.seq.between(numbers[0], numbers[-1]))
        .values(published=1)
    )

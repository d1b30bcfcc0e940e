"""Events in the table: numbered 1, 2, 3, ... within a run, each (step, ordinal) once."""

from collections.abc import Sequence
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

    def append(self, lease: Lease, events: Sequence[StoredEvent]) -> None:
        """Append what is not there yet, in one transaction.

        Raises:
            StaleLeaseError: Another controller took the run over; nothing is appended.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            append_events(connection, lease.run_id, events)

    def of_step(self, run_id: str, step_key: str) -> list[StoredEvent]:
        """Return the events of one step by ordinal."""
        condition = (EventRow.run_id == run_id, EventRow.step_key == step_key)
        return self._select(*condition, order=EventRow.ordinal)

    def after(self, run_id: str, seq: int, *, limit: int = 10_000) -> list[StoredEvent]:
        """Return at most ``limit`` events behind number ``seq``, in order."""
        condition = (EventRow.run_id == run_id, EventRow.seq > seq)
        return self._select(*condition, order=EventRow.seq, limit=limit)

    def published_up_to(self, run_id: str) -> int:
        """Return the number up to which all events are marked as published."""
        of_run = EventRow.run_id == run_id
        with self._database.read() as connection:
            first = connection.scalar(
                select(func.min(EventRow.seq)).where(of_run, EventRow.published == 0)
            )
            last = connection.scalar(select(func.max(EventRow.seq)).where(of_run))
        return (last or 0) if first is None else first - 1

    def mark_published(self, lease: Lease, seq: int) -> None:
        """Mark the events up to number ``seq`` as published.

        Raises:
            StaleLeaseError: Another controller took the run over; it publishes now.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            connection.execute(
                update(EventRow)
                .where(
                    EventRow.run_id == lease.run_id, EventRow.seq <= seq, EventRow.published == 0
                )
                .values(published=1)
            )

    def _select(self, *condition: Any, order: Any, limit: int | None = None) -> list[StoredEvent]:
        statement = select(*_COLUMNS).where(*condition).order_by(order).limit(limit)
        with self._database.read() as connection:
            return [StoredEvent(**row) for row in connection.execute(statement).mappings()]


def append_events(connection: Connection, run_id: str, events: Sequence[StoredEvent]) -> None:
    """Append what is not there yet; the caller's transaction holds the run's lock."""
    if not events:
        return
    last = connection.scalar(select(func.max(EventRow.seq)).where(EventRow.run_id == run_id))
    seq = last or 0
    for event in events:
        place = (
            EventRow.run_id == run_id,
            EventRow.step_key == event.step_key,
            EventRow.ordinal == event.ordinal,
        )
        if connection.scalar(select(EventRow.seq).where(*place)) is not None:
            continue
        seq += 1
        connection.execute(
            insert(EventRow).values(
                run_id=run_id,
                seq=seq,
                step_key=event.step_key,
                ordinal=event.ordinal,
                ts=event.ts,
                mono=event.mono,
                stage=event.stage,
                kind=event.kind,
                cycle=event.cycle,
                payload=event.payload,
            )
        )

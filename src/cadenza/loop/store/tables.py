"""Tables of a run's events, jobs and model replies: what happened is kept once, whoever repeats it.

Events:   numbered 1, 2, 3, ... within a run, each (step, ordinal) once.
Jobs:     opened once by key, attempted one or more times, closed once.
Replies:  a repeated step gets the reply it got before. A call is booked before it is made: the row
          is there without a text, at the most that the call can cost, until the reply settles it.

Whatever changes something names the lease of its controller, raises `StaleLeaseError` if another
one took the run over, and may be repeated after a crash: what was recorded stays and is returned.
"""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any, Final, cast

from sqlalchemy import Connection, and_, func, insert, select, update

from cadenza.core.errors import InputError
from cadenza.core.files import sha256_bytes
from cadenza.loop.contracts.records import Device, JobKey, JobSpec, JobStatus
from cadenza.loop.errors import RecordConflictError, UnknownRowError
from cadenza.loop.store.database import Database, now, plain_text
from cadenza.loop.store.leases import require_lease
from cadenza.loop.store.models import EventRow, Job, LlmReply
from cadenza.loop.store.rows import JobRow, Lease, ReplyRow, StoredEvent

_EVENT_COLUMNS: Final = [getattr(EventRow, one.name) for one in fields(StoredEvent)]
#: The text of a reply that is booked and not there.
NO_TEXT: Final = json.dumps(None)


class EventTable:
    """Reads events, appends them, and marks those that log file and subscribers have."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self, lease: Lease, events: Sequence[StoredEvent], *, published: range = range(0)
    ) -> list[StoredEvent]:
        """Append what is not there yet, mark earlier ``published`` ones; return what was added."""
        with self._database.write() as connection:
            require_lease(connection, lease)
            _mark(connection, lease.run_id, published)
            return append_events(connection, lease.run_id, events)

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
        with self._database.read() as connection:
            return _last_seq(connection, run_id)

    def published_up_to(self, run_id: str) -> int:
        """Return the number up to which all events are marked as published."""
        of_run = EventRow.run_id == run_id
        with self._database.read() as connection:
            first = connection.scalar(
                select(func.min(EventRow.seq)).where(of_run, EventRow.published == 0)
            )
            return _last_seq(connection, run_id) if first is None else first - 1

    def mark_published(self, lease: Lease, numbers: range) -> None:
        """Mark the events of these numbers as published."""
        with self._database.write() as connection:
            require_lease(connection, lease)
            _mark(connection, lease.run_id, numbers)

    def _select(self, *condition: Any, order: Any, limit: int | None = None) -> list[StoredEvent]:
        statement = select(*_EVENT_COLUMNS).where(*condition).order_by(order).limit(limit)
        with self._database.read() as connection:
            return [StoredEvent(**row) for row in connection.execute(statement).mappings()]


def append_events(
    connection: Connection, run_id: str, events: Sequence[StoredEvent]
) -> list[StoredEvent]:
    """Append what is not there yet and return it; the caller's transaction holds the run's lock."""
    if not events:
        return []
    of_steps = EventRow.step_key.in_({event.step_key for event in events})
    from_first = EventRow.ordinal >= min(event.ordinal for event in events)
    rows = connection.execute(
        select(EventRow.step_key, EventRow.ordinal).where(
            EventRow.run_id == run_id, of_steps, from_first
        )
    )
    present = {(row.step_key, row.ordinal) for row in rows}
    added: list[StoredEvent] = []
    for event in events:
        if (event.step_key, event.ordinal) not in present:
            present.add((event.step_key, event.ordinal))
            added.append(event)
    last = _last_seq(connection, run_id)
    numbered = [replace(event, seq=last + place) for place, event in enumerate(added, start=1)]
    if numbered:
        values = [{"run_id": run_id, **asdict(row)} for row in numbered]
        connection.execute(insert(EventRow), values)
    return numbered


def _last_seq(connection: Connection, run_id: str) -> int:
    return connection.scalar(select(func.max(EventRow.seq)).where(EventRow.run_id == run_id)) or 0


def _mark(connection: Connection, run_id: str, numbers: range) -> None:
    if numbers:
        connection.execute(
            update(EventRow)
            .where(EventRow.run_id == run_id, EventRow.seq.between(numbers[0], numbers[-1]))
            .values(published=1)
        )


class JobTable:
    """Opens, follows and closes jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, lease: Lease, spec: JobSpec) -> JobRow:
        """Return the job's row, made now if it was not there.

        Raises:
            RecordConflictError: The key belongs to a job with another command or device.
        """
        _require_own(lease, spec.key)
        with self._database.write() as connection:
            require_lease(connection, lease)
            if _find(connection, spec.key) is None:
                connection.execute(
                    insert(Job).values(
                        **spec.key.model_dump(),
                        cmd=json.dumps(spec.command),
                        device=spec.device,
                        result_path=None if spec.result_path is None else str(spec.result_path),
                    )
                )
            row = _get(connection, spec.key)
        if (row.command, row.device) != (spec.command, spec.device):
            raise RecordConflictError(
                f"{_name(spec.key)}: expected the recorded command {list(row.command)} on "
                f"{row.device}, got {list(spec.command)} on {spec.device}; a repeated step must "
                "ask for the same job."
            )
        return row

    def begin_attempt(self, lease: Lease, key: JobKey) -> JobRow:
        """Count one more start of a job; a `RecordConflictError` unless it is pending."""
        with self._changing(lease, key) as (connection, row):
            if row.status != "pending":
                raise RecordConflictError(
                    f"{_name(key)}: expected a pending job, got one that is {row.status}; end its "
                    "attempt before the next."
                )
            moment, values = now(connection), {"pid": None, "pid_start_time": None}
            values |= {"attempt": row.attempt + 1, "status": "running", "started": moment}
            return _update(connection, key, values | {"heartbeat": moment, "attempt_s": 0.0})

    def set_process(self, lease: Lease, key: JobKey, *, pid: int, pid_start_time: float) -> JobRow:
        """Say which process runs the attempt; a `RecordConflictError` if none is running."""
        with self._changing(lease, key) as (connection, row):
            _require_running(row)
            return _update(connection, key, {"pid": pid, "pid_start_time": pid_start_time})

    def heartbeat(self, lease: Lease, key: JobKey, *, attempt_s: float) -> JobRow:
        """Note that the attempt lives after ``attempt_s``; a `RecordConflictError` without one."""
        _require_seconds(attempt_s)
        with self._changing(lease, key) as (connection, row):
            _require_running(row)
            values = {"heartbeat": now(connection), "attempt_s": attempt_s}
            return _update(connection, key, values)

    def end_attempt(
        self,
        lease: Lease,
        key: JobKey,
        *,
        attempt: int,
        exit_code: int | None,
        duration_s: float,
        interrupted: bool,
    ) -> JobRow:
        """Record how an attempt, from 1, ended; the job waits for its next one or for `close`.

        ``exit_code`` is negative for a signal, None if nobody saw it; ``duration_s`` is charged to
        the job's device however it ended; ``interrupted``: whether a signal from outside ended it.

        Raises:
            RecordConflictError: The attempt was never begun.
        """
        _require_seconds(duration_s)
        with self._changing(lease, key) as (connection, row):
            if not 1 <= attempt <= row.attempt:
                raise RecordConflictError(
                    f"{_name(key)}: expected an attempt of 1 to {row.attempt}, got {attempt}."
                )
            if row.status != "running" or attempt < row.attempt:
                return row
            values = {"duration_s": row.duration_s + duration_s, "attempt_s": 0.0}
            values |= {"interruptions": row.interruptions + int(interrupted)}
            return _update(connection, key, values | {"status": "pending", "exit": exit_code})

    def close(
        self, lease: Lease, key: JobKey, status: JobStatus, *, result_sha256: str | None = None
    ) -> JobRow:
        """End the job for good; closing it so again changes nothing.

        Raises:
            RecordConflictError: It was closed otherwise, an attempt is running, or ``status`` is
                no end.
        """
        if status in ("pending", "running"):
            raise RecordConflictError(f"{_name(key)}: expected an end, got {status!r}.")
        with self._changing(lease, key) as (connection, row):
            if row.status == status:
                return row
            if row.status != "pending":
                raise RecordConflictError(
                    f"{_name(key)}: expected a pending job to close as {status}, got one that is "
                    f"{row.status}."
                )
            values = {"status": status, "result_sha256": result_sha256}
            return _update(connection, key, values | {"finished": now(connection)})

    def reopen(self, lease: Lease, key: JobKey) -> JobRow:
        """Let a failed or cancelled job run again; its failures no longer count, its seconds do."""
        with self._changing(lease, key) as (connection, row):
            if row.status in ("running", "succeeded"):
                raise RecordConflictError(
                    f"{_name(key)}: expected a failed or cancelled job, got one that is "
                    f"{row.status}."
                )
            if row.status == "pending":
                return row
            values = {"status": "pending", "interruptions": row.attempt, "finished": None}
            return _update(connection, key, values)

    def get(self, key: JobKey) -> JobRow | None:
        """Return the job; None if it was never opened."""
        with self._database.read() as connection:
            return _find(connection, key)

    def of_run(self, run_id: str, *, since: int = 0) -> list[JobRow]:
        """Return the jobs of the run's cycles from ``since`` on, in the order they were opened."""
        wanted = (Job.run_id == run_id, Job.cycle >= since)
        statement = select(Job.__table__).where(*wanted).order_by(Job.id)
        with self._database.read() as connection:
            return [job_row(values) for values in connection.execute(statement).mappings()]

    def spent_s(self, run_id: str) -> dict[Device, float]:
        """Return the seconds of all attempts by device, failed and running ones included."""
        seconds = func.sum(Job.duration_s + Job.attempt_s).label("seconds")
        statement = select(Job.device, seconds).where(Job.run_id == run_id).group_by(Job.device)
        spent: dict[Device, float] = {"cpu": 0.0, "gpu": 0.0}
        with self._database.read() as connection:
            for row in connection.execute(statement):
                spent[cast("Device", row.device)] = row.seconds
        return spent

    @contextmanager
    def _changing(self, lease: Lease, key: JobKey) -> Generator[tuple[Connection, JobRow]]:
        _require_own(lease, key)
        with self._database.write() as connection:
            require_lease(connection, lease)
            yield connection, _get(connection, key)


def _name(key: JobKey) -> str:
    return f"job {key.run_id}/{key.cycle}/{key.stage}"


def _require_own(lease: Lease, key: JobKey) -> None:
    if key.run_id != lease.run_id:
        raise InputError(
            f"{_name(key)}: expected a job of run {lease.run_id!r}, which the lease is for."
        )


def _require_seconds(seconds: float) -> None:
    if not 0.0 <= seconds < math.inf:
        raise InputError(f"seconds of a job: expected a finite number >= 0, got {seconds}.")


def _require_running(row: JobRow) -> None:
    if row.status != "running":
        raise RecordConflictError(
            f"{_name(row.key)}: expected a running attempt, got a job that is {row.status}."
        )


def _where(key: JobKey) -> Any:
    return and_(Job.run_id == key.run_id, Job.cycle == key.cycle, Job.stage == key.stage)


def _find(connection: Connection, key: JobKey) -> JobRow | None:
    values = connection.execute(select(Job.__table__).where(_where(key))).mappings().one_or_none()
    return None if values is None else job_row(values)


def _get(connection: Connection, key: JobKey) -> JobRow:
    row = _find(connection, key)
    if row is None:
        raise UnknownRowError(f"{_name(key)}: expected an opened job, got none; open it first.")
    return row


def _update(connection: Connection, key: JobKey, values: Mapping[str, Any]) -> JobRow:
    connection.execute(update(Job).where(_where(key)).values(**values))
    return _get(connection, key)


def job_row(values: Mapping[Any, Any]) -> JobRow:
    """Return a row of the table of jobs as what it tells."""
    named = {str(name): value for name, value in values.items()}
    parts = {name: named.pop(name) for name in ("run_id", "cycle", "stage", "cmd", "exit")}
    return JobRow(
        key=JobKey(run_id=parts["run_id"], cycle=parts["cycle"], stage=parts["stage"]),
        command=tuple(json.loads(parts["cmd"])),
        exit_code=parts["exit"],
        **named,
    )


class Replies:
    """Stores and returns replies by (run, cycle, purpose, ordinal)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> ReplyRow | None:
        """Return a reply; None if there is none yet, though it may be booked."""
        with self._database.read() as connection:
            return _find_reply(connection, _key(run_id, cycle, purpose, ordinal))

    def booked_usd(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        key = _key(run_id, cycle, purpose, ordinal)
        statement = select(LlmReply.cost_usd).filter_by(**key, text=NO_TEXT)
        with self._database.read() as connection:
            return connection.scalar(statement) or 0.0

    def book(self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow) -> None:
        """Keep what asking can cost in place of what was booked, unless the reply is there."""
        key = _key(lease.run_id, cycle, purpose, ordinal)
        values = _values(reply) | {"text": NO_TEXT, "response_sha256": ""}
        with self._database.write() as connection:
            require_lease(connection, lease)
            _write(connection, key, values)

    def record(
        self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow
    ) -> ReplyRow:
        """Store a reply and return it, or return the one that is there: the first one holds."""
        key = _key(lease.run_id, cycle, purpose, ordinal)
        with self._database.write() as connection:
            require_lease(connection, lease)
            present = _find_reply(connection, key)
            if present is not None:
                return present
            _write(connection, key, _values(reply))
        return reply

    def spent_usd(self, run_id: str) -> float:
        """Return what all replies of a run cost, failed and booked ones too, US dollars.

        Those of unknown cost add nothing.
        """
        spent = select(func.sum(LlmReply.cost_usd)).where(LlmReply.run_id == run_id)
        with self._database.read() as connection:
            return connection.scalar(spent) or 0.0


def _key(run_id: str, cycle: int, purpose: str, ordinal: int) -> dict[str, Any]:
    return {"run_id": run_id, "cycle": cycle, "purpose": purpose, "ordinal": ordinal}


def _values(reply: ReplyRow) -> dict[str, Any]:
    values = asdict(reply)
    about, written = values.pop("about"), reply.text.encode("utf-8", "surrogatepass")
    return values | {
        "response_sha256": sha256_bytes(written),
        "text": json.dumps(reply.text if about is None else {"text": reply.text, "about": about}),
        "error": None if reply.error is None else plain_text(reply.error),
    }


def _write(connection: Connection, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Add a row, or replace one that is only booked."""
    booked = update(LlmReply).filter_by(**key, text=NO_TEXT).values(**values)
    if connection.execute(booked).rowcount == 0 and _find_reply(connection, key) is None:
        connection.execute(insert(LlmReply).values(**key, **values))


def _find_reply(connection: Connection, key: dict[str, Any]) -> ReplyRow | None:
    columns = [getattr(LlmReply, one.name) for one in fields(ReplyRow) if one.name != "about"]
    row = connection.execute(select(*columns).filter_by(**key)).mappings().one_or_none()
    if row is None:
        return None
    told = json.loads(row["text"])
    match told:
        case None:
            return None
        case {"text": text, "about": about}:
            return ReplyRow(**{**row, "text": text}, about=about)
        case _:
            return ReplyRow(**{**row, "text": told})

"""Parts of the job store: who works on a run, what happened, jobs, questions, model replies.

Leases:   at most one controller changes a run. A lease lasts for a while by the database's clock
          and is renewed before it runs out. Taking a run over raises its epoch; every write names
          the epoch of its lease, so a controller that was taken over, however long it slept,
          changes nothing.
Events:   numbered 1, 2, 3, ... within a run, each (step, ordinal) once.
Jobs:     opened once by key, attempted one or more times, closed once.
Approvals: asked for by `changes.request_approval`, answered once, by whoever may, without a lease.
Replies:  a repeated step gets the reply it got before. A call is booked before it is made: the row
          is there without a text, at the most that the call can cost, until the reply settles it.

Whatever else changes something names the lease of its controller, raises `StaleLeaseError` if
another one took the run over, and may be repeated after a crash: what was recorded stays and is
returned.
"""

import json
import logging
import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, Final, Literal, Self

from sqlalchemy import Connection, func, insert, select, update

from cadenza.core.errors import InputError
from cadenza.core.files import sha256_bytes
from cadenza.loop.contracts.records import Device, JobKey, JobSpec, JobStatus
from cadenza.loop.errors import (
    ApprovalDecidedError,
    LeaseHeldError,
    RecordConflictError,
    StaleLeaseError,
    StoreUnavailableError,
    UnknownRowError,
)
from cadenza.loop.processes import is_gone, readable
from cadenza.loop.store.database import Database, now, plain_text, require_plain
from cadenza.loop.store.rows import ApprovalRow, JobRow, Lease, ReplyRow, StoredEvent
from cadenza.loop.store.schema import approvals, events, jobs, llm_replies, runs


class Part:
    """One part of a store, on its connections."""

    def __init__(self, database: Database) -> None:
        self._database = database


class Leases(Part):
    """Who works on which run."""

    def acquire(
        self,
        run_id: str,
        owner: str,
        *,
        ttl_s: float,
        gone: Callable[[str], bool] = is_gone,
        to_work: bool = False,
    ) -> Lease:
        """Take the run for ``ttl_s``: free, run out, or left by a process that is gone.

        ``owner`` is who asks, see `cadenza.loop.processes.this_process`; ``gone`` tells whether the
        present one is known to be dead. ``to_work`` forgets that the run was asked to stop: later
        requests are for the new owner.

        Raises:
            LeaseHeldError: Another controller holds the run.
            UnknownRowError: There is no such run.
        """
        if not (owner and ttl_s > 0.0):
            raise InputError(f"lease: expected an owner and ttl_s > 0, got {owner!r}, {ttl_s}.")
        with self._database.write(run_id) as connection:
            moment = now(connection)
            columns = (runs.c.lease_owner, runs.c.lease_epoch, runs.c.lease_expires_at)
            row = connection.execute(select(*columns).filter_by(id=run_id)).one()
            left_s = (row.lease_expires_at or 0.0) - moment
            if row.lease_owner is not None and left_s > 0.0 and not gone(row.lease_owner):
                raise LeaseHeldError(
                    f"run {run_id!r}: expected a free run, got one that "
                    f"{readable(row.lease_owner)} works on for another {left_s:.0f} s at least; "
                    "wait, or ask it to stop with `cadenza loop stop`."
                )
            lease = Lease(run_id=run_id, owner=owner, epoch=row.lease_epoch + 1, ttl_s=ttl_s)
            values = {"lease_owner": owner, "lease_epoch": lease.epoch}
            values |= {"lease_expires_at": moment + ttl_s}
            values |= {"stop_requested_at": None} if to_work else {}
            connection.execute(update(runs).filter_by(id=run_id).values(values))
        return lease

    def renew(self, lease: Lease) -> None:
        """Let the lease last ``ttl_s`` from now; one that ran out lives on if nobody took the run.

        Raises:
            StaleLeaseError: It was released, or another controller took the run over.
        """
        with self._database.write(lease) as connection:
            renewed = update(runs).filter_by(id=lease.run_id)
            connection.execute(renewed.values(lease_expires_at=now(connection) + lease.ttl_s))

    def release(self, lease: Lease) -> None:
        """Give the run free; nothing happens if another controller has it."""
        with self._database.write() as connection:
            held = {"id": lease.run_id, "lease_epoch": lease.epoch, "lease_owner": lease.owner}
            freed = update(runs).filter_by(**held).values(lease_owner=None, lease_expires_at=None)
            connection.execute(freed)

    def holder(self, run_id: str) -> str | None:
        """Return who works on the run now.

        None if its lease is free or ran out, or its owner is a process that is known to be gone.
        """
        with self._database.read() as connection:
            lasting = runs.c.lease_expires_at > now(connection)
            owner = connection.scalar(
                select(runs.c.lease_owner).where(runs.c.id == run_id, lasting)
            )
        return None if owner is None or is_gone(owner) else owner


_LOGGER: Final = logging.getLogger(__name__)
#: Renewals per duration of a lease: two may fail before it runs out.
_RENEWALS_PER_TTL: Final = 3.0


class LeaseKeeper:
    """Keeps a lease within a ``with`` block, from a thread of its own, and releases it at the end.

    It need not be watched: the store refuses what the holder of a lost lease wants to write.
    """

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self.lease = lease
        self._leases = leases
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._leases.release(self.lease)
        except StoreUnavailableError as error:  # then it runs out
            _LOGGER.warning("could not release the lease of run %s: %s", self.lease.run_id, error)

    def _keep(self) -> None:
        while not self._stop.wait(self.lease.ttl_s / _RENEWALS_PER_TTL):
            try:
                self._leases.renew(self.lease)
            except StaleLeaseError:
                _LOGGER.warning("the lease of run %s was lost", self.lease.run_id)
                return
            except StoreUnavailableError as error:
                _LOGGER.warning("could not renew the lease of run %s: %s", self.lease.run_id, error)


class EventTable(Part):
    """Reads events, appends them, and marks those that log file and subscribers have."""

    def append(
        self, lease: Lease, new: Sequence[StoredEvent], *, published: range = range(0)
    ) -> None:
        """Append what is not there yet, and mark earlier ones as published."""
        with self._database.write(lease) as connection:
            if published:
                marked = events.c.seq.between(published[0], published[-1])
                of_run = update(events).where(events.c.run_id == lease.run_id, marked)
                connection.execute(of_run.values(published=1))
            append_events(connection, lease.run_id, new)

    def find(
        self,
        run_id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        step_key: str | None = None,
        stage: str | None = None,
        kind: str | None = None,
        cycle: int | None = None,
        text: str | None = None,
        limit: int = 10_000,
        width: int | None = None,
    ) -> list[StoredEvent]:
        """Return at most ``limit`` events in order: the first behind ``after``, else the last ones.

        ``after`` and ``before`` are sequence numbers, themselves left out; ``text`` is looked for
        in the payload, in either case of its ASCII letters; of payloads, ``width`` characters are
        read.
        """
        wanted = {"step_key": step_key, "stage": stage, "kind": kind, "cycle": cycle}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        conditions: list[Any] = []
        if kind is not None and "cycle" in wanted:  # of a kind there are fewer: by its index
            conditions.append(events.c.cycle + 0 == wanted.pop("cycle"))
        if after is not None:
            conditions.append(events.c.seq > after)
        if before is not None:
            conditions.append(events.c.seq < before)
        if text:
            written = json.dumps(text)[1:-1]  # payloads are ASCII
            conditions.append(events.c.payload.icontains(written, autoescape=True))
        columns: list[Any] = [events.c[one.name] for one in fields(StoredEvent)]
        if width is not None:
            columns.remove(events.c.payload)
            columns.append(func.substr(events.c.payload, 1, width).label("payload"))
        found = select(*columns).filter_by(run_id=run_id, **wanted).where(*conditions)
        order = events.c.seq.desc() if after is None else events.c.seq
        rows = self._database.rows(found.order_by(order).limit(limit))
        return [StoredEvent(**row) for row in (rows[::-1] if after is None else rows)]

    def last_seq(self, run_id: str) -> int:
        """Return the number of the run's last event; 0 for none."""
        with self._database.read() as connection:
            return _last_seq(connection, run_id)

    def words(self, run_id: str) -> dict[str, list[str]]:
        """Return the stages and kinds that a run's events have, sorted.

        From each the index leads to the next, past all events that share it.
        """
        of_run, found = events.c.run_id == run_id, dict[str, list[str]]()
        with self._database.read() as connection:
            for column in (events.c.stage, events.c.kind):
                known = found[column.name] = list[str]()
                first = select(func.min(column)).where(of_run)
                word = connection.scalar(first)
                while word is not None:
                    known.append(word)
                    word = connection.scalar(first.where(column > word))
        return found

    def published_up_to(self, run_id: str) -> int:
        """Return the number up to which all events are marked as published."""
        first = select(func.min(events.c.seq)).select_from(events)
        with self._database.read() as connection:
            unpublished = connection.scalar(first.filter_by(run_id=run_id, published=0))
            return _last_seq(connection, run_id) if unpublished is None else unpublished - 1


def append_events(connection: Connection, run_id: str, new: Sequence[StoredEvent]) -> None:
    """Append what is not there yet; the caller's transaction holds the run's lock."""
    if not new:
        return
    steps = {event.step_key for event in new}
    there = select(events.c.step_key, events.c.ordinal).where(
        events.c.run_id == run_id, events.c.step_key.in_(steps)
    )
    known = {(row.step_key, row.ordinal) for row in connection.execute(there)}
    added = [event for event in new if (event.step_key, event.ordinal) not in known]
    numbered = enumerate(added, start=_last_seq(connection, run_id) + 1)
    rows = [{"run_id": run_id, **asdict(event), "seq": seq} for seq, event in numbered]
    if rows:
        connection.execute(insert(events), rows)


def _last_seq(connection: Connection, run_id: str) -> int:
    return connection.scalar(select(func.max(events.c.seq)).where(events.c.run_id == run_id)) or 0


class JobTable(Part):
    """Opens, follows and closes jobs; each of these raises an error for what is out of order.

    That is a `RecordConflictError`, or an `UnknownRowError` for a job that was never opened.
    """

    def open(self, lease: Lease, spec: JobSpec) -> JobRow:
        """Return the job's row, made now if it was not there; refuse another command or device."""
        result_path = None if spec.result_path is None else str(spec.result_path)
        fresh = {"cmd": json.dumps(spec.command), "device": spec.device, "result_path": result_path}
        with self._changing(lease, spec.key) as connection:
            if _find(connection, spec.key) is None:
                connection.execute(insert(jobs).values(**spec.key.model_dump(), **fresh))
            row = _get(connection, spec.key)
        if (row.command, row.device) != (spec.command, spec.device):
            raise RecordConflictError(
                f"{_name(spec.key)}: expected the recorded command {list(row.command)} on "
                f"{row.device}, got {list(spec.command)} on {spec.device}; a repeated step must "
                "ask for the same job."
            )
        return row

    def begin_attempt(self, lease: Lease, key: JobKey) -> JobRow:
        """Count one more start of a pending job."""
        with self._changing(lease, key) as connection:
            row = _get(connection, key)
            _require(row, "pending", "a pending job", "; end its attempt before the next.")
            moment = now(connection)
            values = {"attempt": row.attempt + 1, "status": "running", "attempt_s": 0.0}
            values |= {"pid": None, "pid_start_time": None, "started": moment, "heartbeat": moment}
            return _update(connection, key, values)

    def set_process(self, lease: Lease, key: JobKey, *, pid: int, pid_start_time: float) -> JobRow:
        """Say which process runs the running attempt."""
        with self._changing(lease, key) as connection:
            _require(_get(connection, key), "running", "a running attempt")
            return _update(connection, key, {"pid": pid, "pid_start_time": pid_start_time})

    def heartbeat(self, lease: Lease, key: JobKey, *, attempt_s: float) -> JobRow:
        """Note that the running attempt lives after ``attempt_s``."""
        _require_seconds(attempt_s)
        with self._changing(lease, key) as connection:
            _require(_get(connection, key), "running", "a running attempt")
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
        """
        _require_seconds(duration_s)
        with self._changing(lease, key) as connection:
            row = _get(connection, key)
            if not 1 <= attempt <= row.attempt:
                raise RecordConflictError(
                    f"{_name(key)}: expected an attempt of 1 to {row.attempt}, got {attempt}."
                )
            if row.status != "running" or attempt < row.attempt:
                return row
            values = {"status": "pending", "exit": exit_code, "attempt_s": 0.0}
            values |= {"duration_s": row.duration_s + duration_s}
            values |= {"interruptions": row.interruptions + int(interrupted)}
            return _update(connection, key, values)

    def close(
        self, lease: Lease, key: JobKey, status: JobStatus, *, result_sha256: str | None = None
    ) -> JobRow:
        """End the job for good, unless an attempt is running; the same again changes nothing."""
        if status in ("pending", "running"):
            raise RecordConflictError(f"{_name(key)}: expected an end, got {status!r}.")
        with self._changing(lease, key) as connection:
            row = _get(connection, key)
            if row.status == status:
                return row
            _require(row, "pending", f"a pending job to close as {status}")
            values = {"status": status, "result_sha256": result_sha256}
            return _update(connection, key, values | {"finished": now(connection)})

    def reopen(self, lease: Lease, key: JobKey) -> JobRow:
        """Let a failed or cancelled job run again; its failures no longer count, its seconds do."""
        with self._changing(lease, key) as connection:
            row = _get(connection, key)
            if row.status == "pending":
                return row
            if row.status not in ("failed", "cancelled"):
                _require(row, "failed", "a failed or cancelled job")
            values = {"status": "pending", "interruptions": row.attempt, "finished": None}
            return _update(connection, key, values)

    def get(self, key: JobKey) -> JobRow | None:
        """Return the job; None if it was never opened."""
        with self._database.read() as connection:
            return _find(connection, key)

    def of_run(self, run_id: str, *, since: int = 0) -> list[JobRow]:
        """Return the jobs of the run's cycles from ``since`` on, in the order they were opened."""
        wanted = select(jobs).where(jobs.c.run_id == run_id, jobs.c.cycle >= since)
        return [JobRow(**row) for row in self._database.rows(wanted.order_by(jobs.c.id))]

    def spent_s(self, run_id: str) -> dict[Device, float]:
        """Return the seconds of all attempts by device, failed and running ones included."""
        seconds = func.sum(jobs.c.duration_s + jobs.c.attempt_s).label("seconds")
        of_run = select(jobs.c.device, seconds).filter_by(run_id=run_id).group_by(jobs.c.device)
        spent: dict[Device, float] = {"cpu": 0.0, "gpu": 0.0}
        return spent | {row["device"]: row["seconds"] for row in self._database.rows(of_run)}

    @contextmanager
    def _changing(self, lease: Lease, key: JobKey) -> Generator[Connection]:
        if key.run_id != lease.run_id:
            raise InputError(
                f"{_name(key)}: expected a job of run {lease.run_id!r}, which the lease is for."
            )
        with self._database.write(lease) as connection:
            yield connection


def _name(key: JobKey) -> str:
    return f"job {key.run_id}/{key.cycle}/{key.stage}"


def _require_seconds(seconds: float) -> None:
    if not 0.0 <= seconds < math.inf:
        raise InputError(f"seconds of a job: expected a finite number >= 0, got {seconds}.")


def _require(row: JobRow, status: JobStatus, wanted: str, advice: str = ".") -> None:
    if row.status != status:
        raise RecordConflictError(
            f"{_name(row.key)}: expected {wanted}, got one that is {row.status}{advice}"
        )


def _find(connection: Connection, key: JobKey) -> JobRow | None:
    found = connection.execute(select(jobs).filter_by(**key.model_dump())).mappings()
    row = found.one_or_none()
    return None if row is None else JobRow(**row)


def _get(connection: Connection, key: JobKey) -> JobRow:
    row = _find(connection, key)
    if row is None:
        raise UnknownRowError(f"{_name(key)}: expected an opened job, got none; open it first.")
    return row


def _update(connection: Connection, key: JobKey, values: dict[str, Any]) -> JobRow:
    connection.execute(update(jobs).filter_by(**key.model_dump()).values(**values))
    return _get(connection, key)


class Approvals(Part):
    """Asks and answers; whoever answers needs no lease."""

    def decide(
        self,
        run_id: str,
        cycle: int,
        gate: str,
        status: Literal["approved", "rejected"],
        *,
        reason: str,
        by: str,
    ) -> ApprovalRow:
        """Answer, with a reason and a name.

        Raises:
            ApprovalDecidedError: It was answered before.
            UnknownRowError: Nothing of the kind was asked.
            InputError: The reason or the name is empty or no plain text.
        """
        require_plain(f"reason for {status!r}", reason)
        require_plain("name of who decides", by)
        with self._database.write(run_id) as connection:
            row = _question(connection, run_id, cycle, gate)
            if row.status != "pending":
                raise ApprovalDecidedError(
                    f"run {run_id!r}, cycle {cycle}: expected {gate!r} to be undecided, got "
                    f"{row.status} by {row.by} ({row.reason}); a decision is final."
                )
            answer = {"status": status, "reason": reason, "by": by, "decided_at": now(connection)}
            asked = update(approvals).filter_by(run_id=run_id, cycle=cycle, gate=gate)
            connection.execute(asked.values(answer))
            return _question(connection, run_id, cycle, gate)

    def get(self, run_id: str, cycle: int, gate: str) -> ApprovalRow:
        """Return a question and its answer, or raise `UnknownRowError` if it was not asked."""
        with self._database.read() as connection:
            return _question(connection, run_id, cycle, gate)

    def pending(self, run_id: str) -> list[ApprovalRow]:
        """Return the run's open questions, oldest first."""
        return [row for row in self.of_run(run_id) if row.status == "pending"]

    def of_run(self, run_id: str) -> list[ApprovalRow]:
        """Return the run's questions, with their answers, oldest first."""
        asked = select(approvals).filter_by(run_id=run_id)
        by_time = asked.order_by(approvals.c.requested_at, approvals.c.cycle, approvals.c.gate)
        with self._database.read() as connection:
            moment = now(connection)
            found = connection.execute(by_time).mappings().all()
        return [ApprovalRow(**row, read_at=moment) for row in found]

    def refusals(self, run_id: str) -> dict[int, str]:
        """Return by cycle what was refused and by whom, to tell behind its decision."""
        refused = [row for row in self.of_run(run_id) if row.status == "rejected"]
        return {row.cycle: f" ({row.gate} refused by {row.by})" for row in refused}


def _question(connection: Connection, run_id: str, cycle: int, gate: str) -> ApprovalRow:
    asked = select(approvals).filter_by(run_id=run_id, cycle=cycle, gate=gate)
    row = connection.execute(asked).mappings().one_or_none()
    if row is None:
        raise UnknownRowError(
            f"run {run_id!r}, cycle {cycle}: expected a question {gate!r}, got none; see what "
            "waits with `cadenza loop status`."
        )
    return ApprovalRow(**row, read_at=now(connection))


_REPLY_COLUMNS: Final = [llm_replies.c[f.name] for f in fields(ReplyRow) if f.name != "about"]
#: The text of a reply that is booked and not there.
NO_TEXT: Final = json.dumps(None)


class Replies(Part):
    """Stores and returns replies by (run, cycle, purpose, ordinal)."""

    def get(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> ReplyRow | None:
        """Return a reply; None if there is none yet, though it may be booked."""
        with self._database.read() as connection:
            return _find_reply(connection, _key(run_id, cycle, purpose, ordinal))

    def booked_usd(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        key = _key(run_id, cycle, purpose, ordinal)
        booked = select(llm_replies.c.cost_usd).filter_by(**key, text=NO_TEXT)
        with self._database.read() as connection:
            return connection.scalar(booked) or 0.0

    def book(self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow) -> None:
        """Keep what asking can cost in place of what was booked, unless the reply is there."""
        self._write(lease, cycle, purpose, ordinal, reply, text=NO_TEXT, response_sha256="")

    def record(
        self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow
    ) -> ReplyRow:
        """Store a reply and return it, or return the one that is there: the first one holds."""
        return self._write(lease, cycle, purpose, ordinal, reply) or reply

    def _write(
        self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow, **booking: str
    ) -> ReplyRow | None:
        """Add a row, or replace one that is only booked; or return the reply that is there."""
        key = _key(lease.run_id, cycle, purpose, ordinal)
        values = _values(reply) | booking
        with self._database.write(lease) as connection:
            present = _find_reply(connection, key)
            if present is None:
                booked = update(llm_replies).filter_by(**key, text=NO_TEXT).values(**values)
                if connection.execute(booked).rowcount == 0:
                    connection.execute(insert(llm_replies).values(**key, **values))
        return present

    def spent_usd(self, run_id: str) -> float:
        """Return what all replies of a run cost, failed and booked ones too, US dollars.

        Those of unknown cost add nothing.
        """
        spent = select(func.sum(llm_replies.c.cost_usd)).where(llm_replies.c.run_id == run_id)
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


def _find_reply(connection: Connection, key: dict[str, Any]) -> ReplyRow | None:
    found = connection.execute(select(*_REPLY_COLUMNS).filter_by(**key)).mappings()
    row = found.one_or_none()
    if row is None or row["text"] == NO_TEXT:
        return None
    told = json.loads(row["text"])
    return ReplyRow(**{**row, **(told if isinstance(told, dict) else {"text": told})})

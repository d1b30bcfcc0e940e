"""Approvals: questions that a run puts to a person, each answered once."""

from typing import Any, Literal

from sqlalchemy import Connection, insert, select, update

from cadenza.core.errors import InputError
from cadenza.loop.errors import ApprovalDecidedError, UnknownRowError
from cadenza.loop.store.changes import Change
from cadenza.loop.store.database import Database, lock_run, now
from cadenza.loop.store.leases import require_lease
from cadenza.loop.store.models import Approval
from cadenza.loop.store.plain_text import require_plain
from cadenza.loop.store.rows import ApprovalRow, Lease


class Approvals:
    """Asks and answers; whoever answers needs no lease."""

    def __init__(self, database: Database) -> None:
        """Look at the approvals of ``database``."""
        self._database = database

    def request(
        self, lease: Lease, cycle: int, gate: str, *, timeout_s: float | None = None
    ) -> ApprovalRow:
        """Ask, or return what was asked before: the first question and its deadline hold.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            request_approval(cycle, gate, timeout_s=timeout_s)(connection, lease.run_id)
            return _get(connection, lease.run_id, cycle, gate)

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
        with self._database.write() as connection:
            lock_run(connection, run_id)
            row = _get(connection, run_id, cycle, gate)
            if row.status != "pending":
                raise ApprovalDecidedError(
                    f"run {run_id!r}, cycle {cycle}: expected {gate!r} to be undecided, got "
                    f"{row.status} by {row.by} ({row.reason}); a decision is final."
                )
            connection.execute(
                update(Approval)
                .where(*_key(run_id, cycle, gate))
                .values(status=status, reason=reason, by=by, decided_at=now(connection))
            )
            return _get(connection, run_id, cycle, gate)

    def get(self, run_id: str, cycle: int, gate: str) -> ApprovalRow:
        """Return a question and its answer.

        Raises:
            UnknownRowError: Nothing of the kind was asked.
        """
        with self._database.read() as connection:
            return _get(connection, run_id, cycle, gate)

    def pending(self, run_id: str) -> list[ApprovalRow]:
        """Return the run's open questions, oldest first."""
        statement = (
            select(Approval.__table__)
            .where(Approval.run_id == run_id, Approval.status == "pending")
            .order_by(Approval.requested_at, Approval.cycle, Approval.gate)
        )
        with self._database.read() as connection:
            moment = now(connection)
            rows = connection.execute(statement).mappings()
            return [_row({str(key): value for key, value in row.items()}, moment) for row in rows]


def request_approval(cycle: int, gate: str, *, timeout_s: float | None = None) -> Change:
    """Ask a person; nothing happens if it was asked before."""
    if timeout_s is not None and not timeout_s > 0.0:
        raise InputError(f"approval of {gate!r}: expected timeout_s > 0 or None, got {timeout_s}.")

    def change(connection: Connection, run_id: str) -> None:
        if connection.scalar(select(Approval.cycle).where(*_key(run_id, cycle, gate))) is not None:
            return
        moment = now(connection)
        connection.execute(
            insert(Approval).values(
                run_id=run_id,
                cycle=cycle,
                gate=gate,
                requested_at=moment,
                deadline=None if timeout_s is None else moment + timeout_s,
            )
        )

    return change


def _key(run_id: str, cycle: int, gate: str) -> tuple[Any, ...]:
    return (Approval.run_id == run_id, Approval.cycle == cycle, Approval.gate == gate)


def _get(connection: Connection, run_id: str, cycle: int, gate: str) -> ApprovalRow:
    statement = select(Approval.__table__).where(*_key(run_id, cycle, gate))
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise UnknownRowError(
            f"run {run_id!r}, cycle {cycle}: expected a question {gate!r}, got none; see what "
            "waits with `cadenza loop status`."
        )
    return _row({str(key): value for key, value in row.items()}, now(connection))


def _row(values: dict[str, Any], moment: float) -> ApprovalRow:
    deadline = values["deadline"]
    overdue = values["status"] == "pending" and deadline is not None and deadline <= moment
    return ApprovalRow(**values, overdue=overdue)

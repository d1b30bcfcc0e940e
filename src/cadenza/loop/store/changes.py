"""Changes to a run's rows, to be made in one transaction with a new state; and a person's answers.

Each function checks its arguments and returns a `Change`; `JobStore.commit` makes several of them
together, the methods of `JobStore` make one at a time. An approval is asked for by a change and
answered once, by whoever may, without a lease.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, and_, insert, select, update

from cadenza.core.errors import InputError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import EpisodeOutcome, SeedRange
from cadenza.loop.errors import (
    ApprovalDecidedError,
    RecordConflictError,
    SeedOverlapError,
    UnknownRowError,
)
from cadenza.loop.store.database import (
    Part,
    config_to_keep,
    lock_run,
    now,
    plain_text,
    require_plain,
)
from cadenza.loop.store.rows import ApprovalRow
from cadenza.loop.store.schema import (
    RUN_STATUSES,
    approvals,
    checkpoints,
    cycles,
    episodes,
    runs,
    seed_ranges,
)

#: Something to do inside a transaction; gets the run that the transaction is about.
Change: TypeAlias = Callable[[Connection, str], Any]


def set_run_status(status: str, stop_reason: str | None = None) -> Change:
    """Say how the run stands and, if it ended, why."""
    if status not in RUN_STATUSES:
        raise InputError(f"run status: expected one of {RUN_STATUSES}, got {status!r}.")

    def change(connection: Connection, run_id: str) -> None:
        reason = None if stop_reason is None else plain_text(stop_reason)
        values = {"status": status, "stop_reason": reason}
        connection.execute(update(runs).filter_by(id=run_id).values(values))

    return change


def start_cycle(idx: int, *, rung: str | None = None, proposal_json: str | None = None) -> Change:
    """Add a cycle, at stage ``collect``; a `RecordConflictError` if it is there."""
    given = {"stage": "collect", "rung": rung, "proposal_json": proposal_json}

    def change(connection: Connection, run_id: str) -> None:
        key = {"run_id": run_id, "idx": idx}
        if connection.scalar(select(cycles.c.idx).filter_by(**key)) is not None:
            raise RecordConflictError(
                f"run {run_id!r}: expected cycle {idx} to be new, got one that is there."
            )
        connection.execute(insert(cycles).values(**key, **given, started_at=now(connection)))

    return change


def set_stage(idx: int, stage: str, *, dataset_json: str | None = None) -> Change:
    """Say what the cycle does now; a dataset that is not None is stored with it."""
    given = {} if dataset_json is None else {"dataset_json": dataset_json}

    def change(connection: Connection, run_id: str) -> None:
        _update_cycle(connection, run_id, idx, {"stage": stage, **given})

    return change


def finish_cycle(idx: int, decision: str) -> Change:
    """Close the cycle with its decision, at stage ``done``."""

    def change(connection: Connection, run_id: str) -> None:
        values = {"stage": "done", "decision": decision, "finished_at": now(connection)}
        _update_cycle(connection, run_id, idx, values)

    return change


def add_checkpoint(
    cycle_idx: int,
    policy_type: str,
    path: str,
    *,
    sha256: str | None = None,
    eval_json: str | None = None,
) -> Callable[[Connection, str], int]:
    """Add a policy; the change returns its number."""
    values = {"cycle_idx": cycle_idx, "policy_type": policy_type, "path": path}
    values |= {"sha256": sha256, "eval_json": eval_json}

    def change(connection: Connection, run_id: str) -> int:
        added = insert(checkpoints).values(run_id=run_id, **values)
        return connection.execute(added.returning(checkpoints.c.id)).scalar_one()

    return change


def attach_eval(checkpoint: int | str, eval_json: str) -> Change:
    """Store an evaluation with a policy, given by its number or path."""
    parse_json_object(eval_json.encode(), source="eval_json")

    def change(connection: Connection, run_id: str) -> None:
        number = _checkpoint_of(connection, run_id, checkpoint)
        connection.execute(update(checkpoints).filter_by(id=number).values(eval_json=eval_json))

    return change


def bless(checkpoint: int | str) -> Change:
    """Make a policy, by number or path, the only blessed one; an `UnknownRowError` without it."""

    def change(connection: Connection, run_id: str) -> None:
        number = _checkpoint_of(connection, run_id, checkpoint)
        connection.execute(update(checkpoints).filter_by(run_id=run_id).values(blessed=0))
        connection.execute(update(checkpoints).filter_by(id=number).values(blessed=1))

    return change


def record_episodes(
    cycle: int, subject: str, look: int, outcomes: Sequence[EpisodeOutcome]
) -> Change:
    """Store the episodes, in the order played, of look ``look`` at a policy of the cycle.

    The same ones again change nothing; others are a `RecordConflictError`.
    """
    values = [
        {"idx": index, **outcome.model_dump(), "success": int(outcome.success)}
        for index, outcome in enumerate(outcomes)
    ]

    def change(connection: Connection, run_id: str) -> None:
        key = {"run_id": run_id, "cycle": cycle, "subject": subject, "look": look}
        columns = [episodes.c[name] for name in ("idx", "task", "seed", "success", "score")]
        rows = connection.execute(select(*columns).filter_by(**key).order_by(episodes.c.idx))
        recorded = [dict(row) for row in rows.mappings()]
        if recorded and recorded != values:
            raise RecordConflictError(
                f"run {run_id!r}, cycle {cycle}: expected the recorded episodes of {subject!r}, "
                f"look {look}, got others; a repeated evaluation must repeat its outcomes."
            )
        if values and not recorded:
            connection.execute(insert(episodes), [key | value for value in values])

    return change


def reserve_seeds(cycle: int, purpose: str, look: int, seeds: SeedRange) -> Change:
    """Reserve seeds; the same range for the same use again changes nothing.

    Raises:
        SeedOverlapError: Another range of the run shares a seed with it.
        RecordConflictError: This use has another range already.
    """

    def change(connection: Connection, run_id: str) -> None:
        use = {"run_id": run_id, "cycle": cycle, "purpose": purpose, "look": look}
        present = connection.execute(select(seed_ranges).filter_by(**use)).one_or_none()
        if present is not None:
            if (present.start, present.count) == (seeds.start, seeds.count):
                return
            raise RecordConflictError(
                f"run {run_id!r}: expected seeds from {present.start} for {purpose!r} of cycle "
                f"{cycle}, look {look}, got seeds from {seeds.start}; the first reservation holds."
            )
        overlap = and_(
            seed_ranges.c.run_id == run_id,
            seed_ranges.c.start < seeds.start + seeds.count,
            seed_ranges.c.start + seed_ranges.c.count > seeds.start,
        )
        other = connection.execute(select(seed_ranges).where(overlap).limit(1)).one_or_none()
        if other is not None:
            raise SeedOverlapError(
                f"run {run_id!r}: expected fresh seeds for {purpose!r} of cycle {cycle}, got "
                f"[{seeds.start}, {seeds.start + seeds.count}), which shares seeds with "
                f"{other.purpose!r} of cycle {other.cycle} from {other.start}, {other.count} seeds."
            )
        connection.execute(insert(seed_ranges).values(**use, **seeds.model_dump()))

    return change


def set_config(config_json: str) -> Change:
    """Keep the configuration of the continued run, without the passwords in its ``store``."""
    kept = config_to_keep(config_json)

    def change(connection: Connection, run_id: str) -> None:
        values = {"config_json": kept, "config_sha256": sha256_bytes(kept.encode())}
        connection.execute(update(runs).filter_by(id=run_id).values(values))

    return change


def _update_cycle(
    connection: Connection, run_id: str, idx: int, values: dict[str, str | float]
) -> None:
    found = update(cycles).filter_by(run_id=run_id, idx=idx)
    if connection.execute(found.values(values)).rowcount != 1:
        raise UnknownRowError(
            f"run {run_id!r}: expected a cycle {idx}, got none; start the cycle first."
        )


def _checkpoint_of(connection: Connection, run_id: str, checkpoint: int | str) -> int:
    """Return the number of the run's newest checkpoint that ``checkpoint`` means."""
    wanted = {("id" if isinstance(checkpoint, int) else "path"): checkpoint}
    found = select(checkpoints.c.id).filter_by(run_id=run_id, **wanted)
    number = connection.scalar(found.order_by(checkpoints.c.id.desc()).limit(1))
    if number is None:
        raise UnknownRowError(
            f"checkpoint {checkpoint!r}: expected one of run {run_id!r}, got none of this run; "
            "a run blesses and measures its own policies only."
        )
    return number


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
        with self._database.write() as connection:
            lock_run(connection, run_id)
            row = _get(connection, run_id, cycle, gate)
            if row.status != "pending":
                raise ApprovalDecidedError(
                    f"run {run_id!r}, cycle {cycle}: expected {gate!r} to be undecided, got "
                    f"{row.status} by {row.by} ({row.reason}); a decision is final."
                )
            answer = {"status": status, "reason": reason, "by": by, "decided_at": now(connection)}
            connection.execute(
                update(approvals).filter_by(**_key(run_id, cycle, gate)).values(answer)
            )
            return _get(connection, run_id, cycle, gate)

    def get(self, run_id: str, cycle: int, gate: str) -> ApprovalRow:
        """Return a question and its answer, or raise `UnknownRowError` if it was not asked."""
        with self._database.read() as connection:
            return _get(connection, run_id, cycle, gate)

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


def request_approval(cycle: int, gate: str, *, timeout_s: float | None = None) -> Change:
    """Ask a person; nothing happens if it was asked before."""
    if timeout_s is not None and not timeout_s > 0.0:
        raise InputError(f"approval of {gate!r}: expected timeout_s > 0 or None, got {timeout_s}.")

    def change(connection: Connection, run_id: str) -> None:
        key = _key(run_id, cycle, gate)
        if connection.scalar(select(approvals.c.cycle).filter_by(**key)) is not None:
            return
        moment = now(connection)
        times = {"requested_at": moment, "deadline": timeout_s and moment + timeout_s}
        connection.execute(insert(approvals).values(**key, **times))

    return change


def _key(run_id: str, cycle: int, gate: str) -> dict[str, Any]:
    return {"run_id": run_id, "cycle": cycle, "gate": gate}


def _get(connection: Connection, run_id: str, cycle: int, gate: str) -> ApprovalRow:
    found = connection.execute(select(approvals).filter_by(**_key(run_id, cycle, gate)))
    row = found.mappings().one_or_none()
    if row is None:
        raise UnknownRowError(
            f"run {run_id!r}, cycle {cycle}: expected a question {gate!r}, got none; see what "
            "waits with `cadenza loop status`."
        )
    return ApprovalRow(**row, read_at=now(connection))

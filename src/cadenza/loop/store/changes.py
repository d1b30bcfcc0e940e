"""Changes to a run's rows, to be made in one transaction with a new state.

Each function here returns a `Change`; `JobStore.commit` makes several of them together, the methods
of `JobStore` make one at a time.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from sqlalchemy import Connection, and_, insert, select, update

from cadenza.core.errors import InputError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import EpisodeOutcome, SeedRange
from cadenza.loop.errors import RecordConflictError, UnknownRowError
from cadenza.loop.store.database import config_to_keep, now, plain_text
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
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _change(
    act: Callable[Concatenate[Connection, str, _Arguments], _Result],
) -> Callable[_Arguments, Callable[[Connection, str], _Result]]:
    """Turn a function of connection, run and arguments into one of arguments that returns a change.

    Whatever it refuses is therefore refused when the change is made.
    """

    @wraps(act)
    def prepared(
        *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> Callable[[Connection, str], _Result]:
        return lambda connection, run_id: act(connection, run_id, *args, **options)

    return prepared


@_change
def set_run_status(
    connection: Connection, run_id: str, status: str, stop_reason: str | None = None
) -> None:
    """Say how the run stands and, if it ended, why."""
    if status not in RUN_STATUSES:
        raise InputError(f"run status: expected one of {RUN_STATUSES}, got {status!r}.")
    reason = None if stop_reason is None else plain_text(stop_reason)
    changed = update(runs).filter_by(id=run_id).values(status=status, stop_reason=reason)
    connection.execute(changed)


@_change
def set_config(connection: Connection, run_id: str, config_json: str) -> None:
    """Keep the configuration of the continued run, without the passwords in its ``store``."""
    kept = config_to_keep(config_json)
    values = {"config_json": kept, "config_sha256": sha256_bytes(kept.encode())}
    connection.execute(update(runs).filter_by(id=run_id).values(values))


@_change
def start_cycle(
    connection: Connection,
    run_id: str,
    idx: int,
    *,
    rung: str | None = None,
    proposal_json: str | None = None,
) -> None:
    """Add a cycle, at stage ``collect``; a `RecordConflictError` if it is there."""
    key = {"run_id": run_id, "idx": idx}
    if connection.scalar(select(cycles.c.idx).filter_by(**key)) is not None:
        raise RecordConflictError(
            f"run {run_id!r}: expected cycle {idx} to be new, got one that is there."
        )
    given = {"stage": "collect", "rung": rung, "proposal_json": proposal_json}
    connection.execute(insert(cycles).values(**key, **given, started_at=now(connection)))


@_change
def set_stage(
    connection: Connection, run_id: str, idx: int, stage: str, *, dataset_json: str | None = None
) -> None:
    """Say what the cycle does now; a dataset that is not None is stored with it."""
    given = {} if dataset_json is None else {"dataset_json": dataset_json}
    _update_cycle(connection, run_id, idx, stage=stage, **given)


@_change
def finish_cycle(connection: Connection, run_id: str, idx: int, decision: str) -> None:
    """Close the cycle with its decision, at stage ``done``."""
    end = now(connection)
    _update_cycle(connection, run_id, idx, stage="done", decision=decision, finished_at=end)


def _update_cycle(connection: Connection, run_id: str, idx: int, **values: str | float) -> None:
    found = update(cycles).filter_by(run_id=run_id, idx=idx)
    if connection.execute(found.values(values)).rowcount != 1:
        raise UnknownRowError(
            f"run {run_id!r}: expected a cycle {idx}, got none; start the cycle first."
        )


@_change
def add_checkpoint(
    connection: Connection,
    run_id: str,
    cycle_idx: int,
    policy_type: str,
    path: str,
    *,
    sha256: str | None = None,
    eval_json: str | None = None,
) -> int:
    """Add a policy; the change returns its number."""
    values = {"cycle_idx": cycle_idx, "policy_type": policy_type, "path": path}
    added = insert(checkpoints).values(run_id=run_id, **values, sha256=sha256, eval_json=eval_json)
    return connection.execute(added.returning(checkpoints.c.id)).scalar_one()


@_change
def attach_eval(connection: Connection, run_id: str, checkpoint: int | str, eval_json: str) -> None:
    """Store an evaluation with a policy, given by its number or path."""
    parse_json_object(eval_json.encode(), source="eval_json")
    number = _checkpoint_of(connection, run_id, checkpoint)
    connection.execute(update(checkpoints).filter_by(id=number).values(eval_json=eval_json))


@_change
def bless(connection: Connection, run_id: str, checkpoint: int | str) -> None:
    """Make a policy, by number or path, the only blessed one; an `UnknownRowError` without it."""
    number = _checkpoint_of(connection, run_id, checkpoint)
    connection.execute(update(checkpoints).filter_by(run_id=run_id).values(blessed=0))
    connection.execute(update(checkpoints).filter_by(id=number).values(blessed=1))


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


@_change
def record_episodes(
    connection: Connection,
    run_id: str,
    cycle: int,
    subject: str,
    look: int,
    outcomes: Sequence[EpisodeOutcome],
) -> None:
    """Store the episodes, in the order played, of look ``look`` at a policy of the cycle.

    The same ones again change nothing; others are a `RecordConflictError`.
    """
    values = [
        {"idx": index, **outcome.model_dump(), "success": int(outcome.success)}
        for index, outcome in enumerate(outcomes)
    ]
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


@_change
def reserve_seeds(
    connection: Connection, run_id: str, cycle: int, purpose: str, look: int, seeds: SeedRange
) -> None:
    """Reserve seeds; the same range for the same use again changes nothing.

    A `RecordConflictError` if another range of the run shares a seed with it, or if this use has
    another range already.
    """
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
        raise RecordConflictError(
            f"run {run_id!r}: expected fresh seeds for {purpose!r} of cycle {cycle}, got "
            f"[{seeds.start}, {seeds.start + seeds.count}), which shares seeds with "
            f"{other.purpose!r} of cycle {other.cycle} from {other.start}, {other.count} seeds."
        )
    connection.execute(insert(seed_ranges).values(**use, **seeds.model_dump()))


@_change
def request_approval(
    connection: Connection, run_id: str, cycle: int, gate: str, *, timeout_s: float | None = None
) -> None:
    """Ask a person, who answers by `Approvals.decide`; nothing happens if it was asked before."""
    if timeout_s is not None and not timeout_s > 0.0:
        raise InputError(f"approval of {gate!r}: expected timeout_s > 0 or None, got {timeout_s}.")
    key = {"run_id": run_id, "cycle": cycle, "gate": gate}
    if connection.scalar(select(approvals.c.cycle).filter_by(**key)) is None:
        moment = now(connection)
        times = {"requested_at": moment, "deadline": timeout_s and moment + timeout_s}
        connection.execute(insert(approvals).values(**key, **times))

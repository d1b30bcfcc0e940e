"""Queries for `cadenza.loop.status_report`: as many statements for a thousand runs as for one.

Of cycles, and what belongs to them, the newest are read; what sums up a run is the database's sum.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sqlalchemy import and_, case, func, literal, or_, select, true, tuple_
from sqlalchemy.orm import aliased

from cadenza.loop.store.database import Database, now, unknown_run
from cadenza.loop.store.models import (
    Approval,
    Checkpoint,
    Cycle,
    Episode,
    EventRow,
    Job,
    LlmReply,
    Run,
)
from cadenza.loop.store.rows import Row, StoredEvent
from cadenza.loop.store.tables import NO_TEXT

#: Cycles of a run that are read unless more are asked for.
NEWEST: Final = 20
#: Kinds of events that tell of one cycle, of the whole run, and those that are only counted.
_OF_CYCLES: Final = ("decision", "rollouts_collected", "candidate_selected")
_OF_RUNS: Final = ("seed_data_seeds", "knowledge_updated")
FALLBACKS: Final = ("proposal_fallback", "curation_fallback")
#: Of some episodes; the sum is None without scores.
_TALLY: Final = (
    func.count().label("episodes"),
    func.sum(Episode.success).label("successes"),
    func.count(Episode.score).label("scored"),
    func.sum(Episode.score).label("score_sum"),
)


@dataclass(frozen=True, slots=True)
class Overview:
    """One run, and ``rows`` of it by the names in `_statements`.

    ``moment`` is when they were read, Unix seconds by the database's clock.
    """

    run: Row
    moment: float
    rows: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list[Row]))


def overviews(
    database: Database, run_id: str | None = None, *, newest: int | None = NEWEST
) -> list[Overview]:
    """Return how one run, or every one, stands, oldest first; ``newest`` None reads all cycles.

    Raises:
        UnknownRowError: There is no such run.
    """
    runs = select(Run.__table__).where(true() if run_id is None else Run.id == run_id)
    with database.read() as connection:
        moment = now(connection)
        rows = connection.execute(runs.order_by(Run.created_at, Run.id)).mappings()
        found = {row["id"]: Overview(dict(row), moment) for row in rows}
        for name, statement in _statements(run_id, newest).items() if found else ():
            for row in connection.execute(statement).mappings():
                found[row["run_id"]].rows[name].append(dict(row))
    if run_id is not None and not found:
        raise unknown_run(run_id)
    return list(found.values())


def _statements(run_id: str | None, newest: int | None) -> dict[str, Any]:
    """Return what is read, by name: of one run or all, of its ``newest`` cycles or all (None)."""

    def of(table: Any) -> Any:
        return true() if run_id is None else table.run_id == run_id

    def summed(table: Any, *columns: Any, by: tuple[Any, ...] = (), where: Any = None) -> Any:
        chosen = of(table) if where is None else and_(of(table), where)
        return select(table.run_id, *by, *columns).where(chosen).group_by(table.run_id, *by)

    last = func.coalesce(func.max(Cycle.idx), 0)
    before = (literal(-1) if newest is None else last - newest).label("before")
    of_runs = true() if run_id is None else Run.id == run_id
    shown = select(Run.id, before).outerjoin(Cycle).where(of_runs).group_by(Run.id).subquery().c

    def latest(table: Any, cycle: Any, *columns: Any) -> Any:
        of_cycles = and_(table.run_id == shown.id, cycle > shown.before)
        return select(*(columns or (table.__table__,))).where(of_cycles)

    key = (Episode.run_id, Episode.cycle, Episode.subject)
    played = latest(Episode, Episode.cycle, *key, *_TALLY)
    stands = (Checkpoint.run_id, Checkpoint.cycle_idx, literal("candidate"))
    blessed = select(*stands).where(of(Checkpoint), Checkpoint.blessed == 1)
    old = aliased(EventRow)  # found from the end on, so that what is older is not read
    old_events = and_(old.run_id == shown.id, old.cycle <= shown.before)
    end = select(old.seq).where(old_events).order_by(old.seq.desc()).limit(1).scalar_subquery()
    told = (EventRow.run_id, EventRow.kind, EventRow.cycle, EventRow.payload)
    text = case((EventRow.kind.in_(FALLBACKS), ""), else_=EventRow.payload).label("text")
    return {
        "cycles": latest(Cycle, Cycle.idx).order_by(Cycle.idx),
        "counts": summed(
            Cycle, func.count().label("total"), func.count(Cycle.decision).label("decided")
        ),
        "episodes": played.where(Episode.subject.in_(("candidate", "baseline"))).group_by(*key),
        "blessed_episodes": summed(Episode, *_TALLY, where=tuple_(*key).in_(blessed)),
        "checkpoints": select(Checkpoint.__table__)
        .where(
            Checkpoint.run_id == shown.id,
            or_(Checkpoint.blessed == 1, Checkpoint.cycle_idx > shown.before),
        )
        .order_by(Checkpoint.id),
        "jobs": latest(Job, Job.cycle).order_by(Job.id),
        "seconds": summed(
            Job, func.sum(Job.duration_s + Job.attempt_s).label("seconds"), by=(Job.device,)
        ),
        "told": select(*told)
        .where(
            EventRow.run_id == shown.id,
            EventRow.seq > func.coalesce(end, 0),
            EventRow.kind.in_(_OF_CYCLES),
        )
        .order_by(EventRow.seq),
        "notes": summed(
            EventRow,
            func.count().label("count"),
            by=(EventRow.kind, text),
            where=EventRow.kind.in_((*_OF_RUNS, *FALLBACKS)),
        ),
        "questions": select(Approval.__table__)
        .where(of(Approval), Approval.status == "pending")
        .order_by(Approval.requested_at, Approval.cycle, Approval.gate),
        "replies": summed(
            LlmReply,
            func.count().label("calls"),
            func.count(LlmReply.error).label("failed"),
            func.sum(LlmReply.cost_usd).label("cost_usd"),
        ),
        "asked": summed(LlmReply, by=(LlmReply.cycle,), where=LlmReply.text == NO_TEXT),
    }


def newest_runs(
    database: Database, *, status: str | None, limit: int, before: str | None
) -> tuple[list[Row], float]:
    """Return at most ``limit`` runs, newest first, with counts; and the moment, Unix seconds.

    ``before`` is the id of a run: only older ones are returned, none if it is unknown.
    """
    page = select(Run.__table__).order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)
    if status is not None:
        page = page.where(Run.status == status)
    if before is not None:
        mark = select(Run.created_at, Run.id).where(Run.id == before).subquery().c
        page = page.where(tuple_(Run.created_at, Run.id) < tuple_(mark.created_at, mark.id))
    with database.read() as connection:
        rows = [dict(row) for row in connection.execute(page).mappings()]
        ids = [row["id"] for row in rows]
        key = (Episode.run_id, Episode.cycle, Episode.subject)
        stands = (Checkpoint.run_id, Checkpoint.cycle_idx, literal("candidate"))
        blessed = select(*stands).where(Checkpoint.run_id.in_(ids), Checkpoint.blessed == 1)
        open_ones = and_(Approval.run_id.in_(ids), Approval.status == "pending")
        asked = {
            "cycles": select(Cycle.run_id, func.count(Cycle.decision).label("decided"))
            .where(Cycle.run_id.in_(ids))
            .group_by(Cycle.run_id),
            "pending": select(Approval.run_id, func.count().label("pending"))
            .where(open_ones)
            .group_by(Approval.run_id),
            "blessed": select(Episode.run_id, *_TALLY)
            .where(tuple_(*key).in_(blessed))
            .group_by(Episode.run_id),
        }
        for name, statement in asked.items():
            found = {row["run_id"]: dict(row) for row in connection.execute(statement).mappings()}
            for row in rows:
                row[name] = found.get(row["id"])
        return rows, now(connection)


def events_of_run(
    database: Database,
    run_id: str,
    *,
    after: int | None = None,
    before: int | None = None,
    stage: str | None = None,
    kind: str | None = None,
    cycle: int | None = None,
    text: str | None = None,
    limit: int = 200,
) -> list[StoredEvent]:
    """Return at most ``limit`` events in order: the first behind ``after``, else the last ones.

    ``after`` and ``before`` are sequence numbers, themselves left out; ``text`` is looked for in
    the payload, in either case of its ASCII letters.
    """
    wanted = {EventRow.stage: stage, EventRow.kind: kind, EventRow.cycle: cycle}
    conditions: list[Any] = [
        EventRow.run_id == run_id,
        *(column == value for column, value in wanted.items() if value is not None),
    ]
    if after is not None:
        conditions.append(EventRow.seq > after)
    if before is not None:
        conditions.append(EventRow.seq < before)
    if text:
        written = json.dumps(text)[1:-1]  # payloads are ASCII
        conditions.append(EventRow.payload.icontains(written, autoescape=True))
    order = EventRow.seq.desc() if after is None else EventRow.seq
    columns = [getattr(EventRow, one.name) for one in fields(StoredEvent)]
    statement = select(*columns).where(*conditions).order_by(order).limit(limit)
    with database.read() as connection:
        found = [StoredEvent(**row) for row in connection.execute(statement).mappings()]
    return found[::-1] if after is None else found


def tallies_of_cycle(database: Database, run_id: str, cycle: int) -> list[Row]:
    """Return how many episodes of each task each policy of a cycle played and solved."""
    by = (Episode.subject, Episode.task)
    of_cycle = (Episode.run_id == run_id, Episode.cycle == cycle)
    statement = select(*by, *_TALLY).where(*of_cycle).group_by(*by).order_by(*by)
    with database.read() as connection:
        return [dict(row) for row in connection.execute(statement).mappings()]


def cycles_and_blessed(database: Database) -> tuple[defaultdict[str, list[Row]], dict[str, Row]]:
    """Return the cycles in order, and the blessed policy, of every run by its id."""
    cycles: defaultdict[str, list[Row]] = defaultdict(list)
    every = select(Cycle.__table__).order_by(Cycle.run_id, Cycle.idx)
    blessed = select(Checkpoint.__table__).where(Checkpoint.blessed == 1)
    with database.read() as connection:
        for row in connection.execute(every).mappings():
            cycles[row["run_id"]].append(dict(row))
        found = [dict(row) for row in connection.execute(blessed).mappings()]
    return cycles, {row["run_id"]: row for row in found}

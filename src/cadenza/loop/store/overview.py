"""Queries for `cadenza.loop.status_report`: as many statements for a thousand runs as for one.

Of cycles, and what belongs to them, the newest are read; what sums up a run is the database's sum.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
)

from cadenza.loop.store.database import Database, now, unknown_run
from cadenza.loop.store.rows import Row
from cadenza.loop.store.schema import (
    RUN_STATUSES,
    approvals,
    checkpoints,
    cycles,
    episodes,
    events,
    jobs,
    llm_replies,
    runs,
)
from cadenza.loop.store.tables import NO_TEXT

#: Statuses of runs that go on.
OPEN: Final = RUN_STATUSES[:2]
#: Cycles of a run that are read unless more are asked for.
NEWEST: Final = 20
#: Kinds of events that tell of one cycle, of the whole run, and those that are only counted.
_OF_CYCLES: Final = ("decision", "rollouts_collected", "candidate_selected")
_OF_RUNS: Final = ("seed_data_seeds", "knowledge_updated")
FALLBACKS: Final = ("proposal_fallback", "curation_fallback")
#: Of some episodes; the sum is None without scores.
_TALLY: Final = (
    func.count().label("episodes"),
    func.sum(episodes.c.success).label("successes"),
    func.count(episodes.c.score).label("scored"),
    func.sum(episodes.c.score).label("score_sum"),
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
    database: Database,
    run_id: str | None = None,
    *,
    newest: int | None = NEWEST,
    most: int | None = None,
    only: Collection[str] = (),
) -> list[Overview]:
    """Return how one run, or every one, stands, oldest first.

    Args:
        database: The store.
        run_id: Which run; None for all.
        newest: Cycles that are read of each; None for all of them.
        most: Runs that are read: open ones first, then the newest; None for all of them.
        only: Names of the rows that are wanted; all by default.

    Raises:
        UnknownRowError: There is no such run.
    """
    is_over = case((runs.c.status.in_(OPEN), 0), else_=1)
    by_age = (runs.c.created_at.desc(), runs.c.id.desc())
    chosen = select(runs).where(true() if run_id is None else runs.c.id == run_id)
    chosen = chosen.order_by(*by_age) if most is None else chosen.order_by(is_over, *by_age)
    every = run_id is None and most is None
    found = _read(database, chosen.limit(most), every=every, newest=newest, only=only)
    if run_id is not None and not found:
        raise unknown_run(run_id)
    return sorted(found, key=lambda one: (one.run["created_at"], one.run["id"]))


def newest_ids(database: Database, *, limit: int) -> list[str]:
    """Return the ids of at most ``limit`` runs, newest first."""
    page = select(runs.c.id).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    with database.read() as connection:
        return [*connection.scalars(page)]


def newest_runs(
    database: Database, *, status: str | None, limit: int, before: str | None
) -> list[Overview]:
    """Return at most ``limit`` runs, newest first, with the rows that a list needs.

    ``before`` is the id of a run: only older ones are returned, none if it is unknown.
    """
    page = select(runs).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    if status is not None:
        page = page.where(runs.c.status == status)
    if before is not None:
        mark = select(runs.c.created_at, runs.c.id).where(runs.c.id == before).subquery().c
        page = page.where(tuple_(runs.c.created_at, runs.c.id) < tuple_(mark.created_at, mark.id))
    return _read(database, page, only=("counts", "questions", "blessed_episodes"))


def _read(
    database: Database,
    chosen: Any,
    *,
    every: bool = False,
    newest: int | None = 0,
    only: Collection[str] = (),
) -> list[Overview]:
    """Return the chosen runs, which may be ``every`` one, with their rows."""
    with database.read() as connection:
        moment = now(connection)
        rows = connection.execute(chosen).mappings()
        found = {row["id"]: Overview(dict(row), moment) for row in rows}
        statements = _statements(newest, every=every)
        for name in (only or statements) if found else ():
            for row in connection.execute(statements[name], {_IDS.key: [*found]}).mappings():
                found[row["run_id"]].rows[name].append(dict(row))
    return list(found.values())


def run_counts(database: Database) -> dict[str, int]:
    """Return how many runs there are of each status."""
    counted = select(runs.c.status, func.count().label("runs")).group_by(runs.c.status)
    return {row["status"]: row["runs"] for row in database.rows(counted)}


#: Ids of the runs that are read.
_IDS: Final[BindParameter[Any]] = bindparam("ids", expanding=True)


@lru_cache
def _statements(newest: int | None, *, every: bool) -> dict[str, Any]:
    """Return what is read, by name: of `_IDS` or all runs, of their ``newest`` cycles or all."""

    def of(table: Any) -> Any:
        return true() if every else table.c.run_id.in_(_IDS)

    def summed(table: Any, *columns: Any, by: tuple[Any, ...] = (), where: Any = None) -> Any:
        chosen = of(table) if where is None else and_(of(table), where)
        return select(table.c.run_id, *by, *columns).where(chosen).group_by(table.c.run_id, *by)

    last = func.coalesce(func.max(cycles.c.idx), 0)
    before = (literal(-1) if newest is None else last - newest).label("before")
    of_runs = true() if every else runs.c.id.in_(_IDS)
    shown = (
        select(runs.c.id, before).outerjoin(cycles).where(of_runs).group_by(runs.c.id).subquery().c
    )

    def latest(table: Any, cycle: Any, *columns: Any) -> Any:
        of_cycles = and_(table.c.run_id == shown.id, cycle > shown.before)
        return select(*(columns or (table,))).where(of_cycles)

    key = (episodes.c.run_id, episodes.c.cycle, episodes.c.subject)
    played = latest(episodes, episodes.c.cycle, *key, *_TALLY)
    stands = (checkpoints.c.run_id, checkpoints.c.cycle_idx, literal("candidate"))
    blessed = select(*stands).where(of(checkpoints), checkpoints.c.blessed == 1)
    old = events.alias().c  # where its last cycle that is not shown ended: one look into an index
    old_events = and_(old.run_id == shown.id, old.cycle == shown.before)
    end = select(func.max(old.seq)).where(old_events).scalar_subquery()
    told = (events.c.run_id, events.c.kind, events.c.cycle, events.c.payload)
    text = case((events.c.kind.in_(FALLBACKS), ""), else_=events.c.payload).label("text")
    return {
        "cycles": latest(cycles, cycles.c.idx).order_by(cycles.c.idx),
        "counts": summed(
            cycles, func.count().label("total"), func.count(cycles.c.decision).label("decided")
        ),
        "episodes": played.where(episodes.c.subject.in_(("candidate", "baseline"))).group_by(*key),
        "blessed_episodes": summed(episodes, *_TALLY, where=tuple_(*key).in_(blessed)),
        "checkpoints": select(checkpoints)
        .where(
            checkpoints.c.run_id == shown.id,
            or_(checkpoints.c.blessed == 1, checkpoints.c.cycle_idx > shown.before),
        )
        .order_by(checkpoints.c.id),
        "jobs": latest(jobs, jobs.c.cycle).order_by(jobs.c.id),
        "seconds": summed(
            jobs,
            func.sum(jobs.c.duration_s + jobs.c.attempt_s).label("seconds"),
            by=(jobs.c.device,),
        ),
        "told": select(*told)
        .where(
            events.c.run_id == shown.id,
            events.c.seq > func.coalesce(end, 0),
            events.c.kind.in_(_OF_CYCLES),
        )
        .order_by(events.c.seq),
        "notes": select(events.c.run_id, events.c.kind, text, func.count().label("count"))
        .where(events.c.run_id == shown.id, events.c.kind.in_((*_OF_RUNS, *FALLBACKS)))
        .group_by(events.c.run_id, events.c.kind, text),
        "questions": select(approvals)
        .where(of(approvals), approvals.c.status == "pending")
        .order_by(approvals.c.requested_at, approvals.c.cycle, approvals.c.gate),
        "replies": summed(
            llm_replies,
            func.count().label("calls"),
            func.count(llm_replies.c.error).label("failed"),
            func.sum(llm_replies.c.cost_usd).label("cost_usd"),
        ),
        "asked": summed(
            llm_replies, by=(llm_replies.c.cycle,), where=llm_replies.c.text == NO_TEXT
        ),
    }


def tallies_of_cycle(database: Database, run_id: str, cycle: int) -> list[Row]:
    """Return how many episodes of each task each policy of a cycle played and solved."""
    by = (episodes.c.subject, episodes.c.task)
    of_cycle = (episodes.c.run_id == run_id, episodes.c.cycle == cycle)
    return database.rows(select(*by, *_TALLY).where(*of_cycle).group_by(*by).order_by(*by))

"""How runs stand, read at once: as many statements for a thousand cycles, or runs, as for one.

Of cycles, and what belongs to them, the newest are read; what sums up a run is the database's sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sqlalchemy import Connection, and_, case, func, literal, or_, select, true, tuple_
from sqlalchemy.orm import aliased

from cadenza.loop.contracts.records import Device, JobKey
from cadenza.loop.store.changes import approval_row
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
from cadenza.loop.store.rows import ApprovalRow, JobRow, ReplyTotals, Row
from cadenza.loop.store.tables import NO_TEXT, job_row

#: Cycles of a run that are read unless more are asked for.
NEWEST: Final = 20
#: Kinds of events that tell of one cycle, of the whole run, and those that are only counted.
_OF_CYCLES: Final = ("decision", "rollouts_collected", "candidate_selected")
_OF_RUNS: Final = ("seed_data_seeds", "knowledge_updated")
FALLBACKS: Final = ("proposal_fallback", "curation_fallback")


@dataclass(frozen=True, slots=True)
class Tally:
    """Episodes, how many succeeded and were scored, and the sum of scores; None without any."""

    episodes: int
    successes: int
    scored: int
    score_sum: float | None


@dataclass(slots=True, kw_only=True)
class Overview:
    """One run at ``moment``, Unix seconds by the database's clock.

    Attributes:
        cycles: The newest ones, in order; all in all there are ``total``, ``decided`` of them with
            a decision.
        tallies: Episodes of these by (cycle, subject); ``blessed_tally``: those of the candidate
            that is blessed.
        jobs: Jobs of these cycles; ``seconds`` by device and ``failed``, the last one, are of all.
        told: Events of these cycles by kind and cycle, the last of each: their payloads.
        notes: Payloads of events of the whole run by kind, different ones; ``fallbacks`` counts.
        replies: What a language model was asked; None for nothing.
        asked: Cycles that wait for it.
    """

    run: Row
    moment: float
    total: int = 0
    decided: int = 0
    cycles: list[Row] = field(default_factory=list[Row])
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict[tuple[int, str], Tally])
    blessed: Row | None = None
    blessed_tally: Tally | None = None
    checkpoints: list[Row] = field(default_factory=list[Row])
    jobs: list[JobRow] = field(default_factory=list[JobRow])
    seconds: dict[Device, float] = field(default_factory=dict[Device, float])
    failed: JobKey | None = None
    told: dict[tuple[str, int | None], str] = field(
        default_factory=dict[tuple[str, int | None], str]
    )
    notes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    fallbacks: int = 0
    questions: list[ApprovalRow] = field(default_factory=list[ApprovalRow])
    replies: ReplyTotals | None = None
    asked: set[int] = field(default_factory=set[int])


def overviews(
    database: Database, run_id: str | None = None, *, newest: int | None = NEWEST
) -> list[Overview]:
    """Return how one run, or every one, stands, oldest first; ``newest`` None reads all cycles.

    Raises:
        UnknownRowError: There is no such run.
    """
    with database.read() as connection:
        found = _Reader(connection, run_id, newest).read()
    if run_id is not None and not found:
        raise unknown_run(run_id)
    return found


class _Reader:
    """Reads one table after the other into the overviews of the runs that it found first."""

    def __init__(self, connection: Connection, run_id: str | None, newest: int | None) -> None:
        self._connection = connection
        self._run_id = run_id
        last = func.coalesce(func.max(Cycle.idx), 0)
        before = (literal(-1) if newest is None else last - newest).label("before")
        statement = select(Run.id, before).outerjoin(Cycle).where(self._of(Run.id))
        self._shown = statement.group_by(Run.id).subquery()

    def read(self) -> list[Overview]:
        moment = now(self._connection)
        statement = select(Run.__table__).where(self._of(Run.id))
        rows = self._rows(statement.order_by(Run.created_at, Run.id))
        self._found = {row["id"]: Overview(run=row, moment=moment) for row in rows}
        if rows:
            self._read_cycles()
            self._read_policies()
            self._read_jobs()
            self._read_events()
            self._read_questions()
        return list(self._found.values())

    def _read_cycles(self) -> None:
        for row in self._rows(self._newest(Cycle, Cycle.idx).order_by(Cycle.idx)):
            self._found[row["run_id"]].cycles.append(row)
        counts = (func.count().label("total"), func.count(Cycle.decision).label("decided"))
        for row in self._grouped(Cycle, *counts):
            overview = self._found[row["run_id"]]
            overview.total, overview.decided = row["total"], row["decided"]

    def _read_policies(self) -> None:
        key = (Episode.run_id, Episode.cycle, Episode.subject)
        compared = Episode.subject.in_(("candidate", "baseline"))
        statement = select(*key, *_TALLY).join(self._shown, self._is_shown(Episode, Episode.cycle))
        for row in self._rows(statement.where(compared).group_by(*key)):
            tally = _tally(row)
            self._found[row["run_id"]].tallies[row["cycle"], row["subject"]] = tally
        shown = self._shown.c.id == Checkpoint.run_id
        wanted = or_(Checkpoint.blessed == 1, Checkpoint.cycle_idx > self._shown.c.before)
        statement = select(Checkpoint.__table__).join(self._shown, and_(shown, wanted))
        for row in self._rows(statement.order_by(Checkpoint.id)):
            self._found[row["run_id"]].checkpoints.append(row)
            if row["blessed"]:
                self._found[row["run_id"]].blessed = row
        rows = (one.blessed for one in self._found.values())
        keys = [(row["run_id"], row["cycle_idx"], "candidate") for row in rows if row]
        if keys:  # asked for by key: a join may read the episodes of all cycles
            statement = select(Episode.run_id, *_TALLY).where(tuple_(*key).in_(keys))
            for row in self._rows(statement.group_by(Episode.run_id)):
                self._found[row["run_id"]].blessed_tally = _tally(row)

    def _read_jobs(self) -> None:
        for row in self._rows(self._newest(Job, Job.cycle).order_by(Job.id)):
            self._found[row["run_id"]].jobs.append(job_row(row))
        seconds = func.sum(Job.duration_s + Job.attempt_s).label("seconds")
        failed = func.max(case((Job.status == "failed", Job.id))).label("failed")
        last: list[int] = []
        for row in self._grouped(Job, seconds, failed, also=(Job.device,)):
            self._found[row["run_id"]].seconds[cast("Device", row["device"])] = row["seconds"]
            last += [] if row["failed"] is None else [row["failed"]]
        statement = select(Job.run_id, Job.cycle, Job.stage).where(Job.id.in_(last))
        for row in self._rows(statement.order_by(Job.id)) if last else ():
            self._found[row["run_id"]].failed = JobKey(**row)

    def _read_events(self) -> None:
        earlier = aliased(EventRow)  # found from the end on, so that what is older is not read
        last = (
            select(earlier.seq)
            .where(earlier.run_id == self._shown.c.id, earlier.cycle <= self._shown.c.before)
            .order_by(earlier.seq.desc())
            .limit(1)
            .scalar_subquery()
        )
        statement = select(EventRow.run_id, EventRow.kind, EventRow.cycle, EventRow.payload)
        newer = and_(EventRow.run_id == self._shown.c.id, EventRow.seq > func.coalesce(last, 0))
        statement = statement.join(self._shown, newer).where(EventRow.kind.in_(_OF_CYCLES))
        for row in self._rows(statement.order_by(EventRow.seq)):
            self._found[row["run_id"]].told[row["kind"], row["cycle"]] = row["payload"]
        text = case((EventRow.kind.in_(FALLBACKS), ""), else_=EventRow.payload).label("text")
        wanted = EventRow.kind.in_((*_OF_RUNS, *FALLBACKS))
        count = func.count().label("count")
        for row in self._grouped(EventRow, count, also=(EventRow.kind, text), where=wanted):
            overview = self._found[row["run_id"]]
            if row["kind"] in FALLBACKS:
                overview.fallbacks += row["count"]
            else:
                overview.notes.setdefault(row["kind"], []).append(row["text"])

    def _read_questions(self) -> None:
        statement = select(Approval.__table__).where(
            self._of(Approval.run_id), Approval.status == "pending"
        )
        order = (Approval.requested_at, Approval.cycle, Approval.gate)
        for row in self._rows(statement.order_by(*order)):
            overview = self._found[row["run_id"]]
            overview.questions.append(approval_row(row, overview.moment))
        columns = (
            func.count().label("calls"),
            func.count(LlmReply.error).label("failed"),
            func.sum(LlmReply.cost_usd).label("cost_usd"),
        )
        for row in self._grouped(LlmReply, *columns):
            overview = self._found[row["run_id"]]
            overview.replies = ReplyTotals(
                calls=row["calls"], failed=row["failed"], cost_usd=row["cost_usd"] or 0.0
            )
        waiting = LlmReply.text == NO_TEXT
        for row in self._grouped(LlmReply, also=(LlmReply.cycle,), where=waiting):
            self._found[row["run_id"]].asked.add(row["cycle"])

    def _of(self, column: Any) -> Any:
        return true() if self._run_id is None else column == self._run_id

    def _is_shown(self, table: Any, cycle: Any) -> Any:
        return and_(table.run_id == self._shown.c.id, cycle > self._shown.c.before)

    def _newest(self, table: Any, cycle: Any) -> Any:
        """Return a statement for the rows of the newest cycles."""
        return select(table.__table__).join(self._shown, self._is_shown(table, cycle))

    def _grouped(
        self, table: Any, *columns: Any, also: Sequence[Any] = (), where: Any = None
    ) -> list[Row]:
        """Return columns of each run, and of each value of ``also``."""
        of_runs = self._of(table.run_id)
        chosen = of_runs if where is None else and_(of_runs, where)
        statement = select(table.run_id, *also, *columns).where(chosen)
        return self._rows(statement.group_by(table.run_id, *also))

    def _rows(self, statement: Any) -> list[Row]:
        return [dict(row) for row in self._connection.execute(statement).mappings()]


_TALLY: Final = (
    func.count().label("episodes"),
    func.sum(Episode.success).label("successes"),
    func.count(Episode.score).label("scored"),
    func.sum(Episode.score).label("score_sum"),
)


def _tally(row: Row) -> Tally:
    return Tally(row["episodes"], int(row["successes"]), row["scored"], row["score_sum"])

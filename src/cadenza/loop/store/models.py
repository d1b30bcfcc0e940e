"""Tables of the job store.

Columns of ``runs``, ``cycles`` and ``checkpoints`` that LeAgents has keep their names and meaning.

Units:  times are Unix seconds (UTC) by the database's clock, unless a column says otherwise.
Types:  JSON documents are text, so that both databases return the bytes that were stored.
"""

from typing import Annotated, Any, ClassVar, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: Names of constraints, so that migrations can address them in both databases.
_NAMES: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of every table."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: Text(), int: Integer(), float: Float(53)}


#: The run that a row belongs to.
RunId: TypeAlias = Annotated[str, mapped_column(ForeignKey("runs.id"))]
#: The same as the first part of a key.
RunKey: TypeAlias = Annotated[str, mapped_column(ForeignKey("runs.id"), primary_key=True)]
#: A name within a run, as part of a key.
NameKey: TypeAlias = Annotated[str, mapped_column(primary_key=True)]
#: A number that we choose, as part of a key.
NumberKey: TypeAlias = Annotated[int, mapped_column(primary_key=True, autoincrement=False)]
#: A number that needs 64 bits.
Long: TypeAlias = Annotated[int, mapped_column(BigInteger)]


class Run(Base):
    """One loop run: its configuration, its state and who works on it.

    ``state_json`` is the `LoopState`; ``state_version`` counts its changes. ``lease_epoch`` counts
    the controllers the run has had: who holds an older one may write nothing.
    """

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[float]
    status: Mapped[str] = mapped_column(server_default="running")
    stop_reason: Mapped[str | None]
    config_json: Mapped[str]
    config_sha256: Mapped[str]
    constitution_sha256: Mapped[str | None]
    capabilities_json: Mapped[str] = mapped_column(server_default="{}")
    state_json: Mapped[str]
    state_version: Mapped[int] = mapped_column(server_default="0")
    lease_owner: Mapped[str | None]
    lease_epoch: Mapped[int] = mapped_column(server_default="0")
    lease_expires_at: Mapped[float | None]
    stop_requested_at: Mapped[float | None]

    __table_args__ = (
        CheckConstraint(
            "status IN ('running', 'pending_approval', 'stopped', 'finished', 'failed')",
            name="status",
        ),
        Index("ix_runs_created_at", "created_at"),
    )


class Cycle(Base):
    """One cycle of a run: its stage, its decision, and what it was made of."""

    __tablename__ = "cycles"

    run_id: Mapped[RunKey]
    idx: Mapped[NumberKey]
    stage: Mapped[str]
    decision: Mapped[str | None]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]
    rung: Mapped[str | None]
    dataset_json: Mapped[str | None]
    proposal_json: Mapped[str | None]


class Checkpoint(Base):
    """A trained policy; at most one of a run is blessed."""

    __tablename__ = "checkpoints"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[RunId]
    cycle_idx: Mapped[int]
    policy_type: Mapped[str]
    path: Mapped[str]
    blessed: Mapped[int] = mapped_column(server_default="0")
    eval_json: Mapped[str | None]
    sha256: Mapped[str | None]

    __table_args__ = (
        CheckConstraint("blessed IN (0, 1)", name="blessed"),
        Index("ix_checkpoints_run_id", "run_id"),
        Index(
            "ix_checkpoints_one_blessed",
            "run_id",
            unique=True,
            sqlite_where=text("blessed = 1"),
            postgresql_where=text("blessed = 1"),
        ),
        {"sqlite_autoincrement": True},
    )


class Job(Base):
    """One command of one step of one cycle.

    ``attempt`` counts the starts, ``interruptions`` those that a signal from outside ended.
    ``duration_s`` sums the ended attempts, ``attempt_s`` is the live one's age when it last showed
    a sign of life (``heartbeat``).
    """

    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[RunId]
    cycle: Mapped[int]
    stage: Mapped[str]
    attempt: Mapped[int] = mapped_column(server_default="0")
    cmd: Mapped[str]
    pid: Mapped[int | None]
    pid_start_time: Mapped[float | None]
    status: Mapped[str] = mapped_column(server_default="pending")
    started: Mapped[float | None]
    heartbeat: Mapped[float | None]
    finished: Mapped[float | None]
    exit: Mapped[int | None]
    duration_s: Mapped[float] = mapped_column(server_default="0")
    attempt_s: Mapped[float] = mapped_column(server_default="0")
    interruptions: Mapped[int] = mapped_column(server_default="0")
    device: Mapped[str]
    result_path: Mapped[str | None]
    result_sha256: Mapped[str | None]

    __table_args__ = (
        CheckConstraint(
            "status IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')", name="status"
        ),
        UniqueConstraint("run_id", "cycle", "stage"),
        {"sqlite_autoincrement": True},
    )


class EventRow(Base):
    """One event; ``published`` says that log file and subscribers have it."""

    __tablename__ = "events"

    run_id: Mapped[RunKey]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    step_key: Mapped[str]
    ordinal: Mapped[int]
    ts: Mapped[float]
    mono: Mapped[float]
    stage: Mapped[str]
    kind: Mapped[str]
    cycle: Mapped[int | None]
    payload: Mapped[str]
    published: Mapped[int] = mapped_column(server_default="0")

    __table_args__ = (UniqueConstraint("run_id", "step_key", "ordinal"),)


class Episode(Base):
    """One evaluation episode: who played it, from which seed, and how it ended."""

    __tablename__ = "episodes"

    run_id: Mapped[RunKey]
    cycle: Mapped[NumberKey]
    subject: Mapped[NameKey]
    look: Mapped[NumberKey]
    idx: Mapped[NumberKey]
    task: Mapped[str]
    seed: Mapped[Long]
    success: Mapped[int]
    score: Mapped[float | None]


class SeedRangeRow(Base):
    """Seeds [start, start + count) of one purpose; no two ranges of a run share one."""

    __tablename__ = "seed_ranges"

    run_id: Mapped[RunKey]
    cycle: Mapped[NumberKey]
    purpose: Mapped[NameKey]
    look: Mapped[NumberKey]
    start: Mapped[Long]
    count: Mapped[Long]


class Approval(Base):
    """A question to a person: asked, and answered once with a name and a reason."""

    __tablename__ = "approvals"

    run_id: Mapped[RunKey]
    cycle: Mapped[NumberKey]
    gate: Mapped[NameKey]
    status: Mapped[str] = mapped_column(server_default="pending")
    reason: Mapped[str | None]
    by: Mapped[str | None]
    requested_at: Mapped[float]
    decided_at: Mapped[float | None]
    deadline: Mapped[float | None]

    __table_args__ = (
        CheckConstraint("status IN ('pending', 'approved', 'rejected')", name="status"),
    )


class LlmReply(Base):
    """One reply of a language model, kept so that a repeated step gets the same one.

    ``text`` is JSON, because models write characters that databases refuse: the text, or an object
    with ``text`` and what the prompt was ``about``; null from the time that the model is asked
    until it replies, while ``cost_usd`` is the most that asking can have cost.
    """

    __tablename__ = "llm_replies"

    run_id: Mapped[RunKey]
    cycle: Mapped[NumberKey]
    purpose: Mapped[NameKey]
    ordinal: Mapped[NumberKey]
    provider: Mapped[str]
    model: Mapped[str]
    prompt_sha256: Mapped[str]
    response_sha256: Mapped[str]
    text: Mapped[str]
    tokens_in: Mapped[int | None]
    tokens_out: Mapped[int | None]
    cost_usd: Mapped[float | None]
    error: Mapped[str | None]

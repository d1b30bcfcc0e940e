"""Tables of the job store, and the version of their layout.

Columns of ``runs``, ``cycles`` and ``checkpoints`` that LeAgents has keep their names and meaning.
Columns of what is returned as a value of `rows` are that value's fields.

Units:  times are Unix seconds (UTC) by the database's clock, unless a column says otherwise.
Types:  JSON documents are text, so that both databases return the bytes that were stored.
Layout: a database says in `VERSION` which one it has. `upgrade` makes the tables, or adds to those
        of `PREVIOUS` what is new; there is no way back. A new layout gets a new `HEAD`, and what
        leads there from the last one stands in `upgrade`.
"""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    text,
    update,
)

from cadenza.loop.contracts.records import JobStatus
from cadenza.loop.store.rows import ApprovalRow, JobRow, ReplyRow, StoredEvent

#: How a run can stand.
RunState: TypeAlias = Literal["running", "pending_approval", "stopped", "finished", "failed"]
RUN_STATUSES: Final[tuple[str, ...]] = get_args(RunState)
#: All tables but `VERSION`, with the names of their constraints in both databases.
METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_TYPES: Final[Mapping[Any, Any]] = {str: Text(), int: Integer(), float: Float(53)}


def _table(
    name: str,
    *more: Any,
    key: Sequence[str],
    defaults: Mapping[str, str] | None = None,
    one_of: Mapping[str, Sequence[Any]] | None = None,
    **columns: Any,
) -> Table:
    """Return a table of ``columns``, Python types by name; ``X | None`` may be null.

    ``one_of`` has the values that a column may take.
    """
    made = [_column(one, kind, (defaults or {}).get(one)) for one, kind in columns.items()]
    checks = [
        CheckConstraint(f"{column} IN ({', '.join(map(repr, values))})", name=column)
        for column, values in (one_of or {}).items()
    ]
    numbered = columns.get("id") is int
    parts = (*made, PrimaryKeyConstraint(*key), *checks, *more)
    return Table(name, METADATA, *parts, sqlite_autoincrement=numbered)


def _column(name: str, kind: Any, default: str | None) -> Column[Any]:
    optional = isinstance(kind, UnionType)
    if optional:
        kind, _ = get_args(kind)
    if get_origin(kind) is Literal:
        kind = str
    of_run = [ForeignKey("runs.id")] if name == "run_id" else []
    stored = _TYPES.get(kind, kind)
    return Column(name, stored, *of_run, nullable=optional, server_default=default)


def _fields(row: type, *without: str) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(row).items() if name not in without}


#: Loop runs: configuration, state (a `LoopState`, whose changes are counted), and who works on it;
#: ``lease_epoch`` counts the controllers so far: who holds an older one may write nothing.
runs: Final = _table(
    "runs",
    Index(None, "created_at"),
    key=("id",),
    defaults={
        "status": "running",
        "capabilities_json": "{}",
        "state_version": "0",
        "lease_epoch": "0",
    },
    one_of={"status": RUN_STATUSES},
    id=str,
    created_at=float,
    status=str,
    stop_reason=str | None,
    config_json=str,
    config_sha256=str,
    constitution_sha256=str | None,
    capabilities_json=str,
    state_json=str,
    state_version=int,
    lease_owner=str | None,
    lease_epoch=int,
    lease_expires_at=float | None,
    stop_requested_at=float | None,
)

#: Cycles of runs: stage, decision, and what they were made of.
cycles: Final = _table(
    "cycles",
    key=("run_id", "idx"),
    run_id=str,
    idx=int,
    stage=str,
    decision=str | None,
    started_at=float,
    finished_at=float | None,
    rung=str | None,
    dataset_json=str | None,
    proposal_json=str | None,
)

_IS_BLESSED: Final = text("blessed = 1")
#: Trained policies; at most one of a run is blessed.
checkpoints: Final = _table(
    "checkpoints",
    Index(None, "run_id"),
    Index(
        "ix_checkpoints_one_blessed",
        "run_id",
        unique=True,
        sqlite_where=_IS_BLESSED,
        postgresql_where=_IS_BLESSED,
    ),
    key=("id",),
    defaults={"blessed": "0"},
    one_of={"blessed": (0, 1)},
    id=int,
    run_id=str,
    cycle_idx=int,
    policy_type=str,
    path=str,
    blessed=int,
    eval_json=str | None,
    sha256=str | None,
)

#: Jobs, one per step that needs one.
jobs: Final = _table(
    "jobs",
    UniqueConstraint("run_id", "cycle", "stage"),
    key=("id",),
    defaults={
        "status": "pending",
        **dict.fromkeys(("attempt", "duration_s", "attempt_s", "interruptions"), "0"),
    },
    one_of={"status": get_args(JobStatus)},
    **_fields(JobRow),
)

#: Events; ``published`` says that log file and subscribers have it.
events: Final = _table(
    "events",
    UniqueConstraint("run_id", "step_key", "ordinal"),
    key=("run_id", "seq"),
    defaults={"published": "0"},
    run_id=str,
    published=int,
    seq=BigInteger(),
    **_fields(StoredEvent, "seq"),
)

#: Evaluation episodes: who played them, from which seed, and how they ended.
episodes: Final = _table(
    "episodes",
    key=("run_id", "cycle", "subject", "look", "idx"),
    run_id=str,
    cycle=int,
    subject=str,
    look=int,
    idx=int,
    task=str,
    seed=BigInteger(),
    success=int,
    score=float | None,
)

#: Seeds [start, start + count) of one purpose; no two ranges of a run share one.
seed_ranges: Final = _table(
    "seed_ranges",
    key=("run_id", "cycle", "purpose", "look"),
    run_id=str,
    cycle=int,
    purpose=str,
    look=int,
    start=BigInteger(),
    count=BigInteger(),
)

#: Questions to people: asked, and answered once with a name and a reason.
approvals: Final = _table(
    "approvals",
    key=("run_id", "cycle", "gate"),
    defaults={"status": "pending"},
    one_of={"status": ("pending", "approved", "rejected")},
    **_fields(ApprovalRow, "read_at"),
)

#: Replies of language models, kept so that a repeated step gets the same one.
#:
#: ``text`` is JSON, because models write characters that databases refuse: the text, or an object
#: with ``text`` and what the prompt was ``about``; null from the time that the model is asked
#: until it replies, while ``cost_usd`` is the most that asking can have cost.
llm_replies: Final = _table(
    "llm_replies",
    key=("run_id", "cycle", "purpose", "ordinal"),
    run_id=str,
    cycle=int,
    purpose=str,
    ordinal=int,
    response_sha256=str,
    **_fields(ReplyRow, "about"),
)

#: Layouts: this one, and the only older one that is brought up to date.
HEAD: Final = "0004"
PREVIOUS: Final = "0003"
#: The layout's version, where Alembic keeps its own.
VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
#: Since `PREVIOUS`: events of one kind, stage or cycle are found without reading the others.
_NEW_INDICES: Final = tuple(
    Index(None, events.c.run_id, column, events.c.seq)
    for column in (events.c.kind, events.c.stage, events.c.cycle)
)


def upgrade(connection: Connection, version: str | None) -> None:
    """Bring a database of `PREVIOUS`, or without tables (None), to `HEAD`."""
    if version is None:
        METADATA.create_all(connection)
        VERSION.create(connection)
        connection.execute(insert(VERSION).values(version_num=HEAD))
        return
    for index in _NEW_INDICES:
        index.create(connection)
    connection.execute(update(VERSION).values(version_num=HEAD))

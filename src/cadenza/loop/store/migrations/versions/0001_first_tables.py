"""First tables of the job store."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables."""
    _create_runs()
    _create_approvals()
    _create_checkpoints()
    _create_cycles()
    _create_episodes()
    _create_events()
    _create_jobs()
    _create_llm_replies()
    _create_seed_ranges()


def _create_runs() -> None:
    op.create_table(
        "runs",
        _text("id"),
        _real("created_at"),
        _text("status", default="running"),
        _text("stop_reason", null=True),
        _text("config_json"),
        _text("config_sha256"),
        _text("constitution_sha256", null=True),
        _text("capabilities_json", default="{}"),
        _text("state_json"),
        _whole("state_version", default="0"),
        _text("lease_owner", null=True),
        _whole("lease_epoch", default="0"),
        _real("lease_expires_at", null=True),
        _real("stop_requested_at", null=True),
        _one_of("runs", "status", "running", "pending_approval", "stopped", "finished", "failed"),
        _key("runs", "id"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"], unique=False)


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        _text("run_id"),
        _part_of_key("cycle"),
        _text("gate"),
        _text("status", default="pending"),
        _text("reason", null=True),
        _text("by", null=True),
        _real("requested_at"),
        _real("decided_at", null=True),
        _real("deadline", null=True),
        _one_of("approvals", "status", "pending", "approved", "rejected"),
        _of_run("approvals"),
        _key("approvals", "run_id", "cycle", "gate"),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        _whole("id"),
        _text("run_id"),
        _whole("cycle_idx"),
        _text("policy_type"),
        _text("path"),
        _whole("blessed", default="0"),
        _text("eval_json", null=True),
        _text("sha256", null=True),
        sa.CheckConstraint("blessed IN (0, 1)", name=op.f("ck_checkpoints_blessed")),
        _of_run("checkpoints"),
        _key("checkpoints", "id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_checkpoints_one_blessed",
        "checkpoints",
        ["run_id"],
        unique=True,
        sqlite_where=sa.text("blessed = 1"),
        postgresql_where=sa.text("blessed = 1"),
    )
    op.create_index("ix_checkpoints_run_id", "checkpoints", ["run_id"], unique=False)


def _create_cycles() -> None:
    op.create_table(
        "cycles",
        _text("run_id"),
        _part_of_key("idx"),
        _text("stage"),
        _text("decision", null=True),
        _real("started_at"),
        _real("finished_at", null=True),
        _text("rung", null=True),
        _text("dataset_json", null=True),
        _text("proposal_json", null=True),
        _of_run("cycles"),
        _key("cycles", "run_id", "idx"),
    )


def _create_episodes() -> None:
    op.create_table(
        "episodes",
        _text("run_id"),
        _part_of_key("cycle"),
        _text("subject"),
        _part_of_key("look"),
        _part_of_key("idx"),
        _text("task"),
        _long("seed"),
        _whole("success"),
        _real("score", null=True),
        _of_run("episodes"),
        _key("episodes", "run_id", "cycle", "subject", "look", "idx"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        _text("run_id"),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        _text("step_key"),
        _whole("ordinal"),
        _real("ts"),
        _real("mono"),
        _text("stage"),
        _text("kind"),
        _whole("cycle", null=True),
        _text("payload"),
        _whole("published", default="0"),
        _of_run("events"),
        _key("events", "run_id", "seq"),
        _unique("events", "run_id", "step_key", "ordinal"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _whole("id"),
        _text("run_id"),
        _whole("cycle"),
        _text("stage"),
        _whole("attempt", default="0"),
        _text("cmd"),
        _whole("pid", null=True),
        _real("pid_start_time", null=True),
        _text("status", default="pending"),
        _real("started", null=True),
        _real("heartbeat", null=True),
        _real("finished", null=True),
        _whole("exit", null=True),
        _real("duration_s", default="0"),
        _real("attempt_s", default="0"),
        _whole("interruptions", default="0"),
        _text("device"),
        _text("result_path", null=True),
        _text("result_sha256", null=True),
        _one_of("jobs", "status", "pending", "running", "succeeded", "failed", "cancelled"),
        _of_run("jobs"),
        _key("jobs", "id"),
        _unique("jobs", "run_id", "cycle", "stage"),
        sqlite_autoincrement=True,
    )


def _create_llm_replies() -> None:
    op.create_table(
        "llm_replies",
        _text("run_id"),
        _part_of_key("cycle"),
        _text("purpose"),
        _part_of_key("ordinal"),
        _text("provider"),
        _text("model"),
        _text("prompt_sha256"),
        _text("response_sha256"),
        _text("text"),
        _whole("tokens_in", null=True),
        _whole("tokens_out", null=True),
        _real("cost_usd", null=True),
        _text("error", null=True),
        _of_run("llm_replies"),
        _key("llm_replies", "run_id", "cycle", "purpose", "ordinal"),
    )


def _create_seed_ranges() -> None:
    op.create_table(
        "seed_ranges",
        _text("run_id"),
        _part_of_key("cycle"),
        _text("purpose"),
        _part_of_key("look"),
        _long("start"),
        _long("count"),
        _of_run("seed_ranges"),
        _key("seed_ranges", "run_id", "cycle", "purpose", "look"),
    )


# Columns and constraints, named as in 0001: later migrations bring their own.


def _text(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=default, nullable=null)


def _whole(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), server_default=default, nullable=null)


def _long(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _real(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, sa.Float(precision=53), server_default=default, nullable=null)


def _part_of_key(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f(f"fk_{table}_run_id_runs"))


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def _one_of(table: str, column: str, *values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=op.f(f"ck_{table}_{column}"))

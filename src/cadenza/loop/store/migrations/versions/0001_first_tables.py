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
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("status", sa.Text(), server_default="running", nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("config_json", sa.Text(), nullable=False),
        sa.Column("config_sha256", sa.Text(), nullable=False),
        sa.Column("constitution_sha256", sa.Text(), nullable=True),
        sa.Column("capabilities_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("state_json", sa.Text(), nullable=False),
        sa.Column("state_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("stop_requested_at", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint(
            "status IN ('running', 'pending_approval', 'stopped', 'finished', 'failed')",
            name=op.f("ck_runs_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"], unique=False)


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("requested_at", sa.Float(precision=53), nullable=False),
        sa.Column("decided_at", sa.Float(precision=53), nullable=True),
        sa.Column("deadline", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'approved', 'rejected')", name=op.f("ck_approvals_status")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_approvals_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "cycle", "gate", name=op.f("pk_approvals")),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle_idx", sa.Integer(), nullable=False),
        sa.Column("policy_type", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("blessed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("eval_json", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.CheckConstraint("blessed IN (0, 1)", name=op.f("ck_checkpoints_blessed")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
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
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("idx", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Float(precision=53), nullable=False),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("rung", sa.Text(), nullable=True),
        sa.Column("dataset_json", sa.Text(), nullable=True),
        sa.Column("proposal_json", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_cycles_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "idx", name=op.f("pk_cycles")),
    )


def _create_episodes() -> None:
    op.create_table(
        "episodes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("look", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idx", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("success", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_episodes_run_id_runs")),
        sa.PrimaryKeyConstraint(
            "run_id", "cycle", "subject", "look", "idx", name=op.f("pk_episodes")
        ),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step_key", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("ts", sa.Float(precision=53), nullable=False),
        sa.Column("mono", sa.Float(precision=53), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("published", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_events")),
        sa.UniqueConstraint(
            "run_id", "step_key", "ordinal", name=op.f("uq_events_run_id_step_key_ordinal")
        ),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cmd", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_start_time", sa.Float(precision=53), nullable=True),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("started", sa.Float(precision=53), nullable=True),
        sa.Column("heartbeat", sa.Float(precision=53), nullable=True),
        sa.Column("finished", sa.Float(precision=53), nullable=True),
        sa.Column("exit", sa.Integer(), nullable=True),
        sa.Column("duration_s", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("attempt_s", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("interruptions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("result_path", sa.Text(), nullable=True),
        sa.Column("result_sha256", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_status"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("run_id", "cycle", "stage", name=op.f("uq_jobs_run_id_cycle_stage")),
        sqlite_autoincrement=True,
    )


def _create_llm_replies() -> None:
    op.create_table(
        "llm_replies",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_sha256", sa.Text(), nullable=False),
        sa.Column("response_sha256", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("cost_usd", sa.Float(precision=53), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_llm_replies_run_id_runs")),
        sa.PrimaryKeyConstraint(
            "run_id", "cycle", "purpose", "ordinal", name=op.f("pk_llm_replies")
        ),
    )


def _create_seed_ranges() -> None:
    op.create_table(
        "seed_ranges",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("look", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_seed_ranges_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "cycle", "purpose", "look", name=op.f("pk_seed_ranges")),
    )

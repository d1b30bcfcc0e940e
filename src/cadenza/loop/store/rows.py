"""What the job store returns.

Rows of the three tables that LeAgents has are mappings, as there; all others are frozen values.
"""

from dataclasses import dataclass
from typing import TypedDict

from cadenza.loop.contracts.records import Device, JobKey, JobStatus


class RunRow(TypedDict):
    """One run; times are Unix seconds, ``*_json`` are documents as text."""

    id: str
    created_at: float
    status: str
    stop_reason: str | None
    config_json: str
    config_sha256: str
    constitution_sha256: str | None
    capabilities_json: str
    state_json: str
    state_version: int
    lease_owner: str | None
    lease_epoch: int
    lease_expires_at: float | None
    stop_requested_at: float | None


class CycleRow(TypedDict):
    """One cycle."""

    run_id: str
    idx: int
    stage: str
    decision: str | None
    started_at: float
    finished_at: float | None
    rung: str | None
    dataset_json: str | None
    proposal_json: str | None


class CheckpointRow(TypedDict):
    """One trained policy; ``blessed`` is 0 or 1."""

    id: int
    run_id: str
    cycle_idx: int
    policy_type: str
    path: str
    blessed: int
    eval_json: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one controller to change a run.

    Attributes:
        run_id: The run.
        owner: Who holds it.
        epoch: Number of controllers the run has had, this one included.
        ttl_s: Seconds it lasts from each renewal.
    """

    run_id: str
    owner: str
    epoch: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as the store knows it.

    Attributes:
        id: Its number.
        key: What it is for.
        attempt: Starts so far.
        command: Program name and arguments.
        pid: Process of the latest attempt.
        pid_start_time: Its start time as its runner measures it; tells it from a later process of
            the same number.
        status: How it stands.
        started: When the latest attempt began, Unix seconds.
        heartbeat: When it last showed a sign of life, Unix seconds.
        finished: When the job ended, Unix seconds.
        exit_code: Exit status of the latest ended attempt.
        duration_s: Seconds of all ended attempts.
        attempt_s: Seconds of the running attempt at its last sign of life.
        interruptions: Attempts that a signal from outside ended.
        device: What its seconds are charged to.
        result_path: Result file.
        result_sha256: Digest of the result file.
    """

    id: int
    key: JobKey
    attempt: int
    command: tuple[str, ...]
    pid: int | None
    pid_start_time: float | None
    status: JobStatus
    started: float | None
    heartbeat: float | None
    finished: float | None
    exit_code: int | None
    duration_s: float
    attempt_s: float
    interruptions: int
    device: Device
    result_path: str | None
    result_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event on its way into the table, or in it.

    Attributes:
        step_key: Step of the run that emits it.
        ordinal: Its number within the step, from 0.
        stage: Part of the loop.
        kind: What happened.
        cycle: Cycle, or None outside one.
        payload: Details, as a JSON object in text.
        ts: When, Unix seconds.
        mono: Monotonic clock of the emitting machine, s.
        seq: Number within the run, from 1; 0 before it is in the table.
    """

    step_key: str
    ordinal: int
    stage: str
    kind: str
    cycle: int | None
    payload: str
    ts: float
    mono: float
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """A question to a person.

    Attributes:
        run_id: The run.
        cycle: Its cycle.
        gate: What is asked.
        status: ``"pending"``, ``"approved"`` or ``"rejected"``.
        reason: Why it was decided so.
        by: Who decided.
        requested_at: Unix seconds.
        decided_at: Unix seconds.
        deadline: Unix seconds; None waits for ever.
        overdue: Whether it is undecided and the deadline has passed.
    """

    run_id: str
    cycle: int
    gate: str
    status: str
    reason: str | None
    by: str | None
    requested_at: float
    decided_at: float | None
    deadline: float | None
    overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyTotals:
    """All replies of language models that one run asked for.

    Attributes:
        calls: Replies, failed ones too.
        failed: Replies that failed or were not asked for, for want of money or room.
        cost_usd: Cost together, US dollars, those that are not known left out.
    """

    calls: int
    failed: int
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRow:
    """One reply of a language model.

    Attributes:
        provider: Who served it.
        model: Which model.
        prompt_sha256: Digest of the whole prompt.
        text: The reply; empty when the call failed.
        tokens_in: Tokens of the prompt; None if not told.
        tokens_out: Tokens of the reply; None if not told.
        cost_usd: Cost of all attempts, US dollars, or the most it can be where the service did not
            tell; None without a price.
        error: Why the call failed; None if it did not.
        about: What the prompt drew on, as JSON; None if nobody said.
    """

    provider: str
    model: str
    prompt_sha256: str
    text: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    error: str | None = None
    about: str | None = None

"""What the job store returns.

Rows of the three tables that LeAgents has are mappings, as there; all others are frozen values.
Times are Unix seconds, ``*_json`` are documents as text; `models` describes the columns.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from cadenza.loop.contracts.records import Device, JobKey, JobStatus

#: One row of ``runs``, ``cycles`` or ``checkpoints`` by its columns.
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one controller, the ``epoch``-th, to change a run, for ``ttl_s`` at a time."""

    run_id: str
    owner: str
    epoch: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as the store knows it.

    Attributes:
        pid: Process of the latest attempt, with its start time as its runner measures it.
        heartbeat: When the latest attempt last showed a sign of life.
        duration_s: Seconds of all ended attempts.
        attempt_s: Seconds of the running attempt at its last sign of life.
        interruptions: Attempts that a signal from outside ended.
        device: What its seconds are charged to.
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
        step_key: Step of the run that emits it, as its ``ordinal``-th event from 0.
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
    """A question to a person, and the answer; ``deadline`` None waits for ever."""

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
class ReplyRow:
    """One reply of a language model; tokens and cost are None if not reported, or without a price.

    Attributes:
        text: The reply; empty when the call failed.
        cost_usd: Cost of all attempts, US dollars, or the most it can be where the service did not
            tell.
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

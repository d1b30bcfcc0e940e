"""Rows of the job store as its parts return them; `schema` takes the columns of these tables here.

Rows of ``runs``, ``cycles`` and ``checkpoints``, which LeAgents has, are mappings, as there.
Times are Unix seconds (UTC) by the database's clock, unless a field says otherwise.
"""

import json
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
    """One command of one step of one cycle.

    Attributes:
        attempt: How often it was started; ``interruptions`` are ends by a signal from outside.
        cmd: The command as JSON.
        pid: Process of the latest attempt, with its start time as its runner measures it.
        heartbeat: When the latest attempt last showed a sign of life.
        duration_s: Seconds of all ended attempts.
        attempt_s: Seconds of the running attempt at its last sign of life.
        device: What its seconds are charged to.
    """

    id: int
    run_id: str
    cycle: int
    stage: str
    attempt: int
    cmd: str
    pid: int | None
    pid_start_time: float | None
    status: JobStatus
    started: float | None
    heartbeat: float | None
    finished: float | None
    exit: int | None
    duration_s: float
    attempt_s: float
    interruptions: int
    device: Device
    result_path: str | None
    result_sha256: str | None

    @property
    def key(self) -> JobKey:
        """The job's name."""
        return JobKey(run_id=self.run_id, cycle=self.cycle, stage=self.stage)

    @property
    def command(self) -> tuple[str, ...]:
        """The command."""
        return tuple(json.loads(self.cmd))

    @property
    def exit_code(self) -> int | None:
        """How the latest ended attempt ended, negative for a signal; None if nobody saw it."""
        return self.exit


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
    """A question to a person, and the answer, at ``read_at``; ``deadline`` None waits for ever."""

    run_id: str
    cycle: int
    gate: str
    status: str
    reason: str | None
    by: str | None
    requested_at: float
    decided_at: float | None
    deadline: float | None
    read_at: float

    @property
    def overdue(self) -> bool:
        """Whether it is unanswered and its time is over."""
        late = self.deadline is not None and self.deadline <= self.read_at
        return late and self.status == "pending"


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

"""How runs stand, as records: what `cadenza loop status --json` writes.

Units:      success as a share of episodes in [0, 1]; seconds and hours of jobs, running ones
            included; times are Unix seconds.
Intervals:  exact (Clopper-Pearson) at 95 % for one policy's success; the bounds of the difference
            are those that the decision used.
"""

from typing import Literal

from pydantic import Field

from cadenza.loop.contracts.records import Device, Record
from cadenza.loop.disk_space import DiskSpace


class Measurement(Record):
    """Success of one policy.

    Attributes:
        rate: Share of episodes that succeeded.
        low: Lower bound of its 95 % interval.
        high: Upper bound.
        n_episodes: Episodes played.
        score: Mean graded result, in the task's units; None if an episode has none.
    """

    rate: float
    low: float
    high: float
    n_episodes: int = Field(ge=1)
    score: float | None = None


class Harvested(Record):
    """What a cycle harvested for later training.

    Attributes:
        starts: ``"solved"`` for the policy's own successes, ``"failed"`` for episodes of an expert
            from initial states at which the policy failed.
        kept: Episodes kept.
        successes: Attempts that the policy solved.
        attempts: Attempts of the policy.
    """

    starts: str
    kept: int
    successes: int
    attempts: int


class CycleStatus(Record):
    """One cycle.

    Attributes:
        idx: Its number, from 0.
        rung: Policy type it trains.
        stage: What it does, or did last.
        decision: What became of its candidate; None before.
        reason: Why, in one sentence; None before.
        candidate: What the candidate solved; None before its evaluation.
        baseline: What the reference solved on the same initial states; None without one.
        difference: Bounds of the difference that the decision was made on; None without them.
        seconds: Seconds of its jobs by device.
        harvest: What it harvested; None for nothing.
        adapted: What of candidate and of its copy that was trained on the harvests was compared to
            choose between them; None where there was no copy.
        checkpoint: Policy that stands for it: the adapted copy once that was chosen; None before.
        started_at: When it began.
        finished_at: When it ended; None while it goes on.
    """

    idx: int
    rung: str | None
    stage: str
    decision: str | None
    reason: str | None
    candidate: Measurement | None
    baseline: Measurement | None
    difference: tuple[float | None, float | None] | None
    seconds: dict[Device, float]
    harvest: Harvested | None = None
    adapted: tuple[float, float] | None = None
    checkpoint: str | None
    started_at: float
    finished_at: float | None


class LiveJob(Record):
    """A job that runs now.

    Attributes:
        cycle: Its cycle.
        stage: What it is for.
        attempt: Number of the attempt.
        pid: Process in charge of it; None if that has not said so yet.
        elapsed_s: Seconds of this attempt so far.
        silent_s: Seconds since its last sign of life.
        left_s: Estimated seconds until its end; None if they are unknown.
        done: Share that it says it has done; None if it says nothing.
        waits_for: What keeps it from starting; None if nothing does.
        quiet_s: Seconds since it left a trace in its log or folder.
        interrupted: Earlier attempts that were interrupted; None if nobody knows.
        failed: Earlier attempts that failed; None if nobody knows.
        last_problem: Why the attempt before did not do the job; empty if nobody knows.
    """

    cycle: int
    stage: str
    attempt: int
    pid: int | None
    elapsed_s: float
    silent_s: float
    left_s: float | None
    done: float | None
    waits_for: str | None = None
    quiet_s: float = 0.0
    interrupted: int | None = None
    failed: int | None = None
    last_problem: str = ""


class PendingApproval(Record):
    """A question that waits for a person.

    Attributes:
        cycle: Cycle that asks.
        gate: Decision that it wants to make.
        requested_at: When it asked.
        deadline: When it acts on silence; None never.
        overdue: Whether that has passed.
    """

    cycle: int
    gate: str
    requested_at: float
    deadline: float | None
    overdue: bool


class Spending(Record):
    """What jobs took and may take.

    Attributes:
        uses_gpu: Whether jobs run on a GPU.
        gpu_hours: Hours that count against ``max_gpu_hours``: on the GPU, or all without one.
        max_gpu_hours: Limit; None if the stored configuration names none.
        wall_hours: Hours of all jobs.
        max_wall_hours: Limit; None for none.
    """

    uses_gpu: bool
    gpu_hours: float
    max_gpu_hours: float | None
    wall_hours: float
    max_wall_hours: float | None


class ModelUse(Record):
    """What a run asked a language model.

    Attributes:
        calls: Replies, failed ones and the one under way too.
        failed: Replies that failed, or that nothing was left to pay for.
        cost_usd: Cost, with the most that calls under way can cost, US dollars; None if the
            configuration names no prices.
        max_cost_usd: Limit; None for none.
        fallbacks: Proposals that the schedule made for want of a usable reply.
        asked_now: Whether the run waits for a reply.
    """

    calls: int
    failed: int
    fallbacks: int
    cost_usd: float | None
    max_cost_usd: float | None
    asked_now: bool = False


class BlessedPolicy(Record):
    """The run's best policy.

    Attributes:
        path: Its weights.
        policy_type: Rung that trained it.
        cycle: Cycle that trained it; None for one that the run started from.
        success: What it solved in its own cycle; None if not recorded.
        score: Its mean graded result there, in the task's units; None if an episode has none.
    """

    path: str
    policy_type: str
    cycle: int | None
    success: float | None
    score: float | None = None


class RunStatus(Record):
    """One run.

    Attributes:
        run_id: Its id.
        status: ``running``, ``pending_approval``, ``stopped``, ``finished`` or ``failed``.
        stop_reason: Why it ended; None while it goes on.
        worked_on_by: Process that works on it; None if nobody does.
        stop_requested: Whether it is asked to stop.
        created_at: When it began.
        step: Step it does next, or ``finished``.
        max_cycles: Cycles it may make; None if the stored configuration names no number.
        metric: What of an episode its decisions compare: ``success`` or ``score``.
        constitution: File of the rules that it obeys; None for the shipped ones.
        constitution_sha256: Digest of these rules; None if the store has none.
        cycles: Its cycles, in order.
        seed_data: Initial states of the dataset that it starts from: ``reserved``, so that no
            policy is measured on them, or ``unknown``; None if it collects its own data, or has not
            looked yet.
        blessed: Best policy; None before a promotion.
        error_budget: Probability that the run blesses any policy that is no better; None if the
            stored configuration names none.
        error_spent: What its comparisons spent of it; None in a run of an earlier version.
        pending: Questions to a person.
        jobs: Jobs that run now.
        failed_log: Log of the job that failed last; None if none did.
        spending: What its jobs took.
        disk: Room on the disk of its folder; None where that cannot be seen.
        language_model: What it asked a language model; None if nothing.
        knowledge_pages: Pages that it wrote to, in order of their names.
    """

    run_id: str
    status: str
    stop_reason: str | None
    worked_on_by: str | None
    stop_requested: bool
    created_at: float
    step: str
    max_cycles: int | None
    metric: str
    constitution: str | None
    constitution_sha256: str | None
    cycles: tuple[CycleStatus, ...]
    seed_data: Literal["reserved", "unknown"] | None = None
    blessed: BlessedPolicy | None
    error_budget: float | None = None
    error_spent: float | None = None
    pending: tuple[PendingApproval, ...]
    jobs: tuple[LiveJob, ...]
    failed_log: str | None
    spending: Spending
    disk: DiskSpace | None = None
    language_model: ModelUse | None
    knowledge_pages: tuple[str, ...]

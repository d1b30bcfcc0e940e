"""How runs stand, read from their store without changing it: what `cadenza loop status` shows.

Units:      success as a share of episodes in [0, 1], intervals exact (Clopper-Pearson) at 95 %;
            seconds and hours of jobs, running ones included; times are Unix seconds.
Time left:  from the share that the present attempt says it has done by itself; else from the time
            that the newest ended job of the same work took, by the steps or episodes of both.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import Field, ValidationError, computed_field

from cadenza.core.errors import CadenzaError
from cadenza.loop.contracts.records import OUTLOOK, Device, JobKey, Rate, Record
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptRequest
from cadenza.loop.jobs.outcomes import flags_of, goes_on, kind_of, progress_of
from cadenza.loop.processes import is_gone
from cadenza.loop.retention import DiskSpace, disk_space, removed
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.overview import (
    FALLBACKS,
    NEWEST,
    Overview,
    newest_runs,
    overviews,
    tallies_of_cycle,
)
from cadenza.loop.store.rows import ApprovalRow, JobRow, Row


class Measurement(Record):
    """Success of one policy.

    Attributes:
        rate: Share of episodes that succeeded, with the bounds of its 95 % interval.
        score: Mean graded result, in the task's units; None if an episode has none.
    """

    rate: float
    low: float
    high: float
    n_episodes: int = Field(ge=1)
    score: float | None = None


class Harvested(Record):
    """What a cycle harvested of ``attempts``, as ``improve.starts`` says from which starts."""

    starts: str
    kept: int
    successes: int
    attempts: int


class CycleStatus(Record):
    """One cycle; what is not there yet is None.

    Attributes:
        stage: What it does, or did last.
        reason: Why its decision was made, in one sentence; what was ahead then is left out.
        baseline: What the reference solved on the initial states of the candidate; None without
            one.
        difference: Bounds of the difference that the decision was made on; None without them.
        seconds: Seconds of its jobs by device.
        adapted: What of candidate and of its copy that was trained on the harvests was compared to
            choose between them; None where there was no copy.
        checkpoint: Policy that stands for it: the adapted copy once that was chosen.
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
    """A job that runs now; None and an empty text where nobody knows.

    Attributes:
        pid: Process in charge of it.
        elapsed_s: Seconds of this attempt so far.
        silent_s: Seconds since its last sign of life.
        left_s: Estimated seconds until its end.
        done: Share that it says it has done.
        waits_for: What keeps it from starting; None if nothing does.
        quiet_s: Seconds since it left a trace in its log or folder.
        interrupted: Earlier attempts that were interrupted.
        last_problem: Why the attempt before did not do the job.
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
    """A question that waits for a person: when it acts on silence, and whether that has passed.

    ``why`` is the reason of the decision that it would carry out; empty if unknown.
    """

    cycle: int
    gate: str
    requested_at: float
    deadline: float | None
    overdue: bool
    why: str = ""


class Spending(Record):
    """What jobs took, hours; ``gpu_hours`` counts those on the GPU, or all without one."""

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
        fallbacks: Proposals that the schedule made for want of a usable reply.
    """

    calls: int
    failed: int
    fallbacks: int
    cost_usd: float | None
    max_cost_usd: float | None
    asked_now: bool = False


class BlessedPolicy(Record):
    """The run's best policy, and what it reached in its ``cycle``; None for one started from."""

    path: str
    policy_type: str
    cycle: int | None
    success: float | None
    score: float | None = None


class RunHead(Record):
    """Which run it is and where it stands.

    Attributes:
        worked_on_by: Process that works on it; None if nobody does.
        step: Step it does next, or ``finished``.
        decided: Cycles that came to a decision.
        max_cycles: Cycles it may make; None if the stored configuration names no number.
    """

    run_id: str
    status: str
    stop_reason: str | None
    worked_on_by: str | None
    stop_requested: bool
    created_at: float
    step: str
    decided: int
    max_cycles: int | None


class RunSummary(RunHead):
    """One run in a list: the ``cycle`` it is in, open questions, success of its blessed policy."""

    cycle: int
    pending: int
    success: Measurement | None


class RunStatus(RunHead):
    """One run.

    Attributes:
        cycles_left_out: Cycles before those in ``cycles``, which are the newest.
        constitution: File of the rules that it obeys; None for the shipped ones.
        seed_data: Initial states of the dataset that it starts from: ``reserved``, so that no
            policy is measured on them, or ``unknown``; None if it collects its own data, or has not
            looked yet.
        error_budget: Probability that the run blesses any policy that is no better; None if the
            stored configuration names none.
        error_spent: What its comparisons spent of it.
        error_failed: Comparisons that showed no gain.
        next_comparison: What the next comparison can show, in words; None where the stored
            configuration does not say, or this version does not take it.
        failed_log: Log of the job that failed last; None if none did.
        disk: Room on the disk of its folder; None where that cannot be seen.
        knowledge_pages: Pages that it wrote to, in order of their names.
        removed: Folders below its own that were removed to make room.
    """

    metric: str
    constitution: str | None
    constitution_sha256: str | None
    cycles_left_out: int = 0
    cycles: tuple[CycleStatus, ...]
    seed_data: Literal["reserved", "unknown"] | None = None
    blessed: BlessedPolicy | None
    error_budget: float | None = None
    error_spent: float | None = None
    error_failed: int = 0
    next_comparison: str | None = None
    pending: tuple[PendingApproval, ...]
    jobs: tuple[LiveJob, ...]
    failed_log: str | None
    spending: Spending
    disk: DiskSpace | None = None
    language_model: ModelUse | None
    knowledge_pages: tuple[str, ...]
    removed: tuple[str, ...] = ()

    @computed_field
    @property
    def error_left(self) -> float | None:
        """What is left of the error budget; None if nobody knows."""
        if self.error_budget is None or self.error_spent is None:
            return None
        return max(0.0, self.error_budget - self.error_spent)


class TaskResult(Record):
    """What one policy (``candidate``, ``baseline``, ...) of a cycle solved of one task."""

    subject: str
    task: str
    measured: Measurement


#: Flags that say how much work a job is, the first that a command has.
_SIZES: Final = ("steps", "episodes", "eval.n_episodes")
#: Flags that say what is trained: another one takes another time.
_POLICIES: Final = ("rung", "policy.type")


class Outlook(Record):
    """How a running job goes on: the share that is done, and seconds left, as far as known."""

    done: Rate | None = None
    left_s: float | None = None


class JobEstimates:
    """Estimates for the jobs of one run, from all of them and what they leave below ``folder``."""

    def __init__(self, jobs: Sequence[JobRow], *, folder: Path) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._folder = folder

    def outlook(self, key: JobKey, elapsed_s: float) -> Outlook:
        """Return how a job goes on whose present attempt runs for ``elapsed_s`` seconds."""
        job = self._jobs.get(key)
        if job is None:
            return Outlook()
        request = self._request(job)
        begun = 0.0 if job.attempt <= 1 else None  # the share that the present attempt went on from
        if request is not None:
            begun = request.done
        done = progress_of(job.command, key.log_in(self._folder), begun=begun)
        if done is None or begun is None or done <= begun:
            left_s = self._left_by_like(job, elapsed_s, begun)
            return Outlook(done=(begun or None) if done is None else done, left_s=left_s)
        return Outlook(done=done, left_s=elapsed_s * (1.0 - done) / (done - begun))

    def live(self, job: JobRow) -> LiveJob | None:
        """Return a job that is recorded as running; None if it ended and nobody was there to see.

        Its own heartbeat counts where its folder can be seen: its controller may be dead.
        """
        attempts, moment = self._attempts(job), time.time()
        if attempts.has_ended(job.attempt):
            return None
        started = moment if job.started is None else job.started
        heard = started if job.heartbeat is None else job.heartbeat
        worked_s, quiet_s = job.attempt_s, 0.0
        host = attempts.read_host(job.attempt)
        if host is not None:
            heard = max(heard, attempts.lock_path.stat().st_mtime)
            worked_s, quiet_s = max(worked_s, host.attempt_s), host.quiet_s
        elapsed_s = worked_s or max(0.0, moment - started)
        outlook, request = self.outlook(job.key, elapsed_s), self._request(job)
        live = LiveJob(
            cycle=job.cycle,
            stage=job.stage,
            attempt=job.attempt,
            pid=job.pid,
            elapsed_s=elapsed_s,
            silent_s=max(0.0, moment - heard),
            left_s=outlook.left_s,
            done=outlook.done,
            quiet_s=quiet_s,
        )
        if request is None:
            return live
        earlier = {"interrupted": max(0, job.attempt - 1 - request.failed)}
        earlier |= {"failed": request.failed, "last_problem": request.last}
        return live.model_copy(update={**earlier, "waits_for": request.waits_for})

    def _attempts(self, job: JobRow) -> AttemptFolder:
        return AttemptFolder(job.key.attempts_beside(job.key.log_in(self._folder)))

    def _request(self, job: JobRow) -> AttemptRequest | None:
        """Return what a job's present attempt is to run, and after what; None if unknown."""
        request = self._attempts(job).request
        return request if request is not None and request.attempt == job.attempt else None

    def _left_by_like(self, job: JobRow, elapsed_s: float, begun: float | None) -> float | None:
        """Return the seconds left if the job takes as long as its like, scaled; None if unknown."""
        like = max(
            (other for other in self._jobs.values() if _is_like(other, job)),
            key=lambda other: other.finished or 0.0,
            default=None,
        )
        if like is None:
            return None
        sizes = _size_of(job), _size_of(like)
        scale = sizes[0] / sizes[1] if sizes[0] and sizes[1] else 1.0
        spent_s = elapsed_s
        if begun is None and goes_on(job.command):
            spent_s += job.duration_s
        left_s = scale * like.duration_s * (1.0 - (begun or 0.0)) - spent_s
        return left_s if left_s > 0.0 else None


def _is_like(ended: JobRow, job: JobRow) -> bool:
    """Return whether a job has ended well that did the same work, on a policy of the same type."""
    if ended.status != "succeeded" or kind_of(ended.command) != kind_of(job.command):
        return False
    before, now = flags_of(ended.command), flags_of(job.command)
    return all(before[name] == now[name] for name in _POLICIES if name in before and name in now)


def _size_of(job: JobRow) -> int | None:
    flags = flags_of(job.command)
    text = next((flags[name] for name in _SIZES if name in flags), "")
    return int(text) if text.isdecimal() else None


#: Probability that each bound of a success rate may fail.
_TAIL: Final = 0.025
_HOUR_S: Final = 3600.0
#: Steps that ask a language model.
_ASKING_STEPS: Final = ("propose", "learn")


def run_status(
    store: JobStore, run_id: str, *, workdir: Path, newest: int | None = NEWEST
) -> RunStatus:
    """Return how one run stands, of its cycles the ``newest``; None for all of them.

    Its jobs leave signs of life and progress below ``workdir``.

    Raises:
        UnknownRowError: There is no such run.
    """
    [found] = overviews(store.database, run_id, newest=newest)
    return _status(found, workdir)


def all_statuses(store: JobStore, *, workdir: Path, newest: int | None = NEWEST) -> list[RunStatus]:
    """Return how every run of a store stands, oldest first; arguments as `run_status`."""
    return [_status(found, workdir) for found in overviews(store.database, newest=newest)]


def raisable_budget(stop_reason: str | None) -> str | None:
    """Return the key of the budget that ended a run and may be raised; None for another end."""
    key = (stop_reason or "").removeprefix("budget: ")
    return key if key in ("max_cycles", "max_gpu_hours", "max_wall_hours") else None


def run_list(
    store: JobStore, *, status: str | None = None, limit: int = 100, before: str | None = None
) -> list[RunSummary]:
    """Return how runs stand in short, newest first: at most ``limit`` older than run ``before``."""
    return [
        RunSummary(
            **_head(found),
            cycle=_object(found.run["state_json"]).get("cycle", 0),
            pending=len(found.rows["questions"]),
            success=_blessed_success(found),
        )
        for found in newest_runs(store.database, status=status, limit=limit, before=before)
    ]


def _head(found: Overview) -> dict[str, Any]:
    """Return the values of a `RunHead`."""
    run = found.run
    return {
        **{name: run[name] for name in ("status", "stop_reason", "created_at")},
        "run_id": run["id"],
        "worked_on_by": _owner(run, found.moment),
        "stop_requested": run["stop_requested_at"] is not None,
        "step": str(_object(run["state_json"]).get("step", "")),
        "decided": sum(row["decided"] for row in found.rows["counts"]),
        "max_cycles": _section(_object(run["config_json"]), "budgets").get("max_cycles"),
    }


def cycle_evaluation(store: JobStore, run_id: str, cycle: int) -> list[TaskResult]:
    """Return what each policy of a cycle solved, by task, or natively by partner."""
    rows = tallies_of_cycle(store.database, run_id, cycle)
    measured = [(row["subject"], row["task"], measure(row)) for row in rows]
    return [
        TaskResult(subject=subject, task=task, measured=found)
        for subject, task, found in measured
        if found is not None
    ]


def _status(found: Overview, workdir: Path) -> RunStatus:
    run, rows = found.run, found.rows
    folder = workdir / run["id"]
    jobs = [JobRow(**row) for row in rows["jobs"]]
    config, state = _object(run["config_json"]), _object(run["state_json"])
    estimates = JobEstimates(jobs, folder=folder)
    running = [estimates.live(job) for job in jobs if job.status == "running"]
    failed = [job.key for job in jobs if job.status == "failed"]
    head, why = _head(found), _section(state, "current").get("reason") or ""
    asks = head["worked_on_by"] is not None and head["step"] in _ASKING_STEPS
    return RunStatus(
        **head,
        metric=_section(config, "eval").get("metric", "success"),
        constitution=config.get("constitution"),
        constitution_sha256=run["constitution_sha256"],
        cycles_left_out=sum(row["total"] for row in rows["counts"]) - len(rows["cycles"]),
        cycles=_cycles(found, jobs),
        seed_data=_seed_data(found),
        blessed=_blessed(found),
        error_budget=_section(config, "thresholds").get("alpha"),
        error_spent=state.get("spent"),
        **_next_comparison(config, state),
        pending=tuple(
            PendingApproval.model_validate(
                ApprovalRow(**row, read_at=found.moment), from_attributes=True
            ).model_copy(update={"why": why if row["cycle"] == state.get("cycle") else ""})
            for row in rows["questions"]
        ),
        jobs=tuple(live for live in running if live is not None),
        failed_log=str(failed[-1].log_in(folder)) if failed else None,
        spending=_spending(run, {row["device"]: row["seconds"] for row in rows["seconds"]}),
        disk=disk_space(workdir, "lerobot" if config.get("backend") == "lerobot" else "native"),
        language_model=_model_use(
            rows["replies"],
            sum(row["count"] for row in rows["notes"] if row["kind"] in FALLBACKS),
            _section(config, "llm_calls"),
            asked_now=asks and state.get("cycle", 0) in [row["cycle"] for row in rows["asked"]],
        ),
        knowledge_pages=_knowledge_pages(found),
        removed=tuple(sorted(removed(folder))),
    )


def _next_comparison(config: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return how many comparisons showed no gain, and what the next one can show."""
    from cadenza.loop.config import LoopConfig
    from cadenza.loop.orchestrator.comparison import most_episodes, outlook, tasks_of
    from cadenza.loop.state import LoopState

    told: dict[str, Any] = {}
    try:
        at = LoopState.model_validate(state)
        told["error_failed"] = at.failed
        settings = LoopConfig.from_document(config, source="run")
        told["next_comparison"] = outlook(
            settings,
            spent=at.spent,
            failed=at.failed,
            most=most_episodes(settings) * tasks_of(settings),
            deviation=at.deviation,
        )
    except (CadenzaError, ValidationError):  # of another version, or its file of suites is gone
        pass
    return told


def _seed_data(found: Overview) -> Literal["reserved", "unknown"] | None:
    """Return what became of the initial states of the run's seed dataset; None for none."""
    for told in _notes(found, "seed_data_seeds"):
        return "unknown" if told.get("seeds") == "unknown" else "reserved"
    return None


def _notes(found: Overview, kind: str) -> list[dict[str, Any]]:
    """Return what events of a kind told in the whole run, different ones."""
    return [_object(row["text"]) for row in found.rows["notes"] if row["kind"] == kind]


def _owner(run: Row, moment: float) -> str | None:
    """Return who works on a run; None if nobody does, or a process that is known to be gone."""
    owner: str | None = run["lease_owner"]
    if owner is None or run["lease_expires_at"] <= moment or is_gone(owner):
        return None
    return owner


def measure(tally: Row | None) -> Measurement | None:
    """Return the share of successes with its exact 95 % interval; None without episodes."""
    if tally is None:
        return None
    from cadenza.evaluation.statistics.paired_outcomes import exact_bounds

    successes, episodes = int(tally["successes"]), tally["episodes"]
    low, high = exact_bounds(successes, episodes, tail=_TAIL)
    return Measurement(
        rate=successes / episodes,
        low=low,
        high=high,
        n_episodes=episodes,
        score=tally["score_sum"] / episodes if tally["scored"] == episodes else None,
    )


def _cycles(found: Overview, jobs: Sequence[JobRow]) -> tuple[CycleStatus, ...]:
    rows = found.rows
    told = {(row["kind"], row["cycle"]): _object(row["payload"]) for row in rows["told"]}
    checkpoints = _checkpoints(rows["checkpoints"], told)
    tallies = {(row["cycle"], row["subject"]): measure(row) for row in rows["episodes"]}
    seconds = {row["idx"]: dict[Device, float]() for row in rows["cycles"]}
    for job in jobs:
        of_cycle = seconds.setdefault(job.key.cycle, {})
        of_cycle[job.device] = of_cycle.get(job.device, 0.0) + job.duration_s + job.attempt_s
    cycles: list[CycleStatus] = []
    for row in rows["cycles"]:
        idx = row["idx"]
        decided, pair = told.get(("decision", idx), {}), told.get(("candidate_selected", idx), {})
        cycles.append(
            CycleStatus(
                idx=idx,
                rung=row["rung"],
                stage=row["stage"],
                decision=row["decision"] or decided.get("decision"),
                reason=(decided.get("reason") or "").partition(f" {OUTLOOK}")[0] or None,
                candidate=tallies.get((idx, "candidate")),
                baseline=tallies.get((idx, "baseline")),
                difference=_bounds(decided),
                seconds=seconds[idx],
                harvest=_harvest(told.get(("rollouts_collected", idx), {})),
                adapted=(pair["candidate"], pair["adapted"]) if "adapted" in pair else None,
                checkpoint=checkpoints.get(idx),
                started_at=row["started_at"],
                finished_at=row["finished_at"],
            )
        )
    return tuple(cycles)


def _harvest(told: dict[str, Any]) -> Harvested | None:
    if not told:
        return None
    counts = {name: told[name] for name in ("kept", "successes", "attempts")}
    return Harvested(starts=told.get("starts", "solved"), **counts)


def _checkpoints(
    rows: Sequence[Row], told: Mapping[tuple[str, int], dict[str, Any]]
) -> dict[int, str]:
    """Return the policy of each cycle: its candidate, or the adapted copy where that was chosen."""
    paths: dict[int, str] = {}
    for row in rows:
        cycle = row["cycle_idx"]
        chosen = told.get(("candidate_selected", cycle), {}).get("chosen")
        if cycle not in paths or chosen == "adapted":
            paths[cycle] = row["path"]
    return paths


def _bounds(decided: dict[str, Any]) -> tuple[float | None, float | None] | None:
    evidence = _section(decided, "evidence") or decided
    if evidence.get("difference") is None:
        return None
    return evidence.get("lower"), evidence.get("upper")


def _blessed(found: Overview) -> BlessedPolicy | None:
    row = next((row for row in found.rows["checkpoints"] if row["blessed"]), None)
    if row is None:
        return None
    measured = _blessed_success(found)
    report = _object(row["eval_json"]) if row["eval_json"] else {}
    return BlessedPolicy(
        path=row["path"],
        policy_type=row["policy_type"],
        cycle=None if row["cycle_idx"] < 0 else row["cycle_idx"],
        success=report.get("success_rate"),
        score=None if measured is None else measured.score,
    )


def _blessed_success(found: Overview) -> Measurement | None:
    return measure(next(iter(found.rows["blessed_episodes"]), None))


def _spending(run: Row, seconds: Mapping[Device, float]) -> Spending:
    limits = _section(_object(run["config_json"]), "budgets")
    everything = sum(seconds.values())
    uses_gpu = _object(run["capabilities_json"]).get("device", "cpu") != "cpu"
    counted = seconds.get("gpu", 0.0) if uses_gpu else everything
    return Spending(
        uses_gpu=uses_gpu,
        gpu_hours=counted / _HOUR_S,
        max_gpu_hours=limits.get("max_gpu_hours"),
        wall_hours=everything / _HOUR_S,
        max_wall_hours=limits.get("max_wall_hours"),
    )


def _model_use(
    asked: Sequence[Row], fallbacks: int, calls: dict[str, Any], *, asked_now: bool
) -> ModelUse | None:
    if not asked:
        return None
    [totals] = asked
    priced = calls.get("usd_per_million_input") is not None
    return ModelUse(
        calls=totals["calls"],
        failed=totals["failed"],
        cost_usd=totals["cost_usd"] or 0.0 if priced else None,
        max_cost_usd=calls.get("max_cost_usd"),
        fallbacks=fallbacks,
        asked_now=asked_now,
    )


def _knowledge_pages(found: Overview) -> tuple[str, ...]:
    told = _notes(found, "knowledge_updated")
    return tuple(sorted({str(page) for one in told for page in one.get("pages", ())}))


def _object(document: str) -> dict[str, Any]:
    """Return a document that the store wrote itself."""
    return json.loads(document)


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}

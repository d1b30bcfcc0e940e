"""How runs stand, read from their store without changing it: what `cadenza loop status` shows.

Units and intervals are those of `cadenza.loop.status_records`.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, cast

from cadenza.loop.contracts.records import Device, EpisodeOutcome
from cadenza.loop.disk_space import disk_space
from cadenza.loop.job_estimates import JobEstimates
from cadenza.loop.processes import is_gone
from cadenza.loop.status_records import (
    BlessedPolicy,
    CycleStatus,
    Harvested,
    LiveJob,
    Measurement,
    ModelUse,
    PendingApproval,
    RunStatus,
    Spending,
)
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import ApprovalRow, CheckpointRow, JobRow, ReplyTotals, RunRow

#: Probability that each bound of a success rate may fail.
_TAIL: Final = 0.025
_HOUR_S: Final = 3600.0
#: Steps that ask a language model.
_ASKING_STEPS: Final = ("propose", "learn")
#: Events of proposals that fell back to the schedule: stage and kind.
_FALLBACKS: Final = (("orchestrator", "proposal_fallback"), ("curation", "curation_fallback"))


def run_status(store: JobStore, run_id: str, *, workdir: Path) -> RunStatus:
    """Return how one run stands.

    Args:
        store: Store of the run.
        run_id: The run.
        workdir: Folder of all runs; jobs leave signs of life and progress below it.

    Raises:
        UnknownRowError: There is no such run.
    """
    run = store.get_run(run_id)
    jobs = store.jobs.of_run(run_id)
    config = _object(run["config_json"])
    estimates = JobEstimates(jobs, folder=workdir / run_id)
    cycles = _cycles(store, run_id, jobs)
    state = _object(run["state_json"])
    return RunStatus(
        run_id=run_id,
        status=run["status"],
        stop_reason=run["stop_reason"],
        worked_on_by=worked_on_by(store, run_id),
        stop_requested=run["stop_requested_at"] is not None,
        created_at=run["created_at"],
        step=str(state.get("step", "")),
        max_cycles=_section(config, "budgets").get("max_cycles"),
        metric=_section(config, "eval").get("metric", "success"),
        constitution=config.get("constitution"),
        constitution_sha256=run["constitution_sha256"],
        cycles=cycles,
        seed_data=_seed_data(store, run_id),
        blessed=_blessed(store.blessed_checkpoint(run_id), cycles),
        error_budget=_section(config, "thresholds").get("alpha"),
        error_spent=state.get("spent"),
        pending=tuple(_pending(row) for row in store.approvals.pending(run_id)),
        jobs=tuple(
            _live(job, estimates)
            for job in jobs
            if job.status == "running" and not estimates.has_ended(job)
        ),
        failed_log=_failed_log(jobs, workdir),
        spending=_spending(run, jobs),
        disk=disk_space(workdir, "lerobot" if config.get("backend") == "lerobot" else "native"),
        language_model=_model_use(
            store.replies.totals(run_id),
            sum(len(store.events.of_kind(run_id, *kind)) for kind in _FALLBACKS),
            _section(config, "llm_calls"),
            asked_now=_asks_now(store, run),
        ),
        knowledge_pages=_knowledge_pages(store, run_id),
    )


def _seed_data(store: JobStore, run_id: str) -> Literal["reserved", "unknown"] | None:
    """Return what became of the initial states of the run's seed dataset; None for none."""
    for event in store.events.of_kind(run_id, "collect", "seed_data_seeds"):
        return "unknown" if _object(event.payload).get("seeds") == "unknown" else "reserved"
    return None


def worked_on_by(store: JobStore, run_id: str) -> str | None:
    """Return who works on a run; None if nobody does, or a process that is known to be gone."""
    owner = store.leases.holder(run_id)
    return None if owner is None or is_gone(owner) else owner


def all_statuses(store: JobStore, *, workdir: Path) -> list[RunStatus]:
    """Return how every run of a store stands, oldest first."""
    return [run_status(store, run["id"], workdir=workdir) for run in store.list_runs()]


def measure(outcomes: Sequence[EpisodeOutcome]) -> Measurement | None:
    """Return the share of successes with its exact 95 % interval; None without episodes."""
    if not outcomes:
        return None
    from cadenza.evaluation.statistics.paired_outcomes import exact_bounds

    successes = sum(outcome.success for outcome in outcomes)
    low, high = exact_bounds(successes, len(outcomes), tail=_TAIL)
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    return Measurement(
        rate=successes / len(outcomes),
        low=low,
        high=high,
        n_episodes=len(outcomes),
        score=fmean(scores) if len(scores) == len(outcomes) else None,
    )


def _cycles(store: JobStore, run_id: str, jobs: Sequence[JobRow]) -> tuple[CycleStatus, ...]:
    decisions = _payloads(store, run_id, "decide", "decision")
    checkpoints = _checkpoints(store, run_id)
    harvests = _payloads(store, run_id, "improve", "rollouts_collected")
    chosen = _payloads(store, run_id, "eval", "candidate_selected")
    found: list[CycleStatus] = []
    for row in store.cycles_for(run_id):
        idx = row["idx"]
        decided = decisions.get(idx, {})
        found.append(
            CycleStatus(
                idx=idx,
                rung=row["rung"],
                stage=row["stage"],
                decision=row["decision"] or decided.get("decision"),
                reason=decided.get("reason"),
                candidate=measure(store.episodes(run_id, idx, "candidate")),
                baseline=measure(store.episodes(run_id, idx, "baseline")),
                difference=_bounds(decided),
                seconds=_seconds([job for job in jobs if job.key.cycle == idx]),
                harvest=_harvest(harvests.get(idx)),
                adapted=_adapted(chosen.get(idx)),
                checkpoint=checkpoints.get(idx),
                started_at=row["started_at"],
                finished_at=row["finished_at"],
            )
        )
    return tuple(found)


def _payloads(
    store: JobStore, run_id: str, stage: str, kind: str
) -> dict[int | None, dict[str, Any]]:
    """Return what the last event of a kind told in each cycle."""
    events = store.events.of_kind(run_id, stage, kind)
    return {event.cycle: _object(event.payload) for event in events}


def _harvest(told: dict[str, Any] | None) -> Harvested | None:
    if told is None:
        return None
    counts = {name: told[name] for name in ("kept", "successes", "attempts")}
    return Harvested(starts=told.get("starts", "solved"), **counts)


def _adapted(told: dict[str, Any] | None) -> tuple[float, float] | None:
    if told is None or "adapted" not in told:
        return None
    return told["candidate"], told["adapted"]


def _checkpoints(store: JobStore, run_id: str) -> dict[int, str]:
    """Return the policy of each cycle: its candidate, or the adapted copy where that was chosen."""
    chosen = _payloads(store, run_id, "eval", "candidate_selected")
    paths: dict[int, str] = {}
    for row in store.checkpoints_for(run_id):
        cycle = row["cycle_idx"]
        if cycle not in paths or chosen.get(cycle, {}).get("chosen") == "adapted":
            paths[cycle] = row["path"]
    return paths


def _bounds(decided: dict[str, Any]) -> tuple[float | None, float | None] | None:
    evidence = _section(decided, "evidence") or decided
    if evidence.get("difference") is None:
        return None
    return evidence.get("lower"), evidence.get("upper")


def _seconds(jobs: Sequence[JobRow]) -> dict[Device, float]:
    seconds: dict[Device, float] = {}
    for job in jobs:
        seconds[job.device] = seconds.get(job.device, 0.0) + job.duration_s + job.attempt_s
    return seconds


def _live(job: JobRow, estimates: JobEstimates) -> LiveJob:
    signs = estimates.signs_of_life(job, moment=time.time())
    outlook = estimates.outlook(job.key, signs.elapsed_s)
    course = estimates.course(job)
    return LiveJob(
        cycle=job.key.cycle,
        stage=job.key.stage,
        attempt=job.attempt,
        pid=job.pid,
        elapsed_s=signs.elapsed_s,
        silent_s=signs.silent_s,
        left_s=outlook.left_s,
        done=outlook.done,
        waits_for=estimates.waits_for(job),
        quiet_s=signs.quiet_s,
        interrupted=None if course is None else max(0, job.attempt - 1 - course.failed),
        failed=None if course is None else course.failed,
        last_problem="" if course is None else course.last,
    )


def _failed_log(jobs: Sequence[JobRow], workdir: Path) -> str | None:
    keys = [job.key for job in jobs if job.status == "failed"]
    if not keys:
        return None
    return str(workdir / keys[-1].run_id / f"cycle_{keys[-1].cycle}" / f"{keys[-1].stage}.log")


def _pending(row: ApprovalRow) -> PendingApproval:
    return PendingApproval(
        cycle=row.cycle,
        gate=row.gate,
        requested_at=row.requested_at,
        deadline=row.deadline,
        overdue=row.overdue,
    )


def _blessed(row: CheckpointRow | None, cycles: Sequence[CycleStatus]) -> BlessedPolicy | None:
    if row is None:
        return None
    measured = [cycle.candidate for cycle in cycles if cycle.idx == row["cycle_idx"]]
    report = _object(row["eval_json"]) if row["eval_json"] else {}
    return BlessedPolicy(
        path=row["path"],
        policy_type=row["policy_type"],
        cycle=None if row["cycle_idx"] < 0 else row["cycle_idx"],
        success=report.get("success_rate"),
        score=next((found.score for found in measured if found is not None), None),
    )


def _spending(run: RunRow, jobs: Sequence[JobRow]) -> Spending:
    limits = _section(_object(run["config_json"]), "budgets")
    seconds = _seconds(jobs)
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


def _asks_now(store: JobStore, run: RunRow) -> bool:
    """Return whether a run that somebody works on waits for a language model."""
    state = _object(run["state_json"])
    return (
        state.get("step") in _ASKING_STEPS
        and worked_on_by(store, run["id"]) is not None
        and store.replies.is_asked(run["id"], state.get("cycle", 0))
    )


def _model_use(
    totals: ReplyTotals, fallbacks: int, calls: dict[str, Any], *, asked_now: bool
) -> ModelUse | None:
    if totals.calls == 0:
        return None
    priced = calls.get("usd_per_million_input") is not None
    return ModelUse(
        calls=totals.calls,
        failed=totals.failed,
        cost_usd=totals.cost_usd if priced else None,
        max_cost_usd=calls.get("max_cost_usd"),
        fallbacks=fallbacks,
        asked_now=asked_now,
    )


def _knowledge_pages(store: JobStore, run_id: str) -> tuple[str, ...]:
    pages: set[str] = set()
    for event in store.events.of_kind(run_id, "knowledge", "knowledge_updated"):
        pages.update(str(page) for page in _object(event.payload).get("pages", ()))
    return tuple(sorted(pages))


def _object(document: str) -> dict[str, Any]:
    """Return a document that the store wrote itself."""
    return json.loads(document)


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}

"""A run as a controller leaves it in the middle of its second cycle, for tests of what reads it."""

import json
from pathlib import Path

from cadenza.loop.contracts.records import EpisodeOutcome, JobKey, JobSpec
from cadenza.loop.store import JobStore
from cadenza.loop.store.changes import add_checkpoint, bless, finish_cycle, record_episodes
from cadenza.loop.store.changes import start_cycle as start
from cadenza.loop.store.rows import StoredEvent

RUN = "crossing-1"
CONFIG = {
    "run_name": "crossing",
    "seed_dataset": "local/crossing",
    "budgets": {"max_cycles": 4, "max_gpu_hours": 0.5},
}
REASON = "The first candidate reaches min_promote 0.050: 0.600 in 10 episodes."


def outcomes(successes: int, n: int) -> list[EpisodeOutcome]:
    """Return ``n`` episodes, the first of which succeed."""
    return [EpisodeOutcome(task="t", seed=i, success=i < successes) for i in range(n)]


def job_of(workdir: Path, cycle: int, stage: str, *, run_id: str = RUN) -> JobSpec:
    """Return a job of a run."""
    folder = workdir / run_id / f"cycle_{cycle}"
    return JobSpec(
        key=JobKey(run_id=run_id, cycle=cycle, stage=stage),
        command=("cadenza", "job", stage),
        output_dir=folder / stage,
        log_path=folder / f"{stage}.log",
    )


def do_job(store: JobStore, lease, spec: JobSpec, seconds: float) -> None:
    """Record a job that took ``seconds`` and succeeded."""
    store.jobs.open(lease, spec)
    store.jobs.begin_attempt(lease, spec.key)
    store.jobs.set_process(lease, spec.key, pid=4242, pid_start_time=1.0)
    store.jobs.end_attempt(
        lease, spec.key, attempt=1, exit_code=0, duration_s=seconds, interrupted=False
    )
    store.jobs.close(lease, spec.key, "succeeded")


def event(stage: str, kind: str, cycle: int, payload: dict, ordinal: int) -> StoredEvent:
    """Return an event of the run."""
    return StoredEvent(
        step_key=f"{cycle}/{stage}",
        ordinal=ordinal,
        stage=stage,
        kind=kind,
        cycle=cycle,
        payload=json.dumps(payload),
        ts=1.0,
        mono=1.0,
    )


def begun_run(
    workdir: Path,
    *,
    owner: str | None = None,
    run_id: str = RUN,
    location: Path | str | None = None,
) -> JobStore:
    """Return the open store of a run whose cycle 0 was promoted and whose cycle 1 trains.

    Args:
        workdir: Folder of all runs.
        owner: Who works on it; None for nobody.
        run_id: Its id.
        location: Where the store is; None for the file in ``workdir``.
    """
    store = JobStore(location or workdir / "cadenza.db")
    store.create_run(run_id, json.dumps(CONFIG))
    lease = store.leases.acquire(run_id, owner or "someone", ttl_s=3600.0)
    store.apply(
        lease,
        start(0, rung="bc"),
        add_checkpoint(0, "bc", "cycle_0/train/policy", eval_json='{"success_rate": 0.6}'),
        record_episodes(0, "candidate", 0, outcomes(6, 10)),
        bless("cycle_0/train/policy"),
        finish_cycle(0, "promote"),
        start(1, rung="bc"),
    )
    store.set_stage(run_id, 1, "train")
    decision = {"decision": "promote", "success_rate": 0.6, "baseline": None, "reason": REASON}
    pages = {"pages": ["pages/policies/bc.md", "pages/tasks/crossing.md"]}
    store.events.append(
        lease,
        [
            event("decide", "decision", 0, decision, 0),
            event("knowledge", "knowledge_updated", 0, pages, 1),
        ],
    )
    do_job(store, lease, job_of(workdir, 0, "train", run_id=run_id), 100.0)
    do_job(store, lease, job_of(workdir, 0, "eval_candidate_0", run_id=run_id), 26.0)
    spec = job_of(workdir, 1, "train", run_id=run_id)
    store.jobs.open(lease, spec)
    store.jobs.begin_attempt(lease, spec.key)
    store.jobs.set_process(lease, spec.key, pid=4243, pid_start_time=1.0)
    store.jobs.heartbeat(lease, spec.key, attempt_s=30.0)
    if owner is None:
        store.leases.release(lease)
    return store

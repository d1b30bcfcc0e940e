"""A store of many runs with many events, written as controllers write it, for `bench_dash`."""

import json
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, insert, literal, select

from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import EpisodeOutcome, JobKey, JobSpec
from cadenza.loop.store.changes import (
    add_checkpoint,
    bless,
    finish_cycle,
    record_episodes,
    request_approval,
    start_cycle,
)
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Lease, StoredEvent
from cadenza.loop.store.schema import METADATA

CYCLES = 3
#: The newest run, with half of all events.
LARGE = "crossing-large"
_PARTNERS = ("goal_seeker", "cautious", "waits", "swerves")
_EPISODES = 40
_KINDS = ("job_started", "job_finished", "report", "dataset_resolved")
_DECISIONS = ("promote", "promote", "iterate")
#: Events that one transaction adds.
_AT_ONCE = 10_000


def write_store(workdir: Path, *, runs: int, events: int) -> None:
    """Make a store of ``runs`` runs with ``events`` events, half of them those of `LARGE`.

    Ten runs are written as controllers write them; the database copies them under other names.
    """
    each = events // 2 // max(1, runs - 1)
    with JobStore(workdir / "cadenza.db") as store:
        originals = [f"crossing-{number:04d}" for number in range(min(10, runs - 1))]
        for seed, name in enumerate(originals):
            write_run(store, workdir, name, events=each, seed=seed)
        with store.database.write() as connection:
            for number in range(len(originals), runs - 1):
                _copy_run(connection, originals[number % 10], f"crossing-{number:04d}")
        write_run(store, workdir, LARGE, events=events - each * (runs - 1), seed=0)


def _copy_run(connection: Connection, original: str, name: str) -> None:
    for table in METADATA.sorted_tables:
        key = "id" if table.name == "runs" else "run_id"
        others = [one for one in table.c if one.name not in (key, "id")]
        values = select(literal(name), *others).where(table.c[key] == original)
        connection.execute(insert(table).from_select([table.c[key], *others], values))


def write_run(store: JobStore, workdir: Path, run_id: str, *, events: int, seed: int) -> None:
    """Add a run with three decided cycles, one that trains, and ``events`` events."""
    config = LoopConfig(
        run_name="crossing",
        seed_dataset="local/crossing",
        workdir=workdir,
        data={"initial_episodes": 8},
        budgets={"max_cycles": 6, "max_gpu_hours": 2.0},
    )
    store.create_run(run_id, config.model_dump_json())
    lease = store.leases.acquire(run_id, "someone", ttl_s=600.0)
    rng = np.random.default_rng(seed)
    _add_cycles(store, lease, rng)
    for first in range(0, events - CYCLES, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, events - CYCLES))
        store.events.append(lease, [_event(number) for number in numbers])
    store.events.append(lease, [_decided(cycle) for cycle in range(CYCLES)])
    for cycle, stage in ((0, "train"), (1, "train"), (2, "eval_candidate_0"), (CYCLES, "train")):
        spec = _job(workdir, run_id, cycle, stage)
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"step {n}: loss {1.0 / (n + 1):.5f}\n" for n in range(500)]
        spec.log_path.write_text("".join(lines))
        store.jobs.open(lease, spec)
        store.jobs.begin_attempt(lease, spec.key)
        store.jobs.set_process(lease, spec.key, pid=4242, pid_start_time=1.0)
        store.jobs.heartbeat(lease, spec.key, attempt_s=61.0)
        if cycle < CYCLES:
            store.jobs.end_attempt(
                lease, spec.key, attempt=1, exit_code=0, duration_s=75.0, interrupted=False
            )
            store.jobs.close(lease, spec.key, "succeeded")
    if seed % 10 == 3:
        store.apply(lease, request_approval(CYCLES, "promote", timeout_s=86_400.0))
        store.finish_run(run_id, "pending_approval")
    elif seed % 10 == 5:
        store.finish_run(run_id, "failed", "job 'train' of cycle 3 failed in 3 attempts: no room")
    elif seed % 10 > 5:
        store.finish_run(run_id, "finished", "budget: max_cycles")
    if seed % 10 != 4:
        store.leases.release(lease)


def _add_cycles(store: JobStore, lease: Lease, rng: np.random.Generator) -> None:
    rows = []
    for cycle in range(CYCLES):
        rows += [
            start_cycle(cycle, rung="bc", proposal_json='{"repo_id": "local/crossing"}'),
            add_checkpoint(cycle, "bc", f"cycle_{cycle}/policy", eval_json='{"success_rate": 0.7}'),
            *(
                record_episodes(cycle, subject, 0, _played(rng, 0.35 + 0.2 * cycle + better))
                for subject, better in (("candidate", 0.15), ("baseline", 0.0))
                if subject == "candidate" or cycle
            ),
            finish_cycle(cycle, _DECISIONS[cycle]),
        ]
    store.apply(lease, *rows, bless("cycle_1/policy"), start_cycle(CYCLES, rung="bc"))
    store.set_stage(lease.run_id, CYCLES, "train")


def _played(rng: np.random.Generator, rate: float) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome(task=partner, seed=seed, success=rng.random() < rate)
        for partner in _PARTNERS
        for seed in range(_EPISODES // len(_PARTNERS))
    ]


def _event(number: int) -> StoredEvent:
    payload = {"stage": "train", "cmd": ["cadenza", "job", "train", f"steps={number}"], "n": number}
    return StoredEvent(
        step_key="work",
        ordinal=number,
        stage="train",
        kind=_KINDS[number % len(_KINDS)],
        cycle=number % CYCLES,
        payload=json.dumps(payload),
        ts=1.79e9 + number,
        mono=float(number),
    )


def _decided(cycle: int) -> StoredEvent:
    reason = (
        "It is better: 0.970 against 0.700 on 100 shared initial states, difference +0.270 in "
        "[+0.125, +0.405]; the bound lies above promote_delta 0.050."
    )
    payload = {"decision": _DECISIONS[cycle], "reason": reason, "success_rate": 0.7}
    return StoredEvent(
        step_key=f"{cycle}/decide",
        ordinal=0,
        stage="decide",
        kind="decision",
        cycle=cycle,
        payload=json.dumps(payload),
        ts=1.79e9 + 2e6 + cycle,
        mono=1.0,
    )


def tell(store: JobStore, lease: Lease, ordinal: int) -> None:
    """Add one more event to a run, as its controller would."""
    payload = json.dumps({"marked": ordinal})
    event = StoredEvent(
        step_key="beyond",
        ordinal=ordinal,
        stage="train",
        kind="report",
        cycle=CYCLES,
        payload=payload,
        ts=1.8e9,
        mono=1.0,
    )
    store.events.append(lease, [event])


def _job(workdir: Path, run_id: str, cycle: int, stage: str) -> JobSpec:
    folder = workdir / run_id / f"cycle_{cycle}"
    return JobSpec(
        key=JobKey(run_id=run_id, cycle=cycle, stage=stage),
        command=("cadenza", "job", "train", "steps=2000"),
        output_dir=folder / stage,
        log_path=folder / f"{stage}.log",
    )

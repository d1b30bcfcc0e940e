"""What a dashboard shows after a busy week: runs in every state, logs, questions, knowledge."""

import json
import shutil

from cadenza.evaluation.report.view import RECORDINGS_NAME
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.incidents import IncidentLog
from cadenza.loop.processes import this_process
from cadenza.loop.store import JobStore
from cadenza.loop.store.changes import (
    add_checkpoint,
    bless,
    finish_cycle,
    record_episodes,
    request_approval,
    set_run_status,
    start_cycle,
)
from tests.dashboards import compared, furnished, recorded, streamed, trained
from tests.loop_runs import CONFIG, begun_run, do_job, event, job_of

#: A run that waits for an answer, one that ended well after many cycles, and one that failed.
WAITING, FINISHED, FAILED = "handover-2", "cocarry-3", "crossing-with-a-rather-long-name-4"
TASKS = ("crossing/cautious", "crossing/fast", "crossing/unseen-partner")
_DECISIONS = ("promote", "iterate", "iterate", "escalate", "promote", "rollback", "promote")
_PAGE = """---
name: crossing
kind: task
---
# Crossing

Cautious partners yield; **fast** ones do not.

| partner | success | note |
|---|---|---|
| cautious | 0.80 | waits |
| fast | 0.55 | never waits, whoever comes first |

```
cadenza eval evaluate --task crossing --partner a-partner-with-a-long-name --episodes 400 --seed 7
```
"""


def busy(folder, results):
    """Return the folders of runs and of knowledge; ``results`` is a folder of `evaluated`."""
    workdir, knowledge = furnished(folder)
    shutil.copytree(results, workdir / "quickstart" / "evaluation")
    episodes = recorded("goal_pd", frames=40).model_dump_json()
    (workdir / "quickstart" / RECORDINGS_NAME).write_text(episodes)
    for seed in (0, 2):
        trained(workdir / "many" / "training" / f"seed{seed}", seed)
    trained(workdir / "going", 7, finished=False)
    compared(workdir / "zoo")
    streamed(workdir / "status.json")
    (knowledge / "tasks" / "crossing.md").write_text(_PAGE)
    log = "".join(f"step {number} loss {1.0 / (number + 1):.4f}\n" for number in range(400))
    (workdir / "crossing-1" / "cycle_1" / "train.log").write_text(log)
    begun_run(workdir, run_id=WAITING, owner=this_process()).close()
    _ask(workdir)
    _finish(workdir)
    _fail(workdir)
    return workdir, knowledge


def _ask(workdir):
    with JobStore(workdir / "cadenza.db") as store:
        lease = store.leases.acquire(WAITING, this_process(), ttl_s=3600.0, gone=lambda _: True)
        store.apply(lease, request_approval(0, "promote", timeout_s=86_400.0))
        store.apply(lease, set_run_status("pending_approval"))


def _finish(workdir):
    """Leave a run with a decision of every kind and episodes of three tasks in each cycle."""
    config = {**CONFIG, "run_name": "cocarry", "thresholds": {"alpha": 0.05}}
    config["budgets"] = {"max_cycles": 7, "max_gpu_hours": 4.0}
    with JobStore(workdir / "cadenza.db") as store:
        store.create_run(FINISHED, json.dumps(config))
        lease = store.leases.acquire(FINISHED, this_process(), ttl_s=3600.0)
        for cycle, decision in enumerate(_DECISIONS):
            path, folder = f"cycle_{cycle}/train/policy", workdir / FINISHED / f"cycle_{cycle}"
            folder.mkdir(parents=True)
            (folder / "train.log").write_text("step 1\n")
            store.apply(
                lease,
                start_cycle(cycle, rung="bc", proposal_json='{"rung": "bc", "steps": 4000}'),
                add_checkpoint(cycle, "bc", path, eval_json='{"success_rate": 0.6}'),
                record_episodes(cycle, "candidate", 0, _played(30 + 4 * cycle)),
                record_episodes(cycle, "baseline", 0, _played(28 + 3 * cycle)),
                *([bless(path)] if decision == "promote" else []),
                finish_cycle(cycle, decision),
            )
            why = f"The candidate solves {30 + 4 * cycle} of 60 episodes, the reference fewer."
            told = event("decide", "decision", cycle, {"decision": decision, "reason": why}, 0)
            store.events.append(lease, [told])
            for stage in ("train", "eval_candidate_0"):
                do_job(store, lease, job_of(workdir, cycle, stage, run_id=FINISHED), 812.0)
        notes = IncidentLog(workdir / FINISHED)
        notes.note("job_retried", "train of cycle 3: killed by signal 9, begun again")
        notes.note("stop_asked", "the lab closes", by="Ada")
        store.finish_run(FINISHED, "finished", "max_cycles: 7 of 7 cycles are decided")
        store.leases.release(lease)


def _played(successes):
    return [
        EpisodeOutcome(task=TASKS[place % 3], seed=place, success=place < successes)
        for place in range(60)
    ]


def _fail(workdir):
    store = begun_run(workdir, run_id=FAILED)
    log = workdir / FAILED / "cycle_1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback (most recent call last):\nRuntimeError: out of memory\n")
    lease = store.leases.acquire(FAILED, this_process(), ttl_s=3600.0)
    key = job_of(workdir, 1, "train", run_id=FAILED).key
    store.jobs.end_attempt(lease, key, attempt=1, exit_code=1, duration_s=31.0, interrupted=False)
    store.jobs.close(lease, key, "failed")
    store.leases.release(lease)
    store.finish_run(FAILED, "failed", f"cycle 1, train: failed 3 times, exit code 1; see {log}")
    store.close()

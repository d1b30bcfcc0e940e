import json

import pytest

from cadenza.cli.loop_status import notes
from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder
from cadenza.loop.jobs.course import Course, write_course
from cadenza.loop.status_report import run_status
from cadenza.loop.store.changes import add_checkpoint, record_episodes
from cadenza.loop.store.owners import this_process
from cadenza.loop.store.rows import ReplyRow
from tests.loop_runs import RUN, begun_run, event, job_of, outcomes


@pytest.fixture
def store(tmp_path):
    with begun_run(tmp_path, owner="someone") as opened:
        yield opened


def lease_of(store):
    return store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)


def test_a_compared_candidate_has_its_reference_and_the_bounds_of_the_decision(store, tmp_path):
    evidence = {"difference": 0.2, "lower": 0.05, "upper": None}
    decided = event("decide", "decision", 1, {"decision": "promote", "evidence": evidence}, 0)
    lease = lease_of(store)
    store.events.append(lease, [decided])
    store.apply(
        lease,
        record_episodes(1, "candidate", 0, outcomes(8, 10)),
        record_episodes(1, "candidate", 1, outcomes(10, 10)),
        record_episodes(1, "baseline", 0, outcomes(6, 10)),
    )
    first, second = run_status(store, RUN, workdir=tmp_path).cycles
    assert (first.baseline, first.difference) == (None, None)
    assert (second.candidate.rate, second.candidate.n_episodes) == (0.9, 20)
    assert second.baseline.rate == 0.6
    assert second.difference == (0.05, None)
    assert (second.decision, second.reason) == ("promote", None)


def test_a_cycle_shows_the_copy_of_its_policy_only_once_that_was_chosen(store, tmp_path):
    lease = lease_of(store)

    def shown():
        return run_status(store, RUN, workdir=tmp_path).cycles[1].checkpoint

    for name in ("plain", "adapted"):
        store.apply(lease, add_checkpoint(1, "bc", f"/{name}"))
    assert shown() == "/plain"
    for ordinal, (name, path) in enumerate((("candidate", "/plain"), ("adapted", "/adapted"))):
        told = event("eval", "candidate_selected", 1, {"chosen": name}, ordinal)
        store.events.append(lease, [told])
        assert shown() == path


def test_only_hours_on_the_gpu_count_where_there_is_one(store, tmp_path):
    assert run_status(store, RUN, workdir=tmp_path).spending.gpu_hours == pytest.approx(156 / 3600)
    store.create_run("gpu", "{}", capabilities={"device": "cuda"})
    lease = store.leases.acquire("gpu", "someone", ttl_s=60.0)
    for stage, device in (("train", "gpu"), ("data", "cpu")):
        spec = job_of(tmp_path, 0, stage, run_id="gpu").model_copy(update={"device": device})
        store.jobs.open(lease, spec)
        store.jobs.begin_attempt(lease, spec.key)
        store.jobs.heartbeat(lease, spec.key, attempt_s=36.0)
    spending = run_status(store, "gpu", workdir=tmp_path).spending
    assert (spending.uses_gpu, spending.gpu_hours, spending.wall_hours) == (True, 0.01, 0.02)
    assert (spending.max_gpu_hours, spending.max_wall_hours) == (None, None)


def test_what_a_language_model_was_asked_is_told(store, tmp_path):
    assert run_status(store, RUN, workdir=tmp_path).language_model is None
    prices = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
    told = {}
    for run_id, calls in (("priced", {**prices, "max_cost_usd": 2.0}), ("unpriced", {})):
        store.create_run(run_id, json.dumps({"llm_calls": calls}))
        lease = store.leases.acquire(run_id, "someone", ttl_s=60.0)
        for ordinal, error in enumerate((None, None, "time-out")):
            reply = ReplyRow(
                provider="p", model="m", prompt_sha256="0" * 64, text="", cost_usd=0.25, error=error
            )
            store.replies.record(lease, 0, "propose", ordinal, reply)
        if run_id == "priced":
            error = {"error": "time-out"}
            plain = event("orchestrator", "proposal_fallback", 0, error, 0)
            curated = event("curation", "curation_fallback", 1, error, 1)
            store.events.append(lease, [plain, curated])
        status = run_status(store, run_id, workdir=tmp_path)
        told[run_id] = next(line for line in notes(status, tmp_path, None) if "model" in line)
    assert told == {
        "priced": "language model: 3 calls, 1 of them without a reply, 0.75 (at most 2) dollars, "
        "2 proposals by the schedule instead",
        "unpriced": "language model: 3 calls, 1 of them without a reply",
    }


def test_call_under_way_is_told_while_somebody_works(store, tmp_path):
    store.create_run("asks", "{}")
    lease = store.leases.acquire("asks", "someone", ttl_s=60.0)
    call = ReplyRow(provider="p", model="m", prompt_sha256="0" * 64, text="")

    def told():
        status = run_status(store, "asks", workdir=tmp_path)
        return [line for line in notes(status, tmp_path, None) if "model" in line]

    store.replies.book(lease, 0, "propose", 0, call)
    assert told() == ["language model: 1 calls, is being asked now"]
    store.replies.record(lease, 0, "propose", 0, call)
    store.replies.book(lease, 1, "propose", 0, call)  # of another cycle than the run's
    assert told() == ["language model: 2 calls"]


def test_who_works_and_what_failed_is_told(store, tmp_path):
    status = run_status(store, RUN, workdir=tmp_path)
    assert (status.worked_on_by, status.stop_requested, status.failed_log) == (
        "someone",
        False,
        None,
    )
    lease = lease_of(store)
    spec = job_of(tmp_path, 1, "train")
    store.jobs.end_attempt(
        lease, spec.key, attempt=1, exit_code=1, duration_s=3.0, interrupted=False
    )
    store.jobs.close(lease, spec.key, "failed")
    store.request_stop(RUN)
    status = run_status(store, RUN, workdir=tmp_path)
    assert (status.stop_requested, status.failed_log) == (True, str(spec.log_path))
    assert status.jobs == ()


def test_a_dead_controller_works_on_nothing_and_a_job_that_ended_runs_no_more(store, tmp_path):
    machine, _, _ = this_process().rpartition("/")
    dead = f"{machine.rpartition('/')[0]}/999999999/1"
    store.leases.acquire(RUN, dead, ttl_s=60.0, gone=lambda _: True)
    status = run_status(store, RUN, workdir=tmp_path)
    assert (status.worked_on_by, len(status.jobs)) == (None, 1)
    folder = AttemptFolder(tmp_path / RUN / "cycle_1" / "jobs" / "train")
    folder.path.mkdir(parents=True)
    (folder.path / "end.json").write_text("{")
    assert len(run_status(store, RUN, workdir=tmp_path).jobs) == 1
    folder.write_end(AttemptEnd(attempt=1, exit_code=0, duration_s=1.0, reason="finished"))
    assert run_status(store, RUN, workdir=tmp_path).jobs == ()


def test_a_live_job_tells_its_silence_and_what_became_of_earlier_attempts(store, tmp_path):
    [job] = run_status(store, RUN, workdir=tmp_path).jobs
    assert (job.interrupted, job.failed, job.last_problem, job.quiet_s) == (None, None, "", 0.0)
    folder = AttemptFolder(tmp_path / RUN / "cycle_1" / "jobs" / "train")
    folder.path.mkdir(parents=True)
    folder.beat(31.0, 25.0)
    write_course(folder, Course(attempt=2, failed=1, last="exit code 1"))
    [job] = run_status(store, RUN, workdir=tmp_path).jobs
    assert (job.quiet_s, job.failed) == (25.0, None)  # told of another attempt
    lease, spec = lease_of(store), job_of(tmp_path, 1, "train")
    for attempt in (1, 2):
        store.jobs.end_attempt(
            lease, spec.key, attempt=attempt, exit_code=1, duration_s=3.0, interrupted=False
        )
        store.jobs.begin_attempt(lease, spec.key)
    write_course(folder, Course(attempt=3, failed=1, last="exit code 1"))
    [job] = run_status(store, RUN, workdir=tmp_path).jobs
    assert (job.attempt, job.interrupted, job.failed) == (3, 1, 1)
    assert job.last_problem == "exit code 1"

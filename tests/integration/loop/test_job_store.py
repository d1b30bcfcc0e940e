"""The job store on SQLite and on a real PostgreSQL server: the same tests."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, update

from cadenza.core.errors import InputError, IntegrityError
from cadenza.loop.contracts.records import EpisodeOutcome, JobKey, JobSpec
from cadenza.loop.errors import (
    ApprovalDecidedError,
    DuplicateRunError,
    LeaseHeldError,
    RecordConflictError,
    StaleLeaseError,
    UnknownRowError,
)
from cadenza.loop.store import JobStore, changes
from cadenza.loop.store.changes import request_approval
from cadenza.loop.store.rows import ReplyRow, StoredEvent
from cadenza.loop.store.schema import runs
from cadenza.loop.store.tables import LeaseKeeper
from tests.integration.loop.job_harness import wait_for


def alive(owner):
    return False


@pytest.fixture
def lease(store):
    store.create_run("run", '{"a": 1}')
    return store.leases.acquire("run", "first", ttl_s=60.0, gone=alive)


def event(ordinal, kind="cycle_started", step="0/propose"):
    return StoredEvent(
        step_key=step, ordinal=ordinal, stage="orchestrator", kind=kind, cycle=0, payload="{}",
        ts=1.5, mono=2.5,
    )  # fmt: skip


def test_second_run_of_one_id_is_refused_and_the_first_is_kept(store):
    store.create_run("run", "{}")
    with pytest.raises(DuplicateRunError, match="resume that run"):
        store.create_run("run", '{"other": 1}')
    assert store.get_run("run")["config_json"] == "{}"


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "é", "x" * 101, "-a", "a\n"])
def test_run_id_that_is_no_plain_name_is_refused(store, run_id):
    with pytest.raises(InputError, match="names a folder"):
        store.create_run(run_id, "{}")


def test_stop_request_holds_until_somebody_takes_the_run_to_work_on_it(store, lease):
    assert not store.stop_requested("run")
    store.request_stop("run")
    first = store.get_run("run")["stop_requested_at"]
    store.request_stop("run")
    assert store.get_run("run")["stop_requested_at"] == first
    assert store.stop_requested("run")
    store.leases.release(lease)
    lease = store.leases.acquire("run", "who stops it", ttl_s=60.0)
    assert store.stop_requested("run")
    store.leases.release(lease)
    store.leases.acquire("run", "a controller", ttl_s=60.0, to_work=True)
    assert not store.stop_requested("run")


def test_lease_is_exclusive_until_it_is_released(store, lease):
    with pytest.raises(LeaseHeldError, match="first works on"):
        store.leases.acquire("run", "second", ttl_s=60.0, gone=alive)
    assert store.leases.holder("run") == "first"
    store.leases.release(lease)
    assert store.leases.holder("run") is None
    second = store.leases.acquire("run", "second", ttl_s=60.0, gone=alive)
    assert (lease.epoch, second.epoch) == (1, 2)


def test_lease_that_ran_out_is_taken_over_and_the_old_one_is_stale(store):
    store.create_run("run", "{}")
    old = store.leases.acquire("run", "first", ttl_s=0.001, gone=alive)
    wait_for(lambda: store.leases.holder("run") is None)
    new = store.leases.acquire("run", "second", ttl_s=60.0, gone=alive)
    assert new.epoch == old.epoch + 1
    with pytest.raises(StaleLeaseError, match="epoch 2 of second"):
        store.leases.renew(old)
    store.leases.release(old)  # says nothing, does nothing
    assert store.leases.holder("run") == "second"


def expires_at(store):
    return store.get_run("run")["lease_expires_at"]


def test_kept_lease_outlives_its_duration_and_is_released_at_the_end(store):
    store.create_run("run", "{}")
    lease = store.leases.acquire("run", "first", ttl_s=0.3, gone=alive)
    end = expires_at(store)
    with LeaseKeeper(store.leases, lease):
        wait_for(lambda: expires_at(store) > end + 2 * lease.ttl_s)
        store.leases.renew(lease)  # still ours
    assert store.leases.holder("run") is None


def test_keeper_notices_that_the_run_was_taken_over(store, caplog):
    store.create_run("run", "{}")
    lease = store.leases.acquire("run", "first", ttl_s=0.1, gone=alive)
    with LeaseKeeper(store.leases, lease):
        store.leases.acquire("run", "second", ttl_s=60.0, gone=lambda owner: True)
        wait_for(lambda: "the lease of run run was lost" in caplog.text)
    assert store.leases.holder("run") == "second"


def test_commit_of_another_runs_state_is_refused(store, lease):
    state, version = store.load_state("run")
    with pytest.raises(InputError, match="expected a state of run 'run'"):
        store.commit(lease, version, state.model_copy(update={"run_id": "other"}))


def test_state_of_another_version_of_the_package_is_refused(store_url, store):
    store.create_run("run", "{}")
    engine = create_engine(store_url)
    for document, message in (
        ('{"run_id": "run", "warp": 9}', "warp"),
        ('{"run_id": "run", "baseline": NaN}', "expected strict JSON"),
    ):
        with engine.begin() as connection:
            connection.execute(update(runs).values(state_json=document))
        with pytest.raises(IntegrityError, match=f"(?s)state of run 'run'.*{message}"):
            store.load_state("run")
    engine.dispose()


def test_taken_over_controller_writes_nothing_anywhere(store, lease):
    state, version = store.load_state("run")
    spec = job("train")
    store.jobs.open(lease, spec)
    store.leases.acquire("run", "second", ttl_s=60.0, gone=lambda owner: True)
    attempts = [
        lambda: store.commit(lease, version, state, events=[event(0)]),
        lambda: store.apply(lease, changes.start_cycle(0)),
        lambda: store.events.append(lease, [event(0)]),
        lambda: store.events.append(lease, [], published=range(1, 2)),
        lambda: store.jobs.open(lease, job("eval")),
        lambda: store.jobs.begin_attempt(lease, spec.key),
        lambda: store.jobs.close(lease, spec.key, "failed"),
        lambda: store.apply(lease, request_approval(0, "promote")),
        lambda: store.replies.record(lease, 0, "plan", 0, REPLY),
        lambda: store.leases.renew(lease),
    ]
    for attempt in attempts:
        with pytest.raises(StaleLeaseError, match="was replaced"):
            attempt()
    assert store.load_state("run") == (state, version)
    assert store.cycles_for("run") == []
    assert store.events.find("run") == []
    assert [row.status for row in store.jobs.of_run("run")] == ["pending"]
    assert store.approvals.pending("run") == []
    assert store.replies.get("run", 0, "plan", 0) is None


def job(stage, command=("cadenza", "job", "train"), device="cpu"):
    key = JobKey(run_id="run", cycle=0, stage=stage)
    return JobSpec(
        key=key, command=command, output_dir="out", log_path="log", device=device,
        result_path="out/result.json",
    )  # fmt: skip


def test_job_of_one_key_with_another_command_is_refused(store, lease):
    store.jobs.open(lease, job("train"))
    with pytest.raises(RecordConflictError, match="must ask for the same job"):
        store.jobs.open(lease, job("train", ("cadenza", "job", "evaluate")))
    with pytest.raises(RecordConflictError, match=r"got .* on gpu"):
        store.jobs.open(lease, job("train", device="gpu"))


def test_attempts_and_their_seconds_are_counted(store, lease):
    key = store.jobs.open(lease, job("train", device="gpu")).key
    row = store.jobs.begin_attempt(lease, key)
    assert (row.attempt, row.status, row.pid) == (1, "running", None)
    row = store.jobs.set_process(lease, key, pid=42, pid_start_time=7.5)
    assert (row.pid, row.pid_start_time) == (42, 7.5)
    store.jobs.heartbeat(lease, key, attempt_s=3.0)
    assert store.jobs.spent_s("run") == {"cpu": 0.0, "gpu": 3.0}
    end = {"attempt": 1, "exit_code": -9, "duration_s": 4.0, "interrupted": True}
    row = store.jobs.end_attempt(lease, key, **end)
    assert store.jobs.end_attempt(lease, key, **end) == row  # once
    assert (row.status, row.interruptions, row.exit_code) == ("pending", 1, -9)
    store.jobs.begin_attempt(lease, key)
    assert store.jobs.end_attempt(lease, key, **end).status == "running"  # a late word on the first
    store.jobs.end_attempt(lease, key, attempt=2, exit_code=1, duration_s=2.0, interrupted=False)
    assert store.jobs.spent_s("run") == {"cpu": 0.0, "gpu": 6.0}
    row = store.jobs.close(lease, key, "failed")
    assert (row.status, row.attempt, row.duration_s, row.exit_code) == ("failed", 2, 6.0, 1)
    assert row.finished is not None
    assert store.jobs.close(lease, key, "failed") == row


def test_closed_job_can_be_reopened_unless_it_succeeded(store, lease):
    key = store.jobs.open(lease, job("train")).key
    store.jobs.begin_attempt(lease, key)
    with pytest.raises(RecordConflictError, match="got one that is running"):
        store.jobs.reopen(lease, key)
    store.jobs.end_attempt(lease, key, attempt=1, exit_code=1, duration_s=2.0, interrupted=False)
    store.jobs.close(lease, key, "failed")
    row = store.jobs.reopen(lease, key)
    assert (row.status, row.attempt - row.interruptions, row.duration_s) == ("pending", 0, 2.0)
    assert store.jobs.reopen(lease, key) == row
    store.jobs.begin_attempt(lease, key)
    store.jobs.end_attempt(lease, key, attempt=2, exit_code=0, duration_s=1.0, interrupted=False)
    row = store.jobs.close(lease, key, "succeeded", result_sha256="ab")
    assert row.result_sha256 == "ab"
    with pytest.raises(RecordConflictError, match="got one that is succeeded"):
        store.jobs.reopen(lease, key)
    with pytest.raises(RecordConflictError, match="to close as failed"):
        store.jobs.close(lease, key, "failed")


def test_job_methods_refuse_what_is_out_of_order(store, lease):
    key, jobs = JobKey(run_id="run", cycle=0, stage="train"), store.jobs
    end = {"attempt": 1, "exit_code": 0, "duration_s": 1.0, "interrupted": False}
    with pytest.raises(UnknownRowError, match="open it first"):
        jobs.begin_attempt(lease, key)
    jobs.open(lease, job("train"))
    for call, message in (
        (lambda: jobs.heartbeat(lease, key, attempt_s=1.0), "expected a running attempt"),
        (lambda: jobs.set_process(lease, key, pid=1, pid_start_time=1.0), "a running attempt"),
        (lambda: jobs.end_attempt(lease, key, **end), "an attempt of 1 to 0"),
        (lambda: jobs.close(lease, key, "running"), "expected an end"),
    ):
        with pytest.raises(RecordConflictError, match=message):
            call()
    jobs.begin_attempt(lease, key)
    with pytest.raises(RecordConflictError, match="expected a pending job"):
        jobs.begin_attempt(lease, key)
    with pytest.raises(RecordConflictError, match="got one that is running"):
        jobs.close(lease, key, "succeeded")
    for seconds in (float("nan"), -1.0):
        with pytest.raises(InputError, match="finite number >= 0"):
            jobs.heartbeat(lease, key, attempt_s=seconds)


OUTCOMES = [
    EpisodeOutcome(task="a", seed=2**40, success=True, score=0.5),
    EpisodeOutcome(task="b", seed=8, success=False),
]


def test_other_outcomes_for_a_recorded_look_are_refused(store, lease):
    store.apply(lease, changes.record_episodes(0, "candidate", 0, OUTCOMES))
    with pytest.raises(RecordConflictError, match="must repeat its outcomes"):
        store.apply(lease, changes.record_episodes(0, "candidate", 0, OUTCOMES[:1]))
    assert store.episodes("run", 0, "candidate") == OUTCOMES


def test_approval_is_asked_once_and_decided_once(store, lease):
    for timeout_s in (100.0, 5.0):
        store.apply(lease, request_approval(0, "promote", timeout_s=timeout_s))
    asked = store.approvals.get("run", 0, "promote")
    assert (asked.status, asked.overdue) == ("pending", False)
    assert asked.deadline == pytest.approx(asked.requested_at + 100.0)
    assert [row.gate for row in store.approvals.pending("run")] == ["promote"]
    row = store.approvals.decide("run", 0, "promote", "approved", reason="looks good", by="ada")
    assert (row.status, row.reason, row.by) == ("approved", "looks good", "ada")
    assert row.decided_at >= row.requested_at
    with pytest.raises(ApprovalDecidedError, match=r"approved by ada \(looks good\)"):
        store.approvals.decide("run", 0, "promote", "rejected", reason="no", by="bob")
    assert store.approvals.get("run", 0, "promote").status == "approved"
    assert store.approvals.pending("run") == []


def test_approval_needs_a_reason_a_name_and_a_question(store, lease):
    with pytest.raises(UnknownRowError, match="expected a question 'promote'"):
        store.approvals.decide("run", 0, "promote", "approved", reason="x", by="y")
    with pytest.raises(UnknownRowError, match="expected a question 'promote'"):
        store.approvals.get("run", 0, "promote")
    store.apply(lease, request_approval(0, "promote"))
    nothing, odd = "expected text that is not blank, got '.*'", "expected text without NUL"
    for reason, by, message in (
        ("", "ada", f"reason for 'approved': {nothing}"),
        ("  ", "ada", nothing),
        ("good", "", f"name of who decides: {nothing}"),
        ("a\0", "ada", odd),
        ("a", "\udc80", odd),
    ):
        with pytest.raises(InputError, match=message):
            store.approvals.decide("run", 0, "promote", "approved", reason=reason, by=by)
    assert store.approvals.get("run", 0, "promote").status == "pending"
    with pytest.raises(InputError, match="timeout_s > 0"):
        store.apply(lease, request_approval(1, "promote", timeout_s=0.0))


REPLY = ReplyRow(
    provider="anthropic", model="m", prompt_sha256="p", text="{}", tokens_in=3, tokens_out=4,
    cost_usd=0.25,
)  # fmt: skip


def test_of_many_controllers_that_want_a_run_exactly_one_gets_it(store_url, store):
    store.create_run("run", "{}")
    winners, losers = [], []

    def want(name):
        with JobStore(store_url) as own:
            try:
                winners.append(own.leases.acquire("run", name, ttl_s=60.0, gone=alive))
            except LeaseHeldError:
                losers.append(name)

    in_threads([lambda n=number: want(f"c{n}") for number in range(6)])
    assert (len(winners), len(losers)) == (1, 5)


def in_threads(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(timeout=800)

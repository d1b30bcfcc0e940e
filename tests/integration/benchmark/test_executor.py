"""The pool with real processes: equal results whatever dies on the way."""

import multiprocessing

import pytest

from cadenza.benchmark import executor
from cadenza.benchmark.executor import Job, JobError, run_jobs
from cadenza.benchmark.ray_executor import dispatch
from cadenza.core.errors import ConfigurationError, InputError, StorageError
from tests.integration.benchmark.job_runners import (
    RecordingFactory,
    ReturningFactory,
    process_number,
)

JOBS = [Job(key=f"job{n}", label=f"job number {n}") for n in range(6)]


def results(folder):
    return {path.name: path.read_text() for path in folder.glob("job?")}


EXPECTED = {f"job{n}": f"result of job{n}" for n in range(6)}


@pytest.mark.parametrize("workers", [1, 3])
def test_run_jobs_with_any_number_of_workers_stores_the_same_results(tmp_path, workers):
    seen = []
    failures = run_jobs(
        JOBS,
        RecordingFactory(tmp_path),
        workers=workers,
        progress=lambda done, total, label: seen.append((done, total)),
    )
    assert failures == []
    assert results(tmp_path) == EXPECTED
    assert seen == [(n, 6) for n in range(1, 7)]


def test_run_jobs_with_a_killed_worker_retries_its_job_once(tmp_path):
    factory = RecordingFactory(tmp_path, lethal=("job1", "job4"), deaths=1)
    assert run_jobs(JOBS, factory, workers=2) == []
    assert results(tmp_path) == EXPECTED
    assert (tmp_path / "attempts-job1").read_text() == "xx"
    assert (tmp_path / "attempts-job0").read_text() == "x"


def test_run_jobs_with_a_job_that_kills_twice_names_the_job(tmp_path):
    factory = RecordingFactory(tmp_path, lethal=("job2",), deaths=2)
    with pytest.raises(JobError, match=r"job number 2: .*2 lost in a row .*exit code -9"):
        run_jobs(JOBS, factory, workers=2)


def test_run_jobs_best_effort_records_the_lost_job_and_finishes_the_others(tmp_path):
    factory = RecordingFactory(tmp_path, lethal=("job2",), deaths=9)
    (failure,) = run_jobs(JOBS, factory, workers=2, failure_policy="best_effort")
    assert (failure.key, failure.error) == ("job2", "WorkerLost")
    assert results(tmp_path) == {k: v for k, v in EXPECTED.items() if k != "job2"}
    assert (tmp_path / "attempts-job2").read_text() == "xx"


@pytest.mark.parametrize("workers", [1, 2])
def test_run_jobs_with_a_failing_job_raises_its_error_by_type(tmp_path, workers):
    with pytest.raises(InputError, match="job number 3: job job3 was told to fail"):
        run_jobs(JOBS, RecordingFactory(tmp_path, failing=("job3",)), workers=workers)
    lenient = tmp_path / "lenient"
    lenient.mkdir()
    factory = RecordingFactory(lenient, failing=("job3", "job0"))
    found = run_jobs(JOBS, factory, workers=workers, failure_policy="best_effort")
    assert [(f.key, f.error, f.message) for f in found] == [
        (key, "InputError", f"job {key} was told to fail") for key in ("job0", "job3")
    ]
    assert (tmp_path / "attempts-job3").read_text() == "x"  # an error is not retried


@pytest.mark.parametrize("workers", [1, 2])
def test_dispatch_counts_no_failed_job_as_done_and_tells_how_many_failed(tmp_path, workers):
    seen = []
    with pytest.raises(InputError, match=r"^job number 0: job job0 was told to fail \(1 more"):
        dispatch(
            JOBS,
            RecordingFactory(tmp_path, failing=("job0", "job3")),
            work=10,
            workers=workers,
            cluster=None,
            report=lambda done, total, last: seen.append((done, total, last)),
        )
    assert max(seen)[:2] == (40, 60)
    labels = {last for _, _, last in seen}
    assert {"job number 3 failed", "job number 5 is done"} <= labels
    assert "job number 3 is done" not in labels


def test_run_jobs_with_a_runner_that_cannot_be_built_reports_its_error(tmp_path):
    factory = RecordingFactory(tmp_path, broken_start="error")
    with pytest.raises(InputError, match="the runner cannot be built"):
        run_jobs(JOBS, factory, workers=2)


def test_run_jobs_with_a_worker_that_never_starts_says_how_to_guard_a_script(tmp_path):
    factory = RecordingFactory(tmp_path, broken_start="exit")
    with pytest.raises(JobError, match=r"exit code 3.*__main__"):
        run_jobs(JOBS, factory, workers=2)


def test_run_jobs_with_workers_killed_while_they_start_starts_others(tmp_path):
    run_jobs(JOBS, RecordingFactory(tmp_path, killed_starts=2), workers=2)
    assert all((tmp_path / job.key).is_file() for job in JOBS)


def test_run_jobs_with_every_start_killed_gives_up_and_says_why(tmp_path):
    with pytest.raises(JobError, match=r"4 killed in a row \(signal 9\); check the memory"):
        run_jobs(JOBS, RecordingFactory(tmp_path, killed_starts=99), workers=2)


def test_run_jobs_that_cannot_be_run_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="workers >= 1, got 0"):
        run_jobs(JOBS, RecordingFactory(tmp_path), workers=0)
    with pytest.raises(ConfigurationError, match="distinct job keys"):
        run_jobs([JOBS[0], JOBS[0]], RecordingFactory(tmp_path), workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_run_jobs_on_a_full_disk_raises_one_storage_error(tmp_path, workers):
    factory = RecordingFactory(tmp_path, unwritable=("job2",))
    with pytest.raises(StorageError, match="job number 2: no space for job2"):
        run_jobs(JOBS, factory, workers=workers)


def test_run_jobs_that_fails_leaves_no_process_even_if_workers_ignore_requests(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(executor, "GRACE_S", 0.2)
    before = set(multiprocessing.active_children())
    factory = RecordingFactory(tmp_path, slow=("job0",), failing=("job1",), stubborn=True)
    with pytest.raises(InputError, match="told to fail"):
        run_jobs(JOBS, factory, workers=2)
    assert set(multiprocessing.active_children()) <= before


#: Two batches of three.
BATCHED = [Job(key=f"job{n}", label=f"job number {n}", batch=f"batch {n // 3}") for n in range(6)]


def run_batched(folder, workers, **behaviour):
    """Failures, stored bytes and the calls of the runner."""
    stored: dict[str, bytes] = {}
    limits = {"time_limit_s": behaviour.pop("time_limit_s", None)}
    failures = run_jobs(
        BATCHED,
        ReturningFactory(folder, **behaviour),
        workers=workers,
        failure_policy="best_effort",
        store=stored.__setitem__,
        **limits,
    )
    return failures, stored, sorted((folder / "calls").read_text().splitlines())


def bytes_but(*missing):
    return {f"job{n}": f"bytes of job{n}".encode() for n in range(6) if f"job{n}" not in missing}


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_done_together_and_stored_by_the_driver(tmp_path, workers):
    failures, stored, calls = run_batched(tmp_path, workers)
    assert (failures, stored) == ([], bytes_but())
    assert calls == ["job0 job1 job2", "job3 job4 job5"]


@pytest.mark.parametrize("workers", [1, 2])
def test_job_that_fails_in_a_batch_fails_alone(tmp_path, workers):
    (failure,), stored, calls = run_batched(tmp_path, workers, failing=("job1",))
    assert (failure.key, failure.message) == ("job1", "job job1 was told to fail")
    assert stored == bytes_but("job1")
    assert calls == ["job0 job1 job2", "job1", "job2", "job3 job4 job5"]


def test_job_that_kills_its_worker_in_a_batch_is_lost_alone(tmp_path):
    (failure,), stored, calls = run_batched(tmp_path, 2, lethal=("job4",))
    assert (failure.key, failure.error) == ("job4", "WorkerLost")
    assert stored == bytes_but("job4")
    assert calls == ["job0 job1 job2", "job3 job4 job5", "job4", "job5"]


def test_job_that_takes_too_long_is_stopped_and_its_batch_goes_on(tmp_path):
    (failure,), stored, _ = run_batched(tmp_path, 1, slow=("job1",), time_limit_s=1.0)
    assert (failure.key, failure.error) == ("job1", "TimeLimitExceeded")
    assert "expected an end within 1 s" in failure.message
    assert stored == bytes_but("job1")


def test_worker_that_rounds_otherwise_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"worker process: expected the bits .*MKL_CBWR"):
        run_jobs(BATCHED, ReturningFactory(tmp_path), workers=2, fingerprint=process_number)

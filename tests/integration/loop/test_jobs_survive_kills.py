"""Jobs whose controller, host or command is killed: nothing is lost, repeated or left behind."""

import json
import os
import random
import signal
import subprocess
from functools import partial

import pytest

from cadenza.loop.config import JobsConfig
from cadenza.loop.errors import JobFailedError, JobHostError, StaleLeaseError
from cadenza.loop.jobs.attempt_files import HostProcess
from cadenza.loop.jobs.reaping import JobMark, find_marked, reap
from tests.integration.loop.job_harness import (
    TTL_S,
    bench_in,
    done,
    files_of,
    is_alive,
    mark_of,
    nothing_left_of,
    spec_of,
    start_controller,
    wait_for,
    work_of,
)

#: Begins with a grandchild in a session of its own, which only its mark gives away.
FAMILY = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(600)
    os._exit(0)
"""


@pytest.fixture
def work(tmp_path):
    return partial(work_of, tmp_path)


def test_live_job_of_a_killed_controller_is_adopted(work, tmp_path):
    spec, running = work(2.5)
    first = start_controller(tmp_path, spec)
    wait_for(running.exists)
    first.kill()
    first.wait()
    pid, host = running.read_text(), files_of(spec).read_host(1)
    assert is_alive(int(pid))
    assert is_alive(host.pid)
    with bench_in(tmp_path) as bench:
        end = bench.runner().run(spec)
        assert (end.attempts, bench.kinds) == (1, ["adopted"])
        assert (bench.row(spec).pid, bench.row(spec).interruptions) == (host.pid, 0)
    assert running.read_text() == pid
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


def test_job_that_ended_while_no_controller_lived_is_only_recorded(work, tmp_path):
    spec, running = work(0.5)
    first = start_controller(tmp_path, spec)
    wait_for(running.exists)
    first.kill()
    first.wait()
    wait_for(lambda: files_of(spec).read_end(1))
    with bench_in(tmp_path) as bench:
        assert bench.runner().run(spec).attempts == 1
        assert bench.row(spec).duration_s >= 0.5
    assert done(running) == "done\n"


def test_killed_host_takes_the_command_and_its_hidden_children_with_it(work, tmp_path):
    spec, running = work(1.0, before=FAMILY)
    first = start_controller(tmp_path, spec)
    wait_for(running.exists)
    first.kill()
    first.wait()
    old = int(running.read_text())
    family = wait_for(lambda: len(pids := set(find_marked(mark_of(spec)))) == 2 and pids)
    os.kill(files_of(spec).read_host(1).pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(old))  # the kernel's doing: nobody else is there
    assert [is_alive(pid) for pid in family - {old}] == [True]
    with bench_in(tmp_path) as bench:
        end = bench.runner().run(spec)
        assert end.attempts == 2
        assert bench.kinds == ["reaped", "interrupted"]
        assert bench.row(spec).interruptions == 1
    assert not any(is_alive(pid) for pid in family)
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


def test_command_killed_from_outside_counts_as_an_interruption(work, tmp_path):
    spec, running = work(1.5)
    with bench_in(tmp_path) as bench:

        def kill_first(progress):
            if progress.attempt == 1 and running.exists():
                os.kill(int(running.read_text()), signal.SIGKILL)

        end = bench.runner(JobsConfig(max_attempts=1), on_progress=kill_first).run(spec)
        assert (end.attempts, bench.kinds) == (2, ["interrupted"])


def test_command_that_is_killed_again_and_again_fails_in_the_end(work, tmp_path):
    spec = spec_of(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    config = JobsConfig(max_attempts=2, max_interruptions=3, backoff_s=0.0)
    with bench_in(tmp_path) as bench:
        with pytest.raises(JobFailedError, match=r"5 attempts; the last one: exit code -9"):
            bench.runner(config).run(spec)
        assert bench.kinds == ["interrupted"] * 3 + ["attempt_failed"] * 2


def test_crash_of_the_command_itself_counts_as_a_failure(work, tmp_path):
    spec = spec_of(tmp_path, "os.abort()")
    with (
        bench_in(tmp_path) as bench,
        pytest.raises(JobFailedError, match=r"SIGABRT"),
    ):
        bench.runner(JobsConfig(max_attempts=1)).run(spec)


def test_seconds_of_an_attempt_whose_host_was_killed_are_charged(work, tmp_path):
    spec, running = work(600)
    first = start_controller(tmp_path, spec)
    wait_for(lambda: running.exists() and files_of(spec).read_heartbeat() >= 1.0)
    first.kill()
    first.wait()
    os.kill(files_of(spec).read_host(1).pid, signal.SIGKILL)
    with bench_in(tmp_path) as bench:
        bench.runner().run(
            spec_of(tmp_path, "finish(sys.argv[1])", stage="other")
        )  # another job is no concern of the dead one
        spec_now = spec.model_copy(update={"time_limit_s": 0.3})
        with pytest.raises(JobFailedError, match="time limit"):
            bench.runner(JobsConfig(max_attempts=1, grace_s=0.1)).run(spec_now)
        assert bench.row(spec).duration_s >= 1.0 + 0.3
        assert bench.store.jobs.spent_s("run-1")["cpu"] >= 1.3


def test_lock_and_not_a_number_tells_whether_a_host_lives(work, tmp_path):
    """A process that got the number of a dead host is neither waited for nor touched."""
    spec, _ = work(0.1)
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    try:
        with bench_in(tmp_path) as bench:
            bench.store.jobs.open(bench.lease, spec)
            bench.store.jobs.begin_attempt(bench.lease, spec.key, pid=bystander.pid)
            folder = files_of(spec)
            folder.try_lock().release()
            folder.write_host(HostProcess(attempt=1, pid=bystander.pid, start_ticks=1))
            end = bench.runner().run(spec)
            assert (end.attempts, bench.kinds) == (2, ["interrupted"])
            folder.write_host(HostProcess(attempt=1, pid=bystander.pid, start_ticks=1))
            assert not bench.runner().hosts.kill(folder, 1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_reaping_touches_only_what_carries_the_very_mark(work, tmp_path):
    mark = JobMark("run-1/0/train", str(tmp_path))
    others = [
        JobMark("run-1/0/train", str(tmp_path / "elsewhere")),
        JobMark("run-1/0/train2", str(tmp_path)),
        JobMark("run-1/0/trai", str(tmp_path)),
    ]
    processes = [
        subprocess.Popen(["/bin/sleep", "60"], env=each.variables()) for each in [mark, *others]
    ]
    try:
        wait_for(lambda: find_marked(mark))
        assert reap(mark) == [processes[0].pid]
        assert processes[0].wait(5.0) == -signal.SIGKILL
        assert [process.poll() for process in processes[1:]] == [None] * 3
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_host_that_is_stuck_is_killed_and_the_job_goes_on(work, tmp_path):
    spec, running = work(1.0)
    with bench_in(tmp_path) as bench:

        def freeze_first(progress):
            if progress.attempt == 1 and running.exists():
                os.kill(files_of(spec).read_host(1).pid, signal.SIGSTOP)

        end = bench.runner(on_progress=freeze_first, stuck_s=2.5).run(spec)
        assert end.attempts == 2
        assert bench.kinds[0] == "host_killed"
    assert nothing_left_of(spec)


def test_lock_that_a_stranger_holds_for_ever_is_reported(work, tmp_path):
    spec, _ = work(0.1)
    with (
        bench_in(tmp_path) as bench,
        files_of(spec).try_lock(),
        pytest.raises(JobHostError, match=r"expected a sign of life .* attempt.lock"),
    ):
        bench.runner(stuck_s=0.5).run(spec)


@pytest.mark.parametrize("content", ["{", '{"attempt": 1}', '{"attempt": true}', "[]"])
def test_end_that_cannot_be_read_counts_as_an_interruption(work, tmp_path, content):
    spec, _ = work(0.0)
    with bench_in(tmp_path) as bench:
        bench.store.jobs.open(bench.lease, spec)
        bench.store.jobs.begin_attempt(bench.lease, spec.key)
        folder = files_of(spec)
        folder.try_lock().release()
        (folder.path / "end.json").write_text(content)
        assert bench.runner().run(spec).attempts == 2
        assert bench.kinds == ["interrupted"]


def test_signal_to_the_controller_ends_the_job_and_leaves_it_resumable(work, tmp_path):
    spec, running = work(1.5)
    first = start_controller(tmp_path, spec)
    wait_for(running.exists)
    first.terminate()
    assert first.wait(20.0) == 3
    assert nothing_left_of(spec)
    assert files_of(spec).read_end(1).reason == "stopped"
    with bench_in(tmp_path) as bench:
        row = bench.row(spec)
        assert (row.status, row.interruptions) == ("pending", 1)
        assert bench.runner().run(spec).attempts == 2
    assert done(running) == "done\n"


@pytest.mark.slow
def test_kills_of_the_controller_at_random_moments_neither_lose_nor_repeat_a_job(work, tmp_path):
    """Twenty kills: of new controllers, of adopting ones, between two jobs and in their middle."""
    rng = random.Random(6)  # noqa: S311 - moments of kills
    spec, running = work(0.6)
    ended = tmp_path / "ended.json"
    kills = rounds = 0
    while kills < 20:
        spec = spec.model_copy(
            update={"key": spec.key.model_copy(update={"stage": f"stage_{rounds}"})}
        )
        running.unlink(missing_ok=True)
        running.with_name("running.done").unlink(missing_ok=True)
        spec.result_path.unlink(missing_ok=True)
        ended.unlink(missing_ok=True)
        while not ended.exists():
            process = start_controller(tmp_path, spec)
            try:
                process.wait(rng.uniform(0.25, 1.0))
            except subprocess.TimeoutExpired:
                kills += 1
            process.kill()
            process.wait()
        assert json.loads(ended.read_text())["attempts"] == 1
        assert done(running) == "done\n"
        assert nothing_left_of(spec)
        rounds += 1
    with bench_in(tmp_path) as bench:
        rows = bench.store.jobs.of_run("run-1")
        assert [row.status for row in rows] == ["succeeded"] * rounds
        assert [row.interruptions for row in rows] == [0] * rounds


def test_controller_that_lost_its_lease_leaves_the_job_to_its_successor(work, tmp_path):
    spec, running = work(3.0)
    with bench_in(tmp_path) as bench:

        def take_over(progress):
            bench.store.leases.release(old)
            bench.lease = bench.store.leases.acquire("run-1", "successor", ttl_s=TTL_S)

        old = bench.lease
        with pytest.raises(StaleLeaseError, match="was replaced"):
            bench.runner(on_progress=take_over).run(spec)
        assert is_alive(int(wait_for(lambda: running.exists() and running.read_text())))
        assert bench.runner().run(spec).attempts == 1
    assert done(running) == "done\n"

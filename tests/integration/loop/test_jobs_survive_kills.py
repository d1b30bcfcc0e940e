"""Jobs whose controller, host or command is killed: nothing is lost, repeated or left behind."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from cadenza.loop.config import JobsConfig
from cadenza.loop.errors import JobFailedError, StaleLeaseError
from cadenza.loop.jobs.attempt_files import AttemptHost
from cadenza.loop.processes import JobMark, find_marked, reap
from tests.campaigns import size
from tests.integration.loop.job_harness import (
    RUN,
    TTL_S,
    Controllers,
    bench_in,
    done,
    files_of,
    is_alive,
    let_end,
    mark_of,
    nothing_left_of,
    spec_of,
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
os.wait()
"""


@pytest.fixture
def work(tmp_path):
    return partial(work_of, tmp_path)


@pytest.fixture(scope="module")
def controllers():
    """Starts processes that control one job each."""
    with Controllers() as started:
        yield started


def test_live_job_of_a_killed_controller_is_adopted(work, tmp_path, controllers):
    spec, running = work()
    kill(controllers.start(tmp_path, spec), once=running.exists)
    pid, host = running.read_text(), files_of(spec).read_host(1)
    assert is_alive(int(pid))
    assert is_alive(host.pid)
    with bench_in(tmp_path) as bench:

        def end_adopted(_):
            if bench.kinds:
                let_end(running)

        end = bench.runner(on_progress=end_adopted).run(spec)
        assert (end.attempts, bench.kinds) == (1, ["adopted"])
        assert (bench.row(spec).pid, bench.row(spec).interruptions) == (host.pid, 0)
    assert running.read_text() == pid
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


def test_killed_host_takes_the_command_and_its_hidden_children_with_it(work, tmp_path, controllers):
    spec, running = work(600, before=FAMILY)
    controller = controllers.start(tmp_path, spec)
    wait_for(lambda: running.exists() and files_of(spec).read_host(1).attempt_s >= 1)
    kill(controller)
    old = int(running.read_text())
    family = set(find_marked(mark_of(spec)))
    assert len(family) == 2
    os.kill(files_of(spec).read_host(1).pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(old))  # the kernel's doing: nobody else is there
    assert [is_alive(pid) for pid in family - {old}] == [True]
    with bench_in(tmp_path) as bench:
        end = bench.runner().run(spec)
        assert (end.attempts, end.duration_s >= 1.0) == (2, True)
        assert bench.kinds == ["reaped", "interrupted"]
        assert bench.row(spec).interruptions == 1
        assert bench.store.jobs.spent_s(RUN)["cpu"] == end.duration_s  # the killed host's, too
    assert not any(is_alive(pid) for pid in family)
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


def test_kills_without_getting_further_count_as_failures_in_the_end(work, tmp_path):
    """Most likely it needs too much memory, where the kernel does not tell."""
    spec = spec_of(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    config = JobsConfig(max_attempts=2, max_kills=1, backoff_s=0.0)
    with bench_in(tmp_path) as bench:
        with pytest.raises(JobFailedError, match="in the last of 3 attempts") as caught:
            bench.runner(config).run(spec)
        assert "3 times in a row without getting further; most likely it needs more" in str(
            caught.value
        )
        assert bench.kinds == ["interrupted", "attempt_failed", "attempt_failed"]
        request = files_of(spec).read_request()
        assert (request.attempt, request.failed, request.kills) == (3, 1, 2)
        bench.store.jobs.reopen(bench.lease, spec.key)  # a person resumes the run
        with pytest.raises(JobFailedError, match="in the last of 6 attempts"):
            bench.runner(config).run(spec)


def test_lock_and_not_a_number_tells_whether_a_host_lives(work, tmp_path):
    """A process that got the number of a dead host is neither waited for nor touched."""
    spec, _ = work(0.1)
    bystander = subprocess.Popen(["/bin/sleep", "3600"])
    try:
        with bench_in(tmp_path) as bench:
            bench.store.jobs.open(bench.lease, spec)
            bench.store.jobs.begin_attempt(bench.lease, spec.key)
            bystanding = {"pid": bystander.pid, "pid_start_time": 1.0}
            bench.store.jobs.set_process(bench.lease, spec.key, **bystanding)
            folder = files_of(spec)
            folder.try_lock().close()
            folder.write_host(AttemptHost(attempt=1, pid=bystander.pid, start_ticks=1))
            end = bench.runner().run(spec)
            assert (end.attempts, bench.kinds) == (2, ["interrupted"])
            folder.write_host(AttemptHost(attempt=1, pid=bystander.pid, start_ticks=1))
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
        subprocess.Popen(["/bin/sleep", "3600"], env=each.variables()) for each in [mark, *others]
    ]
    try:
        wait_for(lambda: find_marked(mark))
        assert reap(mark) == [processes[0].pid]
        assert processes[0].wait(800.0) == -signal.SIGKILL
        assert [process.poll() for process in processes[1:]] == [None] * 3
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_host_that_is_stuck_is_killed_and_the_job_goes_on(work, tmp_path):
    spec, running = work()
    with bench_in(tmp_path) as bench:

        def freeze_first(progress):
            frozen = progress.attempt == 1 and running.exists()
            if frozen:
                os.kill(files_of(spec).read_host(1).pid, signal.SIGSTOP)
            runner.stuck_s = 0.5 if frozen else 120.0  # hosts of a busy machine are not stuck

        runner = bench.runner(on_progress=freeze_first)
        assert runner.run(spec).attempts == 2
        assert bench.kinds[0] == "host_killed"
    assert nothing_left_of(spec)


#: Says a line, and hangs in its first attempt.
HANGS = """
import signal
print("begun", flush=True)
if not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    os.kill(os.getpid(), signal.SIGSTOP)
finish(sys.argv[1])
"""


def test_a_command_that_hangs_is_ended_at_the_limit_of_silence(tmp_path):
    spec = spec_of(tmp_path, HANGS, str(tmp_path / "hung"))
    config = JobsConfig(max_attempts=50, silent_limit_s=1.0, grace_s=0.2, backoff_s=0.0)
    with bench_in(tmp_path) as bench:
        # a busy machine may need longer to start the command: that attempt is silent, too
        assert bench.runner(config).run(spec).attempts == 1 + len(bench.incidents)
        for incident in bench.incidents:
            assert incident.kind == "attempt_failed"
            assert "its folder had stood still for jobs.silent_limit_s" in incident.message
    assert nothing_left_of(spec)


@pytest.mark.parametrize("content", ["{", '{"attempt": true}'])
def test_end_that_cannot_be_read_counts_as_an_interruption(work, tmp_path, content):
    spec, _ = work(0.0)
    with bench_in(tmp_path) as bench:
        bench.store.jobs.open(bench.lease, spec)
        bench.store.jobs.begin_attempt(bench.lease, spec.key)
        folder = files_of(spec)
        folder.try_lock().close()
        (folder.path / "end.json").write_text(content)
        assert bench.runner().run(spec).attempts == 2
        assert bench.kinds == ["interrupted"]


@pytest.mark.parametrize("victims", ["controller", "anyone"])
def test_kills_at_random_moments_neither_lose_nor_repeat_a_job(tmp_path, controllers, victims):
    """Of new controllers and of adopting ones; before, during and after the command."""
    rng, struck = np.random.default_rng(6), 0
    ended = tmp_path / "ended.json"
    for number in range(size(1, 4)):
        folder = tmp_path / f"round_{number}"
        folder.mkdir()
        spec, running = work_of(folder, 0.3, stage=f"stage_{number}")
        ended.unlink(missing_ok=True)
        for strike in range(6):
            pid = controllers.start(tmp_path, spec)
            time.sleep(rng.uniform(0.0, 0.4 if strike else 0.1))
            if victims == "anyone":
                kill(*rng.permutation(processes_of(spec))[:1])
            killed = kill(pid)
            assert killed or ended.exists()  # it found the job done
            struck += killed
        last = controllers.start(tmp_path, spec)
        wait_for(lambda last=last: not is_alive(last))
        report = json.loads(ended.read_text())
        with bench_in(tmp_path) as bench:
            row = bench.row(spec)
        assert row.status == "succeeded"
        assert row.attempt == report["attempts"] == 1 + row.interruptions
        if victims == "controller":  # a killed host may have seen the end and not told it
            assert done(running) == "done\n"
        assert nothing_left_of(spec)
    assert struck > 0


def processes_of(spec):
    """Return the command's processes and its host."""
    host = files_of(spec).read_host(1)
    return find_marked(mark_of(spec)) + ([] if host is None else [host.pid])


def kill(*pids, once=lambda: True):
    """Kill processes, as soon as ``once()`` is true, and return how many of them lived."""
    wait_for(once)
    lived = sum(is_alive(int(pid)) for pid in pids)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        wait_for(lambda pid=pid: not is_alive(int(pid)))
    return lived


def test_controller_that_lost_its_lease_leaves_the_job_to_its_successor(work, tmp_path):
    spec, running = work()
    with bench_in(tmp_path) as bench:

        def take_over(progress):
            bench.store.leases.release(old)
            bench.lease = bench.store.leases.acquire("run-1", "successor", ttl_s=TTL_S)

        old = bench.lease
        with pytest.raises(StaleLeaseError, match="was replaced"):
            bench.runner(on_progress=take_over).run(spec)
        assert is_alive(int(wait_for(lambda: running.exists() and running.read_text())))
        let_end(running)
        assert bench.runner().run(spec).attempts == 1
    assert done(running) == "done\n"

"""How often a job is tried, how long it waits between, and what its host is told."""

from types import SimpleNamespace

import pytest

from cadenza.loop.config import JobsConfig
from cadenza.loop.contracts.records import JobKey, JobSpec
from cadenza.loop.errors import JobFailedError
from cadenza.loop.jobs import durable_runner
from cadenza.loop.jobs.attempt_files import AttemptEnd
from cadenza.loop.jobs.durable_runner import DurableRunner
from cadenza.loop.jobs.terms import ProgramTable
from cadenza.loop.store import JobStore


class Hosts:
    """Hosts whose attempts all end at once with one exit code; attempt ``stopped`` was stopped."""

    def __init__(self, exit_code, stopped=None):
        self.exit_code, self.stopped = exit_code, stopped
        self.requests = []

    def require_room(self, device): ...
    def waits_for(self, folder, *, waited_s): ...
    def explain(self, folder, attempt, outcome): ...
    def kill(self, folder, attempt): ...

    def start(self, folder, request, lock):
        assert folder.read_request() == request
        self.requests.append(request)
        number, code = len(self.requests), self.exit_code
        reason = "stopped" if number == self.stopped else "finished"
        folder.write_end(AttemptEnd(attempt=number, exit_code=code, duration_s=0.1, reason=reason))


@pytest.fixture
def failed(tmp_path, monkeypatch):
    """Call it with settings, an exit code and perhaps the number of an attempt that is stopped.

    Returns the requests and the seconds waited.
    """
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(durable_runner, "time", clock)

    def run(settings, exit_code, stopped=None):
        hosts = Hosts(exit_code, stopped)
        spec = JobSpec(
            key=JobKey(run_id="run", cycle=0, stage="train"),
            command=("cadenza", "job", "train"),
            output_dir=tmp_path / "train",
            log_path=tmp_path / "train.log",
        )
        with JobStore(tmp_path / "cadenza.db") as store:
            store.create_run("run", "{}")
            lease = store.leases.acquire("run", "me", ttl_s=600.0)
            programs = ProgramTable.native()
            runner = DurableRunner(store, lease, JobsConfig(**settings), programs, hosts)
            with pytest.raises(JobFailedError):
                runner.run(spec)
        return hosts.requests, clock.now

    return run


@pytest.mark.parametrize(
    ("settings", "exit_code", "attempts"),
    [
        ({"max_attempts": 3}, 1, 3),
        ({"max_attempts": 1, "max_interruptions": 4}, -9, 5),
        ({"max_attempts": 1, "max_interruptions": 2}, -9, 3),
        ({"max_attempts": 1}, -9, 6),  # max_kills is 5
        ({"max_attempts": 1, "max_kills": 2}, -9, 3),
    ],
)
def test_failures_and_kills_are_repeated_up_to_their_limits(failed, settings, exit_code, attempts):
    assert len(failed({"backoff_s": 0.0, **settings}, exit_code)[0]) == attempts


def test_an_attempt_that_was_stopped_is_repeated_at_once(failed):
    requests, waited_s = failed({"backoff_s": 2.0, "max_attempts": 2}, 1, stopped=2)
    assert (len(requests), int(waited_s)) == (3, 2)  # 2 s after the first, none after the second


def test_pauses_double_and_limits_reach_the_host(failed):
    limits = {"time_limit_s": 60.0, "silent_limit_s": 50.0, "grace_s": 3.0}
    requests, waited_s = failed({"backoff_s": 2.0, "max_attempts": 3, **limits}, 1)
    assert int(waited_s) == 6  # 2 s after the first, 4 s after the second; looking costs little
    assert {name: getattr(requests[0], name) for name in limits} == limits

import errno
import fcntl
import json
import re

import pytest

from cadenza.core.errors import IntegrityError, StorageError
from cadenza.loop.jobs.attempt_files import (
    AttemptEnd,
    AttemptFolder,
    Heartbeat,
    HostProcess,
    HostRequest,
)
from cadenza.loop.jobs.outcomes import judge

REQUEST = HostRequest(
    attempt=2,
    key="run/0/train",
    argv=("/bin/echo", "a b", "ż"),
    cwd="/",
    log_path="/log",
    output_dir="/out",
    time_limit_s=None,
    silent_limit_s=60.0,
    grace_s=3.0,
)


@pytest.fixture
def folder(tmp_path):
    made = AttemptFolder(tmp_path / "jobs" / "train")
    with made.try_lock():
        made.prepare(REQUEST, deadline_s=5.5)
    return made


def test_what_is_written_is_read_back(folder):
    assert folder.read_request() == REQUEST
    assert folder.read_deadline() == 5.5
    host = HostProcess(attempt=2, pid=7, start_ticks=9)
    folder.write_host(host)
    end = AttemptEnd(attempt=2, exit_code=-9, duration_s=1.25, reason="budget", memory_kills=3)
    folder.write_end(end)
    folder.beat(12.3456, 4.0)
    assert (folder.read_host(2), folder.read_end(2)) == (host, end)
    assert folder.read_heartbeat() == Heartbeat(attempt_s=12.346, quiet_s=4.0)


def test_documents_of_another_attempt_are_not_taken(folder):
    folder.write_host(HostProcess(attempt=1, pid=7, start_ticks=9))
    folder.write_end(AttemptEnd(attempt=1, exit_code=0, duration_s=1.0, reason="finished"))
    assert folder.read_host(2) is None
    assert folder.read_end(2) is None


def test_next_attempt_finds_nothing_of_the_last_one(folder):
    folder.write_host(HostProcess(attempt=2, pid=7, start_ticks=9))
    folder.write_end(AttemptEnd(attempt=2, exit_code=0, duration_s=1.0, reason="finished"))
    folder.ask_to_stop("a person")
    folder.say_waiting("a GPU")
    folder.beat(3.0)
    folder.prepare(REQUEST, deadline_s=None)
    assert (folder.read_host(2), folder.read_end(2)) == (None, None)
    assert (folder.stop_asked(), folder.read_heartbeat().attempt_s, folder.read_deadline()) == (
        False,
        0.0,
        None,
    )
    assert (folder.stop_asked_by(), folder.read_waiting()) == ("", None)


def test_what_a_host_waits_for_is_told_until_it_waits_no_more(folder):
    assert folder.read_waiting() is None
    folder.say_waiting("it needs 1 GPU")
    assert folder.read_waiting() == "it needs 1 GPU"
    folder.say_waiting(None)
    folder.say_waiting(None)
    assert folder.read_waiting() is None


def test_lock_has_one_holder_and_ends_with_it(folder):
    with folder.try_lock():
        assert folder.try_lock() is None
    with folder.try_lock() as lock:
        assert lock.descriptor > 2


def test_file_system_without_locks_is_reported(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="expected to lock this file, got 'No locks available'"):
        folder.try_lock()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"argv": "sh -c"}, "expected 'argv' of type list, got 'sh -c'"),
        ({"attempt": True}, "expected 'attempt' of type int, got True"),
        ({"grace_s": None}, "expected 'grace_s' of type float or int, got None"),
    ],
)
def test_request_of_wrong_types_is_refused(folder, change, message):
    document = json.loads(folder.request_path.read_text()) | change
    folder.request_path.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=message):
        folder.read_request()


@pytest.mark.parametrize("change", [{"reason": "bored"}, {"duration_s": -1.0}])
def test_end_of_odd_values_is_refused(folder, change):
    document = {"attempt": 2, "exit_code": 0, "duration_s": 1.0, "reason": "finished"} | change
    (folder.path / "end.json").write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match="expected a reason of"):
        folder.read_end(2)


@pytest.mark.parametrize(
    ("exit_code", "reason", "kind", "problem"),
    [
        (0, "finished", "succeeded", ""),
        (1, "finished", "failed", "exit code 1"),
        (-9, "finished", "interrupted", r"exit code -9 \(SIGKILL\)"),
        (-15, "finished", "interrupted", "SIGTERM"),
        (-11, "finished", "failed", "SIGSEGV"),
        (-40, "finished", "failed", "exit code -40$"),
        (0, "stopped", "ended_by_us", "^it was ended by a request to stop$"),
        (-15, "budget", "ended_by_us", "^it was ended by its host, as the run's budget was used"),
        (-15, "signal", "interrupted", r"^it was ended by a signal from outside the run \(SIGTERM"),
        (0, "time_limit", "failed", "time limit ended it after 1.0 s, exit code 0"),
        (-9, "silent", "failed", "after 1.0 s, as its log and its folder had stood still for jobs"),
    ],
)
def test_end_is_judged_by_reason_and_exit_code(folder, exit_code, reason, kind, problem):
    end = AttemptEnd(attempt=2, exit_code=exit_code, duration_s=1.0, reason=reason)
    folder.write_end(end)
    outcome = judge(folder, 2, None)
    assert (outcome.kind, outcome.end, outcome.digest) == (kind, end, None)
    assert re.search(problem, outcome.problem)


def test_end_on_request_names_who_asked(folder):
    folder.ask_to_stop("process 7 on host, the run's controller, which was asked to stop")
    folder.write_end(AttemptEnd(attempt=2, exit_code=0, duration_s=1.0, reason="stopped"))
    assert judge(folder, 2, None).problem == (
        "it was ended by process 7 on host, the run's controller, which was asked to stop"
    )


@pytest.mark.parametrize(
    ("exit_code", "kind", "problem"),
    [
        (-9, "failed", r"^the kernel killed it for want of memory, exit code -9 \(SIGKILL\)$"),
        (-15, "interrupted", r"^exit code -15 \(SIGTERM\)$"),
        (1, "failed", "^exit code 1, after the kernel killed 2 processes for want of memory$"),
    ],
)
def test_a_lack_of_memory_is_a_failure_and_named(folder, exit_code, kind, problem):
    end = AttemptEnd(
        attempt=2, exit_code=exit_code, duration_s=1.0, reason="finished", memory_kills=2
    )
    folder.write_end(end)
    outcome = judge(folder, 2, None)
    assert outcome.kind == kind
    assert re.search(problem, outcome.problem)


@pytest.mark.parametrize(
    ("exit_code", "reason", "alone"),
    [
        (-9, "finished", True),
        (-15, "finished", False),
        (-9, "signal", False),
        (-9, "silent", False),
    ],
)
def test_a_kill_of_the_command_alone_is_told_apart(folder, exit_code, reason, alone):
    end = AttemptEnd(attempt=2, exit_code=exit_code, duration_s=1.0, reason=reason)
    folder.write_end(end)
    assert judge(folder, 2, None).killed_alone is alone
    assert not judge(folder, 3, None).killed_alone  # its host was killed


def test_files_of_an_older_host_are_read(folder):
    (folder.path / "heartbeat").write_text("000000000058.000\n")
    assert folder.read_heartbeat() == Heartbeat(attempt_s=58.0, quiet_s=0.0)
    end = {"attempt": 2, "exit_code": 0, "duration_s": 1.0, "reason": "finished"}
    (folder.path / "end.json").write_text(json.dumps(end))
    assert folder.read_end(2).memory_kills == 0


@pytest.mark.parametrize("text", ["", "1.0 x"])
def test_heartbeat_caught_in_the_middle_of_a_write_counts_as_none(folder, text):
    (folder.path / "heartbeat").write_text(text)
    assert folder.read_heartbeat() == Heartbeat(attempt_s=0.0, quiet_s=0.0)

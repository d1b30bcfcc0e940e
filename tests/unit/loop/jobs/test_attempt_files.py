import json
import re
from dataclasses import replace

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder, AttemptHost, AttemptRequest
from cadenza.loop.jobs.outcomes import Outcome, judge, kills_after

REQUEST = AttemptRequest(
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
        made.prepare(REQUEST)
    return made


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("request", {"argv": "sh -c"}, "expected 'argv' of type list, got 'sh -c'"),
        ("request", {"attempt": True}, "expected 'attempt' of type int, got True"),
        ("request", {"grace_s": None}, "expected 'grace_s' of type float or int, got None"),
        ("end", {"reason": "bored"}, "expected a reason of"),
        ("end", {"duration_s": -1.0}, "expected a reason of"),
    ],
)
def test_documents_of_odd_values_are_refused(folder, name, change, message):
    folder.write_end(AttemptEnd(attempt=2, exit_code=0, duration_s=1.0, reason="finished"))
    path = folder.path / f"{name}.json"
    document = json.loads(path.read_text())
    (document["2"] if name == "end" else document).update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=message):
        folder.read_request() if name == "request" else folder.read_end(2)


def test_ends_of_earlier_attempts_are_kept_and_those_of_another_run_are_not(folder):
    ends = [AttemptEnd(attempt=n, exit_code=n, duration_s=1.0, reason="finished") for n in (2, 3)]
    folder.write_end(ends[0])
    with folder.try_lock():
        folder.prepare(replace(REQUEST, attempt=3))
    folder.write_end(ends[1])
    assert [folder.read_end(number) for number in (1, 2, 3)] == [None, *ends]
    with folder.try_lock():
        folder.prepare(REQUEST)  # the store of this name is another one
    assert folder.read_end(2) is None


def test_lock_tells_who_runs_an_attempt_in_as_many_bytes_each_time(folder):
    assert folder.read_host(2) is None
    sizes = set()
    for seconds in (0.0, 0.123, 98765432.125):
        host = AttemptHost(attempt=2, pid=7, start_ticks=8, attempt_s=seconds, quiet_s=seconds)
        folder.write_host(host)
        sizes.add(folder.lock_path.stat().st_size)
        assert folder.read_host(2) == host
    assert len(sizes) == 1
    assert folder.read_host(1) is None
    folder.lock_path.write_text('{"attempt":2')
    assert folder.read_host(2) is None


BY_BUDGET = "^it was ended by its host, as the run's budget was used"
BY_KERNEL = r"^the kernel killed it for want of memory, exit code -9 \(S"


@pytest.mark.parametrize(
    ("exit_code", "reason", "memory_kills", "kind", "problem"),
    [
        (0, "finished", 0, "succeeded", ""),
        (1, "finished", 0, "failed", "exit code 1"),
        (-9, "finished", 0, "interrupted", r"exit code -9 \(SIGKILL\)"),
        (-15, "finished", 2, "interrupted", r"^exit code -15 \(SIGTERM\)$"),
        (-11, "finished", 0, "failed", "SIGSEGV"),
        (-40, "finished", 0, "failed", "exit code -40$"),
        (0, "stopped", 0, "ended_by_us", "^it was ended by a request to stop$"),
        (-15, "budget", 0, "ended_by_us", BY_BUDGET),
        (-15, "signal", 0, "interrupted", r"^it was ended by a signal from outside the run \(SIGT"),
        (0, "time_limit", 0, "failed", "time limit ended it after 1.0 s, exit code 0"),
        (-9, "silent", 0, "failed", "as its log and its folder had stood still for jobs"),
        (-9, "finished", 2, "failed", BY_KERNEL),
        (1, "finished", 2, "failed", "^exit code 1, after the kernel killed 2 processes for want"),
    ],
)
def test_end_is_judged_by_reason_exit_code_and_memory(
    folder, exit_code, reason, memory_kills, kind, problem
):
    end = AttemptEnd(
        attempt=2, exit_code=exit_code, duration_s=1.0, reason=reason, memory_kills=memory_kills
    )
    folder.write_end(end)
    outcome = judge(folder, 2, None)
    assert (outcome.kind, outcome.end, outcome.digest) == (kind, end, None)
    assert re.search(problem, outcome.problem)
    assert outcome.killed_alone is ((exit_code, reason) == (-9, "finished"))
    assert not judge(folder, 3, None).killed_alone  # its host was killed


def test_end_on_request_names_who_asked(folder):
    folder.change_request(
        stop_by="process 7 on host, the run's controller, which was asked to stop"
    )
    folder.write_end(AttemptEnd(attempt=2, exit_code=0, duration_s=1.0, reason="stopped"))
    assert judge(folder, 2, None).problem == (
        "it was ended by process 7 on host, the run's controller, which was asked to stop"
    )


KILLED = Outcome(
    kind="interrupted", end=AttemptEnd(attempt=1, exit_code=-9, duration_s=1.0, reason="finished")
)
HOST_KILLED = Outcome(kind="interrupted")
FAILED = Outcome(
    kind="failed", end=AttemptEnd(attempt=1, exit_code=1, duration_s=1.0, reason="finished")
)


@pytest.mark.parametrize(
    ("done", "outcome", "kept", "kills"),
    [
        (0.5, KILLED, 0.5, 3),
        (0.5, KILLED, 0.6, 0),  # it got further
        (0.5, KILLED, None, 3),
        (None, KILLED, 0.6, 3),
        (0.5, HOST_KILLED, 0.5, 2),  # a shutdown tells nothing
        (0.5, HOST_KILLED, 0.6, 0),
        (0.5, FAILED, 0.5, 2),
    ],
)
def test_kills_without_getting_further_are_counted(done, outcome, kept, kills):
    request = replace(REQUEST, done=done, kills=2)
    assert kills_after(request, outcome, kept) == kills


@pytest.mark.parametrize("text", ["", "{", "[]", '{"attempt": -1}', '{"attempt": 1, "x": 2}'])
def test_request_that_cannot_be_read_counts_as_none_and_is_not_changed(folder, text):
    folder.request_path.write_text(text)
    assert folder.request is None
    folder.change_request(stop_by="me")
    assert folder.request_path.read_text() == text
    with pytest.raises(IntegrityError, match=r"request\.json: expected"):
        folder.read_request()

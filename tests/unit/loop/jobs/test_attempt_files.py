import json
import re

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder, HostRequest
from cadenza.loop.jobs.outcomes import Course, Outcome, judge, read_course

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
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(IntegrityError, match=message):
        folder.read_request() if name == "request" else folder.read_end(2)


def test_kills_that_nobody_counted_are_none(folder):
    folder.write_end(AttemptEnd(attempt=2, exit_code=0, duration_s=1.0, reason="finished"))
    path = folder.path / "end.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"memory_kills": None}))
    assert folder.read_end(2).memory_kills == 0
    del document["memory_kills"]
    path.write_text(json.dumps(document))
    assert folder.read_end(2).memory_kills == 0


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
    folder.ask_to_stop("process 7 on host, the run's controller, which was asked to stop")
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
    assert Course(attempt=3, done=done, kills=2).kills_after(outcome, kept) == kills


@pytest.mark.parametrize("text", ["{", "[]", '{"attempt": -1}', '{"attempt": 1, "x": 2}'])
def test_what_cannot_be_read_counts_as_nothing(tmp_path, text, caplog):
    (tmp_path / "course.json").write_text(text)
    assert read_course(AttemptFolder(tmp_path)) is None
    assert "expected how a job has gone, got" in caplog.text

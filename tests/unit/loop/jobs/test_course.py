import pytest

from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder
from cadenza.loop.jobs.outcomes import Course, Outcome, read_course

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

import json

import pytest

from cadenza.loop.errors import StoreAccessError, StoreUnavailableError
from cadenza.loop.incidents import IncidentLog
from cadenza.loop.jobs.terms import StopLevel, never
from cadenza.loop.orchestrator.loop import Outages

AWAY = StoreUnavailableError("the server restarts")


class Session:
    """A session whose store answers after some questions; None never does."""

    def __init__(self, folder, after):
        self.incidents = IncidentLog(folder)
        self.asked = 0
        self._after = after

    def reload(self):
        self.asked += 1
        if self._after is None or self.asked < self._after:
            raise StoreUnavailableError(f"question {self.asked}")


class Clock:
    """Goes on by what is slept alone."""

    def __init__(self):
        self.seconds = 0.0

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("cadenza.loop.orchestrator.loop.time", made)
    return made


def outages(session, stop=never, **options):
    return Outages(session, stop, pause_s=0.01, **options)


def test_outage_beyond_the_patience_ends_the_run(tmp_path, clock):
    with pytest.raises(StoreUnavailableError, match="question 6"):
        outages(Session(tmp_path, after=None), patience_s=0.055).outlast(AWAY)
    assert clock.seconds == pytest.approx(0.06)


def test_patience_is_that_of_a_step_not_of_each_of_its_outages(tmp_path):
    session = Session(tmp_path, after=1)  # a full disk: it can be read, but no step ends
    waiting = outages(session, patience_s=0.055)
    for _ in range(6):
        waiting.outlast(AWAY)
    with pytest.raises(StoreUnavailableError, match="the server restarts"):
        waiting.outlast(AWAY)
    waiting.over()
    waiting.outlast(AWAY)  # the next step has its own


def test_wrong_password_and_a_request_to_stop_are_not_waited_for(tmp_path):
    session = Session(tmp_path, after=1)
    with pytest.raises(StoreAccessError, match="wrong"):
        outages(session).outlast(StoreAccessError("wrong"))
    with pytest.raises(StoreUnavailableError, match="the server restarts"):
        outages(session, stop=lambda: StopLevel.END).outlast(AWAY)
    assert session.asked == 0


def test_incident_that_cannot_be_written_is_told_in_the_log(tmp_path, caplog):
    (tmp_path / "run").write_text("no folder")
    IncidentLog(tmp_path / "run").note("stopped", "somebody asked")
    [told] = caplog.messages
    assert "incidents.jsonl: 'somebody asked' is not noted there" in told
    (tmp_path / "run").unlink()
    IncidentLog(tmp_path / "run").note("stopped", "somebody asked", by="Ada")
    line = json.loads((tmp_path / "run" / "incidents.jsonl").read_text())
    assert line.pop("ts") > 0
    assert line == {"kind": "stopped", "message": "somebody asked", "by": "Ada"}

"""Status file and log of an engine, and what `cadenza stream top` shows of them."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.cli.output import ExitCode
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.error_envelope import ErrorEnvelope, write_envelope
from cadenza.stream.layout import BOOKKEEPING, StoreLayout
from cadenza.stream.slots import (
    OnlineDataEngineState,
    ProducerState,
    SlotStore,
    set_engine_state,
)
from cadenza.stream.status import headline
from cadenza.stream.stream_report import StreamReport


@pytest.fixture
def store() -> SlotStore:
    made = SlotStore.create(StoreLayout(slots=3, steps=4, producers=2, fields=BOOKKEEPING))
    set_engine_state(made, OnlineDataEngineState.DEGRADED)
    made.producers["episodes"][0], made.producers["frames"][0] = 2, 8
    made.producers["state"][:] = (ProducerState.RUNNING, ProducerState.WAITING)
    write_envelope(made, 1, ErrorEnvelope(kind="hang", message="no sign of life"))
    return made


def written_status(store: SlotStore, tmp_path: Path) -> Path:
    path = tmp_path / "status.json"
    StreamReport(store, log_path=None, status_path=str(path)).write_status()
    return path


def test_status_file_has_states_counts_and_errors(store, tmp_path) -> None:
    status = json.loads(written_status(store, tmp_path).read_text())
    assert status["schema_version"] == 1
    assert (status["state"], status["episodes"], status["frames"]) == ("DEGRADED", 2, 8)
    assert [row["state"] for row in status["producers"]] == ["RUNNING", "WAITING"]
    assert [row["error"] for row in status["producers"]] == [None, "hang: no sign of life"]


def test_rates_are_of_the_time_between_two_files(store, tmp_path, monkeypatch) -> None:
    times = iter([10.0, 14.0])
    monkeypatch.setattr("cadenza.stream.stream_report.time.monotonic", lambda: next(times, 14.0))
    report = StreamReport(store, log_path=None, status_path=str(tmp_path / "s.json"))
    store.consumers["chunks"][0] = 4
    report.write_status()
    store.producers["frames"][0] = 48
    store.consumers["chunks"][0] = 16
    report.write_status()
    status = json.loads((tmp_path / "s.json").read_text())
    assert status["frames_per_s"] == 10.0  # (48 - 8) / 4
    assert status["chunks_per_s"] == 3.0


def test_log_has_events_requests_and_counters(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cadenza.stream.stream_report.time.monotonic", lambda: 10.0)
    report = StreamReport(store, log_path=str(tmp_path / "log.jsonl"), status_path=None)
    store.consumers["chunks"][0] = 4
    store.consumers["excluded_ppm"][0] = 1_000_000
    store.consumers["requests"][0] = 1
    report.tick()
    report.log("producer_died", producer=1)
    report.tick()  # nothing is due
    report.close()
    report.log("too_late")
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == [
        "refill_requested",
        "stream_counters",
        "producer_died",
        "stream_counters",
    ]
    assert events[1]["frames"] == 8
    assert events[1]["excluded_mean"] == 0.25
    assert all(event["time_ns"] > 0 for event in events)


def test_each_standstill_is_told_once_and_again_when_it_is_over(
    store, tmp_path, monkeypatch, caplog
) -> None:
    now_ns = [10**12]
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr("time.time_ns", lambda: now_ns[0])
    report = StreamReport(
        store, log_path=str(tmp_path / "log.jsonl"), status_path=str(tmp_path / "s.json")
    )

    def pass_by(seconds: float) -> dict[str, Any]:
        """Look again after ``seconds`` in which a draw goes on waiting; return the status."""
        now_ns[0] += int(seconds * 1e9)
        ConsumerRow(store).note_blocked(0)
        report.tick()
        report.write_status()
        return json.loads((tmp_path / "s.json").read_text())

    store.producers["state"][:] = (ProducerState.PAUSED, ProducerState.FAILED)
    with caplog.at_level(logging.WARNING):
        assert pass_by(0.0)["frozen_s"] == pass_by(1.9)["frozen_s"] == 0.0
        assert (pass_by(0.1)["frozen_s"], pass_by(4.0)["frozen_s"]) == (2.0, 6.0)
        line = headline(pass_by(1.0))
        assert "DEGRADED, blocked for 7 s: draws wait, all producers pause" in line
        store.producers["state"][0] = ProducerState.RUNNING
        assert "standing" not in headline(pass_by(1.0))
        assert headline(pass_by(1.0)) == line.partition(",")[0]
        store.producers["state"][0] = ProducerState.PAUSED
        assert pass_by(0.0)["frozen_s"] == 0.0
        assert pass_by(3.0)["frozen_s"] == 3.0
    assert [record.getMessage()[:60] for record in caplog.records] == [
        f"The stream is blocked: draws have waited for {s:.1f} s while all" for s in (2, 3)
    ]
    report.close()
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = [(e["event"], e["frozen_s"]) for e in events if e["event"] != "stream_counters"]
    assert told == [("stream_frozen", 2.0), ("stream_goes_on", 8.0), ("stream_frozen", 3.0)]


def test_refused_writes_are_warned_about_once(store, tmp_path, monkeypatch, caplog) -> None:
    report = StreamReport(
        store, log_path=str(tmp_path / "log.jsonl"), status_path=str(tmp_path / "s.json")
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    monkeypatch.setattr("os.fsync", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            report.log("event")
            report.write_status()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "The stream's log could not be written" in told[0]
    assert "The stream's status could not be written" in told[1]
    monkeypatch.undo()
    report.close()


def test_top_shows_totals_and_producers(store, tmp_path) -> None:
    store.consumers["chunks"][1] = 8
    store.consumers["excluded_ppm"][1] = 1_000_000
    result = CliRunner().invoke(
        app, ["stream", "top", str(written_status(store, tmp_path)), "--once"]
    )
    assert result.exit_code == 0
    assert "DEGRADED" in result.output
    assert "2 episodes, 8 steps, 0 steps/s, 0 dropped" in result.output
    assert "12.5% of the episodes or segments, shorter than a chunk" in result.output
    assert "0 episodes, 0 of them unread, 0 passed over" in result.output
    assert "producer 1: hang: no sign of life" in result.output


def test_top_says_when_nothing_was_told_for_long(store, tmp_path, monkeypatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    status = json.loads(written_status(store, tmp_path).read_text())
    assert headline(status) == f"Stream of process {status['owner_pid']}: DEGRADED"
    status["time_ns"] -= 60 * 10**9
    assert headline(status).endswith("DEGRADED, but without news for 60 s")
    assert headline(status | {"state": "STOPPED"}).endswith("STOPPED")


def test_top_says_what_is_wrong_with_the_file(tmp_path) -> None:
    missing = CliRunner().invoke(app, ["stream", "top", str(tmp_path / "no.json")])
    assert missing.exit_code == ExitCode.USAGE
    assert "set status_path in its configuration" in missing.output
    other = tmp_path / "other.json"
    other.write_text('{"schema_version": 9}')
    wrong = CliRunner().invoke(app, ["stream", "top", str(other)])
    assert wrong.exit_code == ExitCode.DAMAGED_DATA
    assert "expected a status of version 1, got 9" in wrong.output


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_top_refuses_a_status_with_values_missing_or_wrong(store, tmp_path, options) -> None:
    path = written_status(store, tmp_path)
    whole = json.loads(path.read_text())
    for change in ({"owner_pid": None}, {"time_ns": "now"}, {"producers": [3]}):
        damaged = {k: v for k, v in (whole | change).items() if v is not None}
        path.write_text(json.dumps(damaged))
        told = CliRunner().invoke(app, ["stream", "top", str(path), *options])
        assert told.exit_code == ExitCode.DAMAGED_DATA
        assert "expected the status of an online data engine" in told.output

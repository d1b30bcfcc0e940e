import json
import logging

import pytest

from cadenza.loop.errors import EventLogError
from cadenza.loop.events import Event, EventBus
from cadenza.loop.events import bus as log_file


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bus_creates_parents_and_appends_one_line_per_event(tmp_path):
    path = tmp_path / "runs" / "r" / "events.jsonl"
    bus = EventBus(path)
    assert path.parent.is_dir()
    assert bus.log_path == path
    bus.emit(Event("r", "train", "job_started", 0, {"cmd": ["a"]}, 1.5))
    bus.emit(Event("r", "train", "job_finished"))
    first, second = lines(path)
    assert {key: first[key] for key in ("run_id", "stage", "kind", "cycle", "payload", "ts")} == {
        "run_id": "r", "stage": "train", "kind": "job_started", "cycle": 0,
        "payload": {"cmd": ["a"]}, "ts": 1.5,
    }  # fmt: skip
    assert (first["seq"], second["seq"]) == (1, 2)
    assert second["mono"] >= first["mono"]


def test_subscribers_are_called_in_order_after_the_line_whoever_fails_or_emits(tmp_path, caplog):
    bus = EventBus(tmp_path / "events.jsonl")
    seen = []

    def fail(event):
        raise RuntimeError("broken display")

    def answer(event):
        seen.append((event.kind, len(lines(bus.log_path))))
        if event.kind == "question":
            bus.emit(Event("r", "train", "answer"))

    bus.subscribe(fail)
    bus.subscribe(answer)
    with caplog.at_level(logging.ERROR):
        bus.emit(Event("r", "train", "question"))
    assert seen == [("question", 1), ("answer", 2)]
    assert [line["seq"] for line in lines(bus.log_path)] == [1, 2]
    assert "failed on train/question" in caplog.text
    assert "broken display" in caplog.text


def test_later_bus_counts_on_and_one_at_a_time_owns_the_log(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    first = EventBus(path)
    first.emit(Event("r", "train", "x"))
    monkeypatch.setattr(log_file, "LOCK_WAIT_S", 0.0)
    second = EventBus(path)
    with pytest.raises(EventLogError, match="no other process works on the run"):
        second.emit(Event("r", "train", "lost"))
    first.close()
    second.emit(Event("r", "train", "y"))
    second.close()
    first.emit(Event("r", "train", "z"))
    assert [(line["seq"], line["kind"]) for line in lines(path)] == [(1, "x"), (2, "y"), (3, "z")]

import json
import logging
import threading

import pytest

from cadenza.core.errors import NotReadyError
from cadenza.loop.errors import EventLogError
from cadenza.loop.events import Event, EventBus, log_file


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


def test_subscribers_are_called_in_order_after_the_line_is_written(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")
    seen = []
    bus.subscribe(lambda event: seen.append(("a", event.kind, len(lines(bus.log_path)))))
    bus.subscribe(lambda event: seen.append(("b", event.kind, len(lines(bus.log_path)))))
    bus.emit(Event("r", "train", "x"))
    assert seen == [("a", "x", 1), ("b", "x", 1)]


def test_failing_subscriber_is_logged_and_stops_nobody(tmp_path, caplog):
    bus = EventBus(tmp_path / "events.jsonl")
    seen = []

    def fail(event):
        raise RuntimeError("broken display")

    bus.subscribe(fail)
    bus.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        bus.emit(Event("r", "train", "x"))
    assert [event.kind for event in seen] == ["x"]
    assert "failed on train/x" in caplog.text
    assert "broken display" in caplog.text


def test_subscriber_may_emit(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")

    def answer(event):
        if event.kind == "question":
            bus.emit(Event("r", "train", "answer"))

    bus.subscribe(answer)
    bus.emit(Event("r", "train", "question"))
    assert [(line["kind"], line["seq"]) for line in lines(bus.log_path)] == [
        ("question", 1),
        ("answer", 2),
    ]


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


def test_threads_share_a_bus(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")

    def emit():
        for _ in range(10):
            bus.emit(Event("r", "train", "x"))

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["seq"] for line in lines(bus.log_path)] == list(range(1, 41))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "expected an event in the last line"),
        ('{"run_id": "r"}\n', "expected a seq >= 1 in the last line, got None"),
        ('{"seq": "7"}\n', "got '7'"),
        ('{"seq": 0}\n', "got 0"),
    ],
)
def test_log_of_another_program_is_refused_and_kept(tmp_path, content, message):
    path = tmp_path / "events.jsonl"
    path.write_text(content)
    bus = EventBus(path)
    for _ in range(2):
        with pytest.raises(EventLogError, match=message):
            bus.emit(Event("r", "train", "x"))
    assert path.read_text() == content


def test_routed_bus_hands_events_to_the_sink_and_leaves_its_log_alone(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")
    heard, kept = [], []

    class Sink:
        log_path = bus.log_path

        def __init__(self):
            self.subscribers = []

        def subscribe(self, subscriber):
            self.subscribers.append(subscriber)

        def emit(self, event):
            kept.append(event.kind)
            for subscriber in self.subscribers:
                subscriber(event)

    bus.subscribe(lambda event: heard.append(event.kind))
    bus.emit(Event("run", "s", "before"))
    with bus.routed(Sink()):
        bus.emit(Event("run", "s", "inside"))
        with pytest.raises(NotReadyError, match="expected a bus of no run"):
            bus.routed(Sink()).__enter__()
    bus.emit(Event("run", "s", "after"))
    assert (heard, kept) == (["before", "inside", "after"], ["inside"])
    written = [(line["seq"], line["kind"]) for line in lines(bus.log_path)]
    assert written == [(1, "before"), (2, "after")]
    bus.close()

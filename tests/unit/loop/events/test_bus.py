import errno
import json
import logging
import math
import os

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.loop.errors import EventLogError
from cadenza.loop.events import Event, EventBus
from cadenza.loop.events import bus as log_file
from cadenza.loop.events.bus import LogFile, event_line


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


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_are_refused_with_their_place(number):
    with pytest.raises(InputError, match=r"payload\.a\[1\]\.b: expected a finite number"):
        Event("run", "eval", "report", payload={"a": [0.0, {"b": number}]})
    with pytest.raises(InputError, match=r"Event\.ts: expected finite"):
        Event("run", "eval", "report", ts=float(number))


CIRCLE = {}
CIRCLE["self"] = CIRCLE


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"a": object()}, "payload.a: expected text, numbers"),
        ({"a": {1, 2}}, "got set; convert it first"),
        ({"a": b"bytes"}, "got bytes"),
        ({1: "a"}, "expected text as keys, got 1"),
        (["a"], "expected a mapping, got list"),
        (CIRCLE, "at most 32 levels"),
    ],
)
def test_what_json_cannot_express_is_refused(payload, message):
    with pytest.raises(InputError, match=message):
        Event("run", "eval", "report", payload=payload)


@pytest.mark.parametrize(("place", "name"), [(0, ""), (1, "a\nb"), (2, "a\x00"), (0, None), (1, 3)])
def test_names_must_be_printable_text(place, name):
    fields = ["run", "eval", "report"]
    fields[place] = name
    with pytest.raises(InputError, match="expected printable text"):
        Event(*fields)


def test_line_has_the_promised_keys_and_three_more():
    event = Event("run", "train", "job_finished", 2, {"log": "é\n", "duration_s": 0.1}, 1.25)
    line = event_line(event, seq=7, mono=3.5)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line) == {
        "run_id": "run", "stage": "train", "kind": "job_finished", "cycle": 2,
        "payload": {"log": "é\n", "duration_s": 0.1}, "ts": 1.25,
        "seq": 7, "schema": 1, "mono": 3.5,
    }  # fmt: skip


def test_overlong_payload_is_refused(monkeypatch):
    monkeypatch.setattr(log_file, "MAX_PAYLOAD_BYTES", 100)
    fits = Event("run", "eval", "x", payload={"a": "b" * (100 - len('{"a": ""}'))})
    assert len(fits.payload_json()) == 100
    with pytest.raises(InputError, match="at most 100 bytes of JSON, got 101"):
        event_line(Event("run", "eval", "x", payload={"a": "b" * 92}), seq=1, mono=0.0)


KIB64 = 1 << 16
LONG = 3 * KIB64 * b"t"


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(log_file, "LOCK_WAIT_S", 0.05)


def test_lines_are_appended_and_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    log = LogFile(tmp_path / "deep" / "events.jsonl")
    assert log.last_line() is None
    log.append(b"one\n")
    assert synced[-1] == 4
    log.append(b"two\nthree\n")
    assert (synced[-1], log.last_line()) == (14, b"three\n")
    log.close()
    assert (tmp_path / "deep" / "events.jsonl").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("content", "kept", "last"),
    [
        (b"", b"", None),
        (b"torn", b"", None),
        (b"one\n", b"one\n", b"one\n"),
        (b"one\ntwo\n", b"one\ntwo\n", b"two\n"),
        (b"one\ntwo\nto", b"one\ntwo\n", b"two\n"),
        (b"\n", b"\n", b"\n"),
        # Torn lines that are long.
        *((b"one\n" + LONG[:n], b"one\n", b"one\n") for n in (KIB64 - 1, KIB64, KIB64 + 1)),
        (LONG, b"", None),
        (LONG + b"\ntwo", LONG + b"\n", LONG + b"\n"),
    ],
)
def test_torn_last_line_is_cut_off_at_opening(tmp_path, content, kept, last):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    log = LogFile(path)
    assert (path.read_bytes(), log.last_line()) == (kept, last)
    log.append(b"new\n")
    log.close()
    assert path.read_bytes() == kept + b"new\n"


def test_full_disk_leaves_the_lines_before_intact(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    log = LogFile(path)
    log.append(b"one\n")
    real = os.pwrite

    def half(fd, data, place):
        if len(data) > 3:
            return real(fd, data[:3], place)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(EventLogError, match="got 'No space left on device'"):
            log.append(b"two\n")
    assert path.read_bytes() == b"one\n"
    log.append(b"three\n")
    log.close()
    assert path.read_bytes() == b"one\nthree\n"

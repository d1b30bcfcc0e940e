import json
import math

import numpy as np
import pytest

from cadenza.loop.errors import EventError
from cadenza.loop.events import Event
from cadenza.loop.events import bus as event_module
from cadenza.loop.events.bus import event_line


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_are_refused_with_their_place(number):
    with pytest.raises(EventError, match=r"payload\.a\[1\]\.b: expected a finite number"):
        Event("run", "eval", "report", payload={"a": [0.0, {"b": number}]})
    with pytest.raises(EventError, match=r"Event\.ts: expected finite"):
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
    with pytest.raises(EventError, match=message):
        Event("run", "eval", "report", payload=payload)


@pytest.mark.parametrize(("place", "name"), [(0, ""), (1, "a\nb"), (2, "a\x00"), (0, None), (1, 3)])
def test_names_must_be_printable_text(place, name):
    fields = ["run", "eval", "report"]
    fields[place] = name
    with pytest.raises(EventError, match="expected printable text"):
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
    monkeypatch.setattr(event_module, "MAX_PAYLOAD_BYTES", 100)
    fits = Event("run", "eval", "x", payload={"a": "b" * (100 - len('{"a": ""}'))})
    assert len(fits.payload_json()) == 100
    with pytest.raises(EventError, match="at most 100 bytes of JSON, got 101"):
        event_line(Event("run", "eval", "x", payload={"a": "b" * 92}), seq=1, mono=0.0)

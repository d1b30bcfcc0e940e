"""Events that were emitted to the bus of a run before, between or after its controllers."""

import json
import shutil

import pytest

from cadenza.loop.errors import EventLogError
from cadenza.loop.events import Event
from tests.integration.loop.loop_harness import Loop, store_in
from tests.loop_fakes import FakeStack


@pytest.fixture
def store(tmp_path, sqlite_template):
    with store_in(tmp_path, sqlite_template) as opened:
        yield opened


def loop_of(store, folder, **changes):
    return Loop(store, folder, FakeStack([0.9, 0.9, 0.9]), budgets={"max_cycles": 1}, **changes)


def emit(bus, kind, **changes):
    bus.emit(
        Event(
            **{"run_id": "run", "stage": "mine", "kind": kind, "payload": {"a": [1, 2.5]}} | changes
        )
    )


def logged(loop):
    return [json.loads(line) for line in loop.bus.log_path.read_text().splitlines()]


def test_run_takes_over_what_its_bus_was_given_before_it(store, tmp_path):
    heard, plain = [], loop_of(store, tmp_path, run_id="plain")
    plain.run()
    loop = loop_of(store, tmp_path)
    loop.bus.subscribe(lambda event: heard.append((event.stage, event.kind)))
    emit(loop.bus, "hello", ts=5)
    emit(loop.bus, "again", cycle=3)
    loop.run()
    assert loop.events() == [("mine", "hello"), ("mine", "again"), *plain.events()]
    assert heard == loop.events()
    lines = logged(loop)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert [(line["stage"], line["kind"]) for line in lines] == loop.events()
    assert (lines[0]["payload"], lines[0]["ts"], lines[1]["cycle"]) == ({"a": [1, 2.5]}, 5.0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.replace(b'"run"', b'"else"'), "got another one in line 2"),
        (lambda line: line.replace(b'"a": ', b'"a":'), "got another layout in line 2"),
        (lambda line: line + line, "got 3 lines up to number 2"),
    ],
)
def test_log_that_no_bus_of_the_run_wrote_is_refused(change, message, store, tmp_path):
    loop = loop_of(store, tmp_path)
    emit(loop.bus, "one")
    emit(loop.bus, "two")
    first, second = loop.bus.log_path.read_bytes().splitlines(keepends=True)
    shutil.copyfile(loop.bus.log_path, tmp_path / "kept")
    loop.bus.log_path.write_bytes(first + change(second))
    with pytest.raises(EventLogError, match=f"as an EventBus writes them, {message}"):
        loop.run()
    assert store.list_runs() == []
    broken = b"[1]\n" + second
    loop.bus.log_path.write_bytes(broken)
    with pytest.raises(EventLogError, match="line 1: expected"):
        loop.run()
    shutil.copyfile(tmp_path / "kept", loop.bus.log_path)
    loop.run()

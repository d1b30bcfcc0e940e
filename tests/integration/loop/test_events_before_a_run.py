"""Events that were emitted to the bus of a run before, between or after its controllers."""

import json
import shutil

import pytest

from cadenza.loop.errors import EventLogError, EventLogHeldError
from cadenza.loop.events import Event, EventBus
from cadenza.loop.events import log_file as log_files
from cadenza.loop.jobs.stopping import StopLevel
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


def test_events_between_two_controllers_are_taken_over_too(store, tmp_path):
    level = [StopLevel.END]
    loop = loop_of(store, tmp_path, options={"stop": lambda: level[0]})
    emit(loop.bus, "first")
    loop.bus.close()  # another process wrote it: nothing stands behind it
    loop = loop_of(store, tmp_path, options={"stop": lambda: level[0]})
    assert loop.run().stop_reason == "stop requested"
    emit(loop.bus, "between")
    level[0] = StopLevel.NONE
    loop.run()
    assert loop.events()[:2] == [("mine", "first"), ("mine", "between")]
    assert loop.events().count(("orchestrator", "cycle_started")) == 1
    assert [(line["stage"], line["kind"]) for line in logged(loop)] == loop.events()


def test_events_that_another_process_emitted_behind_a_run_are_refused(store, tmp_path):
    loop = loop_of(store, tmp_path)
    loop.run()
    n = len(loop.events())
    emit(loop.bus, "late")
    loop.bus.close()
    again = loop_of(store, tmp_path)
    match = rf"expected event {n} in the last line, as in the store, got {n + 1}; they were emitted"
    with pytest.raises(EventLogError, match=match):
        again.run()
    again.bus.log_path.unlink()
    again.run()
    assert len(logged(again)) == n


def test_log_of_a_run_whose_store_is_lost_is_refused_and_no_run_is_created(
    store, tmp_path, sqlite_template
):
    loop_of(store, tmp_path).run()
    (tmp_path / "new").mkdir()
    with store_in(tmp_path / "new", sqlite_template) as fresh:
        again = loop_of(fresh, tmp_path)
        before = again.bus.log_path.read_bytes()
        with pytest.raises(EventLogError, match="events of a run that the store does not know"):
            again.run()
        assert (fresh.list_runs(), again.bus.log_path.read_bytes()) == ([], before)


def test_log_held_by_another_bus_is_refused_and_no_run_is_created(store, tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "LOCK_WAIT_S", 0.1)
    loop = loop_of(store, tmp_path)
    other = EventBus(loop.bus.log_path)
    emit(other, "mine")
    with pytest.raises(EventLogHeldError, match="close other event buses of this log"):
        loop.run()
    assert store.list_runs() == []
    other.close()
    loop.run()
    assert loop.events()[0] == ("mine", "mine")


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

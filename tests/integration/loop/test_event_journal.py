"""The journal of a run: table, log and subscribers, on both databases."""

import json

import pytest

from cadenza.core.errors import NotReadyError
from cadenza.loop.errors import EventLogError
from cadenza.loop.events import Event, EventBus, EventJournal
from cadenza.loop.events import bus as log_file
from tests.loop_fakes import logged


@pytest.fixture
def lease(store):
    store.create_run("run", "{}")
    return store.leases.acquire("run", "first", ttl_s=60.0)


@pytest.fixture
def log_path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


@pytest.fixture
def open_journal(store, lease, log_path, monkeypatch):
    monkeypatch.setattr(log_file, "LOCK_WAIT_S", 0.05)
    journals = []

    def open_one():
        for journal in journals:
            journal.close()
        journals.append(EventJournal(store, lease, EventBus(log_path)))
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


def event(kind, stage="train", cycle=0, **payload):
    return Event("run", stage, kind, cycle, payload)


def kinds(path):
    return [(line["seq"], line["kind"]) for line in logged(path)]


def assert_log_is_table(store, path):
    rows = store.events.find("run")
    lines = logged(path)
    assert [line["seq"] for line in lines] == list(range(1, len(rows) + 1))
    for row, line in zip(rows, lines, strict=True):
        assert line == {
            "run_id": "run", "stage": row.stage, "kind": row.kind, "cycle": row.cycle,
            "payload": json.loads(row.payload), "ts": row.ts, "mono": row.mono, "seq": row.seq,
            "schema": 1,
        }  # fmt: skip


def test_event_goes_to_table_log_and_subscribers_in_turn(store, open_journal, log_path):
    journal = open_journal()
    seen = []
    journal.subscribe(lambda told: seen.append((told.kind, kinds(log_path)[-1])))
    with journal.step("0/train"):
        journal.emit(event("job_started", cmd=["a"], third=1 / 3))
        journal.emit(event("job_finished"))
    assert seen == [("job_started", (1, "job_started")), ("job_finished", (2, "job_finished"))]
    assert_log_is_table(store, log_path)
    assert store.events.published_up_to("run") == 1
    journal.close()
    assert store.events.published_up_to("run") == 2


def test_repeated_step_repeats_no_event(store, open_journal, log_path):
    first = open_journal()
    with first.step("0/train"):
        first.emit(event("job_started"))
    again = open_journal()
    seen = []
    again.subscribe(lambda told: seen.append(told.kind))
    with again.step("0/train"):
        again.emit(event("job_started"))
        again.emit(event("job_finished"))
    assert kinds(log_path) == [(1, "job_started"), (2, "job_finished")]
    assert seen == ["job_finished"]
    with again.step("1/train"):
        again.emit(event("job_started", cycle=1))
    assert kinds(log_path)[2:] == [(3, "job_started")]


def test_log_gets_what_it_lacks_and_subscribers_what_they_were_not_told(
    store, lease, open_journal, log_path
):
    journal = open_journal()
    with journal.step("0/train"):
        journal.emit(event("one"))
        drafts = [journal.draft(event("two")), journal.draft(event("three"))]
    store.events.append(lease, drafts)  # and killed before it was published
    later = open_journal()
    assert kinds(log_path) == [(1, "one"), (2, "two"), (3, "three")]
    seen = []
    later.subscribe(lambda told: seen.append(told.kind))
    later.publish()
    assert seen == ["two", "three"]
    later.publish()
    assert seen == ["two", "three"]


@pytest.mark.parametrize("cut", [1, 5, 10**6])
def test_torn_or_lost_log_is_completed_from_the_table(store, open_journal, log_path, cut):
    journal = open_journal()
    with journal.step("0/train"):
        for number in range(5):
            journal.emit(event(f"e{number}"))
    journal.close()
    whole = log_path.read_bytes()
    log_path.write_bytes(whole[: max(0, len(whole) - cut)])
    open_journal()
    assert log_path.read_bytes() == whole


def test_event_that_the_file_system_refused_is_published_with_the_next(
    store, open_journal, log_path, monkeypatch
):
    journal = open_journal()
    seen = []
    journal.subscribe(lambda told: seen.append(told.kind))

    def full(self, lines):
        raise EventLogError("no space")

    with journal.step("a"):
        with monkeypatch.context() as patched:
            patched.setattr(log_file.LogFile, "append", full)
            with pytest.raises(EventLogError, match="no space"):
                journal.emit(event("one"))
        assert seen == []
        journal.emit(event("two"))
    assert seen == ["one", "two"]
    assert_log_is_table(store, log_path)


def test_event_outside_a_step_and_a_second_journal_are_refused(
    store, lease, log_path, open_journal
):
    journal = open_journal()
    with pytest.raises(EventLogError, match="another writer"):
        EventJournal(store, lease, EventBus(log_path))
    with pytest.raises(ZeroDivisionError), journal.step("a"):  # a step that fails is closed
        raise ZeroDivisionError
    with pytest.raises(NotReadyError, match="emit inside `with journal"):
        journal.emit(event("one"))
    with journal.step("a"):
        with pytest.raises(NotReadyError, match="steps do not nest"), journal.step("b"):
            pass
        journal.emit(event("one"))
    with pytest.raises(NotReadyError, match="expected an open step"):
        journal.emit(event("two"))

"""Decisions of the supervisor, without processes."""

import threading
from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import pytest

from cadenza.core.errors import OnlineDataWorkerError, StorageError
from cadenza.stream import supervisor as module
from cadenza.stream.back_pressure import FlowRules, request_fill
from cadenza.stream.counters import ProducerRow
from cadenza.stream.engine_state import OnlineDataEngineState, ProducerState, engine_state
from cadenza.stream.environment import store_layout
from cadenza.stream.error_envelope import read_envelope
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.producer import _Producer
from cadenza.stream.serving import ServingCheck
from cadenza.stream.slots import SlotStore, StreamWords
from cadenza.stream.stream_report import StreamReport
from cadenza.stream.supervisor import Supervisor
from tests.stream_engines import small_cfg


@pytest.fixture
def store() -> SlotStore:
    return SlotStore.create(store_layout(small_cfg()))


@pytest.fixture
def supervisor(store: SlotStore) -> Generator[Supervisor]:
    cfg = small_cfg(restart_backoff=0.5)
    rules = FlowRules(
        buffer_size=4,
        mode="on_demand",
        refill_threshold=1,
        max_replay_ratio=None,
        min_fresh_fraction=None,
        high_water=None,
    )
    report = StreamReport(store, log_path=None, status_path=None)
    yield Supervisor(cfg, store, PolicyBoard(), rules, report)
    report.close()


@pytest.mark.parametrize(("restarts", "pause_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (5000, 32.0)])
def test_pause_doubles_up_to_a_limit(supervisor, restarts, pause_s) -> None:
    assert supervisor._pause_s(restarts) == pause_s


def test_only_signs_of_life_at_work_make_a_producer_healthy(supervisor, store) -> None:
    watched, table = supervisor._watched[0], store.producers
    watched.faults, watched.restarts = 3, 7
    settings = (
        (ProducerState.STARTING, 10, 3),  # it builds its environment
        (ProducerState.RUNNING, 100, 3),  # from here on it works
        (ProducerState.PAUSED, 699, 3),
        (ProducerState.RUNNING, 699, 3),  # hangs: time passes, but no sign of life
        (ProducerState.RUNNING, 700, 0),  # 600 s after the first
    )
    for state, alive_s, faults in settings:
        table["state"][0], table["heartbeat_ns"][0] = state, alive_s * 10**9
        supervisor._forgive(watched)
        assert watched.faults == faults
    assert watched.restarts == 7  # seeds never come again


def test_failure_of_the_supervisor_itself_reaches_readers(supervisor, store, monkeypatch) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("the lock is gone")

    monkeypatch.setattr(supervisor, "_launch", lambda watched: None)
    monkeypatch.setattr(supervisor, "_judge", fails)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    supervisor.start()
    supervisor._thread.join(60.0)
    assert engine_state(store) is OnlineDataEngineState.FAILED
    assert store.words[StreamWords.CLOSING] == 1
    with pytest.raises(OnlineDataWorkerError, match="StorageError: the lock is gone"):
        ServingCheck(store).require()


@pytest.mark.parametrize(
    ("code", "published", "is_final", "told"),
    [
        (1, 0, True, "ended with exit code 1 and no report; see what it wrote to its standard err"),
        (78, 0, True, 'without `if __name__ == "__main__":`; new processes import that module'),
        (1, 1, False, "ended with exit code 1"),
        (-9, 0, False, "ended by SIGKILL"),  # for want of memory, which may pass
    ],
)
def test_exit_without_a_report_is_final_while_nothing_worked(
    supervisor, store, code, published, is_final, told
) -> None:
    store.producers["episodes"][0] = published
    envelope = supervisor._unreported(code)
    assert (envelope.kind, envelope.is_final) == ("exit", is_final)
    assert told in envelope.message


class FakeProcess:
    """A process that ends when it is told to, by ``end``; None: before."""

    def __init__(self, end: str | None = "terminate") -> None:
        self.end = end
        self.asked: list[str] = []
        self.waits_s: list[float] = []
        self.exitcode = 0 if end is None else None

    def is_alive(self) -> bool:
        return self.exitcode is None

    def _ask(self, how: str) -> None:
        self.asked.append(how)
        if how == self.end:
            self.exitcode = -15

    def terminate(self) -> None:
        self._ask("terminate")

    def kill(self) -> None:
        self._ask("kill")

    def join(self, timeout: float) -> None:
        if self.exitcode is None:
            self.waits_s.append(timeout)

    def close(self) -> None:
        self.asked.append("close")


@pytest.mark.parametrize(
    ("state", "end", "asked", "waits_s", "left"),
    [
        ("STARTING", "terminate", ["terminate", "close"], [], "ENDED"),
        ("STARTING", "kill", ["terminate", "kill", "close"], [50.0], "ENDED"),
        ("RUNNING", None, ["close"], [], "ENDED"),
        ("RUNNING", "terminate", ["terminate", "close"], [900.0], "FAILED"),
    ],
)
def test_producer_is_waited_for_unless_it_is_starting(
    supervisor, store, monkeypatch, state, end, asked, waits_s, left
) -> None:
    monkeypatch.setattr(module, "TERMINATE_S", 50.0)
    supervisor._cfg.stop_timeout = 900.0
    process = supervisor._watched[0].process = FakeProcess(end)
    store.producers["state"][0] = ProducerState[state]
    assert supervisor.stop() == ([0] if left == "FAILED" else [])
    assert process.asked == asked
    assert process.waits_s == pytest.approx(waits_s, abs=40.0)  # waits while it lives
    assert ProducerState(int(store.producers["state"][0])).name == left


def test_producer_that_is_found_starting_when_the_engine_closes_begins_nothing(
    supervisor, store
) -> None:
    order = {"producer": 0, "rules": asdict(supervisor._rules)}
    producer = _Producer(order, store, PolicyBoard(), ProducerRow(store, 0))
    request_fill(store, supervisor._rules)
    store.producers["state"][0] = ProducerState.STARTING
    begun: list[bool] = []

    class Late(FakeProcess):
        def terminate(self) -> None:
            begun.append(producer._works())
            super().terminate()

    supervisor._watched[0].process = Late()
    assert supervisor.stop() == []
    assert begun == [False]


@pytest.mark.parametrize("closes", [False, True])
def test_producer_begins_unless_the_engine_closes_when_it_has_just_looked(
    supervisor, store, closes
) -> None:
    order = {"producer": 0, "rules": asdict(supervisor._rules)}
    producer = _Producer(order, store, PolicyBoard(), ProducerRow(store, 0))
    store.words[StreamWords.CLOSING] = int(closes)
    assert producer._works() is not closes
    assert store.producers["state"][0] == ProducerState.RUNNING  # so that it is waited for


def test_producer_that_ends_because_all_do_is_no_fault(supervisor, store) -> None:
    watched = supervisor._watched[0]
    process = watched.process = FakeProcess(end=None)

    def ends() -> bool:  # while the supervisor looks
        supervisor._closing.set()
        return False

    process.is_alive = ends
    supervisor._look_at(watched)
    assert (watched.process, watched.faults, watched.is_lost) == (process, 0, False)
    assert read_envelope(store, 0) is None


def test_stop_waits_for_a_launch_in_another_thread_and_ends_what_came_of_it(
    supervisor, store, monkeypatch
) -> None:
    launching, go_on, process = threading.Event(), threading.Event(), FakeProcess()
    ended: list[list[int]] = []

    def launch(watched: Any) -> None:
        launching.set()
        assert go_on.wait(60)
        store.producers["state"][0] = ProducerState.STARTING
        watched.process = process

    monkeypatch.setattr(supervisor, "_start_process", launch)
    start = threading.Thread(target=supervisor.start)
    start.start()
    assert launching.wait(60)
    stop = threading.Thread(target=lambda: ended.append(supervisor.stop()))
    stop.start()
    assert supervisor._closing.wait(60)
    go_on.set()
    for thread in (start, stop):
        thread.join(60)
    assert ended == [[]]
    assert process.asked == ["terminate", "close"]
    go_on.clear()
    supervisor._launch(supervisor._watched[0])  # would wait for ever
    assert supervisor._watched[0].process is None


def test_engine_without_owner_is_refused_to_readers(store) -> None:
    store.words[StreamWords.STATE] = OnlineDataEngineState.READY
    store.words[StreamWords.OWNER_PID] = 2**22 + 1  # beyond the largest number of a process
    store.words[StreamWords.OWNER_STARTED_AT] = 1
    with pytest.raises(OnlineDataWorkerError, match="expected its owner, process 4194305, to run"):
        ServingCheck(store).require()

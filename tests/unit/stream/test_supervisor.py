"""Decisions of the supervisor, without processes."""

import threading
from collections.abc import Generator
from typing import Any

import pytest

from cadenza.core.errors import OnlineDataWorkerError, StorageError
from cadenza.stream.back_pressure import FlowRules
from cadenza.stream.engine_state import OnlineDataEngineState, ProducerState, engine_state
from cadenza.stream.environment import store_layout
from cadenza.stream.policy_board import PolicyBoard
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
    cfg = small_cfg(restart_backoff=0.5, refill_threshold=1)
    rules = FlowRules.of(cfg)
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


def test_engine_without_owner_is_refused_to_readers(store) -> None:
    store.words[StreamWords.STATE] = OnlineDataEngineState.READY
    store.words[StreamWords.OWNER_PID] = 2**22 + 1  # beyond the largest number of a process
    store.words[StreamWords.OWNER_STARTED_AT] = 1
    with pytest.raises(OnlineDataWorkerError, match="expected its owner, process 4194305, to run"):
        ServingCheck(store).require()

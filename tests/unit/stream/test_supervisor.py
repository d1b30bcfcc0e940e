"""Decisions of the supervisor, without processes."""

import multiprocessing
import threading
from collections.abc import Generator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from cadenza.core.errors import OnlineDataWorkerError, StorageError
from cadenza.stream.config import FlowRules
from cadenza.stream.environment import store_layout
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.serving import ServingCheck
from cadenza.stream.slots import (
    OnlineDataEngineState,
    ProducerState,
    SlotStore,
    StreamWords,
    engine_state,
    set_engine_state,
)
from cadenza.stream.stream_report import StreamReport
from cadenza.stream.supervisor import Supervisor
from tests.stream_engines import eventually, small_cfg


@pytest.fixture
def store() -> SlotStore:
    return SlotStore.create(store_layout(small_cfg()))


class Host:
    """Stands for the clock, which goes on at every look, and for the processes of one producer.

    A process gives the next of its signs of life, a state and a time in s, whenever somebody asks
    whether it is alive; after the last one it was killed.
    """

    def __init__(self, store: SlotStore) -> None:
        self.store, self.now = store, 0.0
        self.lives: list[list[tuple[ProducerState, float]]] = []
        self.starts: list[float] = []

    def monotonic(self) -> float:
        self.now += 0.05
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def start(self) -> None:
        self.starts.append(self.now)
        self.life = self.lives.pop(0) if self.lives else []

    def is_alive(self) -> bool:
        if not self.life:
            return False
        state, self.now = self.life.pop(0)
        self.store.producers["state"][0] = state
        self.store.producers["heartbeat_ns"][0] = self.monotonic_ns()
        return True


@pytest.fixture
def host(store: SlotStore, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(store)
    process = MagicMock(pid=1, exitcode=-9, start=host.start, is_alive=host.is_alive)
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(context, "Process", lambda **_: process)
    monkeypatch.setattr("cadenza.stream.supervisor.time", host)
    monkeypatch.setattr("cadenza.stream.supervisor.WATCH_S", 0.0)
    return host


@pytest.fixture
def supervisor(store: SlotStore, host: Host) -> Generator[Supervisor]:
    cfg = small_cfg(restart_backoff=0.5, refill_threshold=1, max_restarts=10_000)
    rules = FlowRules.of(cfg)
    report = StreamReport(store, log_path=None, status_path=None)
    supervisor = Supervisor(cfg, store, PolicyBoard(), rules, report)
    yield supervisor
    supervisor.stop()
    report.close()


def test_pause_before_a_new_start_doubles_up_to_a_limit(supervisor, host) -> None:
    supervisor.start()
    eventually(lambda: len(host.starts) >= 9, "it starts again and again")
    pauses = np.diff(host.starts[:9])
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 32], abs=0.25)


@pytest.mark.parametrize(
    ("life", "pause_s"),
    [
        ([(ProducerState.STARTING, 10), (ProducerState.RUNNING, 700)], 1.0),  # works since 700 s
        ([(ProducerState.RUNNING, 100), (ProducerState.PAUSED, 699)], 1.0),
        ([(ProducerState.RUNNING, 100), (ProducerState.RUNNING, 700)], 0.5),  # for 600 s
    ],
)
def test_only_signs_of_life_at_work_make_a_producer_healthy(
    supervisor, host, store, life, pause_s
) -> None:
    host.lives, died = [[], list(life)], life[-1][1]
    supervisor.start()
    eventually(lambda: len(host.starts) >= 3, "it starts again")
    assert host.starts[2] - died == pytest.approx(pause_s, abs=0.25)
    assert store.producers["restarts"][0] >= 2  # seeds never come again


def test_failure_of_the_supervisor_itself_reaches_readers(supervisor, store, monkeypatch) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("the lock is gone")

    monkeypatch.setattr(StreamReport, "tick", fails)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    supervisor.start()
    eventually(lambda: engine_state(store) is OnlineDataEngineState.FAILED, "it fails")
    assert store.words[StreamWords.CLOSING] == 1
    with pytest.raises(OnlineDataWorkerError, match="StorageError: the lock is gone"):
        ServingCheck(store).require()


def test_engine_without_owner_is_refused_to_readers(store) -> None:
    set_engine_state(store, OnlineDataEngineState.READY)
    store.words[StreamWords.OWNER_PID] = 2**22 + 1  # beyond the largest number of a process
    store.words[StreamWords.OWNER_STARTED_AT] = 1
    with pytest.raises(OnlineDataWorkerError, match="expected its owner, process 4194305, to run"):
        ServingCheck(store).require()

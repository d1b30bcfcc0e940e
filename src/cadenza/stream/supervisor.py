"""Starts producers, watches them, starts them anew, and ends them.

A producer that exits, or is killed after too long a silence, loses its slots. It is started again
after a pause that doubles each time, until its restarts are used up or its error would only repeat;
after a long healthy run both count anew. With fewer producers than configured the engine is
DEGRADED, with none, or too large a share of dropped episodes, it FAILS. The owner's process runs
this in a thread, which keeps no reference to the engine.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkServerProcess
from typing import Final

import numpy as np

from cadenza.core.fork_server import preload
from cadenza.stream.back_pressure import (
    is_first_fill_complete,
    request_fill_if_passed,
)
from cadenza.stream.config import FlowRules, OnlineDataEngineCfg, plain
from cadenza.stream.error_envelope import (
    ErrorEnvelope,
    clear_envelope,
    read_envelope,
    write_envelope,
)
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.processes import ALONE, PRODUCER_NAME, UNGUARDED, UNGUARDED_EXIT, Rank
from cadenza.stream.producer import producer_main
from cadenza.stream.shared_file import full_fence
from cadenza.stream.slots import (
    OnlineDataEngineState,
    ProducerState,
    SlotStore,
    StreamWords,
    engine_state,
    set_engine_state,
)
from cadenza.stream.stream_report import StreamReport

#: Pause between two looks at the producers, s.
WATCH_S: Final = 0.02
#: Episodes that must have ended before their failure rate counts.
MIN_ATTEMPTS: Final = 20
#: Doublings of the pause before a new start.
MAX_DOUBLINGS: Final = 6
#: Time that a terminated and a killed producer gets to end, s.
TERMINATE_S: Final = 3.0
KILL_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Watched:
    """One producer as its supervisor sees it.

    ``restarts`` are part of its seeds and only grow, ``faults`` are those that are not forgiven; it
    starts next at ``start_at``, s, and was at work since ``at_work_since_ns``, of the monotonic
    clock.
    """

    number: int
    process: ForkServerProcess | None = None
    restarts: int = 0
    faults: int = 0
    start_at: float = 0.0
    at_work_since_ns: int | None = None
    is_lost: bool = False


class Supervisor:
    """Keeps the producers of one engine alive."""

    def __init__(
        self,
        cfg: OnlineDataEngineCfg,
        store: SlotStore,
        board: PolicyBoard,
        rules: FlowRules,
        report: StreamReport,
        rank: Rank = ALONE,
    ) -> None:
        """Prepare; `start` begins. ``report`` gets events, and is told to look for what is due.

        Ranks of a training that have the same seed get other episodes.
        """
        self._cfg = cfg
        self._store = store
        self._board = board
        self._rules = rules
        self._report = report
        self._seed = cfg.seed
        if rank != ALONE:
            self._seed = rank.stream("stream.producers", cfg.seed).integer_seed()
        self._context = multiprocessing.get_context("forkserver")
        preload("cadenza.stream.producer")
        self._environment_variables = dict(os.environ)
        self._watched = [_Watched(number) for number in range(cfg.producers)]
        self._closing = threading.Event()
        self._launching = threading.RLock()
        self._thread = threading.Thread(
            target=self._watch, name="cadenza-stream-supervisor", daemon=True
        )

    def start(self) -> None:
        """Start all producers and watch them."""
        for watched in self._watched:
            self._launch(watched)
        self._thread.start()

    def stop(self) -> list[int]:
        """End all producers.

        Returns:
            Producers that did not end by themselves in time and were killed.
        """
        self._closing.set()
        self._store.words[StreamWords.CLOSING] = 1
        # One that is not alive yet sees that all of it ends as soon as it is.
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self._launching:  # a start in another thread may be in the middle of one
            return self._end_all()

    def _watch(self) -> None:
        try:
            self._watch_until_closed()
        except BaseException as error:
            # Nobody would notice dead producers any more: readers must hear of it.
            write_envelope(self._store, 0, ErrorEnvelope.of(error))
            self._fail(0)
            raise

    def _watch_until_closed(self) -> None:
        while not self._closing.wait(WATCH_S):
            for watched in self._watched:
                self._look_at(watched)
            request_fill_if_passed(self._store, self._rules)
            self._report.tick()
            if self._judge():
                self._report.write_status()
                break

    def _look_at(self, watched: _Watched) -> None:
        process = watched.process
        if watched.is_lost:
            return
        if process is None:
            if time.monotonic() >= watched.start_at:
                watched.restarts += 1
                self._store.producers["restarts"][watched.number] = watched.restarts
                self._launch(watched)
            return
        if not process.is_alive():
            if not self._closing.is_set():  # asked last: then its end is no fault
                self._take_down(watched, process)
        elif self._silence_s(watched.number) > self._patience_s(watched.number):
            process.kill()
            process.join()
            silence = self._silence_s(watched.number)
            write_envelope(
                self._store,
                watched.number,
                ErrorEnvelope(
                    kind="hang",
                    message=f"no sign of life for {silence:.1f} s, hang_timeout is "
                    f"{self._cfg.hang_timeout:g} s; it was killed",
                ),
            )
            self._take_down(watched, process)
        else:
            self._forgive(watched)

    def _forgive(self, watched: _Watched) -> None:
        """Forget the faults of a producer that has run long enough since.

        Its time counts from its first episode to its last sign of life: neither building the
        environment nor hanging is health.
        """
        if int(self._store.producers["state"][watched.number]) == ProducerState.STARTING:
            return
        alive_ns = int(self._store.producers["heartbeat_ns"][watched.number])
        if watched.at_work_since_ns is None:
            watched.at_work_since_ns = alive_ns
        elif watched.faults and (
            alive_ns - watched.at_work_since_ns >= self._cfg.healthy_after * 1e9
        ):
            watched.faults = 0
            self._report.log("producer_healthy", producer=watched.number)

    def _silence_s(self, number: int) -> float:
        return (time.monotonic_ns() - int(self._store.producers["heartbeat_ns"][number])) / 1e9

    def _patience_s(self, number: int) -> float:
        """A producer that builds its environment cannot give signs of life."""
        if int(self._store.producers["state"][number]) == ProducerState.STARTING:
            return max(self._cfg.hang_timeout, self._cfg.initialization_timeout)
        return self._cfg.hang_timeout

    def _take_down(self, watched: _Watched, process: ForkServerProcess) -> None:
        """Reclaim what a dead producer held and decide whether it starts again."""
        process.join()
        watched.process = None
        number = watched.number
        dropped = self._reclaim(number)
        envelope = read_envelope(self._store, number)
        if envelope is None:
            envelope = self._unreported(process.exitcode)
            write_envelope(self._store, number, envelope)
        process.close()
        watched.is_lost = envelope.is_final or watched.faults >= self._cfg.max_restarts
        state = ProducerState.FAILED if watched.is_lost else ProducerState.WAITING
        self._store.producers["state"][number] = state
        pause_s = self._cfg.restart_backoff * 2.0 ** min(watched.faults, MAX_DOUBLINGS)
        watched.start_at = time.monotonic() + pause_s
        watched.faults += 1
        self._report.log(
            "producer_died",
            producer=number,
            error_type=envelope.kind,
            message=envelope.message,
            slots_dropped=dropped,
            restarts=watched.restarts,
            faults=watched.faults,
            starts_again=not watched.is_lost,
        )

    def _unreported(self, code: int | None) -> ErrorEnvelope:
        """Describe an end without a report; while nothing ever worked, an exit would repeat."""
        is_exit = code is not None and code >= 0
        is_final = is_exit and not self._store.published()
        return ErrorEnvelope(kind="exit", message=_exit_text(code), is_final=is_final)

    def _reclaim(self, number: int) -> int:
        """Drop the slots that producer ``number`` was writing; return how many."""
        dropped = self._store.drop_leases(number)
        self._store.producers["dropped"][number] += dropped
        return dropped

    def _launch(self, watched: _Watched) -> None:
        """Start a producer, unless all of them end."""
        with self._launching:
            if not self._closing.is_set():
                self._start_process(watched)

    def _start_process(self, watched: _Watched) -> None:
        number = watched.number
        producers = self._store.producers
        clear_envelope(self._store, number)
        producers["state"][number] = ProducerState.STARTING
        producers["heartbeat_ns"][number] = time.monotonic_ns()
        process = self._context.Process(
            target=producer_main,
            args=(self._document(watched), self._store, self._board),
            name=f"{PRODUCER_NAME}{number}",
            daemon=False,  # environments may have processes of their own
        )
        process.start()
        watched.process = process
        watched.at_work_since_ns = None
        self._report.log(
            "producer_started", producer=number, pid=process.pid, restarts=watched.restarts
        )

    def _document(self, watched: _Watched) -> str:
        cfg = self._cfg
        order = {
            "producer": watched.number,
            "restart": watched.restarts,
            "seed": self._seed,
            "gym_config": plain(cfg.gym_config),
            "action_config": plain(cfg.action_config),
            "policy": plain(cfg.policy),
            "max_attempts": cfg.max_generation_attempts,
            "reuse": cfg.reuse,
            "grace_s": cfg.stop_timeout,
            "rules": asdict(self._rules),
            "environment_variables": self._environment_variables,
        }
        return json.dumps(order, allow_nan=False)

    def _judge(self) -> bool:
        """Write the engine's state; return whether it failed."""
        running = sum(not watched.is_lost for watched in self._watched)
        rate = self._failure_rate()
        if rate is not None and rate > self._cfg.max_failure_rate:
            worst = int(np.argmax(self._store.producers["dropped"]))
            if read_envelope(self._store, worst) is None:
                message = (
                    f"expected at most {self._cfg.max_failure_rate:.0%} of the episodes dropped, "
                    f"got {rate:.0%}; correct the expert, or raise max_failure_rate"
                )
                envelope = ErrorEnvelope(kind="failure_rate", message=message)
                write_envelope(self._store, worst, envelope)
            self._fail(worst)
            return True
        if not running:
            self._fail(self._watched[-1].number)
            return True
        if is_first_fill_complete(self._store, self._rules):
            words = self._store.words
            if not words[StreamWords.FRAMES_AT_READY]:
                words[StreamWords.FRAMES_AT_READY] = self._store.published_frames()
            whole = all(self._is_at_work(watched) for watched in self._watched)
            self._set_state(
                OnlineDataEngineState.READY if whole else OnlineDataEngineState.DEGRADED
            )
        return False

    def _is_at_work(self, watched: _Watched) -> bool:
        """Return whether a producer runs; one that starts anew does so with its first episode."""
        state = int(self._store.producers["state"][watched.number])
        is_back = not watched.restarts or state != ProducerState.STARTING
        return watched.process is not None and is_back

    def _failure_rate(self) -> float | None:
        dropped = int(self._store.producers["dropped"].sum())
        attempts = dropped + int(self._store.producers["episodes"].sum())
        return dropped / attempts if attempts >= MIN_ATTEMPTS else None

    def _fail(self, producer: int) -> None:
        self._store.words[StreamWords.FAILED_PRODUCER] = producer + 1
        self._store.words[StreamWords.CLOSING] = 1
        self._set_state(OnlineDataEngineState.FAILED)
        self._end_all()

    def _set_state(self, state: OnlineDataEngineState) -> None:
        before = engine_state(self._store)
        if before is state:
            return
        set_engine_state(self._store, state)
        self._report.log("engine_state", state=state.name, before=before.name)

    def _end_all(self) -> list[int]:
        """Wait for all processes, then terminate and kill; return those that had to be.

        One that still builds its environment has written nothing, and begins nothing any more
        because the store says that the engine closes: it is not waited for.
        """
        full_fence()  # between that and the look at who has begun
        grace_ends = time.monotonic() + self._cfg.stop_timeout
        states = self._store.producers["state"]
        _end_by_force(w for w in self._watched if states[w.number] == ProducerState.STARTING)
        forced = [w for w in self._watched if not _joined(w.process, grace_ends)]
        _end_by_force(forced)
        for watched in self._watched:
            process = watched.process
            if process is None:
                continue
            self._reclaim(watched.number)
            state = ProducerState.FAILED if watched in forced else ProducerState.ENDED
            self._store.producers["state"][watched.number] = state
            if process.exitcode is not None:
                watched.process = None  # first: after an interrupt a closed one could not be joined
                process.close()
        return [watched.number for watched in forced]


def _end_by_force(some: Iterable[_Watched]) -> None:
    """Terminate processes, then kill what is left of them."""
    alive = [watched.process for watched in some if watched.process is not None]
    for how, seconds in (("terminate", TERMINATE_S), ("kill", KILL_S)):
        for process in alive:
            if process.is_alive():
                getattr(process, how)()
        deadline = time.monotonic() + seconds
        alive = [process for process in alive if not _joined(process, deadline)]


def _joined(process: ForkServerProcess | None, deadline: float) -> bool:
    """Wait for ``process`` until ``deadline``, s of the monotonic clock; say whether it ended."""
    if process is None:
        return True
    process.join(max(deadline - time.monotonic(), 0.0))
    return process.exitcode is not None


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    if code == UNGUARDED_EXIT:
        return UNGUARDED
    return f"it ended with exit code {code} and no report; see what it wrote to its standard error"

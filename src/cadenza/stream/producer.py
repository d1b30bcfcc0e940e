"""The process that simulates: what it is told, and its main loop.

It gets one JSON document and the store. Every step and every look at the store is a sign of life.
It ends when the engine closes, and when the engine's owner is gone, however that happened. An
interrupt from the terminal, which reaches every process there, is for the owner alone.
"""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Any, Final, cast

import numpy as np
import torch

from cadenza.core.seeding import derive_substream
from cadenza.stream.back_pressure import POLL_S, FlowRules, may_publish
from cadenza.stream.counters import ProducerRow
from cadenza.stream.engine_state import ProducerState
from cadenza.stream.environment import Worlds, make_worlds
from cadenza.stream.episode_runner import EpisodeRunner
from cadenza.stream.error_envelope import ErrorEnvelope, write_envelope
from cadenza.stream.fences import full_fence
from cadenza.stream.policies import Learning, make_policy
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.processes import is_same_process, set_environment
from cadenza.stream.slots import SlotStore, StreamWords

#: Pause between two looks at the owner, s.
_OWNER_POLL_S: Final = 0.25
#: Exit code after an error that was reported.
FAILED_EXIT: Final = 1


def producer_main(document: str, store: SlotStore, board: PolicyBoard) -> None:
    """Simulate until the engine closes; the main function of a producer's process.

    Args:
        document: JSON object with ``producer``, ``restart``, ``seed``, ``gym_config``,
            ``action_config``, ``policy``, ``max_attempts``, ``reuse``, ``grace_s``, ``rules`` and
            ``environment_variables``.
        store: Where episodes go.
        board: Where weights come from.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(document)
    set_environment(order["environment_variables"])
    number = int(order["producer"])
    counters = ProducerRow(store, number)
    _end_with_owner(store, float(order["grace_s"]))
    try:
        _Producer(order, store, board, counters).run()
    except BaseException as error:  # noqa: BLE001 -- the one place that reports any end
        has_worked = bool(store.published())
        write_envelope(store, number, ErrorEnvelope.of(error, has_worked=has_worked))
        raise SystemExit(FAILED_EXIT) from None


def producer_seed(run_seed: int, producer: int, restart: int, purpose: str) -> int:
    """Return a seed that no other producer, start or purpose has."""
    stream = derive_substream(f"stream.producer.{purpose}", root_seed=run_seed)
    return stream.child(producer).child(restart).integer_seed()


def _seed_global_generators(seed: int) -> None:
    """Seed the generators that an environment of somebody else may draw from.

    All producers are forked from one server, so they would draw the same numbers otherwise.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- nothing of ours draws from it
    cast("Any", torch).manual_seed(seed)


class _Producer:
    """The loop of one producer."""

    def __init__(
        self,
        order: dict[str, Any],
        store: SlotStore,
        board: PolicyBoard,
        counters: ProducerRow,
    ) -> None:
        self._order = order
        self._counters = counters
        self._store = store
        self._board = board
        self._number = int(order["producer"])
        self._rules = FlowRules(**order["rules"])

    def run(self) -> None:
        """Simulate until the engine closes."""
        _seed_global_generators(self._seed("globals"))
        worlds = Worlds(
            make_worlds(
                self._order["gym_config"], self._order["action_config"], self._store.layout.steps
            )
        )
        try:
            self._simulate(worlds)
        finally:
            worlds.close()

    def _simulate(self, worlds: Worlds) -> None:
        policy = make_policy(self._order["policy"], worlds.env, self._seed("policy"))
        runner = EpisodeRunner(
            self._store,
            self._number,
            worlds,
            policy,
            counters=self._counters,
            may_publish=self._may_publish,
            reuse=self._order["reuse"],
            max_attempts=int(self._order["max_attempts"]),
        )
        seed: int | None = self._seed("environment")
        while not self._is_closing():
            self._counters.beat()
            if isinstance(policy, Learning):
                self._load_weights(policy, runner)
            if not runner.publish():
                self._pause()
            elif not self._works():
                break
            elif runner.is_through:
                runner.begin_all(seed)
                seed = None
            else:
                runner.step()
        runner.drop_all()  # after an error the supervisor does it, and counts what was lost

    def _seed(self, purpose: str) -> int:
        return producer_seed(
            int(self._order["seed"]), self._number, int(self._order["restart"]), purpose
        )

    def _is_closing(self) -> bool:
        return bool(self._store.words[StreamWords.CLOSING])

    def _may_publish(self, published: int) -> bool:
        return not self._is_closing() and may_publish(self._store, self._rules, published)

    def _works(self) -> bool:
        """Say that this producer writes, unless the engine closes; return whether it may.

        The supervisor looks in the other order, first closing and then asking who writes: whoever
        it finds still starting does not begin any more.
        """
        self._set_state(ProducerState.RUNNING)
        full_fence()
        return not self._is_closing()

    def _load_weights(self, policy: Learning, runner: EpisodeRunner) -> None:
        version = int(self._store.words[StreamWords.POLICY_VERSION])
        if version == runner.policy_version:
            return
        found = self._board.read()
        if found is not None:
            runner.policy_version, weights = found
            policy.load_parameters(weights)

    def _pause(self) -> None:
        self._set_state(ProducerState.PAUSED)
        began = time.monotonic_ns()
        time.sleep(POLL_S)
        self._counters.note_stalled(time.monotonic_ns() - began)

    def _set_state(self, state: ProducerState) -> None:
        self._store.producers["state"][self._number] = state


def _end_with_owner(store: SlotStore, grace_s: float) -> None:
    """Watch the owner in a thread; when it is gone, close, and leave after ``grace_s`` at last."""
    threading.Thread(target=_watch_owner, args=(store, grace_s), daemon=True).start()


def _watch_owner(store: SlotStore, grace_s: float) -> None:
    parent = multiprocessing.parent_process()
    pid = int(store.words[StreamWords.OWNER_PID])
    began = int(store.words[StreamWords.OWNER_STARTED_AT])
    while is_same_process(pid, began):
        # A forked reader keeps the owner's end of the pipe open, so the pipe alone is not enough.
        if parent is None:
            time.sleep(_OWNER_POLL_S)
        elif wait([parent.sentinel], timeout=_OWNER_POLL_S):
            break
    store.words[StreamWords.CLOSING] = 1
    time.sleep(grace_s)  # the main thread ends after its step; this one dies with it
    os._exit(FAILED_EXIT)

"""The process that simulates: its main loop, which one JSON document and the store describe.

Every step and every look at the store is a sign of life. It ends when the engine closes, and when
the engine's owner is gone; an interrupt from the terminal is for the owner alone.

Rules:  a slot holds one episode, or one part of it: where the slot ends before the episode, the
        part ends as a truncation, and the next one goes on from there. Where one may not be
        published yet, its environment or all of them wait, see `EpisodeRunner.publish`. What has a
        number that is not finite or too many segments, and a demonstration that is empty or
        failed, is dropped and counted.
Axes:   E = environments.
"""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.environments import truths
from cadenza.core.errors import InputError, OnlineDataWorkerError
from cadenza.core.fork_server import set_environment
from cadenza.core.seeding import derive_substream
from cadenza.stream.back_pressure import POLL_S, may_publish
from cadenza.stream.config import FlowRules
from cadenza.stream.counters import ProducerRow
from cadenza.stream.environment import Arrays, Worlds, WorldStep, make_worlds
from cadenza.stream.error_envelope import ErrorEnvelope, write_envelope
from cadenza.stream.layout import MAX_SEGMENTS
from cadenza.stream.policies import (
    DemonstrationPolicy,
    Judging,
    Learning,
    Resettable,
    Segmenting,
    StreamPolicy,
    make_policy,
    none_segments,
)
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.processes import is_same_process
from cadenza.stream.shared_file import full_fence
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import ProducerState, Reuse, SlotStore, StreamWords


class EpisodeRunner:
    """Steps the environments of one producer.

    Attributes:
        policy_version: Version of the weights that the policy uses.
    """

    def __init__(
        self,
        store: SlotStore,
        producer: int,
        worlds: Worlds,
        policy: StreamPolicy,
        *,
        counters: ProducerRow,
        may_publish: Callable[[int, int | None], bool],
        reuse: Reuse,
        max_attempts: int,
        spare_unread: bool = False,
    ) -> None:
        """Play ``worlds``.

        ``may_publish`` tells whether another episode may be published, see `SlotStore.publish`,
        of an environment that so many others of this producer come before; None: all the same. At
        most ``max_attempts`` per environment may be dropped in a row. ``reuse`` and
        ``spare_unread`` as of `SlotStore.take_slot`.
        """
        self._store = store
        self._producer = producer
        self._worlds = worlds
        self._policy = policy
        self._counters = counters
        self._may_publish = may_publish
        self._reuse: Reuse = reuse
        self._spare_unread = spare_unread
        self._max_attempts = max_attempts
        self._dropped_in_a_row = 0
        self.policy_version = 0
        count = worlds.env.num_envs
        self._writers: list[EpisodeWriter | None] = [None] * count
        self._versions = [0] * count
        self._is_begun = False
        self._turns = np.zeros(count, np.int64)
        # By row: what ended and whether it succeeded, and what begins after it, from which state.
        self._ended: dict[int, tuple[EpisodeWriter, bool | None]] = {}
        self._next: dict[int, tuple[Arrays, EpisodeWriter | None]] = {}

    @property
    def is_through(self) -> bool:
        """Whether `begin_all` comes next: at first, and after demonstrations, when all are over."""
        if isinstance(self._policy, DemonstrationPolicy):
            return all(writer is None for writer in self._writers)
        return not self._is_begun

    def begin_all(self, seed: int | None) -> None:
        """Reset every environment and begin an episode in each; nothing may wait in `publish`.

        Raises:
            OnlineDataWorkerError: Too many demonstrations in a row were empty.
        """
        states = self._worlds.reset(seed)
        rows = np.arange(len(self._writers))
        if isinstance(self._policy, DemonstrationPolicy):
            lengths = self._policy.plan()
            for row in np.flatnonzero(lengths == 0).tolist():
                self._count_dropped(row, "its demonstration is empty")
            rows = np.flatnonzero(lengths)
        self._is_begun = True
        self._begin(rows, states)
        self.publish()

    def step(self) -> None:
        """Step every environment once, but for those that wait for their turn.

        Raises:
            InputError: The policy does not give one action, or one segment, per environment.
            OnlineDataWorkerError: Too many episodes in a row were dropped.
        """
        actions = self._policy.act(self._worlds.observation)
        recorded = self._each("act(observations)", actions)
        segments = (
            self._each("segment_ids()", self._policy.segment_ids())
            if isinstance(self._policy, Segmenting)
            else none_segments(len(self._writers))
        )
        if not self._worlds.can_hold:
            self._next.clear()  # whoever waits for its turn misses the beginning of this episode
        step = self._worlds.step(actions, list(self._next))
        self._record(recorded, segments, step)
        begun = np.flatnonzero(step.begun)
        if len(begun) and not isinstance(self._policy, DemonstrationPolicy):
            self._begin(begun, step.first)
        self.publish()

    def publish(self) -> bool:
        """Publish what has ended, then begin what comes next; return whether to step on.

        An environment whose episode must wait for its turn waits; the others go on while one of
        them has a turn. The parts of long episodes take no turns, and all wait for them.
        """
        long = {row for row, (_, last) in self._next.items() if last is not None}
        long |= {row for row, (writer, _) in self._ended.items() if writer.part}
        for row in sorted(self._ended, key=self._before):
            writer, success = self._ended[row]
            before = None if row in long else self._before(row)
            published = writer.publish(
                success=success,
                policy_version=self._versions[row],
                may_publish=lambda count, before=before: self._may_publish(count, before),
            )
            if published is not None:
                del self._ended[row]
                self._turns[row] += 1
                self._dropped_in_a_row = 0
        for row in [row for row in self._next if row not in self._ended]:
            state, last = self._next.pop(row)
            slot = self._store.take_slot(
                self._producer, reuse=self._reuse, spare_unread=self._spare_unread
            )
            writer = self._writers[row] = EpisodeWriter(self._store, slot, before=last)
            self._versions[row] = self.policy_version
            writer.start(state)
        if not self._ended:
            return True
        return not long & self._ended.keys() and any(map(self._has_turn, range(len(self._turns))))

    def _before(self, row: int) -> int:
        """Return how many turns of this producer's other environments come before that of one."""
        ahead = self._turns[row] - self._turns + (np.arange(len(self._turns)) < row)
        return int(np.maximum(ahead, 0).sum())  # its own is 0

    def _has_turn(self, row: int) -> bool:
        """Return whether an environment that nothing waits of may end an episode now."""
        is_idle = self._writers[row] is None and isinstance(self._policy, DemonstrationPolicy)
        if row in self._ended or is_idle:
            return False
        return self._may_publish(self._store.published(), self._before(row))

    def drop_all(self) -> None:
        """Give back all slots that are being written."""
        for writer in (*self._writers, *(writer for writer, _ in self._ended.values())):
            if writer is not None:
                writer.drop()

    def _each(self, method: str, values: Any) -> NDArray[Any]:
        """Return what a method of the policy gave, which must have an entry per environment."""
        array = np.asarray(values)
        if array.shape[:1] != (len(self._writers),):
            got = type(values).__name__ if array.ndim == 0 else f"shape {array.shape}"
            raise InputError(
                f"{type(self._policy).__name__}.{method}: expected one entry for each of "
                f"{len(self._writers)} environments, got {got}; correct the policy."
            )
        return array

    def _begin(self, rows: NDArray[np.int64], states: Arrays) -> None:
        """Begin episodes in ``rows``, which stand at their beginning."""
        if isinstance(self._policy, Resettable):
            self._policy.reset(rows)
        self._next |= {row: (_row(states, row), None) for row in rows.tolist()}

    def _record(self, actions: NDArray[Any], segments: NDArray[Any], step: WorldStep) -> None:
        """Write the step of every environment that is in an episode, and end those that ended."""
        over = (
            self._policy.finished()
            if isinstance(self._policy, DemonstrationPolicy)
            else np.zeros(len(self._writers), np.bool_)
        )
        for row, writer in enumerate(self._writers):
            if writer is None or not step.played[row]:
                continue
            terminated = bool(step.terminated[row])
            is_over = terminated or bool(step.truncated[row]) or bool(over[row])
            goes_on = not is_over and writer.length + 1 == self._store.layout.steps
            truncated = bool(step.truncated[row]) or ((is_over or goes_on) and not terminated)
            values = {
                "actions": actions[row],
                "rewards": step.rewards[row],
                "terminated": terminated,
                "truncated": truncated,
                "segment_id": segments[row],
                "policy_version": self.policy_version,
            }
            state = _row(step.states, row)
            writer.add(values, state)
            if is_over or goes_on:
                self._end(row, writer, self._success(step, row) if is_over else None)
            if goes_on:
                self._next[row] = (state, writer)

    def _success(self, step: WorldStep, row: int) -> bool | None:
        if isinstance(self._policy, Judging):
            return bool(truths("success(infos)", self._policy.success(step.infos)[row]))
        return step.success(row)

    def _end(self, row: int, writer: EpisodeWriter, success: bool | None) -> None:
        """Let an episode or part wait for its publication, or drop it."""
        self._writers[row] = None
        failed = success is False and isinstance(self._policy, DemonstrationPolicy)
        wrong = "it did not succeed" if failed else self._unfit(writer)
        if wrong is not None:
            writer.drop()
            self._count_dropped(row, wrong)
            return
        self._ended[row] = (writer, success)

    def _unfit(self, writer: EpisodeWriter) -> str | None:
        """Return why an episode cannot be published, None if it can."""
        if writer.segments > MAX_SEGMENTS:
            return f"it has {writer.segments} segments, at most {MAX_SEGMENTS} can be noted"
        for field in self._store.layout.fields:
            if np.issubdtype(np.dtype(field.dtype), np.floating):
                entries = writer.length + (field.kind == "state")
                written = self._store.entries(field.name, writer.slot)[:entries]
                if not np.isfinite(written).all():
                    return f"{field.name!r} has numbers not finite"
        return None

    def _count_dropped(self, row: int, reason: str) -> None:
        self._counters.note_dropped()
        self._turns[row] += 1  # nobody waits for its next attempt
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row >= self._max_attempts * len(self._writers):
            raise OnlineDataWorkerError(
                f"expected a usable episode within {self._max_attempts} attempts per environment, "
                f"got none: of the last one, {reason}; correct the expert, or raise "
                "max_generation_attempts."
            )


def _row(states: Arrays, row: int) -> Arrays:
    """Return the entries of one environment."""
    return {name: array[row] for name, array in states.items()}


#: Pause between two looks at the owner, s.
_OWNER_POLL_S: Final = 0.25
#: Exit code after an error that was reported.
FAILED_EXIT: Final = 1


def producer_main(document: str, store: SlotStore, board: PolicyBoard) -> None:
    """Simulate until the engine closes; ``document`` is an order of `Supervisor` as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(document)
    set_environment(order["environment_variables"])
    number = int(order["producer"])
    counters = ProducerRow(store, number)
    grace_s = float(order["grace_s"])
    threading.Thread(target=_watch_owner, args=(store, grace_s), daemon=True).start()
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
            spare_unread=self._rules.high_water is not None,
        )
        if self._order["restart"]:  # it takes part from now on, and has nothing to catch up
            turns = self._store.producers["turns"]
            turns[self._number] = turns.max()
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

    def _may_publish(self, published: int, before: int | None) -> bool:
        turn = None if before is None else (self._number, before)
        return not self._is_closing() and may_publish(self._store, self._rules, published, turn)

    def _works(self) -> bool:
        """Say that this producer writes, unless the engine closes; return whether it may.

        The supervisor looks in the other order, first closing and then asking who writes: whoever
        it finds still starting does not begin any more.
        """
        self._set_state(ProducerState.RUNNING)
        full_fence()
        return not self._is_closing()

    def _load_weights(self, policy: Learning, runner: EpisodeRunner) -> None:
        if self._store.weights_version() == runner.policy_version:
            return
        found = self._board.read()
        if found is not None and found[0] > runner.policy_version:
            runner.policy_version, weights = found
            policy.load_parameters(weights)

    def _pause(self) -> None:
        self._set_state(ProducerState.PAUSED)
        began = time.monotonic_ns()
        time.sleep(POLL_S)
        self._counters.note_stalled(time.monotonic_ns() - began)

    def _set_state(self, state: ProducerState) -> None:
        self._store.producers["state"][self._number] = state


def _watch_owner(store: SlotStore, grace_s: float) -> None:
    """Wait for the owner's end; then close, and leave after ``grace_s`` at last."""
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

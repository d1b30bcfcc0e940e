"""Plays environments and writes their episodes, each into a slot of its own.

Rules:  a slot holds one episode, or one part of it: where the slot ends before the episode, the
        part ends as a truncation, and the next one goes on from there. Every step of an episode is
        written: where one may not be published yet, no environment is stepped. An episode or part
        with a number that is not finite or with too many segments, and a demonstration that is
        empty or failed, of which only the last part is judged, is dropped and counted.
Axes:   E = environments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, OnlineDataWorkerError
from cadenza.stream.counters import ProducerRow
from cadenza.stream.environment import Arrays, Worlds, WorldStep, truths
from cadenza.stream.layout import MAX_SEGMENTS
from cadenza.stream.policies import (
    DemonstrationPolicy,
    Judging,
    Resettable,
    Segmenting,
    StreamPolicy,
    none_segments,
)
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import Reuse, SlotStore


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
        may_publish: Callable[[int], bool],
        reuse: Reuse,
        max_attempts: int,
    ) -> None:
        """Play ``worlds``.

        Args:
            store: Where episodes go.
            producer: Number of this producer.
            worlds: The environments.
            policy: Chooses the actions.
            counters: Counts of this producer.
            may_publish: Whether another episode may be published, see `SlotStore.publish`.
            reuse: Which episode a new one replaces.
            max_attempts: Episodes per environment that may be dropped in a row.
        """
        self._store = store
        self._producer = producer
        self._worlds = worlds
        self._policy = policy
        self._counters = counters
        self._may_publish = may_publish
        self._reuse: Reuse = reuse
        self._max_attempts = max_attempts
        self._dropped_in_a_row = 0
        self.policy_version = 0
        count = worlds.env.num_envs
        self._writers: list[EpisodeWriter | None] = [None] * count
        self._versions = [0] * count
        self._is_begun = False
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
            for _ in np.flatnonzero(lengths == 0):
                self._count_dropped("its demonstration is empty")
            rows = np.flatnonzero(lengths)
        self._is_begun = True
        self._begin(rows, states)
        self.publish()

    def step(self) -> None:
        """Step every environment once; nothing may wait in `publish`.

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
        step = self._worlds.step(actions)
        self._record(recorded, segments, step)
        begun = np.flatnonzero(step.begun)
        if len(begun) and not isinstance(self._policy, DemonstrationPolicy):
            self._begin(begun, step.first)
        self.publish()

    def publish(self) -> bool:
        """Publish what has ended, then begin what comes next; return whether nothing waits now."""
        for row, (writer, success) in list(self._ended.items()):
            published = writer.publish(
                success=success,
                policy_version=self._versions[row],
                may_publish=self._may_publish,
            )
            if published is None:
                return False
            del self._ended[row]
            self._dropped_in_a_row = 0
        for row, (state, before) in self._next.items():
            slot = self._store.take_slot(self._producer, reuse=self._reuse)
            writer = self._writers[row] = EpisodeWriter(self._store, slot, before=before)
            self._versions[row] = self.policy_version
            writer.start(state)
        self._next.clear()
        return True

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
            self._count_dropped(wrong)
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

    def _count_dropped(self, reason: str) -> None:
        self._counters.note_dropped()
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

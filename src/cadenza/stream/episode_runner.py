"""Plays environments and writes their episodes, each into a slot of its own.

Rules:  a slot holds one episode: the reset ends it, and so does the slot's last step (as a
        truncation). An episode with a number that is not finite or with too many segments, and a
        demonstration that is empty or failed, is dropped and counted.
Axes:   E = environments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, OnlineDataWorkerError
from cadenza.stream.counters import ProducerRow
from cadenza.stream.environment import Arrays, Worlds, WorldStep
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
        may_begin: Callable[[], bool],
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
            may_begin: Whether another episode may begin; asked with the store locked.
            reuse: Which episode a new one replaces.
            max_attempts: Episodes per environment that may be dropped in a row.
        """
        self._store = store
        self._producer = producer
        self._worlds = worlds
        self._policy = policy
        self._counters = counters
        self._may_begin = may_begin
        self._reuse: Reuse = reuse
        self._max_attempts = max_attempts
        self._dropped_in_a_row = 0
        self.policy_version = 0
        count = worlds.env.num_envs
        self._writers: list[EpisodeWriter | None] = [None] * count
        self._versions = [0] * count

    @property
    def is_recording(self) -> bool:
        """Whether an episode is being written."""
        return any(writer is not None for writer in self._writers)

    def begin_all(self, seed: int | None) -> None:
        """Reset every environment and begin as many episodes as may begin.

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
        self._begin(rows, states)

    def step(self) -> None:
        """Step every environment once.

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

    def drop_all(self) -> None:
        """Give back all slots that are being written."""
        for row, writer in enumerate(self._writers):
            if writer is not None:
                writer.drop()
                self._writers[row] = None

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
        for row in rows:
            slot = self._store.take_slot_if(self._may_begin, self._producer, reuse=self._reuse)
            if slot is None:
                continue
            writer = EpisodeWriter(self._store, slot)
            self._writers[row] = writer
            self._versions[row] = self.policy_version
            writer.start(_row(states, row))

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
            is_last = writer.length + 1 == self._store.layout.steps or bool(over[row])
            truncated = bool(step.truncated[row]) or (is_last and not terminated)
            values = {
                "actions": actions[row],
                "rewards": step.rewards[row],
                "terminated": terminated,
                "truncated": truncated,
                "segment_id": segments[row],
            }
            writer.add(values, _row(step.states, row))
            if terminated or truncated:
                self._end(row, writer, step)

    def _end(self, row: int, writer: EpisodeWriter, step: WorldStep) -> None:
        self._writers[row] = None
        success = (
            bool(self._policy.success(step.infos)[row])
            if isinstance(self._policy, Judging)
            else step.success(row)
        )
        failed = success is False and isinstance(self._policy, DemonstrationPolicy)
        wrong = "it did not succeed" if failed else self._unfit(writer)
        if wrong is not None:
            writer.drop()
            self._count_dropped(wrong)
            return
        length = writer.length
        writer.publish(success=success, policy_version=self._versions[row])
        self._dropped_in_a_row = 0
        self._counters.note_episode(length)

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

"""Oldest episodes first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cadenza.core.errors import CheckpointError
from cadenza.learn.memory.core_types import SamplePoint
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    SampleStrategy,
    Strategy,
    require_coverable,
)


class FifoStrategyBase(Strategy):
    """Knows the order in which episodes came; adding and forgetting one is O(1)."""

    def state(self) -> dict[str, Any]:
        """Return ids and lengths, oldest first, and the generator, as JSON values."""
        rows = self._rows
        lengths = rows.slots.steps[rows.live_slots()].tolist()
        identities = rows.identities()
        return {
            "identities": identities,
            "sequence_lengths": [list(pair) for pair in zip(identities, lengths, strict=True)],
            **(super().state() or {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; in a table the episodes themselves come from the table.

        Raises:
            CheckpointError: ``state`` is malformed.
        """
        episodes = _read_episodes(state)
        super().load_state(state)
        if not self._attached:
            self._rows.clear()
            for identity, length in episodes:
                self._rows.add(identity, length)

    def track(self, identity: int, sequence_length: int) -> None:
        """Count an episode in; during an import, unless `load_state` has brought it already."""
        if not (self._in_simple_import and identity in self._rows):
            super().track(identity, sequence_length)


class FifoSampleStrategy(FifoStrategyBase, SampleStrategy):
    """Samples windows from the oldest episodes on; each call starts at the oldest.

    Episodes shorter than the window are passed over.

    Args:
        per_episode: One window from each episode, starting again after the newest. Otherwise each
            episode gives as many windows side by side as fit, before the next one is used.
        random_offset: Windows start anywhere in their episode; always so with ``per_episode``.
        seed: Root seed of the offsets.
    """

    def __init__(
        self, per_episode: bool = True, random_offset: bool = True, *, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        self._per_episode = per_episode
        self._random_offset = random_offset or per_episode

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`.

        Raises:
            NoWindowError: No episode is long enough.
        """
        self._rows.require_windows(transition_count)
        windows = self._windows(transition_count)
        points = [next(windows) for _ in range(count)]
        if not self._random_offset:
            return points
        usable = self._rows.slots.usable
        tops = [int(usable[self._rows.slot(point[0])]) - transition_count + 1 for point in points]
        starts = self._rng.integers(0, tops).tolist()
        return [
            (point[0], start, start + transition_count)
            for point, start in zip(points, starts, strict=True)
        ]

    def _windows(self, length: int) -> Iterator[SamplePoint]:
        """Yield windows without end, from the oldest episode on; at least one must fit."""
        rows = self._rows
        while True:
            for slot in rows.iterate_slots():
                usable, identity = int(rows.slots.usable[slot]), rows.slots.identity[slot]
                windows = min(usable // length, 1) if self._per_episode else usable // length
                for index in range(windows):
                    yield identity, index * length, (index + 1) * length


class FifoEjectionStrategy(FifoStrategyBase, EjectionStrategy):
    """Ejects the oldest episodes."""

    def sample(self, count: int) -> Sequence[int]:
        """Return ids of the oldest episodes that cover ``count``; see `EjectionStrategy`.

        Raises:
            InputError: There are not so many transitions.
        """
        require_coverable(self._rows, count)
        chosen: list[int] = []
        covered = 0
        slots = self._rows.iterate_slots()
        while covered < count:
            slot = next(slots)
            chosen.append(self._rows.slots.identity[slot])
            covered += int(self._rows.slots.steps[slot])
        return chosen


def _read_episodes(state: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return ids and lengths in the order of arrival.

    Raises:
        CheckpointError: ``state`` is malformed.
    """
    try:
        lengths = {int(identity): int(length) for identity, length in state["sequence_lengths"]}
        episodes = [(int(identity), lengths[identity]) for identity in state["identities"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "FIFO strategy: expected identities and sequence_lengths of the same episodes, got "
            f"{sorted(state)}: {error!r}."
        ) from error
    if not len(set(episodes)) == len(episodes) == len(lengths) or any(
        length < 1 for length in lengths.values()
    ):
        raise CheckpointError(
            f"FIFO strategy: expected the lengths, at least 1, of {len(episodes)} different ids, "
            f"got {len(lengths)} lengths."
        )
    return episodes

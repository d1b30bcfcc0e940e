"""Seldom sampled episodes first: windows are drawn by how often their episode was sampled.

Sampling weight of episode i:  (windows of i) (c_i + 1)^(-alpha)
Ejection weight of episode i:  (steps of i) (c_i + 1)^alpha, so well covered episodes go first
with c_i the windows sampled from it so far. ``alpha`` = 0 is uniform. Renewing the weights takes
O(log E) per sampled episode.

When:   weights are renewed when an episode comes or goes, and while nothing changes, once as many
        windows were sampled as transitions are stored (one pass over the memory). Renewing at each
        draw levels the counts sooner, so it prefers new episodes less: 204 episodes sampled 25.1
        times each, then 204 new ones and as many draws again, alpha = 1: by
        dc_old / dc_new = (c_new + 1) / (c_old + 1), 74 % of the draws go to new episodes, against
        88 % when weights are renewed once per pass.

Axes: n = windows, T = rows per window, E = episodes, S = slots.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.memory.core_types import IndexArray, SamplePoint
from cadenza.learn.memory.episode_rows import EpisodeRows
from cadenza.learn.memory.segment_tree import ArraySumTree
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    SampleStrategy,
    Strategy,
    eject_weighted,
    require_coverable,
)

#: Lists of sampled slots that are kept before they are merged.
_MOST_OUTDATED: Final = 64


class CoverageBasedStrategy(Strategy):
    """Counts how often each episode was sampled.

    Args:
        alpha: How strongly the count matters, >= 0.
        seed: Root seed of the strategy's generator.

    Raises:
        ConfigurationError: ``alpha`` is negative or not finite.
    """

    def __init__(self, alpha: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._alpha = _checked_alpha(alpha)
        self._remembered: dict[int, tuple[int, int]] = {}
        self._live = True
        self._forget_weights()

    def _forget_weights(self) -> None:
        self._outdated: list[IndexArray] = []
        self._waiting = 0  # sampled windows that the weights do not know of
        self._counts = np.zeros(len(self._rows.slots.start), np.int64)
        self._weighed = self._counts.copy()  # counts that the weights are computed from
        self._tree: ArraySumTree | None = None

    @property
    def alpha(self) -> float:
        """How strongly the count matters."""
        return self._alpha

    def counts(self) -> dict[int, int]:
        """Return the windows sampled so far by episode id, oldest first."""
        counts = self._counts[self._rows.live_slots()].tolist()
        return dict(zip(self._rows.identities(), counts, strict=True))

    def attach(self, rows: EpisodeRows) -> None:
        """Follow the episodes in ``rows``; see `Strategy.attach`."""
        super().attach(rows)
        self._forget_weights()

    def track(self, identity: int, sequence_length: int) -> None:
        """Count an episode in, not sampled yet."""
        super().track(identity, sequence_length)
        slot = self._rows.slot(identity)
        if slot >= len(self._counts):
            more = np.zeros(len(self._rows.slots.start) - len(self._counts), np.int64)
            self._counts = np.concatenate((self._counts, more))
            self._weighed = np.concatenate((self._weighed, more))
        known = self._remembered.pop(identity, None)
        self._set_counts(slot, *(known or (0, 0)))
        if known is None:
            self._renew()

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        self._renew()
        if self._tree is not None:
            self._tree.set(self._rows.slot(identity), 0.0)
        super().forget(identity)

    def clear(self) -> None:
        """Forget every episode and count; the generator goes on."""
        super().clear()
        self._remembered.clear()
        self._forget_weights()

    def end_simple_import(self) -> None:
        """Finish an import; counts of episodes that did not come are dropped."""
        super().end_simple_import()
        self._remembered.clear()

    def state(self) -> dict[str, Any]:
        """Return alpha, counts by id and the generator, as JSON values.

        A count is (id, windows sampled so far, windows that its weight knows of).
        """
        slots = self._rows.live_slots()
        columns = (
            self._rows.identities(),
            self._counts[slots].tolist(),
            self._weighed[slots].tolist(),
        )
        counts = [list(entry) for entry in zip(*columns, strict=True)]
        return {"alpha": self._alpha, "counts": counts, **(super().state() or {})}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, for tracked episodes and for those that come next.

        Raises:
            CheckpointError: ``state`` is malformed.
        """
        try:
            alpha = _checked_alpha(float(state["alpha"]))
            counts = {int(i): (int(count), int(known)) for i, count, known in state["counts"]}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "coverage strategy: expected alpha and counts by id, got "
                f"{sorted(state)}: {error!r}."
            ) from error
        super().load_state(state)
        self._alpha, self._remembered = alpha, counts
        self._tree = None
        for identity in self._rows.identities():
            slot = self._rows.slot(identity)
            if slot < len(self._counts):
                self._set_counts(slot, *counts.get(identity, (0, 0)))

    def _set_counts(self, slot: int, count: int, weighed: int) -> None:
        before = int(self._counts[slot] - self._weighed[slot])
        self._waiting += count - weighed - before
        self._counts[slot], self._weighed[slot] = count, weighed
        self._outdated.append(np.array([slot]))

    def _count(self, slots: IndexArray) -> None:
        """Count one sampled window for each of ``slots``."""
        np.add.at(self._counts, slots, 1)
        self._outdated.append(slots)
        self._waiting += len(slots)
        if self._live or self._waiting >= self._rows.steps:
            self._renew()
        elif len(self._outdated) > _MOST_OUTDATED:
            self._outdated = [np.unique(np.concatenate(self._outdated))]

    def _renew(self) -> None:
        """Compute the weights anew that counts have changed."""
        if self._outdated:
            slots = np.unique(np.concatenate(self._outdated))
            self._weighed[slots] = self._counts[slots]
            if self._tree is not None:
                self._tree.set_many(slots, self._weights(slots))
        self._outdated.clear()
        self._waiting = 0

    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        """Return the weights of ``slots``."""
        steps = self._rows.slots.steps[slots].astype(np.float64)
        return steps * (self._weighed[slots] + 1.0) ** self._alpha

    def _weight_tree(self) -> ArraySumTree:
        """Return the weights of all episodes by slot."""
        if self._tree is None:
            weights = np.zeros(len(self._rows.slots.start))
            slots = self._rows.live_slots()
            weights[slots] = self._weights(slots)
            self._tree = ArraySumTree(weights)
        return self._tree


class CoverageBasedSampleStrategy(CoverageBasedStrategy, SampleStrategy):
    """Samples windows of seldom sampled episodes more often.

    Args:
        alpha: 0 is uniform; the larger, the more new episodes are preferred.
        renew_while_sampling: Each call renews the weights of the episodes it sampled. Otherwise
            that waits until an episode comes or goes, or until as many windows were sampled as
            transitions are stored, so new episodes are preferred for longer.
        seed: Root seed of the draws.
    """

    def __init__(
        self, alpha: float = 0.5, *, renew_while_sampling: bool = False, seed: int = 0
    ) -> None:
        self._length = 1  # rows per window that the weights are for
        super().__init__(alpha, seed=seed)
        self._live = renew_while_sampling

    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        usable = self._rows.slots.usable[slots]
        windows = np.maximum(usable - self._length + 1, 0).astype(np.float64)
        return windows * (self._weighed[slots] + 1.0) ** -self._alpha

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`.

        Raises:
            NoWindowError: No episode is long enough.
        """
        return self._rows.points(self.sample_rows(count, transition_count), transition_count)

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of ``count`` windows, shape (n,); see `sample`."""
        rows = self._rows
        rows.require_windows(transition_count)
        if transition_count != self._length:
            self._length, self._tree = transition_count, None
        if self._alpha == 0.0:
            starts = rows.draw_windows(self._rng, count, transition_count)
            slots = rows.slot_of_row[starts].astype(np.int64)
        else:
            slots = self._weight_tree().draw(self._rng, count)
            windows = rows.slots.usable[slots] - transition_count + 1
            starts = rows.slots.start[slots] + self._rng.integers(0, windows)
        self._count(slots)
        return starts


class CoverageBasedEjectionStrategy(CoverageBasedStrategy, EjectionStrategy):
    """Ejects often sampled episodes first.

    Args:
        alpha: 0 is uniform; the larger, the more well covered episodes are preferred.
        seed: Root seed of the draws.
    """

    def sample(self, count: int) -> Sequence[int]:
        """Return ids of episodes with at least ``count`` transitions; see `EjectionStrategy`.

        Raises:
            InputError: There are not so many transitions.
        """
        require_coverable(self._rows, count)
        return eject_weighted(self._rows, count, self._rng, self._draw, self._weights)

    def _draw(self, count: int) -> IndexArray:
        if self._alpha == 0.0:
            return self._rows.draw_steps(self._rng, count)
        return self._weight_tree().draw(self._rng, count)

    def on_sample_rows(self, rows: IndexArray, transition_count: int) -> None:
        """Count the windows that the table sampled."""
        del transition_count
        self._count(self._rows.slot_of_row[rows].astype(np.int64))

    def on_sample(
        self,
        ids_and_offsets: Sequence[SamplePoint],
        transition_count: int,
        advantages: object = None,
    ) -> None:
        """Count sampled windows; see `Strategy.on_sample`."""
        del advantages
        rows = self._rows.rows_of(ids_and_offsets, transition_count)
        self.on_sample_rows(rows, transition_count)


def _checked_alpha(alpha: float) -> float:
    if not 0.0 <= alpha < float("inf"):
        raise ConfigurationError(f"alpha: expected a finite number >= 0, got {alpha}.")
    return float(alpha)

"""What decides which windows a table samples and which episodes it ejects.

A strategy works on its own: tell it episodes with `Strategy.track` and `Strategy.forget`, ask with
``sample``. In a table it shares the table's `EpisodeRows` (`Strategy.attach`), so nothing is kept
twice, and the table asks for rows instead of lists (`SampleStrategy.sample_rows`). Strategies that
only have the list interface work in a table too.

``Fifo``:      oldest episodes first.
``Uniform``:   every window, or every transition, with the same probability.
``Coverage``:  seldom sampled episodes first. With c_i the windows sampled from episode i so far,
               sampling weight (windows of i) (c_i + 1)^(-alpha), ejection weight
               (steps of i) (c_i + 1)^alpha, so well covered episodes go first; ``alpha`` = 0 is
               uniform. Weights are renewed when an episode comes or goes, and while nothing
               changes, once as many windows were sampled as transitions are stored; at each draw
               would level the counts sooner, and so prefer new episodes less.
``Prioritized``: surprising windows first. Window i, which starts at a step of priority p_i, is
               drawn with probability P(i) = p_i^alpha / sum_j p_j^alpha over all windows that fit
               into an episode, and has the weight
               w_i = (n P(i))^(-beta) / max_j w_j = (p_i / min_j p_j)^(-alpha beta)  in (0, 1].
               Schaul et al., arXiv:1511.05952, sections 3.3 and 3.4; but windows are drawn
               independently, not one from each of n equal shares of the sum (appendix B.2.1): the
               order of a batch then says nothing about the age of its windows. O(log N) per draw
               and update, O(L + log N) per episode; asking for another window length builds the
               trees anew, O(N).

Axes: n = number of windows, T = rows per window, E = episodes, S = slots, N = rows, L = steps of an
      episode.
"""

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.loaded_state import complete_state, generator_state, set_generator_state
from cadenza.learn.memory.column import IndexArray, SamplePoint
from cadenza.learn.memory.ring import EpisodeRows, moved
from cadenza.learn.memory.segment_tree import ArrayMinTree, ArraySumTree

#: Slots drawn at once while ejecting.
_EJECTION_DRAWS: Final = 16
#: Rounds of drawing with repetition before the rest is ordered at once.
_EJECTION_ROUNDS: Final = 4


class Strategy:
    """Follows the episodes of one memory, of a table if ``attached``, and owns its randomness."""

    def __init__(self, *, seed: int = 0) -> None:
        stream = derive_substream(f"learn.memory.{self._purpose}", root_seed=seed)
        self._rng = stream.default_rng()
        self._rows = EpisodeRows()
        self.attached: bool = False
        self._in_simple_import = False
        self._remembered: dict[int, Any] = {}  # loaded facts about episodes that come next

    #: Part of the stream's name; strategies for one purpose and seed draw the same numbers.
    _purpose = "strategy"

    def attach(self, rows: EpisodeRows) -> None:
        """Follow the episodes in ``rows``, which a table keeps, instead of own ones."""
        self._rows = rows
        self.attached = True

    def track(self, identity: int, sequence_length: int) -> None:
        """Count an episode of so many transitions in, under an id that no tracked episode has."""
        if not self.attached:
            self._rows.add(identity, sequence_length)

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        if not self.attached:
            self._rows.remove(identity)

    def on_sample(
        self,
        ids_and_offsets: Sequence[SamplePoint],
        transition_count: int,
        advantages: ArrayLike | None = None,
    ) -> None:
        """Learn which windows were sampled and, (n,), how surprising they were."""

    def on_sample_rows(self, rows: IndexArray, transition_count: int) -> None:
        """Learn which windows the table sampled; see `on_sample`."""
        self.on_sample(self._rows.points(rows, transition_count), transition_count)

    def watches_samples(self) -> bool:
        """Return whether the table has to call `on_sample_rows` at all."""
        hooks = type(self).on_sample, type(self).on_sample_rows
        return hooks != (Strategy.on_sample, Strategy.on_sample_rows)

    def post_import(self) -> None:
        """Forget negative ids and give every other episode the id ``-id - 1``."""
        if self.attached:
            return
        steps = self._rows.slots.steps
        episodes = {i: int(steps[self._rows.slot(i)]) for i in self._rows.identities()}
        for identity in episodes:
            self.forget(identity)
        for identity, length in episodes.items():
            if identity >= 0:
                self.track(-identity - 1, length)

    def state(self) -> dict[str, Any] | None:
        """Return what is not known from the episodes, as JSON values."""
        return {"generator": generator_state(self._rng)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; a file without a generator leaves this one as it is."""
        if "generator" in state:
            set_generator_state(self._rng, state["generator"])

    def clear(self) -> None:
        """Forget every episode; the generator goes on."""
        for identity in self._rows.identities():
            self.forget(identity)
        self._remembered.clear()
        if not self.attached:
            self._rows.clear()

    def begin_simple_import(self) -> None:
        """Get ready for the episodes of a file: `load_state`, then `track` for each."""
        self._in_simple_import = True

    def end_simple_import(self) -> None:
        """Finish an import; what was loaded about episodes that did not come is dropped."""
        self._in_simple_import = False
        self._remembered.clear()


class SampleStrategy(Strategy, ABC):
    """Chooses windows."""

    _purpose = "sample"

    @abstractmethod
    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows of ``transition_count`` rows T as (id, start, start + T).

        Raises:
            NoWindowError: No episode is long enough.
        """

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of windows to sample, shape (n,); see `sample`."""
        return self._rows.rows_of(self.sample(count, transition_count), transition_count)

    def annotations(self, rows: IndexArray, transition_count: int) -> dict[str, NDArray[Any]]:
        """Return what the batch of these windows gets besides the columns, by name."""
        del rows, transition_count
        return {}

    def update_priorities(
        self, sample_ids: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """Take over priorities of sampled windows; only prioritised strategies can."""
        del sample_ids, priorities
        wanted = "a table with a PrioritizedSampleStrategy as its sampler"
        got = f"one with a {type(self).__name__}"
        refuse(ConfigurationError, "update_priorities", expected=wanted, got=got)


class RowSampleStrategy(SampleStrategy):
    """Chooses windows by ``sample_rows`` alone."""

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`."""
        return self._rows.points(self.sample_rows(count, transition_count), transition_count)


def prefers_rows(strategy: SampleStrategy) -> bool:
    """Return whether ``sample_rows`` is as new as ``sample``.

    A class that derives from one of ours and redefines only ``sample`` must be asked by that.
    """
    names = {"sample", "sample_rows"}
    newest = next(base for base in type(strategy).__mro__ if names & vars(base).keys())
    return "sample_rows" in vars(newest)


class EjectionStrategy(Strategy, ABC):
    """Chooses episodes to remove."""

    _purpose = "eject"

    @abstractmethod
    def sample(self, count: int) -> Sequence[int]:
        """Return ids of different episodes that together have at least ``count`` transitions.

        Raises:
            InputError: There are not so many transitions.
        """

    def _require_coverable(self, count: int) -> None:
        """Raise `InputError` unless the episodes have ``count`` transitions to eject."""
        if count > self._rows.steps:
            most = f"at most {self._rows.steps} transitions (all that are stored)"
            refuse(InputError, "eject", expected=most, got=count)


class _WeightedEjectionStrategy(EjectionStrategy, ABC):
    """Ejects episodes drawn one by one in proportion to their weights."""

    @abstractmethod
    def _draw(self, count: int) -> IndexArray:
        """Return ``count`` slots in proportion to their weights."""

    @abstractmethod
    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        """Return the weights of ``slots``."""

    def sample(self, count: int) -> Sequence[int]:
        """Return ids of episodes with at least ``count`` transitions; see `EjectionStrategy`.

        Slots drawn before are skipped. When most of the weight is drawn already, the rest is put in
        the same random order at once: sorting E / w with E exponential is drawing without
        repetition in proportion to w (Efraimidis and Spirakis, 2006).
        """
        self._require_coverable(count)
        rows = self._rows
        chosen: dict[int, None] = {}
        covered = 0

        def choose(slots: IndexArray) -> None:
            nonlocal covered
            for slot in slots.tolist():
                if covered < count and slot not in chosen:
                    chosen[slot] = None
                    covered += int(rows.slots.steps[slot])

        for _ in range(_EJECTION_ROUNDS if count > 0 else 0):
            choose(self._draw(_EJECTION_DRAWS))
        if covered < count:
            rest = np.array([s for s in rows.live_slots().tolist() if s not in chosen], np.int64)
            keys = self._rng.exponential(size=len(rest)) / self._weights(rest)
            choose(rest[np.argsort(keys)])
        return [rows.slots.identity[slot] for slot in chosen]


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
        """Take over what `state` gave; in a table the episodes themselves come from the table."""
        with complete_state("FIFO strategy", "episodes by id"):
            lengths = {int(i): int(length) for i, length in state["sequence_lengths"]}
            identities = [int(identity) for identity in state["identities"]]
            if sorted(lengths) != sorted(identities) or min(lengths.values(), default=1) < 1:
                raise ValueError(f"no lengths, at least 1, of {len(identities)} different ids")
        super().load_state(state)
        if not self.attached:
            self._rows.clear()
            for identity in identities:
                self._rows.add(identity, lengths[identity])

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
    """

    def __init__(
        self, per_episode: bool = True, random_offset: bool = True, *, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        self._per_episode = per_episode
        self._random_offset = random_offset or per_episode

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`."""
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
        """Return ids of the oldest episodes that cover ``count``; see `EjectionStrategy`."""
        self._require_coverable(count)
        chosen: list[int] = []
        covered = 0
        slots = self._rows.iterate_slots()
        while covered < count:
            slot = next(slots)
            chosen.append(self._rows.slots.identity[slot])
            covered += int(self._rows.slots.steps[slot])
        return chosen


class UniformStrategyBase(Strategy):
    """Part that sampling and ejecting share."""


class UniformSampleStrategy(UniformStrategyBase, RowSampleStrategy):
    """Samples uniformly over all windows that fit into an episode.

    Episodes shorter than the window are never sampled.
    """

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of ``count`` windows, shape (n,); see `sample`."""
        return self._rows.draw_windows(self._rng, count, transition_count)


class UniformEjectionStrategy(UniformStrategyBase, _WeightedEjectionStrategy):
    """Ejects the episodes of uniformly drawn transitions."""

    def _draw(self, count: int) -> IndexArray:
        return self._rows.draw_steps(self._rng, count)

    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        return self._rows.slots.steps[slots].astype(np.float64)


class CoverageBasedStrategy(Strategy):
    """Counts how often each episode was sampled.

    Raises:
        ConfigurationError: ``alpha`` is negative or not finite.
    """

    def __init__(self, alpha: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.alpha: float = _checked_alpha(alpha)
        self._live = True
        self._forget_weights()

    def _forget_weights(self) -> None:
        self._waiting = 0  # sampled windows that the weights do not know of
        self._counts = np.zeros(len(self._rows.slots.start), np.int64)
        self._weighed = self._counts.copy()  # counts that the weights are computed from
        self._tree: ArraySumTree | None = None

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
            if self._tree is not None:
                self._tree.set_range(slot, self._weights(np.array([slot])))

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        self._renew()
        if self._tree is not None:
            self._tree.set_range(self._rows.slot(identity), np.zeros(1))
        super().forget(identity)

    def clear(self) -> None:
        """Forget every episode and count; the generator goes on."""
        super().clear()
        self._forget_weights()

    def state(self) -> dict[str, Any]:
        """Return alpha, counts by id and the generator, as JSON values.

        A count is (id, windows sampled so far, windows that its weight knows of).
        """
        slots = self._rows.live_slots()
        counts = self._counts[slots].tolist(), self._weighed[slots].tolist()
        entries = [list(entry) for entry in zip(self._rows.identities(), *counts, strict=True)]
        return {"alpha": self.alpha, "counts": entries, **(super().state() or {})}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, for tracked episodes and for those that come next."""
        with complete_state("coverage strategy", "alpha and counts by id"):
            alpha = _checked_alpha(float(state["alpha"]))
            counts = {int(i): (int(count), int(known)) for i, count, known in state["counts"]}
        super().load_state(state)
        self.alpha, self._remembered = alpha, counts
        self._tree = None
        for identity in self._rows.identities():
            slot = self._rows.slot(identity)
            if slot < len(self._counts):
                self._set_counts(slot, *counts.get(identity, (0, 0)))
        self._waiting = int((self._counts - self._weighed).sum())

    def _set_counts(self, slot: int, count: int, weighed: int) -> None:
        self._waiting += count - weighed
        self._counts[slot], self._weighed[slot] = count, weighed

    def _count(self, slots: IndexArray) -> None:
        """Count one sampled window for each of ``slots``."""
        np.add.at(self._counts, slots, 1)
        self._waiting += len(slots)
        if self._live or self._waiting >= self._rows.steps:
            self._renew()

    def _renew(self) -> None:
        """Compute the weights anew that counts have changed."""
        if self._waiting == 0:
            return
        slots = np.flatnonzero(self._counts != self._weighed)
        self._weighed[slots] = self._counts[slots]
        if self._tree is not None:
            self._tree.set_many(slots, self._weights(slots))
        self._waiting = 0

    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        """Return the weights of ``slots``."""
        steps = self._rows.slots.steps[slots].astype(np.float64)
        return steps * (self._weighed[slots] + 1.0) ** self.alpha

    def _weight_tree(self) -> ArraySumTree:
        """Return the weights of all episodes by slot."""
        if self._tree is None:
            weights = np.zeros(len(self._rows.slots.start))
            slots = self._rows.live_slots()
            weights[slots] = self._weights(slots)
            self._tree = ArraySumTree(weights)
        return self._tree


class CoverageBasedSampleStrategy(CoverageBasedStrategy, RowSampleStrategy):
    """Samples windows of seldom sampled episodes more often.

    Args:
        alpha: 0 is uniform; the larger, the more new episodes are preferred.
        renew_while_sampling: Each call renews the weights of the episodes it sampled. Otherwise
            that waits until an episode comes or goes, or until as many windows were sampled as
            transitions are stored, so new episodes are preferred for longer.
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
        return windows * (self._weighed[slots] + 1.0) ** -self.alpha

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of ``count`` windows, shape (n,); see `sample`."""
        rows = self._rows
        rows.require_windows(transition_count)
        if transition_count != self._length:
            self._length, self._tree = transition_count, None
        if self.alpha == 0.0:
            starts = rows.draw_windows(self._rng, count, transition_count)
            slots = rows.slot_of_row[starts].astype(np.int64)
        else:
            slots = self._weight_tree().draw(self._rng, count)
            windows = rows.slots.usable[slots] - transition_count + 1
            starts = rows.slots.start[slots] + self._rng.integers(0, windows)
        self._count(slots)
        return starts


class CoverageBasedEjectionStrategy(CoverageBasedStrategy, _WeightedEjectionStrategy):
    """Ejects often sampled episodes first."""

    def _draw(self, count: int) -> IndexArray:
        if self.alpha == 0.0:
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
    """Return the exponent of a strategy's weights if it is finite and >= 0."""
    if not 0.0 <= alpha < math.inf:
        refuse(ConfigurationError, "alpha", expected="a finite number >= 0", got=alpha)
    return float(alpha)


#: Keys that a batch gets.
SAMPLE_WEIGHTS: Final = "sample_weights"
SAMPLE_IDS: Final = "sample_ids"


class PrioritizedSampleStrategy(RowSampleStrategy):
    """Samples windows by priority; new windows get the highest priority so far.

    Batches of its table have ``sample_weights`` (float32, (n,)), to multiply the losses with, and
    ``sample_ids`` (int64, (n,)), for `ArrayMemoryTable.update_priorities`.

    Args:
        alpha: How strongly priorities matter, >= 0; 0 is uniform.
        beta: How much of the bias the weights correct, in [0, 1]. Raised to 1 during training by
            setting the attribute.
        epsilon: Added to every priority, > 0, so that no window is lost for ever.
        seed: Root seed of the draws.
    """

    def __init__(
        self, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6, *, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        if not 0.0 < epsilon < math.inf:
            refuse(ConfigurationError, "epsilon", expected="a finite number > 0", got=epsilon)
        self.alpha: float = _checked_alpha(alpha)
        self._epsilon = float(epsilon)
        self.beta = beta
        self._max_priority = 1.0
        self._start_on(self._rows)

    @property
    def beta(self) -> float:
        """How much of the bias the weights correct."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            refuse(ConfigurationError, "beta", expected="a number in [0, 1]", got=value)
        self._beta = float(value)

    def _start_on(self, rows: EpisodeRows) -> None:
        self._priority = np.zeros(rows.capacity, np.float32)
        self._drop_trees()
        rows.add_listener(self.rows_moved)

    def _drop_trees(self) -> None:
        self._length = 0  # rows per window that the trees are for; 0: there are none
        self._sums = ArraySumTree(np.zeros(1))
        self._minima = ArrayMinTree(np.ones(1))

    def attach(self, rows: EpisodeRows) -> None:
        """Follow the episodes in ``rows``; see `Strategy.attach`."""
        self._rows.remove_listener(self.rows_moved)
        super().attach(rows)
        self._start_on(rows)

    def rows_moved(self, rows: IndexArray, capacity: int) -> None:
        """Bring the priorities to the rows' new places; see `RowListener`."""
        self._priority = moved(self._priority, rows, capacity)
        self._drop_trees()

    def track(self, identity: int, sequence_length: int) -> None:
        """Count an episode in; its windows get the highest priority so far."""
        super().track(identity, sequence_length)
        start, usable = self._place(identity)
        known = self._remembered.pop(identity, None)
        if known is not None and len(known) == usable:
            self._priority[start : start + usable] = known
        else:
            self._priority[start : start + usable] = self._max_priority
        masses = self._masses(self._priority[start : start + usable])
        self._set_trees(start, masses, masses)

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        start, usable = self._place(identity)
        self._set_trees(start, np.zeros(usable), np.full(usable, np.inf))
        super().forget(identity)

    def clear(self) -> None:
        """Forget every episode and priority; the generator goes on."""
        super().clear()
        self._max_priority = 1.0
        self._priority[:] = 0.0
        self._drop_trees()

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of ``count`` windows, shape (n,); see `sample`."""
        self._rows.require_windows(transition_count)
        if self._length != transition_count:
            self._build_trees(transition_count)
        return self._sums.draw(self._rng, count)

    def weights(self, rows: IndexArray) -> NDArray[np.float32]:
        """Return the importance weights of sampled windows, in (0, 1], shape (n,)."""
        ratios = self._sums.get(rows) / self._minima.total
        return (ratios**-self._beta).astype(np.float32)

    def annotations(self, rows: IndexArray, transition_count: int) -> dict[str, NDArray[Any]]:
        """Return importance weights and ids of sampled windows."""
        del transition_count
        return {SAMPLE_WEIGHTS: self.weights(rows), SAMPLE_IDS: self._rows.sample_ids(rows)}

    def on_sample_rows(self, rows: IndexArray, transition_count: int) -> None:
        """Do nothing: only priorities change the weights."""

    def on_sample(
        self,
        ids_and_offsets: Sequence[SamplePoint],
        transition_count: int,
        advantages: ArrayLike | None = None,
    ) -> None:
        """Take the absolute ``advantages`` as the windows' priorities.

        Args:
            ids_and_offsets: Windows of stored episodes.
            transition_count: Rows per window, T.
            advantages: One number per window, shape (n,); None changes nothing.

        Raises:
            InputError: A window is not stored, or the advantages are malformed.
        """
        if advantages is not None:
            rows = self._rows.rows_of(ids_and_offsets, transition_count)
            self._set_priorities(rows, np.abs(np.asarray(advantages, np.float64)))

    def update_priorities(
        self, sample_ids: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """Set the priorities >= 0 of sampled windows, (n,) each; return how many are still stored.

        Of one given twice the last counts.

        Raises:
            InputError: The shapes differ, or a priority is negative or not finite.
        """
        rows, known = self._rows.rows_of_sample_ids(sample_ids)
        self._set_priorities(rows, priorities, known)
        return int(known.sum())

    def _set_priorities(
        self, rows: IndexArray, priorities: NDArray[np.float64], known: Any = slice(None)
    ) -> None:
        """Set the priorities of the ``known`` ones of the windows that start at ``rows``."""
        if priorities.shape != rows.shape:
            wanted, got = f"one for each of {len(rows)} windows", f"shape {priorities.shape}"
            refuse(InputError, "priorities", expected=wanted, got=got)
        wrong = ~(np.isfinite(priorities) & (priorities >= 0.0))
        if wrong.any():
            wanted, got = "finite numbers >= 0", priorities[wrong][:3].tolist()
            do = "pass e.g. absolute TD errors"
            refuse(InputError, "priorities", expected=wanted, got=got, do=do)
        rows, priorities = rows[known], priorities[known]
        if not len(rows):
            return
        self._priority[rows] = priorities + self._epsilon
        self._max_priority = max(self._max_priority, float(self._priority[rows].max()))
        if self._length:
            fits = rows[self._rows.remaining[rows] >= self._length]
            masses = self._masses(self._priority[fits])
            self._sums.set_many(fits, masses)
            self._minima.set_many(fits, masses)

    def _masses(self, priorities: NDArray[np.float32]) -> NDArray[np.float64]:
        return priorities.astype(np.float64) ** self.alpha

    def _place(self, identity: int) -> tuple[int, int]:
        """Return an episode's first row and usable steps."""
        slots, slot = self._rows.slots, self._rows.slot(identity)
        return int(slots.start[slot]), int(slots.usable[slot])

    def _set_trees(
        self, start: int, sums: NDArray[np.float64], minima: NDArray[np.float64]
    ) -> None:
        """Set what the trees, if there are any, hold of one episode; one number for each step."""
        windows = len(sums) - self._length + 1
        if self._length and windows > 0:
            self._sums.set_range(start, sums[:windows])
            self._minima.set_range(start, minima[:windows])

    def _build_trees(self, length: int) -> None:
        """Build the trees for windows of ``length`` rows."""
        fits = self._rows.remaining >= length
        masses = self._masses(self._priority)
        self._sums = ArraySumTree(np.where(fits, masses, 0.0))
        self._minima = ArrayMinTree(np.where(fits, masses, np.inf))
        self._length = length

    def state(self) -> dict[str, Any]:
        """Return settings, priorities by episode and the generator, as JSON values.

        The priorities are little-endian float32 in base64, the oldest episode first.
        """
        identities = self._rows.identities()
        places = [self._place(identity) for identity in identities]
        parts = [self._priority[start : start + usable] for start, usable in places]
        joined = np.concatenate([np.zeros(0, np.float32), *parts]).astype("<f4")
        return {
            "alpha": self.alpha,
            "beta": self._beta,
            "epsilon": self._epsilon,
            "max_priority": self._max_priority,
            "identities": identities,
            "counts": [usable for _, usable in places],
            "priorities": base64.b64encode(joined.tobytes()).decode("ascii"),
            **(super().state() or {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, for tracked episodes and for those that come next.

        Raises:
            CheckpointError: ``state`` is malformed.
        """
        with complete_state("prioritised strategy", "settings and priorities"):
            remembered = _read_priorities(state)
            alpha, epsilon = float(state["alpha"]), float(state["epsilon"])
            beta, highest = float(state["beta"]), float(state["max_priority"])
            if not (alpha >= 0.0 and epsilon > 0.0 and 0.0 <= beta <= 1.0 and highest > 0.0):
                raise ValueError("a number out of range")
        super().load_state(state)
        self.alpha, self._epsilon, self._beta = alpha, epsilon, beta
        self._max_priority, self._remembered = highest, remembered
        for identity in self._rows.identities():
            start, usable = self._place(identity)
            known = remembered.get(identity)
            if known is not None and len(known) == usable:
                self._priority[start : start + usable] = known
        self._drop_trees()


def _read_priorities(state: Mapping[str, Any]) -> dict[int, NDArray[np.float32]]:
    """Return the priorities by episode id."""
    counts = [int(count) for count in state["counts"]]
    values = np.frombuffer(base64.b64decode(state["priorities"], validate=True), "<f4")
    identities = [int(identity) for identity in state["identities"]]
    if len(counts) != len(identities) or sum(counts) != len(values) or min(counts, default=0) < 0:
        raise ValueError("identities, counts and priorities that do not fit together")
    if not (np.isfinite(values).all() and (values > 0.0).all()):
        raise ValueError("a priority that is not > 0")
    stops = np.cumsum(counts, dtype=np.int64)
    return {
        identity: values[stop - count : stop].astype(np.float32)
        for identity, count, stop in zip(identities, counts, stops.tolist(), strict=True)
    }

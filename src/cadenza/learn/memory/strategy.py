"""What decides which windows a table samples and which episodes it ejects.

A strategy works on its own: tell it episodes with `Strategy.track` and `Strategy.forget`, ask with
``sample``. In a table it shares the table's `EpisodeRows` (`Strategy.attach`), so nothing is kept
twice, and the table asks for rows instead of lists (`SampleStrategy.sample_rows`). Strategies that
only have the list interface work in a table too.

Axes: n = number of windows, T = rows per window, E = episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.memory.core_types import IndexArray, SamplePoint
from cadenza.learn.memory.episode_rows import EpisodeRows

#: Slots drawn at once while ejecting.
_EJECTION_DRAWS: Final = 16
#: Rounds of drawing with repetition before the rest is ordered at once.
_EJECTION_ROUNDS: Final = 4


class Strategy:
    """Follows the episodes of one memory and owns the randomness of its choices.

    Args:
        seed: Root seed of the strategy's generator.
    """

    def __init__(self, *, seed: int = 0) -> None:
        stream = derive_substream(f"learn.memory.{self._purpose}", root_seed=seed)
        self._rng = stream.default_rng()
        self._rows = EpisodeRows()
        self._attached = False
        self._in_simple_import = False

    #: Part of the stream's name; strategies for one purpose and seed draw the same numbers.
    _purpose = "strategy"

    @property
    def attached(self) -> bool:
        """Whether the strategy follows a table."""
        return self._attached

    def attach(self, rows: EpisodeRows) -> None:
        """Follow the episodes in ``rows``, which a table keeps, instead of own ones."""
        self._rows = rows
        self._attached = True

    def track(self, identity: int, sequence_length: int) -> None:
        """Count an episode in.

        Args:
            identity: Id that no tracked episode has.
            sequence_length: Its transitions.
        """
        if not self._attached:
            self._rows.add(identity, sequence_length)

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        if not self._attached:
            self._rows.remove(identity)

    def on_sample(
        self,
        ids_and_offsets: Sequence[SamplePoint],
        transition_count: int,
        advantages: ArrayLike | None = None,
    ) -> None:
        """Learn which windows were sampled, and how surprising they were.

        Args:
            ids_and_offsets: The windows.
            transition_count: Rows per window, T.
            advantages: One number per window for prioritised strategies, shape (n,).
        """

    def post_import(self) -> None:
        """Forget negative ids and give every other episode the id ``-id - 1``."""
        if self._attached:
            return
        rows = self._rows
        episodes = [
            (identity, int(rows.slots.steps[rows.slot(identity)])) for identity in rows.identities()
        ]
        for identity, _ in episodes:
            self.forget(identity)
        for identity, steps in episodes:
            if identity >= 0:
                self.track(-identity - 1, steps)

    def state(self) -> dict[str, Any] | None:
        """Return what is not known from the episodes, as JSON values."""
        return {"generator": generator_state(self._rng)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; a file without a generator leaves this one as it is.

        Raises:
            CheckpointError: The generator's state is malformed.
        """
        if "generator" in state:
            set_generator_state(self._rng, state["generator"])

    def clear(self) -> None:
        """Forget every episode; the generator goes on."""
        if not self._attached:
            self._rows.clear()

    def drop_all(self) -> None:
        """Forget every episode, whether a subclass defines `clear` or only `forget`."""
        if type(self).clear is Strategy.clear and type(self).forget is not Strategy.forget:
            for identity in self._rows.identities():
                self.forget(identity)
        self.clear()

    def begin_simple_import(self) -> None:
        """Get ready for the episodes of a file: `load_state`, then `track` for each."""
        self._in_simple_import = True

    def end_simple_import(self) -> None:
        """Finish an import."""
        self._in_simple_import = False


class SampleStrategy(Strategy, ABC):
    """Chooses windows."""

    _purpose = "sample"

    @abstractmethod
    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return windows to sample.

        Args:
            count: Number of windows, n.
            transition_count: Rows per window, T.

        Returns:
            ``count`` times (id, start, start + T).
        """

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of windows to sample, shape (n,); see `sample`."""
        return self._rows.rows_of(self.sample(count, transition_count), transition_count)

    def on_sample_rows(self, rows: IndexArray, transition_count: int) -> None:
        """Learn which windows were sampled; see `on_sample`."""
        if type(self).on_sample is not Strategy.on_sample:
            self.on_sample(self._rows.points(rows, transition_count), transition_count)

    def annotations(self, rows: IndexArray, transition_count: int) -> dict[str, NDArray[Any]]:
        """Return what the batch of these windows gets besides the columns, by name."""
        del rows, transition_count
        return {}

    def update_priorities(
        self, sample_ids: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """Take over priorities of sampled windows; only prioritised strategies can.

        Raises:
            ConfigurationError: Always, here.
        """
        del sample_ids, priorities
        raise ConfigurationError(
            "update_priorities: expected a table with a PrioritizedSampleStrategy, got one with a "
            f"{type(self).__name__}; pass such a sampler when making the table."
        )


class EjectionStrategy(Strategy, ABC):
    """Chooses episodes to remove."""

    _purpose = "eject"

    @abstractmethod
    def sample(self, count: int) -> Sequence[int]:
        """Return ids of different episodes that together have at least ``count`` transitions."""

    def on_sample_rows(self, rows: IndexArray, transition_count: int) -> None:
        """Learn which windows the table sampled; see `on_sample`."""
        if type(self).on_sample is not Strategy.on_sample:
            self.on_sample(self._rows.points(rows, transition_count), transition_count)


def prefers_rows(strategy: SampleStrategy) -> bool:
    """Return whether ``sample_rows`` is as new as ``sample``.

    A class that derives from one of ours and redefines only ``sample`` must be asked by that.
    """
    names = {"sample", "sample_rows"}
    newest = next(base for base in type(strategy).__mro__ if names & vars(base).keys())
    return "sample_rows" in vars(newest)


def watches_samples(strategy: SampleStrategy | EjectionStrategy) -> bool:
    """Return whether the strategy wants to be told about samples at all."""
    kinds = (SampleStrategy.on_sample_rows, EjectionStrategy.on_sample_rows)
    return (
        type(strategy).on_sample_rows not in kinds
        or type(strategy).on_sample is not Strategy.on_sample
    )


def require_coverable(rows: EpisodeRows, count: int) -> None:
    """Raise unless the episodes have ``count`` transitions to eject.

    Raises:
        InputError: They have fewer.
    """
    if count > rows.steps:
        raise InputError(
            f"eject: expected at most {rows.steps} transitions (all that are stored), got {count}."
        )


def eject_weighted(
    rows: EpisodeRows,
    count: int,
    rng: np.random.Generator,
    draw: Callable[[int], IndexArray],
    weights: Callable[[IndexArray], NDArray[np.float64]],
) -> list[int]:
    """Return ids of different episodes, drawn one after the other, that cover ``count``.

    Drawing again what was drawn before is skipped; when most of the weight is drawn already, the
    rest is put in the same random order at once: sorting E / w with E exponential is drawing
    without repetition in proportion to w (Efraimidis and Spirakis, 2006).

    Args:
        rows: The episodes.
        count: Transitions to cover.
        rng: Source of randomness of the rest's order.
        draw: Returns that many slots, with repetition, in proportion to their weights.
        weights: Returns the weights of slots.

    Raises:
        InputError: There are not so many transitions.
    """
    require_coverable(rows, count)
    if count <= 0:
        return []
    chosen: dict[int, None] = {}
    covered = 0
    for _ in range(_EJECTION_ROUNDS):
        for slot in draw(_EJECTION_DRAWS).tolist():
            if covered >= count:
                break
            if slot not in chosen:
                chosen[slot] = None
                covered += int(rows.slots.steps[slot])
    if covered < count:
        rest = np.array([s for s in rows.live_slots().tolist() if s not in chosen], np.int64)
        for slot in rest[np.argsort(rng.exponential(size=len(rest)) / weights(rest))].tolist():
            if covered >= count:
                break
            chosen[slot] = None
            covered += int(rows.slots.steps[slot])
    return [rows.slots.identity[slot] for slot in chosen]


def require_free(strategy: Strategy, role: str) -> None:
    """Raise unless no table uses ``strategy`` yet.

    Raises:
        ConfigurationError: It follows a table already.
    """
    if strategy.attached:
        raise ConfigurationError(
            f"ArrayMemoryTable: expected the table's own {role}, got a {type(strategy).__name__} "
            "that follows another table; make one per table."
        )

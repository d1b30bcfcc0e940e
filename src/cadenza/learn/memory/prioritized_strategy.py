"""Surprising windows first: prioritised replay with importance weights.

Window i, which starts at a step of priority p_i, is drawn with probability
    P(i) = p_i^alpha / sum_j p_j^alpha
over all windows that fit into an episode, and has the weight
    w_i = (n P(i))^(-beta) / max_j w_j = (p_i / min_j p_j)^(-alpha beta)   in (0, 1].
Source:  Schaul et al., Prioritized Experience Replay, arXiv:1511.05952, section 3.3-3.4.
Departs: windows are drawn independently, not one from each of n equal shares of the sum (appendix
         B.2.1): the order of a batch then says nothing about the age of its windows.
Cost:    O(log N) per draw and update, O(L + log N) per episode. The trees are for one window
         length; asking for another one builds them anew, O(N).
Axes:    N = rows, n = windows, T = rows per window, L = steps of an episode.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.learn.memory.column import IndexArray, SamplePoint
from cadenza.learn.memory.ring import EpisodeRows, RowMove, moved
from cadenza.learn.memory.segment_tree import ArrayMinTree, ArraySumTree
from cadenza.learn.memory.strategy import SampleStrategy, checked_alpha

#: Keys that a batch gets.
SAMPLE_WEIGHTS: Final = "sample_weights"
SAMPLE_IDS: Final = "sample_ids"


class PrioritizedSampleStrategy(SampleStrategy):
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
        if not 0.0 < epsilon < float("inf"):
            raise ConfigurationError(f"epsilon: expected a finite number > 0, got {epsilon}.")
        self.alpha: float = checked_alpha(alpha)
        self._epsilon = float(epsilon)
        self.beta = beta
        self._max_priority = 1.0
        self._remembered: dict[int, NDArray[np.float32]] = {}
        self._start_on(self._rows)

    @property
    def beta(self) -> float:
        """How much of the bias the weights correct."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise ConfigurationError(f"beta: expected a number in [0, 1], got {value}.")
        self._beta = float(value)

    def _start_on(self, rows: EpisodeRows) -> None:
        self._priority = np.zeros(rows.capacity, np.float32)
        self._drop_trees()
        rows.add_listener(self)

    def _drop_trees(self) -> None:
        self._length = 0  # rows per window that the trees are for; 0: there are none
        self._sums = ArraySumTree(np.zeros(1))
        self._minima = ArrayMinTree(np.ones(1))

    def attach(self, rows: EpisodeRows) -> None:
        """Follow the episodes in ``rows``; see `Strategy.attach`."""
        self._rows.remove_listener(self)
        super().attach(rows)
        self._start_on(rows)

    def rows_moved(self, moves: Sequence[RowMove], capacity: int) -> None:
        """Bring the priorities to the rows' new places; see `RowListener`."""
        self._priority = moved(self._priority, moves, capacity)
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
        self._set_trees(start, usable)

    def forget(self, identity: int) -> None:
        """Count an episode out."""
        start, usable = self._place(identity)
        windows = usable - self._length + 1
        if self._length and windows > 0:
            self._sums.set_range(start, np.zeros(windows))
            self._minima.set_range(start, np.full(windows, np.inf))
        super().forget(identity)

    def clear(self) -> None:
        """Forget every episode and priority; the generator goes on."""
        super().clear()
        self._remembered.clear()
        self._max_priority = 1.0
        self._priority[:] = 0.0
        self._drop_trees()

    def end_simple_import(self) -> None:
        """Finish an import; priorities of episodes that did not come are dropped."""
        super().end_simple_import()
        self._remembered.clear()

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`.

        Raises:
            NoWindowError: No episode is long enough.
        """
        return self._rows.points(self.sample_rows(count, transition_count), transition_count)

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
        if sample_ids.shape != priorities.shape or sample_ids.ndim != 1:
            raise InputError(
                "update_priorities: expected ids and priorities of one shape (n,), got "
                f"{sample_ids.shape} and {priorities.shape}."
            )
        rows, known = self._rows.rows_of_sample_ids(sample_ids)
        _require_priorities(priorities)
        self._set_priorities(rows[known], priorities[known])
        return int(known.sum())

    def _set_priorities(self, rows: IndexArray, priorities: NDArray[np.float64]) -> None:
        """Set the priorities of the windows that start at ``rows``."""
        _require_priorities(priorities)
        if priorities.shape != rows.shape:
            raise InputError(
                f"priorities: expected one for each of {len(rows)} windows, got shape "
                f"{priorities.shape}."
            )
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

    def _set_trees(self, start: int, usable: int) -> None:
        """Bring the priorities of one episode into the trees, if there are any."""
        windows = usable - self._length + 1
        if self._length and windows > 0:
            masses = self._masses(self._priority[start : start + windows])
            self._sums.set_range(start, masses)
            self._minima.set_range(start, masses)

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
        try:
            remembered = _read_priorities(state)
            alpha, epsilon = float(state["alpha"]), float(state["epsilon"])
            beta, highest = float(state["beta"]), float(state["max_priority"])
            if not (alpha >= 0.0 and epsilon > 0.0 and 0.0 <= beta <= 1.0 and highest > 0.0):
                raise ValueError("a number out of range")  # noqa: TRY301 - one message for all
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise CheckpointError(
                f"prioritised strategy: expected settings and priorities, got {sorted(state)}: "
                f"{error!r}."
            ) from error
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


def _require_priorities(priorities: NDArray[np.float64]) -> None:
    """Raise unless all are finite and not negative."""
    if not (np.isfinite(priorities).all() and (priorities >= 0.0).all()):
        raise InputError(
            "priorities: expected finite numbers >= 0, got "
            f"{priorities[~((priorities >= 0.0) & np.isfinite(priorities))][:3].tolist()}; pass "
            "e.g. absolute TD errors."
        )

"""Which windows fit into the episodes of a memory, and how they are drawn.

Draws:   row uniform in the used part of the ring, rejected unless its window fits; this is exactly
         uniform over all windows, in O(1) per window whatever N is. Where few rows can start a
         window, `WindowTree` finds one in O(log E) instead.
Axes:    N = rows, E = stored episodes, T = rows of a window; see `EpisodeRing`.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError
from cadenza.learn.memory.core_types import IndexArray, SamplePoint
from cadenza.learn.memory.episode_ring import EpisodeRing
from cadenza.learn.memory.errors import NoWindowError

#: Rejection is used while at least one in so many rows can start a window.
_MOST_REJECTED: Final = 8
#: A sample id holds, from its low bits up, the row, the number of moves so far, and the serial
#: number of the row's episode, as far as they fit into 63 bits.
_ROW_BITS: Final = 34
_MOVES_BITS: Final = 6
_MOVES_MASK: Final = (1 << _MOVES_BITS) - 1
_SERIAL_MASK: Final = (1 << (63 - _ROW_BITS - _MOVES_BITS)) - 1
#: Standard deviations of spare draws, so that one round nearly always suffices.
_SPARE: Final = 3.0


class EpisodeRows(EpisodeRing):
    """Finds rows for episodes, and windows in them; arguments as for `EpisodeRing`."""

    def draw_windows(self, rng: np.random.Generator, count: int, length: int) -> IndexArray:
        """Return the first rows of ``count`` windows, uniform over all that fit, shape (n,).

        Args:
            rng: Only source of randomness.
            count: Number of windows, n; the same one may come twice.
            length: Rows per window, T.

        Raises:
            NoWindowError: No episode is long enough.
        """
        total = self.require_windows(length)
        low, high = self._span()
        span = high - low
        if total * _MOST_REJECTED < span:
            slots, steps = self.windows.tree(length, self.slots.usable, self.live_slots).find(
                rng.integers(0, total, size=count)
            )
            return self.slots.start[slots] + steps
        if total == span:
            return rng.integers(low, high, size=count)
        rejected = span / total - 1.0
        found: IndexArray | None = None
        while True:
            missing = count if found is None else count - len(found)
            spare = int(missing * rejected + _SPARE * math.sqrt(missing * rejected)) + 1
            rows = rng.integers(low, high, size=missing + spare)
            rows = rows[self.remaining[rows] >= length]
            found = rows if found is None else np.concatenate((found, rows))
            if len(found) >= count:
                return found[:count]

    def draw_steps(self, rng: np.random.Generator, count: int) -> IndexArray:
        """Return the slots of ``count`` uniformly drawn usable steps; none if there are no such."""
        if self.windows.total(1) == 0:
            return np.zeros(0, np.int64)
        return self.slot_of_row[self.draw_windows(rng, count, 1)].astype(np.int64)

    def require_windows(self, length: int) -> int:
        """Return how many windows of ``length`` rows there are, at least 1.

        Raises:
            NoWindowError: There is none.
        """
        total = self.windows.total(length)
        if total == 0:
            longest = self.windows.longest()
            raise NoWindowError(
                f"sample: expected an episode of at least {length} steps, got {len(self._live)} "
                f"episodes of at most {longest}; lower the length, collect longer episodes, or let "
                f"their parts be as long by MemoryTableProxy's minimum_length_threshold={length}."
            )
        return total

    def points(self, rows: IndexArray, length: int) -> list[SamplePoint]:
        """Return the windows that start at ``rows`` as (id, start, stop)."""
        slots = self.slot_of_row[rows]
        starts = (rows - self.slots.start[slots]).tolist()
        identity = self.slots.identity
        return [
            (identity[slot], start, start + length)
            for slot, start in zip(slots.tolist(), starts, strict=True)
        ]

    def rows_of(self, points: Sequence[SamplePoint], length: int) -> IndexArray:
        """Return the first rows of windows given as (id, start, stop), shape (n,).

        Raises:
            UnknownEpisodeError: An episode is not stored.
            InputError: A window is not inside its episode or has another length.
        """
        slots = np.fromiter((self.slot(point[0]) for point in points), np.int64, len(points))
        starts = np.fromiter((point[1] for point in points), np.int64, len(points))
        stops = np.fromiter((point[2] for point in points), np.int64, len(points))
        usable = self.slots.usable[slots]
        wrong = (starts < 0) | (stops > usable) | (stops - starts != length)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise InputError(
                f"sample: expected windows of {length} steps inside their episodes, got "
                f"[{starts[first]}, {stops[first]}) in episode {points[first][0]}, which has "
                f"{usable[first]}; correct the sample strategy."
            )
        return self.slots.start[slots] + starts

    def sample_ids(self, rows: IndexArray) -> IndexArray:
        """Return numbers that find the episodes' steps at ``rows`` again, or tell they are gone.

        They become stale when rows move, too. Shape (n,).
        """
        return (self._stamps(rows) << _ROW_BITS) | rows

    def _stamps(self, rows: IndexArray) -> IndexArray:
        """Return what tells the present step at a row from all others that were there before."""
        serials = self.slots.serial[self.slot_of_row[rows]] & _SERIAL_MASK
        return (serials << _MOVES_BITS) | (self._moves & _MOVES_MASK)

    def rows_of_sample_ids(self, sample_ids: IndexArray) -> tuple[IndexArray, NDArray[np.bool_]]:
        """Return the rows that `sample_ids` named, and which of them still hold the same step."""
        rows = sample_ids & ((1 << _ROW_BITS) - 1)
        known = (sample_ids >= 0) & (rows < self._capacity)
        rows = np.where(known, rows, 0)
        known &= (self.remaining[rows] > 0) & (self._stamps(rows) == sample_ids >> _ROW_BITS)
        return rows, known

    def _span(self) -> tuple[int, int]:
        """Return the range of rows that holds every episode."""
        if not self._live:
            return 0, 0
        oldest = int(self.slots.start[next(iter(self._live.values()))])
        return (oldest, self._head) if oldest < self._head else (0, self._end)

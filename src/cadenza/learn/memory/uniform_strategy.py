"""Every window, or every transition, with the same probability."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cadenza.learn.memory.core_types import IndexArray, SamplePoint
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    SampleStrategy,
    Strategy,
    eject_weighted,
    require_coverable,
)


class UniformStrategyBase(Strategy):
    """Part that sampling and ejecting share."""


class UniformSampleStrategy(UniformStrategyBase, SampleStrategy):
    """Samples uniformly over all windows that fit into an episode.

    Episodes shorter than the window are never sampled.
    """

    def sample(self, count: int, transition_count: int) -> Sequence[SamplePoint]:
        """Return ``count`` windows; see `SampleStrategy.sample`.

        Raises:
            NoWindowError: No episode is long enough.
        """
        return self._rows.points(self.sample_rows(count, transition_count), transition_count)

    def sample_rows(self, count: int, transition_count: int) -> IndexArray:
        """Return the first rows of ``count`` windows, shape (n,); see `sample`."""
        return self._rows.draw_windows(self._rng, count, transition_count)


class UniformEjectionStrategy(UniformStrategyBase, EjectionStrategy):
    """Ejects the episodes of uniformly drawn transitions."""

    def sample(self, count: int) -> Sequence[int]:
        """Return ids of episodes with at least ``count`` transitions; see `EjectionStrategy`.

        Raises:
            InputError: There are not so many transitions.
        """
        require_coverable(self._rows, count)
        return eject_weighted(self._rows, count, self._rng, self._draw, self._weights)

    def _draw(self, count: int) -> IndexArray:
        return self._rows.draw_steps(self._rng, count)

    def _weights(self, slots: IndexArray) -> NDArray[np.float64]:
        return self._rows.slots.steps[slots].astype(np.float64)

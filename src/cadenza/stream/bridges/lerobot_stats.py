"""Statistics that a LeRobotDataset keeps of each feature, per episode and of all frames.

Numbers:  extremes, mean, population standard deviation and quantiles of each component.
Images:   the same of each colour channel over all pixels, of levels divided by 255.
Exact:    everything, except quantiles of a whole dataset with more numbers than `KEPT_NUMBERS` per
          feature: those are of every 2nd, 4th, ... frame.
Source:   pairwise update of the variance, T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating
          formulae and a pairwise algorithm for computing sample variances", 1979, eq. (2.1b).

Axes:  n = frames, C = channels, H, W = pixels.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Statistics = dict[str, list[Any]]

#: Names of the quantiles and what they are.
QUANTILES: Final = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
#: Numbers of a feature that are kept for the quantiles of a dataset.
KEPT_NUMBERS: Final = 1 << 20
#: Levels of a colour channel.
LEVELS: Final = 256


class ThinnedRows:
    """Rows of a growing table: all of them, or every 2nd, 4th, ... once there are too many."""

    def __init__(self, limit: int) -> None:
        """Keep at most ``limit`` rows, at least two."""
        self._limit = max(limit, 2)
        self._stride = 1
        self._seen = 0
        self._kept: list[Array] = []

    def add(self, rows: Array) -> None:
        """Add ``rows``, (n, ...)."""
        self._kept.append(rows[-self._seen % self._stride :: self._stride].copy())
        self._seen += len(rows)
        while sum(map(len, self._kept)) > self._limit:
            self._kept = [self.rows()[::2].copy()]
            self._stride *= 2

    def rows(self) -> Array:
        """Return the kept rows."""
        return np.concatenate(self._kept)


class NumberStatistics:
    """Statistics of a feature of numbers or booleans."""

    def __init__(self, shape: tuple[int, ...], *, kept_numbers: int = KEPT_NUMBERS) -> None:
        """Expect values of ``shape``; keep ``kept_numbers`` of them for quantiles."""
        self._count = 0
        self._extremes: tuple[Array, Array] | None = None
        self._mean: FloatArray = np.zeros(shape)
        self._squares: FloatArray = np.zeros(shape)
        self._rows = ThinnedRows(kept_numbers // max(int(np.prod(shape)), 1))

    def add(self, values: Array) -> Statistics:
        """Add an episode, (n, *shape), and return the statistics of it alone."""
        count = len(values)
        low, high = values.min(axis=0), values.max(axis=0)
        mean = values.mean(axis=0, dtype=np.float64)
        squares = np.square(values - mean).sum(axis=0)
        if self._extremes is None:
            self._extremes = (low, high)
        else:
            self._extremes = (
                np.minimum(self._extremes[0], low),
                np.maximum(self._extremes[1], high),
            )
        total = self._count + count
        shift = mean - self._mean
        self._squares = self._squares + squares + np.square(shift) * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._count = total
        self._rows.add(values)
        return _statistics((low, high), mean, squares, count, values)

    def total(self) -> Statistics:
        """Return the statistics of everything added.

        Raises:
            NotReadyError: Nothing was added.
        """
        if self._extremes is None:
            raise NotReadyError("NumberStatistics.total: expected values, got none; add some.")
        return _statistics(
            self._extremes, self._mean, self._squares, self._count, self._rows.rows()
        )


def _statistics(
    extremes: tuple[Array, Array], mean: FloatArray, squares: FloatArray, count: int, rows: Array
) -> Statistics:
    quantiles = np.quantile(rows.astype(np.float64), list(QUANTILES.values()), axis=0)
    return {
        "min": extremes[0].tolist(),
        "max": extremes[1].tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(squares / count).tolist(),
        "count": [count],
        **{name: value.tolist() for name, value in zip(QUANTILES, quantiles, strict=True)},
    }


class ImageStatistics:
    """Statistics of a feature of images, from how often each level occurs."""

    def __init__(self, channels: int) -> None:
        """Expect images (H, W, C)."""
        self._frames = 0
        self._counts: NDArray[np.int64] = np.zeros((channels, LEVELS), dtype=np.int64)

    def add(self, values: Array) -> Statistics:
        """Add an episode, uint8 (n, H, W, C), and return the statistics of it alone."""
        counts = np.stack(
            [
                np.bincount(values[..., channel].reshape(-1), minlength=LEVELS)
                for channel in range(len(self._counts))
            ]
        )
        self._frames += len(values)
        self._counts = self._counts + counts
        return _level_statistics(counts, len(values))

    def total(self) -> Statistics:
        """Return the statistics of everything added, of which there must be some."""
        return _level_statistics(self._counts, self._frames)


def _level_statistics(counts: NDArray[np.int64], frames: int) -> Statistics:
    """Return statistics by channel, (C, 1, 1), of how often each level occurs, (C, LEVELS)."""
    levels = np.arange(LEVELS)
    pixels = counts.sum(axis=1)  # (C,)
    mean = counts @ levels / pixels
    variance = (counts * np.square(levels - mean[:, None])).sum(axis=1) / pixels
    low = (counts > 0).argmax(axis=1)
    high = LEVELS - 1 - (counts > 0)[:, ::-1].argmax(axis=1)
    values = {"min": low, "max": high, "mean": mean, "std": np.sqrt(variance)}
    values |= {name: _level_quantile(counts, share) for name, share in QUANTILES.items()}
    scaled = {name: (value / (LEVELS - 1)).reshape(-1, 1, 1) for name, value in values.items()}
    return {**{name: value.tolist() for name, value in scaled.items()}, "count": [frames]}


def _level_quantile(counts: NDArray[np.int64], share: float) -> FloatArray:
    """Return a quantile of each channel, between two pixels by their distance, shape (C,)."""
    position = share * (counts.sum(axis=1) - 1)
    before = np.floor(position).astype(np.int64)
    upto = counts.cumsum(axis=1)  # pixels of a level or below
    lower = (upto <= before[:, None]).sum(axis=1)
    upper = (upto <= before[:, None] + 1).sum(axis=1)  # has no weight behind the last pixel
    return lower + (upper - lower) * (position - before)

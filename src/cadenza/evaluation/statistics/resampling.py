"""Resampling kernels: one bootstrap by indices, by counts, by binomials, and without drawing.

Gather:   draws indices, gathers, partitions: any trimmed mean of real scores; the plain reference.
Counts:   a replicate is how often each cell was drawn. Draws of one column come several at a time
          from a table of counts, so few random numbers serve many cells; means, profiles and gaps
          are one matrix product, and a trimmed mean needs cumulative counts in two windows around
          its cuts only.
Binomial: 0/1 outcomes: successes of a drawn seed are binomial, so one number stands for a seed.
Exact:    0/1 outcomes: the distribution of a replicate's successes by convolution, no draws at all.
Streams:  replicates come in blocks of `BLOCK`, each with a stream of its own, so that results
          depend neither on how many are held at once nor on how many follow.
Axes:     B = replicates, R = rows (runs, seeds), C = columns (tasks, partners), N = R C cells.
Source:   Efron and Tibshirani 1993, An Introduction to the Bootstrap; stratified by column as in
          Agarwal et al. 2021, arXiv:2108.13264, section 4.1.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence

#: Replicates of one stream; small enough that a block of 1000 cells stays in the cache.
BLOCK: Final = 256
#: Entries of the largest table of counts.
_TABLE: Final = 100_000
#: Half-width of a window around a cut, in standard deviations of the number of draws below it.
_WINDOW: Final = 6.0

#: How often each cell was drawn.
Counts: TypeAlias = NDArray[np.unsignedinteger[Any]]


def gather_trimmed_means(
    values: FloatArray, *, replicates: int, rng: np.random.Generator, trim: float = 0.25
) -> FloatArray:
    """Return B trimmed means of ``values``, (R, C), rows redrawn on their own in each column.

    Positions floor(trim N) to N - floor(trim N) of the sorted N values are averaged.

    Raises:
        InputError: Not two dimensions, a value not finite, ``trim`` outside [0, 0.5), B < 1.
    """
    rows, columns = _require_matrix(values, replicates, trim)
    cut = int(trim * values.size)
    kept = values.size - cut
    means: list[FloatArray] = []
    for size, stream in _blocks(replicates, rng):
        index = stream.integers(rows, size=(size, rows, columns), dtype=np.uint16)
        drawn = values[index, np.arange(columns)].reshape(size, -1)
        if cut:
            drawn = np.partition(drawn, (cut, kept - 1), axis=1)
        means.append(drawn[:, cut:kept].mean(axis=1))
    return np.concatenate(means)


def stratified_counts(
    rows: int, columns: int, *, replicates: int, rng: np.random.Generator
) -> Iterator[Counts]:
    """Yield how often each row was drawn in each column, (b, C R) blocks, R draws per column."""
    if rows > np.iinfo(np.uint16).max:
        raise InputError(f"stratified_counts: expected at most 65535 rows, got {rows}.")
    group = 1 if rows == 1 else max(1, int(math.log(_TABLE + 0.5, rows)))
    for size, stream in _blocks(replicates, rng):
        counts: Counts = np.zeros((size * columns, rows), dtype=_count_type(rows))
        for start in range(0, rows, group):
            table = _count_table(rows, min(group, rows - start))
            counts += table[stream.integers(len(table), size=size * columns, dtype=np.uint32)]
        yield counts.reshape(size, columns * rows)


def cluster_counts(
    rows: int, columns: int, *, replicates: int, rng: np.random.Generator
) -> Iterator[Counts]:
    """Yield the counts of whole rows drawn for all columns at once, (b, C R) blocks."""
    for counts in stratified_counts(rows, 1, replicates=replicates, rng=rng):
        yield np.tile(counts, (1, columns))


def count_trimmed_means(
    blocks: Iterator[Counts], values: FloatArray, *, trim: float = 0.25
) -> FloatArray:
    """Return the trimmed mean of each replicate; ``values``, (N,), in the order of the counts.

    With v ascending and C_j draws of the j + 1 smallest, the sum of the x smallest draws is
    x v_last - sum_j min(C_j, x) (v_(j+1) - v_j); two of them give the middle. Every replicate has
    to draw the same number, N; `weighted_trimmed_means` has no such limit.
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    n = values.size
    cut = int(trim * n)
    middle = float(ranked[n // 2])
    parts = [_Window.at(x, ranked - middle, order) for x in (cut, n - cut)]
    totals = np.zeros((n, 4))
    for k, part in enumerate(parts):
        below = order[: part.start]
        totals[below, 2 * k] = 1.0
        totals[below, 2 * k + 1] = values[below] - middle
    means: list[FloatArray] = []
    for counts in blocks:
        sums = counts.astype(np.float64) @ totals
        low, high = (
            part.smallest(counts, sums[:, 2 * k], sums[:, 2 * k + 1])
            for k, part in enumerate(parts)
        )
        mean = (high - low) / (n - 2 * cut)
        missed = np.isnan(mean)
        if missed.any():
            mean[missed] = weighted_trimmed_means(counts[missed], values - middle, trim=trim)
        means.append(mean + middle)
    return np.concatenate(means)


def weighted_trimmed_means(
    weights: Counts, values: FloatArray, *, trim: float = 0.25
) -> FloatArray:
    """Return the trimmed mean of each row of ``weights``, (B, N), counts that may sum to any n.

    Raises:
        InputError: A row without draws.
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    reached = np.cumsum(weights[:, order], axis=1, dtype=np.int64)
    n = reached[:, -1:]
    if bool((n < 1).any()):
        raise InputError("weighted_trimmed_means: expected every row to draw something.")
    cut = (trim * n).astype(np.int64)
    inside = np.clip(reached[:, :-1], cut, n - cut) - cut
    kept = (n - 2 * cut)[:, 0]
    return ranked[-1] - (inside @ np.diff(ranked)) / kept


class _Window:
    """The sum of the x smallest draws, from cumulative counts of a few ranks around x."""

    def __init__(self, x: int, start: int, columns: NDArray[np.intp], ranked: FloatArray) -> None:
        self.x, self.start, self._columns = x, start, columns
        self._last = float(ranked[-1])
        self._gaps = np.diff(ranked)

    @classmethod
    def at(cls, x: int, ranked: FloatArray, order: NDArray[np.intp]) -> "_Window":
        """Return the window of ranks in which all but rare replicates reach ``x`` draws."""
        n = ranked.size
        half = math.ceil(_WINDOW * math.sqrt(x * (n - x) / n)) + 2
        start, stop = max(0, x - half), min(n, x + half)
        return cls(x, start, order[start:stop], ranked[start:stop])

    def smallest(self, counts: Counts, drawn: FloatArray, total: FloatArray) -> FloatArray:
        """Return the sum, given draws and their sum below the window; NaN where it lies outside."""
        reached = np.cumsum(counts.take(self._columns, axis=1), axis=1, dtype=np.int32)
        need = self.x - drawn
        inside = np.minimum(reached[:, :-1], need[:, None])
        sums = total + need * self._last - inside @ self._gaps
        return np.where((need >= 0.0) & (reached[:, -1] >= need), sums, np.nan)


def two_level_successes(
    successes: Sequence[int], trials: Sequence[int], *, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """Return B success rates of seeds drawn with replacement, then episodes inside each.

    A drawn seed s adds Binomial(E_s, k_s / E_s) successes and E_s episodes.

    Raises:
        InputError: Counts out of range, or B < 1.
    """
    k, n = _require_clusters(successes, trials)
    share = k / n
    rates: list[FloatArray] = []
    for size, stream in _blocks(replicates, rng):
        drawn = stream.integers(k.size, size=(size, k.size))
        won = stream.binomial(n[drawn], share[drawn])
        rates.append(np.divide(won.sum(axis=1), n[drawn].sum(axis=1), dtype=np.float64))
    return np.concatenate(rates)


def exact_stratified_pmf(successes: Sequence[int], trials: Sequence[int]) -> FloatArray:
    """Return P(count) of a bootstrap that redraws the episodes of each column on their own.

    The product, as polynomials, of Bin(n_c, k_c / n_c); shape (sum n_c + 1,).

    Raises:
        InputError: Counts out of range.
    """
    k, n = _require_clusters(successes, trials)
    size = int(n.sum()) + 1
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    pairs, repeats = np.unique(np.stack([k, n]), axis=1, return_counts=True)
    for won, played, repeat in zip(*pairs.tolist(), repeats.tolist(), strict=True):
        spectrum *= np.fft.rfft(_binomial_pmf(played, won / played), size) ** repeat
    return _cleaned(np.fft.irfft(spectrum, size))


def exact_cluster_pmf(successes: Sequence[int], episodes: int) -> FloatArray:
    """Return P(count) of the two-level bootstrap of S seeds of equal size E, shape (S E + 1,).

    The S-th power of the mixture of Bin(E, k_s / E), each seed with weight 1 / S.

    Raises:
        InputError: Counts out of range.
    """
    k, _ = _require_clusters(successes, [episodes] * len(successes))
    size = k.size * episodes + 1
    mixture = np.mean([_binomial_pmf(episodes, float(won) / episodes) for won in k], axis=0)
    return _cleaned(np.fft.irfft(np.fft.rfft(mixture, size) ** k.size, size))


def exact_paired_pmf(wins: Sequence[int], losses: Sequence[int], pairs: int) -> FloatArray:
    """Return P(wins - losses) of the two-level bootstrap of S seeds of E pairs, (2 S E + 1,).

    Entry i belongs to the difference i - S E; sums of E draws from {-1, 0, 1} of a drawn seed.

    Raises:
        InputError: Counts out of range.
    """
    won, _ = _require_clusters(wins, [pairs] * len(wins))
    lost, _ = _require_clusters(losses, [pairs] * len(losses))
    if won.size != lost.size or bool((won + lost > pairs).any()):
        raise InputError("exact_paired_pmf: expected wins + losses <= pairs for each seed.")
    size = 2 * won.size * pairs + 1
    steps = np.zeros((won.size, size))
    steps[:, 0], steps[:, 1], steps[:, 2] = lost / pairs, 1.0 - (won + lost) / pairs, won / pairs
    mixture = (np.fft.rfft(steps, axis=1) ** pairs).mean(axis=0)
    return _cleaned(np.fft.irfft(mixture**won.size, size))


def pmf_bounds(
    pmf: FloatArray, support: FloatArray, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bounds of a distribution on an ascending ``support``, (N,)."""
    require_confidence(confidence)
    tail = (1.0 - confidence) / 2.0
    cumulative = np.cumsum(pmf)
    low, high = (int(np.searchsorted(cumulative, q - 1e-12)) for q in (tail, 1.0 - tail))
    return float(support[low]), float(support[min(high, support.size - 1)])


def trimmed_mean_of_counts(successes: FloatArray, n: int, *, trim: float = 0.25) -> FloatArray:
    """Return the trimmed mean of n 0/1 outcomes with so many successes: the rate, clipped."""
    cut = int(trim * n)
    return np.clip(successes - cut, 0, n - 2 * cut) / (n - 2 * cut)


def _blocks(replicates: int, rng: np.random.Generator) -> Iterator[tuple[int, np.random.Generator]]:
    """Yield sizes and streams of blocks of replicates; ``rng`` gives their common key."""
    if replicates < 1:
        raise InputError(f"replicates: expected >= 1, got {replicates}; 50000 give stable tails.")
    key: list[int] = rng.integers(2**32, size=4, dtype=np.uint64).tolist()
    for block, start in enumerate(range(0, replicates, BLOCK)):
        stream = np.random.default_rng(np.random.SeedSequence(key, spawn_key=(block,)))
        yield min(BLOCK, replicates - start), stream


def _count_type(rows: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest type that counts up to ``rows``."""
    return np.dtype(np.uint8) if rows < 256 else np.dtype(np.uint16)


@lru_cache(maxsize=16)
def _count_table(rows: int, draws: int) -> Counts:
    """Return the counts of every sequence of ``draws`` rows, (rows^draws, rows)."""
    sequences: NDArray[np.int64] = np.arange(int(rows**draws), dtype=np.int64)
    table: Counts = np.zeros((sequences.size, rows), dtype=_count_type(rows))
    for _ in range(draws):
        sequences, row = np.divmod(sequences, rows)
        table[np.arange(row.size), row] += 1
    table.setflags(write=False)
    return table


def _binomial_pmf(n: int, p: float) -> FloatArray:
    """Return Bin(n, p), shape (n + 1,)."""
    if p in (0.0, 1.0):
        return np.eye(n + 1)[n if p else 0]
    k = np.arange(n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, n + 1.0)))])
    return np.exp(logs[n] - logs[k] - logs[n - k] + k * math.log(p) + (n - k) * math.log1p(-p))


def _cleaned(pmf: FloatArray) -> FloatArray:
    """Return ``pmf`` without round-off below zero, summing to 1."""
    clipped = np.maximum(pmf, 0.0)
    return clipped / clipped.sum()


def _require_clusters(
    successes: Sequence[int], trials: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    k, n = np.asarray(successes, dtype=np.int64), np.asarray(trials, dtype=np.int64)
    if k.ndim != 1 or k.shape != n.shape or not k.size or bool(((k < 0) | (k > n) | (n < 1)).any()):
        raise InputError(
            f"expected 0 <= successes <= trials, trials >= 1, of at least one cluster, got "
            f"{k.tolist()} of {n.tolist()}."
        )
    return k, n


def _require_matrix(values: FloatArray, replicates: int, trim: float) -> tuple[int, int]:
    require_finite("values", values)
    if values.ndim != 2 or not values.size or not 0.0 <= trim < 0.5 or replicates < 1:
        raise InputError(
            f"expected values (R, C), trim in [0, 0.5) and replicates >= 1, got {values.shape}, "
            f"{trim} and {replicates}."
        )
    return values.shape[0], values.shape[1]

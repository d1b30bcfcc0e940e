"""One training run on each side: exact tests and score intervals of yes-or-no outcomes.

Paired:     unconditional exact McNemar. Tables are ordered by z = (w - l) / sqrt(w + l); p is the
            largest probability of a table as extreme, over every share of pairs that differ.
            Source: Suissa and Shuster 1991, Biometrics 47, 361-372. Beyond `MAX_PAIRS`, or where
            start states were chosen by hand, the conditional test: signs of differing pairs.
            Interval: Tango 1998, Statistics in Medicine 17, 891-908 (score).
Unpaired:   Boschloo 1970, Statistica Neerlandica 24, 1-9: tables ordered by Fisher's p; beyond
            `MAX_RUNS` a side the score test. Interval: Miettinen and Nurminen 1985, Statistics in
            Medicine 4, 213-226 (score, variance times N / (N - 1)).
Agreement:  where a score interval and the exact test disagree about 0, the critical value of the
            interval moves just as far as agreement needs: the bounds exclude 0 iff p <= level.
Limits:     both hold for these two runs only: training luck is in none of them.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_level, normal_quantile, require_counts

#: Pairs above which the conditional test is used; p differs little there, and time grows as n^2.
MAX_PAIRS: Final = 1000
#: Episodes a side above which the score test replaces Boschloo's.
MAX_RUNS: Final = 500
#: Points at which the nuisance share is tried first.
_POINTS: Final = 400
#: Slack of comparisons between equal probabilities or statistics.
_TIE: Final = 1e-9
_HALVINGS: Final = 60
#: Flips up to which whole numbers count a tail, in milliseconds; logarithms lose digits.
_EXACT_FLIPS: Final = 2000


def mcnemar_p(wins: int, losses: int, n_pairs: int, *, conditional: bool = False) -> float:
    """Return the one-sided p of "no more wins than losses" among ``n_pairs`` pairs.

    p = max over th of sum_m Bin(n, th)(m) P(W >= ceil((z sqrt(m) + m) / 2)), W ~ Bin(m, 1/2);
    conditional: P(W >= w) with W ~ Bin(w + l, 1/2). No differing pair gives 1.

    Raises:
        InputError: Counts out of range.
    """
    if wins < 0 or losses < 0:
        raise InputError(f"mcnemar_p: expected counts >= 0, got {wins} wins, {losses} losses.")
    require_counts("mcnemar_p", wins + losses, n_pairs)
    differing = wins + losses
    if conditional or n_pairs > MAX_PAIRS or wins <= losses:  # at least 1/2 either way
        return _coin_tail(differing, wins)
    z = (wins - losses) / math.sqrt(differing)
    tails: FloatArray = np.zeros(n_pairs + 1)
    log_choose = _log_factorials(n_pairs)
    for m in range(1, n_pairs + 1):
        least = math.ceil((z * math.sqrt(m) + m) / 2.0 - _TIE)
        if least <= m:
            w = np.arange(least, m + 1)
            logs = log_choose[m] - log_choose[w] - log_choose[m - w] - m * math.log(2.0)
            tails[m] = np.exp(logs).sum()
    return _largest(lambda shares: _binomials(n_pairs, shares) @ tails)


def boschloo_p(wins: int, n: int, reference_wins: int, reference_n: int) -> float:
    """Return the one-sided p of "no higher rate than the reference's", unpaired.

    p = max over pi of sum over tables whose one-sided Fisher p is at most the observed one.

    Raises:
        InputError: Counts out of range.
    """
    require_counts("boschloo_p", wins, n)
    require_counts("boschloo_p", reference_wins, reference_n)
    fisher = _fisher_table(n, reference_n)
    extreme = fisher <= fisher[wins, reference_wins] * (1.0 + 1e-7)

    def probability(shares: FloatArray) -> FloatArray:
        ours, theirs = _binomials(n, shares), _binomials(reference_n, shares)
        return ((ours @ extreme) * theirs).sum(axis=1)

    return min(1.0, _largest(probability))


def score_p(wins: int, n: int, reference_wins: int, reference_n: int) -> float:
    """Return the one-sided p of the score test of two independent rates (N - 1 variance)."""
    return normal_level(-_miettinen_nurminen(wins, n, reference_wins, reference_n)(0.0))


def tango_interval(
    wins: int, losses: int, n_pairs: int, *, confidence: float = 0.95, p: float | None = None
) -> tuple[float, float]:
    """Return score bounds of the difference of two rates on the same initial states.

    T(d) = (w - l - n d) / sqrt(n (2 q + d (1 - d))), q the likeliest share of losses given d.
    ``p``, of the two-sided test that the bounds are to agree with, moves them where they would not.

    Raises:
        InputError: Counts out of range.
    """
    require_counts("tango_interval", wins + losses, n_pairs)

    def statistic(d: float) -> float:
        b = (2 * n_pairs - wins + losses) * d - wins - losses
        c = -losses * d * (1.0 - d)
        share = (math.sqrt(max(0.0, b * b - 8.0 * n_pairs * c)) - b) / (4.0 * n_pairs)
        spread = n_pairs * (2.0 * share + d * (1.0 - d))
        return _ratio(wins - losses - n_pairs * d, spread)

    return _score_bounds(statistic, (wins - losses) / n_pairs, confidence, p)


def miettinen_nurminen_interval(
    wins: int,
    n: int,
    reference_wins: int,
    reference_n: int,
    *,
    confidence: float = 0.95,
    p: float | None = None,
) -> tuple[float, float]:
    """Return score bounds of the difference of two independent rates; ``p`` as `tango_interval`."""
    require_counts("miettinen_nurminen_interval", wins, n)
    require_counts("miettinen_nurminen_interval", reference_wins, reference_n)
    statistic = _miettinen_nurminen(wins, n, reference_wins, reference_n)
    return _score_bounds(statistic, wins / n - reference_wins / reference_n, confidence, p)


def _miettinen_nurminen(x1: int, n1: int, x2: int, n2: int) -> Callable[[float], float]:
    """Return the score statistic of p1 - p2 = d as a function of d (constrained MLE, closed)."""
    n = n1 + n2

    def statistic(d: float) -> float:
        l2 = (n1 + 2 * n2) * d - n - x1 - x2
        l1 = (n2 * d - n - 2 * x2) * d + x1 + x2
        l0 = x2 * d * (1.0 - d)
        q = l2**3 / (3.0 * n) ** 3 - l1 * l2 / (6.0 * n * n) + l0 / (2.0 * n)
        r = math.copysign(math.sqrt(max(0.0, l2**2 / (3.0 * n) ** 2 - l1 / (3.0 * n))), q)
        cosine = q / r**3 if r else 0.0
        angle = (math.pi + math.acos(min(1.0, max(-1.0, cosine)))) / 3.0
        p2 = min(1.0, max(0.0, 2.0 * r * math.cos(angle) - l2 / (3.0 * n)))
        p1 = min(1.0, max(0.0, p2 + d))
        variance = (p1 * (1.0 - p1) / n1 + p2 * (1.0 - p2) / n2) * n / (n - 1.0)
        return _ratio(x1 / n1 - x2 / n2 - d, variance)

    return statistic


def _ratio(distance: float, variance: float) -> float:
    """Return distance / sqrt(variance), infinite where the variance vanishes."""
    if abs(distance) < 1e-12:
        return 0.0
    return distance / math.sqrt(variance) if variance > 1e-15 else math.copysign(1e9, distance)


def _score_bounds(
    statistic: Callable[[float], float], point: float, confidence: float, p: float | None
) -> tuple[float, float]:
    """Return where the falling ``statistic`` crosses the critical value, on both sides of a point.

    Given the two-sided ``p`` of another test, the critical value is moved until 0 lies outside iff
    p <= 1 - confidence.
    """
    critical = normal_quantile(0.5 + confidence / 2.0)
    if p is not None:
        observed = abs(statistic(0.0))
        shown = p <= 1.0 - confidence
        critical = (
            min(critical, observed * (1 - 1e-6)) if shown else max(critical, observed * (1 + 1e-6))
        )

    def crossing(inside: float, outside: float) -> float:
        if abs(statistic(outside)) < critical:
            return outside
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2.0
            reached = abs(statistic(middle)) <= critical
            inside, outside = (middle, outside) if reached else (inside, middle)
        return (inside + outside) / 2.0

    return crossing(point, -1.0), crossing(point, 1.0)


def _log_factorials(n: int) -> FloatArray:
    """Return log 0! .. log n!, shape (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, n + 1.0)))])


def _coin_tail(flips: int, least: int) -> float:
    """Return P(W >= least), W ~ Bin(flips, 1/2); exact up to `_EXACT_FLIPS`."""
    if flips <= _EXACT_FLIPS:
        ways = total = math.comb(flips, least)
        for w in range(least, flips):
            ways = ways * (flips - w) // (w + 1)
            total += ways
        return total / 2**flips
    w = np.arange(least, flips + 1)
    logs = _log_factorials(flips)
    return float(np.exp(logs[flips] - logs[w] - logs[flips - w] - flips * math.log(2.0)).sum())


def _binomials(n: int, shares: FloatArray) -> FloatArray:
    """Return Bin(n, share) for each share in (0, 1), shape (len(shares), n + 1)."""
    k = np.arange(n + 1)
    logs = _log_factorials(n)
    odds = k * np.log(shares)[:, None] + (n - k) * np.log1p(-shares)[:, None]
    return np.exp(logs[n] - logs[k] - logs[n - k] + odds)


def _fisher_table(n: int, reference_n: int) -> FloatArray:
    """Return the one-sided Fisher p of every table, shape (n + 1, reference_n + 1)."""
    ours, theirs = _log_factorials(n), _log_factorials(reference_n)
    k, j = np.arange(n + 1), np.arange(reference_n + 1)
    choose = (ours[n] - ours[k] - ours[n - k])[:, None] + (
        theirs[reference_n] - theirs[j] - theirs[reference_n - j]
    )
    logs = _log_factorials(n + reference_n)
    table = np.empty_like(choose)
    for total in range(n + reference_n + 1):
        x = np.arange(min(total, n), max(0, total - reference_n) - 1, -1)  # most wins first
        all_tables = logs[-1] - logs[total] - logs[n + reference_n - total]
        table[x, total - x] = np.cumsum(np.exp(choose[x, total - x] - all_tables))
    return table


def _largest(probability: Callable[[FloatArray], FloatArray]) -> float:
    """Return the largest value over shares in (0, 1): a grid, refined around its maximum."""
    low, high = 0.0, 1.0
    best = 0.0
    for _ in range(6):
        shares = np.linspace(low, high, _POINTS + 2)[1:-1]
        values = probability(shares)
        at = int(np.argmax(values))
        best = max(best, float(values[at]))
        step = shares[1] - shares[0]
        low, high = max(0.0, shares[at] - step), min(1.0, shares[at] + step)
    return best

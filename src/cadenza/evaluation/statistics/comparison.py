"""Is one method better than another, and which of several cannot be told from the best?

Several training seeds a side:  only seed means count, `differences`.
One training run a side:        exact tests of `two_runs`; training luck is not in the interval.
Several methods:                all pairs, corrected by Holm; a method's rank lies between one plus
                                those shown better and all minus those shown worse, for all methods
                                at once with the confidence (no letters, no bare ranks).
Power:                          ``smallest_shown``, about the true difference that these numbers of
                                seeds and episodes show in four of five comparisons.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_quantile, require_confidence
from cadenza.evaluation.statistics.differences import POWER, seed_difference
from cadenza.evaluation.statistics.estimate import (
    TRAINING_LUCK,
    Clusters,
    Estimate,
    as_clusters,
    cluster_means,
    few_clusters_warning,
)
from cadenza.evaluation.statistics.multiplicity import holm
from cadenza.evaluation.statistics.two_runs import (
    MAX_PAIRS,
    MAX_RUNS,
    boschloo_p,
    mcnemar_p,
    miettinen_nurminen_interval,
    score_p,
    tango_interval,
)

#: What a comparison shows: "not worse" only where a margin was declared, "not comparable" where the
#: two sides were not played under the same rules.
Verdict = Literal["better", "not worse", "undecided", "worse", "not comparable"]

#: Values by training seed; with pairs, in the order of the initial states.
Scores: TypeAlias = Mapping[int, Sequence[float] | Sequence[bool] | FloatArray]

#: What the boundary rule of `differences` says to a reader.
_NEAR_THE_END: Final = (
    "rates near 0 or 1, or seeds that agree: the bounds are the wider of two that do not rest on "
    "the spread of the seed differences alone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate minus reference, and what it shows.

    Attributes:
        difference: With its interval; its warnings say what the interval does not cover.
        candidate: Mean of the candidate's seed means.
        reference: Mean of the reference's.
        test: Name of the two-sided test.
        p: Its p, None if undefined; at most 1 - confidence iff the interval excludes 0.
        smallest_shown: About the smallest true difference that so many seeds and episodes show in
            four of five comparisons; None if they show none, or if it is undefined.
        verdict: By the interval; by ``holm_p`` where there is one.
        margin: Loss that counts as "not worse", None if none was declared.
        holm_p: p adjusted for the other comparisons of a family, by Holm; None without others.
    """

    difference: Estimate
    candidate: float
    reference: float
    test: str
    p: float | None
    smallest_shown: float | None
    verdict: Verdict
    margin: float | None = None
    holm_p: float | None = None

    @property
    def words(self) -> str:
        """The verdict, with the margin where it rests on one."""
        harmless = f" than {self.margin:g} below" if self.verdict == "not worse" else ""
        return f"{self.verdict}{harmless}"

    def sentence(self) -> str:
        """Return the answer as one line for a reader."""
        d = self.difference
        numbers = f"{self.words}: {self.candidate:.3f} against {self.reference:.3f}"
        if d.value is None or d.low is None or d.high is None or self.p is None:
            return f"{numbers}, no interval, {d.undefined_reason}."
        shown = "too few to show any difference"
        if self.smallest_shown is not None:
            shown = f"shows a true difference of {self.smallest_shown:.3f}"
        holm = "" if self.holm_p is None else f", Holm p = {self.holm_p:.2g}"
        luck = " Training luck is not in this interval." if TRAINING_LUCK in d.warnings else ""
        return (
            f"{numbers}, difference {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}], {self.test}, "
            f"p = {self.p:.2g}{holm}; {shown} in four of five comparisons like this one.{luck}"
        )


def compare(
    candidate: Scores,
    reference: Scores,
    *,
    paired: bool,
    confidence: float = 0.95,
    margin: float | None = None,
    drawn_starts: bool = True,
) -> Comparison:
    """Return what ``candidate`` minus ``reference`` shows.

    Args:
        candidate: Values by training seed, 0/1 or real; a single seed is one training run.
        reference: The same. With ``paired``, the same seeds and numbers of episodes.
        paired: Whether the i-th values of a seed share their initial state.
        confidence: Of the interval, in (0, 1); the test's level is what it leaves.
        margin: Loss that is declared harmless, > 0, before the data were seen.
        drawn_starts: False if initial states were chosen by hand: then one run a side gets the
            conditional test.

    Raises:
        InputError: No values, seeds or sizes of pairs that differ, one seed on one side only, one
            seed of real values, or a number out of range.
    """
    require_confidence(confidence)
    if margin is not None and not margin > 0.0:
        raise InputError(f"compare.margin: expected > 0, got {margin}.")
    ours, theirs = _sides(candidate, reference, paired=paired)
    if len(ours) == 1:
        (one,), (other,) = ours.values(), theirs.values()
        found = _one_run(
            one, other, paired=paired, confidence=confidence, drawn_starts=drawn_starts
        )
    else:
        found = _several_runs(ours, theirs, paired=paired, confidence=confidence)
    return Comparison(
        difference=found.difference,
        candidate=float(cluster_means(ours).mean()),
        reference=float(cluster_means(theirs).mean()),
        test=found.test,
        p=found.p,
        smallest_shown=found.smallest_shown,
        verdict=verdict_of(found.difference, margin=margin),
        margin=margin,
    )


def verdict_of(difference: Estimate, *, margin: float | None = None) -> Verdict:
    """Return what the interval of candidate minus reference shows; ``margin`` as in `compare`."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "undecided"
    if low > 0.0:
        return "better"
    if margin is not None and low > -margin:
        return "not worse"
    return "worse" if high < 0.0 else "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Several methods at once.

    Attributes:
        means: Mean of the seed means by method, best first.
        best: Methods that no other was shown to be better than, best first.
        ranks: Least and largest rank of each method that the data allow, simultaneously.
        p: Holm-adjusted two-sided p of each pair (better mean first).
        comparisons: The same pairs, each at the unadjusted confidence.
    """

    means: Mapping[str, float]
    best: tuple[str, ...]
    ranks: Mapping[str, tuple[int, int]]
    p: Mapping[tuple[str, str], float]
    comparisons: Mapping[tuple[str, str], Comparison]


def rank(
    methods: Mapping[str, Scores],
    *,
    paired: bool,
    confidence: float = 0.95,
    drawn_starts: bool = True,
) -> Ranking:
    """Return who cannot be told from the best; arguments as `compare`, higher values are better.

    Raises:
        InputError: Fewer than two methods, or as `compare`.
    """
    if len(methods) < 2:
        raise InputError(f"rank: expected at least two methods, got {list(methods)}.")
    means = {
        name: float(np.mean([np.mean(values) for values in scores.values() if len(values)]))
        for name, scores in methods.items()
    }
    order = sorted(means, key=lambda name: (-means[name], name))
    comparisons = {
        (first, second): compare(
            methods[first],
            methods[second],
            paired=paired,
            confidence=confidence,
            drawn_starts=drawn_starts,
        )
        for first, second in combinations(order, 2)
    }
    raw = np.array([1.0 if c.p is None else c.p for c in comparisons.values()])
    adjusted = dict(zip(comparisons, holm(raw).tolist(), strict=True))
    # Holm's level is exact at equality: p <= level is shown
    shown: set[tuple[str, str]] = set()
    for pair, p in adjusted.items():
        if p <= 1.0 - confidence + 1e-12:
            value = comparisons[pair].difference.value or 0.0
            shown.add(pair if value > 0.0 else (pair[1], pair[0]))
    better = {name: sum((other, name) in shown for other in order) for name in order}
    worse = {name: sum((name, other) in shown for other in order) for name in order}
    return Ranking(
        means={name: means[name] for name in order},
        best=tuple(name for name in order if better[name] == 0),
        ranks={name: (1 + better[name], len(order) - worse[name]) for name in order},
        p=adjusted,
        comparisons=comparisons,
    )


def _sides(candidate: Scores, reference: Scores, *, paired: bool) -> tuple[Clusters, Clusters]:
    """Return both sides as arrays by seed, checked."""
    ours, theirs = as_clusters("candidate", candidate), as_clusters("reference", reference)
    if not ours or not theirs or (len(ours) == 1) != (len(theirs) == 1):
        raise InputError(
            "compare: expected one training run a side, or at least two seeds on both, got "
            f"{len(ours)} and {len(theirs)}; train more seeds, or compare single runs."
        )
    sizes = [{seed: array.size for seed, array in side.items()} for side in (ours, theirs)]
    if paired and (sizes[0] != sizes[1]):
        raise InputError(
            "compare: expected pairs to have the same seeds and numbers of episodes, got "
            f"{sizes[0]} and {sizes[1]}; pair by initial state first, or say paired=False."
        )
    return ours, theirs


def _is_binary(clusters: Clusters) -> bool:
    return all(bool(np.isin(array, (0.0, 1.0)).all()) for array in clusters.values())


class _Found(NamedTuple):
    """The fields of a `Comparison` that a test gives."""

    difference: Estimate
    test: str
    p: float | None
    smallest_shown: float | None


def _several_runs(ours: Clusters, theirs: Clusters, *, paired: bool, confidence: float) -> _Found:
    """Return what a test on seed means shows."""
    result = seed_difference(
        list(ours.values()), list(theirs.values()), paired=paired, confidence=confidence
    )
    rates = _is_binary(ours) and _is_binary(theirs)
    name = "t-mover" if rates else ("student-t" if paired else "welch-t")
    design = "paired-cluster" if paired else "two-cluster"
    seeds = min(len(ours), len(theirs))
    undefined = result.low == result.high
    estimate = Estimate(
        value=result.value,
        low=result.low,
        high=result.high,
        confidence=confidence,
        estimator=f"{'difference' if rates else 'mean'}/{design}/{name}/v1",
        n=sum(array.size for array in ours.values()),
        n_clusters=seeds,
        undefined_reason="every seed shows the same, so their spread is unknown"
        if undefined
        else None,
        warnings=(*((_NEAR_THE_END,) if result.boundary else ()), *few_clusters_warning(seeds)),
    )
    test = "paired t on seed differences" if paired else "Welch's t on seed means"
    test += ", widened near the ends" if result.boundary else ""
    return _Found(estimate, test, None if undefined else result.p, result.smallest_shown)


def _one_run(
    ours: FloatArray, theirs: FloatArray, *, paired: bool, confidence: float, drawn_starts: bool
) -> _Found:
    """Return what an exact test of one training run against one other shows."""
    if not np.isin(np.concatenate([ours, theirs]), (0.0, 1.0)).all():
        raise InputError(
            "compare: expected outcomes 0 or 1 of one run a side, got others; train several seeds, "
            "or bet on the scores of pairs (statistics.sequential)."
        )
    tail = 1.0 - confidence
    counts = int(ours.sum()), ours.size, int(theirs.sum()), theirs.size
    if paired:
        wins, losses = (int((a > b).sum()) for a, b in ((ours, theirs), (theirs, ours)))
        conditional = not drawn_starts or ours.size > MAX_PAIRS
        test = f"exact McNemar ({'' if conditional else 'un'}conditional)"
        one_sided = mcnemar_p(
            max(wins, losses), min(wins, losses), ours.size, conditional=conditional
        )
        p = min(1.0, 2.0 * one_sided)
        low, high = tango_interval(wins, losses, ours.size, confidence=confidence, p=p)
        shown = _smallest_paired((wins + losses + 1.0) / (ours.size + 2.0), ours.size, tail)
    else:
        exact = max(ours.size, theirs.size) <= MAX_RUNS
        test = "Boschloo's exact test" if exact else "score test (Miettinen and Nurminen)"
        one_sided = boschloo_p if exact else score_p
        p = min(1.0, 2.0 * min(one_sided(*counts), one_sided(*counts[2:], *counts[:2])))
        low, high = miettinen_nurminen_interval(*counts, confidence=confidence, p=p)
        pooled = (counts[0] + counts[2] + 1.0) / (counts[1] + counts[3] + 2.0)
        error = math.sqrt(pooled * (1.0 - pooled) * (1.0 / counts[1] + 1.0 / counts[3]))
        shown = (normal_quantile(1.0 - tail / 2.0) + normal_quantile(POWER)) * error
        shown = shown if shown < 1.0 else None
    estimate = Estimate(
        value=float(ours.mean() - theirs.mean()),
        low=low,
        high=high,
        confidence=confidence,
        estimator=f"difference/{'paired-' if paired else ''}one-seed/"
        f"{'tango' if paired else 'miettinen-nurminen'}/v1",
        n=ours.size,
        n_clusters=1,
        warnings=(TRAINING_LUCK,),
    )
    return _Found(estimate, test, p, shown)


def _smallest_paired(differing: float, n_pairs: int, level: float) -> float | None:
    """Return about the least difference that ``n_pairs`` show with `POWER`, None for none.

    n d^2 = (z_level sqrt(q) + z_power sqrt(q - d^2))^2, q the share of pairs that differ, >= d.
    """
    if 2.0 * 0.5**n_pairs > level:
        return None

    def shows(d: float) -> bool:
        q = max(differing, d)
        wanted = normal_quantile(1.0 - level / 2.0) * math.sqrt(q)
        return math.sqrt(n_pairs) * d >= wanted + normal_quantile(POWER) * math.sqrt(q - d * d)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high

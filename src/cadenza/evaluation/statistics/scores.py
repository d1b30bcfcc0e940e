"""Scores of several methods by seed, partner and episode, and what is read from them.

Cells:        means over the episodes of one seed with one partner; aggregates are of cells, never
              of single 0/1 outcomes, whose interquartile mean is only the rate, clipped.
Aggregates:   mean, median of partner means, interquartile mean, optimality gap. Bounds: quantiles
              of redrawn seeds at the levels Phi(-+ sqrt(S / (S - 1)) t(S-1)), which pay for few
              seeds as Student t does (Hesterberg 2015, American Statistician 69, 371-386).
Profiles:     share of cells above each threshold, with a band that holds at all of them at once.
Improvement:  P(X > Y) + P(X = Y) / 2 per partner, averaged (arXiv:2108.13264, section 4.3).
Worst case:   least rate over partners or families, and the mean of the worst share of them (CVaR);
              bounds from simultaneous intervals of all partners, so the choice is paid for.
Seeds:        ICC of one-way ANOVA and design effect 1 + (E - 1) ICC.
Axes:         M = methods, S = seeds, P = partners, E = episodes; B = replicates.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    normal_level,
    normal_quantile,
    require_confidence,
    student_quantile,
)
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    PROFILE_THRESHOLDS,
    Clusters,
    Estimate,
    as_clusters,
    few_clusters_warning,
    mean_estimate,
    rate_estimate,
)
from cadenza.evaluation.statistics.paired import Metric, success_of
from cadenza.evaluation.statistics.resampling import (
    Counts,
    cluster_counts,
    count_trimmed_means,
    stratified_counts,
    weighted_trimmed_means,
)
from cadenza.evaluation.statistics.sequential import betting_bounds

#: Replicates behind a bound; the least expanded level, .00095 at five seeds, is the 4th of 3999.
REPLICATES: Final = 3999
#: A further episode is worth running while endless ones would narrow the interval by more.
_WORTH: Final = 0.05

Statistic = Literal["mean", "median", "iqm", "optimality_gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is a sample and what is fixed.

    Attributes:
        cluster: "seed": a redrawn seed brings its cells with every partner; None: cells are redrawn
            on their own inside each partner, as if each had been trained alone.
        strata: ("partner",): the partners are the ones of interest; (): they are a sample, too.
        paired: Whether methods share seeds and initial states.
    """

    cluster: Literal["seed"] | None = "seed"
    strata: tuple[Literal["partner"], ...] = ("partner",)
    paired: bool = True

    def draws(
        self, seeds: int, partners: int, *, replicates: int, rng: np.random.Generator
    ) -> Iterator[Counts]:
        """Yield how often each cell is drawn, blocks of (b, P S)."""
        if self.cluster is None:
            yield from stratified_counts(seeds, partners, replicates=replicates, rng=rng)
            return
        blocks = cluster_counts(seeds, partners, replicates=replicates, rng=rng)
        if self.strata:
            yield from blocks
            return
        drawn = stratified_counts(partners, 1, replicates=replicates, rng=rng)
        for counts, columns in zip(blocks, drawn, strict=True):
            yield counts.astype(np.uint16) * np.repeat(columns, seeds, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreTensor:
    """Scores of episodes, shape (M, S, P, E); ``mask`` is true where an episode was played.

    ``families`` names the family of each partner, (P,), or is empty.
    """

    values: FloatArray
    mask: NDArray[np.bool_]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    partners: tuple[str, ...]
    families: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = (len(self.methods), len(self.seeds), len(self.partners))
        if self.values.ndim != 4 or self.values.shape[:3] != shape:
            raise InputError(f"ScoreTensor: expected {shape} x E values, got {self.values.shape}.")
        if self.mask.shape != self.values.shape or len(self.families) not in (0, shape[2]):
            raise InputError(
                f"ScoreTensor: expected a mask of the shape of the values and a family for each of "
                f"{shape[2]} partners, got {self.mask.shape} and {len(self.families)}."
            )
        require_finite("ScoreTensor.values", self.values[self.mask])

    @classmethod
    def from_episodes(
        cls,
        episodes: Mapping[str, Iterable[EpisodeResult]],
        *,
        metric: Metric = success_of,
        families: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the scores of ``episodes`` by method, episodes in the order of their indices.

        Raises:
            InputError: An episode does not record the metric, or a partner has no family.
        """
        groups: dict[tuple[str, int, str], list[tuple[int, int, float]]] = {}
        for method, played in episodes.items():
            for episode in played:
                value = metric(episode)
                if value is None:
                    raise InputError(f"ScoreTensor: an episode of {method!r} lacks the metric.")
                entry = (episode.episode_idx, episode.initial_state_seed, value)
                groups.setdefault((method, episode.seed, episode.partner or ""), []).append(entry)
        seeds = tuple(sorted({seed for _, seed, _ in groups}))
        partners = tuple(sorted({partner for _, _, partner in groups}))
        unknown = [p for p in partners if families is not None and p not in families]
        if unknown:
            raise InputError(
                f"ScoreTensor.families: expected one for every partner, not {unknown}."
            )
        methods, most = tuple(episodes), max(map(len, groups.values()), default=0)
        values = np.zeros((len(methods), len(seeds), len(partners), most))
        mask = np.zeros(values.shape, dtype=np.bool_)
        for (method, seed, partner), entries in groups.items():
            cell = methods.index(method), seeds.index(seed), partners.index(partner)
            values[cell][: len(entries)] = [value for *_, value in sorted(entries)]
            mask[cell][: len(entries)] = True
        return cls(
            values=values,
            mask=mask,
            methods=methods,
            seeds=seeds,
            partners=partners,
            families=() if families is None else tuple(families[p] for p in partners),
        )

    @property
    def binary(self) -> bool:
        """Whether every score is 0 or 1."""
        return bool(np.isin(self.values[self.mask], (0.0, 1.0)).all())

    def cells(self, method: str) -> FloatArray:
        """Return the mean of each cell, (S, P), NaN where nothing was played."""
        played = self.mask[self._index(method)]
        totals = np.where(played, self.values[self._index(method)], 0.0).sum(axis=2)
        n = played.sum(axis=2)
        return np.where(n > 0, totals / np.maximum(n, 1), np.nan)

    def thresholds(self) -> FloatArray:
        """Return scores from the least to the largest cell; of rates, from 0 to 1."""
        low, high = 0.0, 1.0
        if not self.binary:
            cells = np.concatenate([self.cells(name).ravel() for name in self.methods])
            low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
        return np.linspace(low, high, PROFILE_THRESHOLDS)

    def clusters(self, method: str, partners: Sequence[str] | None = None) -> Clusters:
        """Return the scores by seed, with some or all partners."""
        at = self._index(method)
        columns = [i for i, p in enumerate(self.partners) if partners is None or p in partners]
        return as_clusters(
            "scores",
            {
                seed: self.values[at, s, columns][self.mask[at, s, columns]]
                for s, seed in enumerate(self.seeds)
            },
        )

    def estimate(
        self, method: str, partners: Sequence[str] | None = None, *, confidence: float = 0.95
    ) -> Estimate:
        """Return the success rate, or the mean, over the seeds, with some or all partners."""
        clusters = self.clusters(method, partners)
        if self.binary:
            return rate_estimate(clusters, confidence=confidence)
        return mean_estimate(clusters, method=StudentT(), confidence=confidence)

    def _index(self, method: str) -> int:
        if method not in self.methods:
            raise InputError(f"ScoreTensor: expected a method of {self.methods}, got {method!r}.")
        return self.methods.index(method)


def aggregate(
    scores: ScoreTensor,
    method: str,
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    design: Design | None = None,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
    threshold: float = 1.0,
) -> Estimate:
    """Return an aggregate of the cells with expanded percentile bounds over seeds.

    iqm: mean of the middle half of all cells; optimality_gap: mean of max(threshold - cell, 0).

    Raises:
        InputError: Cells are single 0/1 outcomes, nothing was played, or confidence out of range.
    """
    require_confidence(confidence)
    design = design or Design()
    cells = scores.cells(method)
    played = ~np.isnan(cells.T.ravel())
    if not played.any():
        raise InputError(f"aggregate: expected scores of {method!r}, got none.")
    if statistic == "iqm" and scores.binary and scores.mask.sum(axis=3).max() < 2:
        raise InputError(
            "aggregate: expected cells that are rates, got single 0/1 outcomes, whose "
            "interquartile mean is the rate clipped at 25 % and 75 %; play more of them, or use "
            "rate_estimate."
        )
    seeds = int((~np.isnan(cells)).any(axis=1).sum())
    value = _of_counts(statistic, np.ones((1, cells.size), np.uint8), cells, threshold)[0]
    blocks = design.draws(*cells.shape, replicates=replicates, rng=rng)
    reason = "one seed: nothing is known about others" if seeds < 2 else None
    low = high = float("nan")
    if reason is None:
        if statistic == "iqm" and played.all() and (design.cluster is None or design.strata):
            drawn = count_trimmed_means(blocks, cells.T.ravel())
        else:
            drawn = np.concatenate([_of_counts(statistic, b, cells, threshold) for b in blocks])
        low, high = np.nanquantile(drawn, expanded_levels(seeds, confidence=confidence)).tolist()
        if high - low <= 1e-12:
            reason = "every redrawn set of seeds gives the same value: use the rate's interval"
    return Estimate(
        value=float(value),
        low=low,
        high=high,
        confidence=confidence,
        estimator=f"{statistic}/{'cluster' if design.cluster else 'stratified'}"
        "/expanded-percentile/v1",
        n=int(scores.mask[scores.methods.index(method)].sum()),
        n_clusters=seeds,
        undefined_reason=reason,
        warnings=few_clusters_warning(seeds),
    )


def expanded_levels(seeds: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the quantile levels Phi(-+ sqrt(S / (S - 1)) t(S-1)) for S >= 2 redrawn seeds."""
    t = student_quantile(0.5 + confidence / 2.0, seeds - 1.0)
    low = normal_level(-math.sqrt(seeds / (seeds - 1.0)) * t)
    return low, 1.0 - low


def _of_counts(statistic: Statistic, counts: Counts, cells: FloatArray, gamma: float) -> FloatArray:
    """Return the statistic of each row of ``counts``, (b, P S); NaN where it draws nothing."""
    flat = cells.T.ravel()
    played = ~np.isnan(flat)
    flat, weights = flat[played], counts[:, played]
    drawn = weights.sum(axis=1, dtype=np.float64)
    if statistic == "iqm":
        result = np.full(len(weights), np.nan)
        result[drawn > 0] = weighted_trimmed_means(weights[drawn > 0], flat)
        return result
    with np.errstate(invalid="ignore"):
        if statistic == "median":
            grid = counts.reshape(-1, *cells.T.shape) * ~np.isnan(cells.T)
            means: FloatArray = (grid * np.nan_to_num(cells.T)).sum(axis=2) / grid.sum(axis=2)
            return np.asarray(np.nanmedian(means, axis=1), dtype=np.float64)
        terms = flat if statistic == "mean" else np.maximum(gamma - flat, 0.0)
        return weights @ terms / drawn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Share of cells strictly above each threshold, with a simultaneous band; all (T,)."""

    thresholds: FloatArray
    share: FloatArray
    low: FloatArray
    high: FloatArray


def performance_profile(
    scores: ScoreTensor,
    method: str,
    *,
    rng: np.random.Generator,
    design: Design | None = None,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
) -> Profile:
    """Return the profile F(tau) with F +- c at every threshold at once, cut to [0, 1].

    c is the quantile of sup |F* - F| over redrawn seeds, times sqrt(S / (S - 1)) t(S-1) / z.

    Raises:
        InputError: Fewer than two seeds.
    """
    design = design or Design()
    cells = scores.cells(method)
    seeds = int((~np.isnan(cells)).any(axis=1).sum())
    if seeds < 2:
        raise InputError(f"performance_profile: expected at least two seeds, got {seeds}.")
    tau = scores.thresholds()
    flat = cells.T.ravel()
    played = ~np.isnan(flat)
    above = (flat[played][:, None] > tau).astype(np.float64)  # (N, T)
    share = above.mean(axis=0)
    largest: list[FloatArray] = []
    for counts in design.draws(*cells.shape, replicates=replicates, rng=rng):
        weights = counts[:, played]
        total = np.maximum(weights.sum(axis=1, dtype=np.float64), 1.0)[:, None]
        largest.append(np.abs(weights @ above / total - share).max(axis=1))
    level = 0.5 + confidence / 2.0
    price = math.sqrt(seeds / (seeds - 1.0)) * student_quantile(level, seeds - 1.0)
    half = float(np.quantile(np.concatenate(largest), confidence)) * price / normal_quantile(level)
    return Profile(
        thresholds=tau,
        share=share,
        low=np.maximum(share - half, 0.0),
        high=np.minimum(share + half, 1.0),
    )


def probability_of_improvement(
    scores: ScoreTensor, method: str, other: str, *, paired: bool = True, confidence: float = 0.95
) -> Estimate:
    """Return the chance that a cell of ``method`` beats one of ``other`` with the same partner.

    Paired: cells of the same seed are compared, Student t over seeds (betting bounds where all
    seeds agree). Unpaired: all pairs of seeds; the variance is that of both sides' mean wins
    (DeLong et al. 1988, Biometrics 44, 837-845) with Welch's degrees of freedom.

    Raises:
        InputError: A cell without episodes, or fewer than two seeds.
    """
    require_confidence(confidence)
    ours, theirs = scores.cells(method), scores.cells(other)
    if np.isnan(ours).any() or np.isnan(theirs).any() or len(ours) < 2:
        raise InputError(
            "probability_of_improvement: expected two or more seeds that all met every partner."
        )
    if paired:
        wins = _won(ours, theirs).mean(axis=1)
        clusters = {seed: [value] for seed, value in zip(scores.seeds, wins, strict=True)}
        estimate = mean_estimate(
            clusters, method=StudentT(), confidence=confidence, bounds=(0.0, 1.0)
        )
        low, high, kind = estimate.low, estimate.high, "student-t"
        if low is None:
            tail = (1.0 - confidence) / 2.0
            low, high = betting_bounds(wins[:, None], level=tail, most=wins.size)
            kind = "betting"
        value, design = float(wins.mean()), "paired-cluster"
    else:
        beaten = _won(ours[:, None], theirs[None]).mean(axis=2)  # (S, S)
        parts = [beaten.mean(axis=axis).var(ddof=1) / len(beaten) for axis in (1, 0)]
        error, value = math.sqrt(sum(parts)), float(beaten.mean())
        low = high = None
        if error > 0.0:
            degrees = (len(beaten) - 1) * sum(parts) ** 2 / sum(part**2 for part in parts)
            half = student_quantile(0.5 + confidence / 2.0, float(degrees)) * error
            low, high = max(0.0, value - half), min(1.0, value + half)
        kind, design = "delong", "two-cluster"
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        estimator=f"improvement/{design}/{kind}/v1",
        n=ours.size,
        n_clusters=len(ours),
        undefined_reason=None if low is not None else "every pair of seeds shows the same",
        warnings=few_clusters_warning(len(ours)),
    )


def _won(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    return (ours > theirs) + 0.5 * (ours == theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """Mean of the worst partners or families, which are named, worst first."""

    estimate: Estimate
    names: tuple[str, ...]


def worst_case(
    scores: ScoreTensor,
    method: str,
    *,
    by: Literal["partner", "family"] = "partner",
    share: float = 0.0,
    confidence: float = 0.95,
) -> WorstCase:
    """Return the least mean over partners or families, or that of the worst ``share`` (CVaR).

    Every group gets an interval at 1 - (1 - confidence) / G, so all G hold at once; the bounds are
    the same tail mean of their lower, and of their upper bounds.

    Raises:
        InputError: ``share`` outside [0, 1], no family known, or nothing played.
    """
    require_confidence(confidence)
    if not 0.0 <= share <= 1.0 or (by == "family" and not scores.families):
        raise InputError(
            f"worst_case: expected a share in [0, 1] and known families, got {share}, "
            f"{scores.families}."
        )
    labels = scores.partners if by == "partner" else scores.families
    groups = {
        label: [p for p, other in zip(scores.partners, labels, strict=True) if other == label]
        for label in dict.fromkeys(labels)
    }
    level = 1.0 - (1.0 - confidence) / len(groups)
    found = {
        label: scores.estimate(method, members, confidence=level)
        for label, members in groups.items()
    }
    return tail_case(found, by=by, share=share, confidence=confidence)


def tail_case(
    found: Mapping[str, Estimate],
    *,
    by: Literal["partner", "family"],
    share: float = 0.0,
    confidence: float = 0.95,
) -> WorstCase:
    """Return `worst_case` of estimates whose bounds hold together with ``confidence``.

    Raises:
        InputError: None of them has a value.
    """
    values = {label: e.value for label, e in found.items() if e.value is not None}
    if not values:
        raise InputError("worst_case: expected scores of a method, got none.")
    kept = max(1.0, share * len(values))
    order = sorted(values, key=lambda label: (values[label], label))
    lows = [e.low for e in found.values() if e.low is not None]
    highs = [e.high for e in found.values() if e.high is not None]
    return WorstCase(
        estimate=Estimate(
            value=tail_mean(list(values.values()), kept),
            low=tail_mean(lows, kept) if lows else None,
            high=tail_mean(highs, kept) if highs else None,
            confidence=confidence,
            estimator=f"{'worst' if kept == 1.0 else 'cvar'}-{by}/cluster/bonferroni/v1",
            n=sum(e.n for e in found.values()),
            n_clusters=max(e.n_clusters for e in found.values()),
            undefined_reason=None if len(lows) == len(values) else "a group has no interval",
        ),
        names=tuple(order[: math.ceil(kept)]),
    )


def tail_mean(values: Sequence[float], kept: float) -> float:
    """Return the mean of the ``kept`` smallest values; a part of one counts in part."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    weights = np.clip(kept - np.arange(ordered.size), 0.0, 1.0)
    return float(ordered @ weights / weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSpread:
    """How alike the episodes of one seed are, and what more of them would bring.

    Attributes:
        icc: Share of the variance that lies between seeds, in [0, 1].
        design_effect: Episodes that say as much as one independent one, 1 + (E - 1) ICC.
        episodes: Per seed so far (E, weighted where they differ).
        useful_episodes: Per seed, from which endless ones narrow an interval by less than 5 %; None
            if there is no spread between seeds: then only their sum counts.
        gain_of_twice_the_episodes: Share by which twice as many per seed would narrow it.
        gain_of_twice_the_seeds: The same for seeds, about 1 - sqrt(1/2).
    """

    icc: float
    design_effect: float
    episodes: float
    useful_episodes: int | None
    gain_of_twice_the_episodes: float
    gain_of_twice_the_seeds: float


def seed_spread(clusters: Clusters) -> SeedSpread:
    """Return the spread between seeds by one-way ANOVA, b the variance between, w within seeds.

    Error of a mean: sqrt((b + w / E) / S). b = (MSB - MSW) / E0, at least 0.

    Raises:
        InputError: Fewer than two seeds, or one episode per seed.
    """
    sizes = np.array([float(array.size) for array in clusters.values()])
    if sizes.size < 2 or sizes.sum() <= sizes.size:
        raise InputError(
            f"seed_spread: expected two or more seeds with several episodes, got {sizes.tolist()}."
        )
    pooled = np.concatenate(list(clusters.values()))
    means = np.array([array.mean() for array in clusters.values()])
    between = float((sizes * (means - pooled.mean()) ** 2).sum()) / (sizes.size - 1)
    squares = sum(float(((array - array.mean()) ** 2).sum()) for array in clusters.values())
    within = squares / (pooled.size - sizes.size)
    weighted = (pooled.size - float((sizes**2).sum()) / pooled.size) / (sizes.size - 1)
    spread = max(0.0, (between - within) / weighted)
    icc = spread / (spread + within) if spread + within > 0.0 else 0.0
    error, twice = spread + within / weighted, spread + within / (2.0 * weighted)
    return SeedSpread(
        icc=icc,
        design_effect=1.0 + (weighted - 1.0) * icc,
        episodes=weighted,
        useful_episodes=math.ceil(within / (spread * ((1.0 - _WORTH) ** -2 - 1.0)))
        if spread > 0.0
        else None,
        gain_of_twice_the_episodes=1.0 - math.sqrt(twice / error) if error > 0.0 else 0.0,
        gain_of_twice_the_seeds=1.0 - math.sqrt(0.5),
    )

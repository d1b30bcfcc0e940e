"""Paired comparison: the mean difference between two conditions on the same initial states.

Pairing:   two episodes belong together when partner, seed, episode index and initial state agree.
           What finds no partner is counted; a key that occurs twice on one side is an error.
Estimate:  mean of ``treatment - baseline``, seeds as clusters: `comparison.compare` for yes-or-no
           outcomes, Student t on the seed means for others. An interquartile mean of 0/1
           outcomes is an affine map of the rate clipped at 25 % and 75 %; it is not used here.
Limits:    says nothing about initial states or partners that were not played.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from cadenza.core.errors import InputError
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import IntervalMethod, StudentT
from cadenza.evaluation.statistics.comparison import compare
from cadenza.evaluation.statistics.estimate import (
    Estimate,
    all_equal,
    few_clusters_warning,
    group_by_seed,
    mean_estimate,
)

#: Reads one number from an episode; ``None`` when the episode does not record it.
Metric: TypeAlias = Callable[[EpisodeResult], float | None]

#: Partner, seed, episode index, initial state.
PairKey: TypeAlias = tuple[str, int, int, int]


def success_of(episode: EpisodeResult) -> float:
    """Return 1 for an episode that succeeded."""
    return float(episode.success)


def contact_of(episode: EpisodeResult) -> float | None:
    """Return 1 for an episode with contact, None when not recorded."""
    return None if episode.contact is None else float(episode.contact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One initial state played under both conditions; the seed is the cluster."""

    partner: str
    seed: int
    episode_idx: int
    initial_state_seed: int
    treatment: float
    baseline: float

    @property
    def difference(self) -> float:
        """Treatment minus baseline."""
        return self.treatment - self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """All pairs of two conditions in the order of their keys, and how many were left over."""

    pairs: tuple[Pair, ...]
    unmatched_treatment: int = 0
    unmatched_baseline: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """What changing the condition changed: mean of treatment - baseline, undefined without pairs.

    Counts are of pairs in which the treatment is higher, lower or equal, and of episodes without
    counterpart.
    """

    difference: Estimate
    treatment_mean: float | None
    baseline_mean: float | None
    n_higher: int
    n_lower: int
    n_equal: int
    unmatched_treatment: int
    unmatched_baseline: int


def pair_episodes(
    episodes: Iterable[EpisodeResult], *, treatment: str, baseline: str, metric: Metric
) -> Pairing:
    """Match the episodes of two conditions by their ``metric``; others are not looked at.

    Raises:
        InputError: Equal condition identifiers, a duplicate key on one side, or an episode that
            does not record the metric.
    """
    if treatment == baseline:
        raise InputError(f"pair_episodes: expected two conditions, got {treatment!r} twice.")
    sides: dict[str, dict[PairKey, float]] = {treatment: {}, baseline: {}}
    for episode in episodes:
        side = sides.get(episode.condition or "")
        if side is None:
            continue
        key = (episode.partner or "", episode.seed, episode.episode_idx, episode.initial_state_seed)
        if key in side:
            raise InputError(
                f"pair_episodes: expected one episode per key, got two of {episode.condition!r} "
                f"with (partner, seed, episode_idx, initial_state_seed) = {key}; remove one."
            )
        value = metric(episode)
        if value is None:
            raise InputError(
                f"pair_episodes: expected every episode to record the metric, got none in {key} "
                f"of {episode.condition!r}; compare a recorded one."
            )
        side[key] = value
    return _match(sides[treatment], sides[baseline])


def paired_comparison(
    pairing: Pairing,
    *,
    method: IntervalMethod | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> PairedComparison:
    """Return the mean difference of ``pairing`` with an interval that respects seeds.

    Without a ``method``, yes-or-no outcomes get the intervals of `comparison.compare`, others
    Student t. With one, when every pair of yes-or-no outcomes has the same difference, the bounds
    are exact binomial on the number of pairs that could have disagreed. Neither has zero width. The
    interval is cut to ``bounds``, the range of the difference.

    Raises:
        InputError: A difference outside ``bounds``, or confidence out of range.
    """
    pairs = pairing.pairs
    differences = np.array([pair.difference for pair in pairs])
    outcomes = {value for pair in pairs for value in (pair.treatment, pair.baseline)}
    if pairs and outcomes <= {0.0, 1.0} and method is None:
        estimate = compare(
            group_by_seed((pair.seed, pair.treatment) for pair in pairs),
            group_by_seed((pair.seed, pair.baseline) for pair in pairs),
            paired=True,
            confidence=confidence,
        ).difference
    else:
        estimate = mean_estimate(
            group_by_seed((pair.seed, pair.difference) for pair in pairs),
            method=method or StudentT(),
            confidence=confidence,
            bounds=bounds,
            design="paired-cluster",
        )
        if pairs and outcomes <= {0.0, 1.0} and all_equal(differences):  # every pair agrees
            estimate = _exact(estimate, float(differences[0]), len(pairs))
    return PairedComparison(
        difference=estimate,
        treatment_mean=float(np.mean([p.treatment for p in pairs])) if pairs else None,
        baseline_mean=float(np.mean([p.baseline for p in pairs])) if pairs else None,
        n_higher=int((differences > 0).sum()),
        n_lower=int((differences < 0).sum()),
        n_equal=int((differences == 0).sum()),
        unmatched_treatment=pairing.unmatched_treatment,
        unmatched_baseline=pairing.unmatched_baseline,
    )


def _match(treatment: Mapping[PairKey, float], baseline: Mapping[PairKey, float]) -> Pairing:
    """Return the pairs with keys on both sides, in key order."""
    common = sorted(treatment.keys() & baseline.keys())
    return Pairing(
        pairs=tuple(
            Pair(
                partner=key[0],
                seed=key[1],
                episode_idx=key[2],
                initial_state_seed=key[3],
                treatment=treatment[key],
                baseline=baseline[key],
            )
            for key in common
        ),
        unmatched_treatment=len(treatment) - len(common),
        unmatched_baseline=len(baseline) - len(common),
    )


def _exact(estimate: Estimate, difference: float, n_pairs: int) -> Estimate:
    """Return ``estimate`` with bounds from the chance that a pair would have differed.

    If n of n pairs show the same difference d, the share of pairs that show it is at least L, the
    Clopper-Pearson bound; the others lie in [-1, 1], hence the mean in
    [d L - (1 - L), d L + (1 - L)].
    """
    share, _ = clopper_pearson_interval(n_pairs, n_pairs, confidence=estimate.confidence)
    return replace(
        estimate,
        low=max(-1.0, difference * share - (1.0 - share)),
        high=min(1.0, difference * share + (1.0 - share)),
        undefined_reason=None,
        warnings=(
            "every pair shows the same difference: the bounds are exact binomial and treat pairs "
            "as independent.",
            *few_clusters_warning(estimate.n_clusters),
        ),
    )

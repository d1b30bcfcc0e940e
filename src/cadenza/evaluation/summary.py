"""Headline numbers of a bundle, recomputable from its episodes.

Success and contact rates use the beta-binomial interval over seeds; paired differences Student t on
the seed differences with its safeguards near 0 and 1, or BCa when resamples are asked for. A stored
summary is recomputed by the estimators that it names. Every statistic draws from its own substream,
so neither the order of episodes nor a new statistic changes an old number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.bootstrap import cluster_bootstrap
from cadenza.evaluation.results import (
    LEGACY_ESTIMATOR,
    BundleSummary,
    CellSummary,
    ComparisonSummary,
    EpisodeResult,
    IntervalRecord,
)
from cadenza.evaluation.statistics.cluster_means import BcaBootstrap, IntervalMethod, StudentT
from cadenza.evaluation.statistics.estimate import (
    KORN_GRAUBARD,
    RATE_ESTIMATOR,
    RATE_ESTIMATORS,
    Estimate,
    cluster_means,
    group_by_seed,
    interquartile_mean,
    rate_estimate,
)
from cadenza.evaluation.statistics.paired import (
    Metric,
    contact_of,
    pair_episodes,
    paired_comparison,
    success_of,
)

#: Stream of every draw behind a summary.
BOOTSTRAP_SUBSTREAM: Final = "evaluation.bundle_bootstrap"

#: Stands for a condition or partner that an episode does not name.
UNKNOWN: Final = "<unknown>"

ComparedMetric = Literal["success", "contact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarySettings:
    """What a summary depends on besides the episodes; stored inside it.

    ``n_resamples`` is 0 for the default, >= 1000 for BCa; ``headline_condition`` None pools
    everything; ``comparison`` are treatments, then the baseline that each is compared with;
    ``estimator`` is that of rates, and the older one goes with plain Student t of differences.
    """

    n_resamples: int = 0
    bootstrap_root_seed: int = 0
    headline_condition: str | None = None
    comparison: tuple[str, ...] | None = None
    estimator: str = RATE_ESTIMATOR


def compute_summary(
    episodes: Iterable[EpisodeResult], settings: SummarySettings | None = None
) -> BundleSummary:
    """Return the headline numbers of ``episodes``; their order does not matter.

    Raises:
        InputError: Two episodes of one condition share a key.
        pydantic.ValidationError: Too few resamples.
    """
    settings = settings or SummarySettings()
    ordered = sorted(episodes, key=_sort_key)
    headline = [e for e in ordered if settings.headline_condition in (None, e.condition)]
    rate = rate_estimate(
        group_by_seed((e.seed, success_of(e)) for e in headline), estimator=settings.estimator
    )
    return BundleSummary(
        n_episodes=len(ordered),
        success_mean=rate.value,
        success_iqm=_cell_iqm(headline),
        success_ci_low=rate.low,
        success_ci_high=rate.high,
        undefined_reason=rate.undefined_reason,
        n_resamples=settings.n_resamples,
        bootstrap_root_seed=settings.bootstrap_root_seed,
        estimator=rate.estimator,
        headline_condition=settings.headline_condition,
        cells=[
            _cell(*names, group, settings.estimator) for names, group in _cells(ordered).items()
        ],
        comparisons=_comparisons(ordered, settings),
    )


def recompute_summary(stored: BundleSummary, episodes: Sequence[EpisodeResult]) -> BundleSummary:
    """Return the summary that ``stored`` should equal, computed the way it says it was.

    Raises:
        InputError: The estimator is unknown.
    """
    if stored.estimator == LEGACY_ESTIMATOR:
        return _legacy_summary(stored, episodes)
    if stored.estimator not in RATE_ESTIMATORS:
        raise InputError(
            f"BundleSummary.estimator: expected one of {[*RATE_ESTIMATORS, LEGACY_ESTIMATOR]}, got "
            f"{stored.estimator!r}; upgrade the package that reads it."
        )
    treatments = tuple(dict.fromkeys(c.treatment for c in stored.comparisons))
    return compute_summary(
        episodes,
        SummarySettings(
            n_resamples=stored.n_resamples,
            bootstrap_root_seed=stored.bootstrap_root_seed,
            headline_condition=stored.headline_condition,
            comparison=(*treatments, stored.comparisons[0].baseline) if treatments else None,
            estimator=KORN_GRAUBARD if stored.estimator == KORN_GRAUBARD else RATE_ESTIMATOR,
        ),
    )


def interval_record(estimate: Estimate) -> IntervalRecord:
    """Return ``estimate`` in its stored form."""
    stored: dict[str, Any] = {**asdict(estimate), "warnings": list(estimate.warnings)}
    return IntervalRecord(**stored)


def _comparisons(
    episodes: Sequence[EpisodeResult], settings: SummarySettings
) -> list[ComparisonSummary]:
    """Return success and contact differences of each treatment, pooled and per partner."""
    if settings.comparison is None:
        return []
    *treatments, baseline = settings.comparison
    return [
        row
        for treatment in treatments
        for row in _compared(episodes, settings, treatment, baseline)
    ]


def _compared(
    episodes: Sequence[EpisodeResult], settings: SummarySettings, treatment: str, baseline: str
) -> list[ComparisonSummary]:
    metrics: list[tuple[ComparedMetric, Metric]] = [("success", success_of)]
    if all(e.contact is not None for e in episodes):
        metrics.append(("contact", contact_of))
    partners = sorted({e.partner for e in episodes if e.partner is not None})
    rows: list[ComparisonSummary] = []
    for name, metric in metrics:
        for partner in (None, *partners):
            chosen = [e for e in episodes if partner is None or e.partner == partner]
            pairing = pair_episodes(chosen, treatment=treatment, baseline=baseline, metric=metric)
            method = _method(settings, f"{name}.{partner or 'all'}")
            result = paired_comparison(pairing, method=method, bounds=(-1.0, 1.0))
            rows.append(
                ComparisonSummary(
                    metric=name,
                    treatment=treatment,
                    baseline=baseline,
                    partner=partner,
                    difference=interval_record(result.difference),
                    unmatched_treatment=result.unmatched_treatment,
                    unmatched_baseline=result.unmatched_baseline,
                )
            )
    return rows


def _method(settings: SummarySettings, statistic: str) -> IntervalMethod | None:
    """Return the interval method, None for the default; ``statistic`` has a stream of its own."""
    if settings.n_resamples == 0:
        return StudentT() if settings.estimator == KORN_GRAUBARD else None
    stream = derive_substream(
        f"{BOOTSTRAP_SUBSTREAM}.{statistic}", root_seed=settings.bootstrap_root_seed
    )
    return BcaBootstrap(rng=stream.default_rng(), n_resamples=settings.n_resamples)


def _cells(
    episodes: Sequence[EpisodeResult],
) -> dict[tuple[str, str], list[EpisodeResult]]:
    """Return episodes by (condition, partner), sorted."""
    cells: dict[tuple[str, str], list[EpisodeResult]] = {}
    for episode in episodes:
        names = (episode.condition or UNKNOWN, episode.partner or UNKNOWN)
        cells.setdefault(names, []).append(episode)
    return dict(sorted(cells.items()))


def _cell(
    condition: str, partner: str, episodes: Sequence[EpisodeResult], estimator: str
) -> CellSummary:
    """Return the summary of one condition with one partner."""
    successes = group_by_seed((e.seed, success_of(e)) for e in episodes)
    contacts = [(e.seed, float(e.contact)) for e in episodes if e.contact is not None]
    has_contact = len(contacts) == len(episodes)
    distances = [e.min_distance_m for e in episodes if e.min_distance_m is not None]
    interventions = [e.interventions for e in episodes if e.interventions is not None]
    steps = [e.n_steps for e in episodes if e.n_steps is not None]
    return CellSummary(
        condition=condition,
        partner=partner,
        success=interval_record(rate_estimate(successes, estimator=estimator)),
        contact=interval_record(rate_estimate(group_by_seed(contacts), estimator=estimator))
        if has_contact
        else None,
        min_distance_m=min(distances, default=None),
        fallback_fired=sum(e.fallback_fired for e in episodes),
        interventions=sum(interventions) if interventions else None,
        n_steps=sum(steps) if steps else None,
    )


def _cell_iqm(episodes: Sequence[EpisodeResult]) -> float | None:
    """Return the interquartile mean of the (seed, partner) success rates."""
    rates = [
        float(rate)
        for group in _cells(episodes).values()
        for rate in cluster_means(group_by_seed((e.seed, float(e.success)) for e in group))
    ]
    return interquartile_mean(rates) if rates else None


def _legacy_summary(stored: BundleSummary, episodes: Sequence[EpisodeResult]) -> BundleSummary:
    """Return the summary of an older bundle: seeds in file order, one pooled bootstrap."""
    groups: dict[int, list[float]] = {}
    for episode in episodes:
        groups.setdefault(episode.seed, []).append(float(episode.success))
    stream = derive_substream(BOOTSTRAP_SUBSTREAM, root_seed=stored.bootstrap_root_seed)
    result = cluster_bootstrap(groups, n_resamples=stored.n_resamples, rng=stream.default_rng())
    statistics = (result.mean, result.iqm, result.ci_low, result.ci_high)
    mean, iqm, low, high = (None if np.isnan(value) else value for value in statistics)
    return BundleSummary(
        n_episodes=len(episodes),
        success_mean=mean,
        success_iqm=iqm,
        success_ci_low=low,
        success_ci_high=high,
        undefined_reason=None if groups else "no episodes",
        n_resamples=stored.n_resamples,
        bootstrap_root_seed=stored.bootstrap_root_seed,
    )


def _sort_key(episode: EpisodeResult) -> tuple[str, str, int, int, int]:
    """Return an order that does not depend on the file."""
    return (
        episode.condition or "",
        episode.partner or "",
        episode.seed,
        episode.episode_idx,
        episode.initial_state_seed,
    )

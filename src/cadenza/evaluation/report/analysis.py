"""Numbers behind the report's figures and tables, computed once from the view's episodes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.evaluation.report.svg import plural
from cadenza.evaluation.report.view import PartnerView, ReportView
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    Estimate,
    cluster_means,
    group_by_seed,
    mean_estimate,
    rate_estimate,
)
from cadenza.evaluation.statistics.paired import (
    Metric,
    PairedComparison,
    contact_of,
    pair_episodes,
    paired_comparison,
    success_of,
)

#: Metrics the report compares between conditions.
MetricName = Literal["success", "contact", "return"]


#: Row of all partners together; its warnings are the report's cautions.
EVERYONE: Final = "All partners"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What happened under one condition with one partner or group of partners.

    None is what some episode does not record. Per-seed values are means of the seed; ``distances``
    are the smallest of each episode that records one, ascending, m; ``intervention_share`` is the
    mean share of steps the filter changed, sizes of changes are in the unit of the action.
    ``timeouts_silent`` are those in which the filter changed no action; ``goal_steps`` are the
    control steps of the solved episodes.
    """

    condition_id: str
    n: int
    success: Estimate
    n_solved: int
    seed_success: tuple[float, ...]
    contact: Estimate | None
    n_contacts: int
    n_timeouts: int | None
    timeouts_silent: int | None
    goal_steps: FloatArray
    episode_return: Estimate | None
    seed_return: tuple[float, ...]
    distances: FloatArray
    intervention_share: Estimate | None
    intervention_mean: float | None
    intervention_peak: float | None
    n_steps: int | None
    violating_steps: int | None
    violation_peak: float
    fallbacks: int
    infeasible_steps: int | None
    uncertified_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One partner, or a group of partners (``partner`` None), under every condition in turn.

    A cell is None where nothing was played; comparisons are filtered minus unfiltered by metric.
    """

    label: str
    note: str
    partner: PartnerView | None
    cells: tuple[Cell | None, ...]
    comparisons: dict[MetricName, PairedComparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Everything the report prints: rows of partners in order, and groups of at least two.

    ``fair`` are unseen partners that always leave a way, None if all do; all three can be empty.
    """

    partners: tuple[Row, ...]
    groups: tuple[Row, ...]
    overall: Row
    seen: Row | None
    fair: Row | None
    unseen: Row | None
    cautions: tuple[str, ...]


def analyse(view: ReportView) -> Numbers:
    """Return the numbers of ``view``."""
    rows = tuple(_row(view, p.label, _partner_note(p), [p], p) for p in view.partners)
    everyone = list(view.partners)
    unseen = [p for p in everyone if not p.seen]
    fair = [p for p in unseen if p.leaves_way]
    pooled = {
        "All seen": [p for p in everyone if p.seen],
        "Unseen that always leave a way": fair if len(fair) < len(unseen) else [],
        "All unseen": unseen,
        EVERYONE: everyone,
    }
    by_label = {
        label: _row(view, label, plural(len(members), "partner"), members, None)
        for label, members in pooled.items()
        if members
    }
    overall = by_label.pop(EVERYONE)
    groups = tuple(row for label, row in by_label.items() if len(pooled[label]) > 1)
    return Numbers(
        partners=rows,
        groups=groups,
        overall=overall,
        seen=by_label.get("All seen"),
        fair=by_label.get("Unseen that always leave a way"),
        unseen=by_label.get("All unseen"),
        cautions=tuple(dict.fromkeys(_cautions(view, (*rows, *groups, overall)))),
    )


def _partner_note(partner: PartnerView) -> str:
    """Return what a reader must know about a partner."""
    seen = "trained with" if partner.seen else "never met"
    return seen if partner.leaves_way else f"{seen}, may block the way"


def _row(
    view: ReportView,
    label: str,
    note: str,
    members: Sequence[PartnerView],
    partner: PartnerView | None,
) -> Row:
    """Return the numbers of one partner or group."""
    ids = {member.partner_id for member in members}
    episodes = [e for e in view.episodes if e.partner in ids]
    by_condition = [
        (c.condition_id, [e for e in episodes if e.condition == c.condition_id])
        for c in view.conditions
    ]
    return Row(
        label=label,
        note=note,
        partner=partner,
        cells=tuple(
            _cell(condition, group) if group else None for condition, group in by_condition
        ),
        comparisons=_compare(view, episodes),
    )


def _cell(condition_id: str, episodes: Sequence[EpisodeResult]) -> Cell:
    """Return the numbers of one condition; ``episodes`` is not empty."""
    success = group_by_seed((e.seed, float(e.success)) for e in episodes)
    contacts = [(e.seed, float(e.contact)) for e in episodes if e.contact is not None]
    returns = _complete(episodes, _return)
    shares = _complete(episodes, _intervention_share)
    distances = [e.min_distance_m for e in episodes if e.min_distance_m is not None]
    timeouts = [e for e in episodes if e.truncated and not e.success]
    solved = [e.n_steps for e in episodes if e.success and e.n_steps is not None]
    return Cell(
        condition_id=condition_id,
        n=len(episodes),
        success=rate_estimate(success),
        n_solved=sum(e.success for e in episodes),
        seed_success=tuple(cluster_means(success).tolist()),
        contact=rate_estimate(group_by_seed(contacts)) if len(contacts) == len(episodes) else None,
        n_contacts=sum(e.contact is True for e in episodes),
        n_timeouts=len(timeouts) if all(e.truncated is not None for e in episodes) else None,
        timeouts_silent=sum(e.interventions == 0 for e in timeouts)
        if all(e.truncated is not None and e.interventions is not None for e in episodes)
        else None,
        goal_steps=np.array(solved, dtype=np.float64),
        episode_return=_mean(returns),
        seed_return=tuple(cluster_means(group_by_seed(returns or ())).tolist()),
        distances=np.sort(np.array(distances, dtype=np.float64)),
        intervention_share=_mean(shares, bounds=(0.0, 1.0)),
        intervention_mean=_mean_intervention(episodes),
        intervention_peak=max(
            (e.intervention_peak for e in episodes if e.intervention_peak is not None), default=None
        ),
        n_steps=_total(e.n_steps for e in episodes),
        violating_steps=_total(e.violating_steps for e in episodes),
        violation_peak=max(e.constraint_violation_peak for e in episodes),
        fallbacks=sum(e.fallback_fired for e in episodes),
        infeasible_steps=_total(e.infeasible_steps for e in episodes),
        uncertified_steps=_total(e.uncertified_steps for e in episodes),
    )


def _compare(
    view: ReportView, episodes: Sequence[EpisodeResult]
) -> dict[MetricName, PairedComparison]:
    """Return filtered minus unfiltered for every metric that all episodes record."""
    if view.treatment is None or view.baseline is None:
        return {}
    compared: dict[MetricName, PairedComparison] = {}
    for name, (metric, bounds) in METRICS.items():
        if any(metric(episode) is None for episode in episodes):
            continue
        pairing = pair_episodes(
            episodes,
            treatment=view.treatment.condition_id,
            baseline=view.baseline.condition_id,
            metric=metric,
        )
        compared[name] = paired_comparison(pairing, bounds=bounds)
    return compared


def _cautions(view: ReportView, rows: Sequence[Row]) -> list[str]:
    """Return warnings about unmatched episodes, few seeds and undefined estimates."""
    cautions: list[str] = []
    for row in rows:
        for comparison in row.comparisons.values():
            unmatched = comparison.unmatched_treatment + comparison.unmatched_baseline
            if unmatched and row.partner is not None:
                cautions.append(
                    f"{row.label}: {unmatched} episodes have no counterpart under the other "
                    "condition and are left out of the paired differences."
                )
        shown = [
            cell.success if view.has_success else cell.episode_return for cell in row.cells if cell
        ]
        for estimate in shown:
            if estimate is None:
                continue
            if estimate.undefined_reason is not None:
                cautions.append(f"{row.label}: no interval, {estimate.undefined_reason}.")
            cautions += [
                w[0].upper() + w[1:]
                for w in estimate.warnings
                if "seeds:" in w or row.label == EVERYONE
            ]
    return cautions


def _complete(episodes: Sequence[EpisodeResult], metric: Metric) -> list[tuple[int, float]] | None:
    """Return (seed, value) of every episode, or ``None`` if one does not record the value."""
    values = [(e.seed, metric(e)) for e in episodes]
    recorded = [(seed, value) for seed, value in values if value is not None]
    return recorded if len(recorded) == len(values) else None


def _mean(
    values: list[tuple[int, float]] | None, bounds: tuple[float, float] | None = None
) -> Estimate | None:
    """Return the mean of (seed, value) pairs."""
    if values is None:
        return None
    return mean_estimate(group_by_seed(values), method=StudentT(), bounds=bounds)


def _mean_intervention(episodes: Iterable[EpisodeResult]) -> float | None:
    """Return the mean size of a change over all changed steps; ``None`` if there was none."""
    sizes = [
        (e.interventions, e.intervention_mean)
        for e in episodes
        if e.interventions and e.intervention_mean is not None
    ]
    steps = sum(n for n, _ in sizes)
    return sum(n * size for n, size in sizes) / steps if steps else None


def _total(values: Iterable[int | None]) -> int | None:
    """Return the sum, or ``None`` if a value is missing."""
    collected = list(values)
    known = [value for value in collected if value is not None]
    return sum(known) if len(known) == len(collected) else None


def _return(episode: EpisodeResult) -> float | None:
    return episode.episode_return


def _intervention_share(episode: EpisodeResult) -> float | None:
    if episode.interventions is None or not episode.n_steps:
        return None
    return episode.interventions / episode.n_steps


#: What is compared between conditions, and the range of the difference.
METRICS: Final[
    dict[MetricName, tuple[Callable[[EpisodeResult], float | None], tuple[float, float] | None]]
] = {
    "success": (success_of, (-1.0, 1.0)),
    "contact": (contact_of, (-1.0, 1.0)),
    "return": (_return, None),
}

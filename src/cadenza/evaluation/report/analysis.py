"""Numbers behind the report's figures and tables, computed once from the view's episodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.best_responses import proximities
from cadenza.evaluation.generalization import generalization_gap
from cadenza.evaluation.report.svg import plural
from cadenza.evaluation.report.view import ConditionView, PartnerView, ReportView, condition_css
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.comparison import Ranking, rank
from cadenza.evaluation.statistics.estimate import (
    Clusters,
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
from cadenza.evaluation.statistics.scores import (
    Profile,
    ScoreTensor,
    SeedSpread,
    WorstCase,
    aggregate,
    performance_profile,
    probability_of_improvement,
    seed_spread,
    worst_case,
)

#: Share of the partners that the CVaR is about.
TAIL: Final = 0.25
#: Metrics the report compares between conditions.
MetricName = Literal["success", "contact", "return"]
#: Labels of groups of partners.
SEEN: Final = "All seen"
FAIR: Final = "Unseen that leave a way"
UNSEEN: Final = "All unseen"
#: All partners together; the warnings of this row are the report's cautions.
EVERYONE: Final = "All partners"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What happened under one condition with one partner or group of partners.

    None is what some episode does not record. Per-seed values are means of the seed; ``distances``
    and ``wall_gaps`` are the smallest of each episode that records one, ascending, m, and
    ``forces`` the peaks, N;
    ``intervention_share`` is the
    mean share of steps the filter changed, sizes of changes are in the unit of the action.
    ``timeouts_silent`` are those in which the filter changed no action; ``goal_steps`` are the
    control steps of the solved episodes.
    """

    n: int
    success: Estimate
    n_solved: int
    seed_success: tuple[float, ...]
    contact: Estimate | None
    n_contacts: int
    n_wall_contacts: int | None
    n_timeouts: int | None
    timeouts_silent: int | None
    goal_steps: FloatArray
    episode_return: Estimate | None
    seed_return: tuple[float, ...]
    distances: FloatArray
    wall_gaps: FloatArray
    forces: FloatArray
    intervention_share: Estimate | None
    intervention_mean: float | None
    intervention_peak: float | None
    n_steps: int | None
    violating_steps: int | None
    violation_peak: float
    fallbacks: int
    infeasible_steps: int | None
    uncertified_steps: int | None
    static_uncertified_steps: int | None

    @property
    def timeouts_active(self) -> int | None:
        """Time-outs in which the filter changed an action."""
        return (
            None if self.timeouts_silent is None else (self.n_timeouts or 0) - self.timeouts_silent
        )


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
class MethodNumbers:
    """One method, or condition, over all partners; None is what its episodes do not give.

    Attributes:
        condition: What it is.
        css: Class of its marks.
        cell: What happened.
        score: Success rate or mean return; holds together with those of the others (Bonferroni).
        seeds: Its mean in each seed.
        iqm: Interquartile mean of its (seed, partner) cells.
        ranks: Least and largest rank that the data allow, for all methods at once (Holm).
        worst: Worst partner.
        family: Worst family, where families have several partners.
        tail: Mean of the worst `TAIL` of the partners (CVaR).
        profile: Share of cells above each score.
        spread: What more seeds or episodes would bring.
        proximity: How close it comes to best responses, by partner and aggregate.
        gaps: What it loses beside unseen partners, by their family.
    """

    condition: ConditionView
    css: str
    cell: Cell
    score: Estimate
    seeds: tuple[float, ...]
    iqm: Estimate | None
    ranks: tuple[int, int] | None
    worst: WorstCase
    family: WorstCase | None
    tail: WorstCase
    profile: Profile | None
    spread: SeedSpread | None
    proximity: Mapping[str, Estimate]
    gaps: Mapping[str, Estimate]

    def named(self) -> dict[str, Estimate]:
        """Return every estimate by its name."""
        found = {
            "score": self.score,
            "iqm": self.iqm,
            "worst_partner": self.worst.estimate,
            "worst_family": self.family and self.family.estimate,
            "cvar": self.tail.estimate,
        }
        found |= {f"proximity: {name}": e for name, e in self.proximity.items()}
        found |= {f"gap: {name}": e for name, e in self.gaps.items()}
        return {name: estimate for name, estimate in found.items() if estimate is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """Methods side by side.

    ``improvement`` is the chance that a cell of the first beats one of the second; ``ranking`` has
    their differences. None and empty where there is one method or one seed.
    """

    rows: tuple[MethodNumbers, ...]
    paired: bool
    improvement: Mapping[tuple[str, str], Estimate]
    ranking: Ranking | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Everything the report prints: rows of partners in order, and groups of at least two.

    ``pooled`` has groups of any size by their labels.
    """

    methods: Methods
    partners: tuple[Row, ...]
    groups: tuple[Row, ...]
    overall: Row
    pooled: Mapping[str, Row]
    cautions: tuple[str, ...]


def analyse(view: ReportView) -> Numbers:
    """Return the numbers of ``view``.

    Raises:
        InputError: Two episodes of one condition share partner, seed, index and initial state.
    """
    rows = tuple(_row(view, p.label, _partner_note(p), [p], p) for p in view.partners)
    everyone = list(view.partners)
    unseen = [p for p in everyone if p.seen is False]
    fair = [p for p in unseen if p.leaves_way]
    members = {
        SEEN: [p for p in everyone if p.seen],
        FAIR: fair if len(fair) < len(unseen) else [],
        UNSEEN: unseen,
        EVERYONE: everyone,
    }
    pooled = {
        label: _row(view, label, plural(len(own), "partner"), own, None)
        for label, own in members.items()
        if own
    }
    overall = pooled.pop(EVERYONE)
    groups = tuple(row for label, row in pooled.items() if len(members[label]) > 1)
    return Numbers(
        methods=compare_methods(view, overall),
        partners=rows,
        groups=groups,
        overall=overall,
        pooled=pooled,
        cautions=tuple(dict.fromkeys(_cautions(view, (*rows, *groups, overall)))),
    )


def compare_methods(view: ReportView, overall: Row) -> Methods:
    """Return the methods, or conditions, that recorded the score, with simultaneous intervals."""
    metric = success_of if view.has_success else _return
    played: dict[str, list[EpisodeResult]] = {c.condition_id: [] for c in view.conditions}
    for episode in view.episodes:
        played[episode.condition or ""].append(episode)
    played = {k: v for k, v in played.items() if v and all(metric(e) is not None for e in v)}
    if not played:
        return Methods(rows=(), paired=False, improvement={}, ranking=None)
    families = {p.partner_id: p.family or p.partner_id for p in view.partners}
    scores = ScoreTensor.from_episodes(played, metric=metric, families=families)
    clusters = {name: scores.clusters(name) for name in played}
    starts = [
        {(e.partner, e.seed, e.episode_idx, e.initial_state_seed) for e in own}
        for own in played.values()
    ]
    paired = all(own == starts[0] for own in starts)
    ranking = None
    if len(played) > 1 and all(len(own) > 1 for own in clusters.values()):
        ranking = rank(clusters, paired=paired)
    close = view.best_responses
    proximity = {} if close is None else proximities(played, close, families)
    gaps = {
        name: generalization_gap(
            own,
            metric=metric,
            seen={
                p.partner_id: p.seen_by.get(name, p.seen)
                for p in view.partners
                if p.seen is not None
            },
            families=families,
            bounds=(-1.0, 1.0) if view.has_success else None,
        )
        for name, own in played.items()
    }
    columns = zip(view.conditions, condition_css(view), overall.cells, strict=True)
    complete = ranking and not any(np.isnan(scores.cells(n)).any() for n in played)
    return Methods(
        rows=tuple(
            _method(scores, condition, css, cell, ranking, (proximity.get(name, {}), gaps[name]))
            for condition, css, cell in columns
            if (name := condition.condition_id) in played and cell is not None
        ),
        paired=paired,
        improvement={
            (a, b): probability_of_improvement(scores, a, b, paired=paired)
            for a, b in (permutations(played, 2) if complete else ())
        },
        ranking=ranking,
    )


def _method(
    scores: ScoreTensor,
    condition: ConditionView,
    css: str,
    cell: Cell,
    ranking: Ranking | None,
    relative: tuple[Mapping[str, Estimate], Mapping[str, Estimate]],
) -> MethodNumbers:
    """Return the numbers of one method; ``relative`` are its proximities and gaps."""
    name, level = condition.condition_id, 1.0 - 0.05 / len(scores.methods)
    clusters = scores.clusters(name)
    several = len(clusters) > 1
    deep = min(array.size for array in clusters.values()) > len(scores.partners)
    grouped = len(set(scores.families)) < len(scores.families)
    return MethodNumbers(
        condition=condition,
        css=css,
        cell=cell,
        score=scores.estimate(name, confidence=level),
        seeds=tuple(cluster_means(clusters).tolist()),
        iqm=aggregate(scores, name, "iqm", rng=_rng("iqm", name)) if deep else None,
        ranks=ranking.ranks[name] if ranking else None,
        worst=worst_case(scores, name),
        family=worst_case(scores, name, by="family") if grouped else None,
        tail=worst_case(scores, name, share=TAIL),
        profile=performance_profile(scores, name, rng=_rng("profile", name)) if several else None,
        spread=seed_spread(clusters) if several and deep else None,
        proximity=relative[0],
        gaps=relative[1],
    )


def score_of(view: ReportView, cell: Cell | None) -> Estimate | None:
    """Return the success rate, or the mean return of a task without success."""
    if cell is None:
        return None
    return cell.success if view.has_success else cell.episode_return


def _rng(statistic: str, method: str) -> np.random.Generator:
    """Return the stream of one statistic of one method, whatever else is in the report."""
    return derive_substream(f"evaluation.report.{statistic}.{method}", root_seed=0).default_rng()


def _partner_note(partner: PartnerView) -> str:
    """Return what a reader must know about a partner."""
    return ", ".join(filter(None, (partner.met, "" if partner.leaves_way else "may block the way")))


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
    played: dict[str, list[EpisodeResult]] = {c.condition_id: [] for c in view.conditions}
    for episode in episodes:
        played[episode.condition or ""].append(episode)
    return Row(
        label=label,
        note=note,
        partner=partner,
        cells=tuple(_cell(own) if own else None for own in played.values()),
        comparisons=_compare(view, episodes),
    )


def _cell(episodes: Sequence[EpisodeResult]) -> Cell:
    """Return the numbers of one condition; ``episodes`` is not empty."""
    success = group_by_seed((e.seed, float(e.success)) for e in episodes)
    contacts = _complete(episodes, contact_of)
    returns = _complete(episodes, _return)
    shares = _complete(episodes, _intervention_share)
    distances = [e.min_distance_m for e in episodes if e.min_distance_m is not None]
    gaps = [e.min_wall_gap_m for e in episodes if e.min_wall_gap_m is not None]
    forces = [e.force_peak for e in episodes if e.force_peak is not None]
    timeouts = [e for e in episodes if e.truncated and not e.success]
    solved = [e.n_steps for e in episodes if e.success and e.n_steps is not None]
    return Cell(
        n=len(episodes),
        success=rate_estimate(success),
        n_solved=sum(e.success for e in episodes),
        seed_success=tuple(cluster_means(success).tolist()),
        contact=None if contacts is None else rate_estimate(contacts),
        n_contacts=sum(e.contact is True for e in episodes),
        n_wall_contacts=_total(e.wall_contact for e in episodes),
        n_timeouts=len(timeouts) if all(e.truncated is not None for e in episodes) else None,
        timeouts_silent=sum(e.interventions == 0 for e in timeouts)
        if all(e.truncated is not None and e.interventions is not None for e in episodes)
        else None,
        goal_steps=np.array(solved, dtype=np.float64),
        episode_return=None if returns is None else mean_estimate(returns, method=StudentT()),
        seed_return=tuple(cluster_means(returns or {}).tolist()),
        distances=np.sort(np.array(distances, dtype=np.float64)),
        wall_gaps=np.sort(np.array(gaps, dtype=np.float64)),
        forces=np.sort(np.array(forces, dtype=np.float64)),
        intervention_share=None
        if shares is None
        else mean_estimate(shares, method=StudentT(), bounds=(0.0, 1.0)),
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
        static_uncertified_steps=_total(e.static_uncertified_steps for e in episodes),
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
        for condition, cell in zip(view.conditions, row.cells, strict=True):
            estimate = score_of(view, cell)
            if estimate is None:
                continue
            if estimate.undefined_reason is not None:
                cautions.append(f"{row.label}: no interval, {estimate.undefined_reason}.")
            lead = f"{condition.label}: " if len(view.conditions) > 1 else ""
            cautions += [
                w[0].upper() + w[1:] if "seeds:" in w else lead + w
                for w in estimate.warnings
                if "seeds:" in w or row.label == EVERYONE
            ]
    return cautions


def _complete(episodes: Sequence[EpisodeResult], metric: Metric) -> Clusters | None:
    """Return the value of every episode by seed, or ``None`` if one does not record it."""
    values = [(e.seed, metric(e)) for e in episodes]
    recorded = [(seed, value) for seed, value in values if value is not None]
    return group_by_seed(recorded) if len(recorded) == len(values) else None


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

"""What a link costs: paired differences between conditions that differ in nothing but their link.

Pairing:   partner, seed, episode and start agree, and so does the luck of the links: every
           difference comes from the profiles.
Baseline:  the first condition with the same filter settings; it is listed too, without differences.
Interval:  95 %, Student t on the means of the seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.statistics.paired import Metric, pair_episodes, paired_comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """One condition with a link, over all partners.

    Attributes:
        condition: Its name.
        baseline: What it is compared with; None for a baseline.
        n_episodes: Its episodes.
        age_mean_s: Mean age of what the ego knew of the others, s.
        age_peak_s: Largest age, s.
        lost: Share of packets lost.
        uncertified: Share of steps in which the filter acted without its guarantee; None without
            a filter.
        success: Difference of the success rates; None for a baseline or a task without success.
        contact: Difference of the contact rates; None where no contact is measured.
        episode_return: Difference of the returns; None for a baseline.
        steps: Difference of the episodes' lengths, control steps; None for a baseline.
    """

    condition: str
    baseline: str | None
    n_episodes: int
    age_mean_s: float
    age_peak_s: float
    lost: float
    uncertified: float | None
    success: Estimate | None
    contact: Estimate | None
    episode_return: Estimate | None
    steps: Estimate | None


def link_costs(
    plan: EvaluationPlan, episodes: Sequence[EpisodeResult], *, has_success: bool
) -> list[LinkCost]:
    """Return one entry per condition with a link, in the plan's order; empty if there are none.

    Args:
        plan: The plan.
        episodes: Episodes of one policy.
        has_success: Whether the task has a success predicate.
    """
    played = {
        entry.name: [e for e in episodes if e.condition == entry.name] for entry in plan.conditions
    }
    return [
        _cost(entry, _baseline(entry, plan), played, has_success=has_success)
        for entry in plan.conditions
        if entry.link is not None and played[entry.name]
    ]


def _baseline(entry: ConditionEntry, plan: EvaluationPlan) -> str | None:
    """Return the first condition that differs in its link alone; None if it is ``entry``."""
    alike = next(c for c in plan.conditions if c.safety == entry.safety)
    return None if alike.name == entry.name else alike.name


def _cost(
    entry: ConditionEntry,
    baseline: str | None,
    played: Mapping[str, Sequence[EpisodeResult]],
    *,
    has_success: bool,
) -> LinkCost:
    own = played[entry.name]
    records = [cast("Mapping[str, Any]", episode.metadata["link"]) for episode in own]
    lengths = [episode.n_steps or 0 for episode in own]
    dropped = sum(record["dropped"] for record in records)
    packets = dropped + sum(record["delivered"] for record in records)
    ages = sum(n * record["age_mean_s"] for n, record in zip(lengths, records, strict=True))
    uncertified = [e.uncertified_steps for e in own if e.uncertified_steps is not None]

    def difference(metric: Metric, bounds: tuple[float, float] | None = None) -> Estimate | None:
        if baseline is None or any(metric(episode) is None for episode in own):
            return None
        both = [*own, *played[baseline]]
        pairing = pair_episodes(both, treatment=entry.name, baseline=baseline, metric=metric)
        return paired_comparison(pairing, method=StudentT(), bounds=bounds).difference

    return LinkCost(
        condition=entry.name,
        baseline=baseline,
        n_episodes=len(own),
        age_mean_s=ages / sum(lengths),
        age_peak_s=max(record["age_peak_s"] for record in records),
        lost=dropped / packets if packets else 0.0,
        uncertified=sum(uncertified) / sum(lengths) if uncertified else None,
        success=difference(_flag("success"), (-1.0, 1.0)) if has_success else None,
        contact=difference(_flag("contact"), (-1.0, 1.0)),
        episode_return=difference(lambda episode: episode.episode_return),
        steps=difference(lambda episode: episode.n_steps),
    )


def _flag(name: str) -> Callable[[EpisodeResult], float | None]:
    def read(episode: EpisodeResult) -> float | None:
        value = getattr(episode, name)
        return None if value is None else float(value)

    return read

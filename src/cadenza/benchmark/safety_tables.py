"""The safety tables of one policy, and what links cost, from its episodes: pure functions.

Table 1 counts, per condition, the steps in which an assumption of the filter did not hold; table 2
violations and fallbacks; table 3 is what the adaptation cost: the lambda of a condition beside that
of the oracle, which forecasts by the ground truth and does not adapt. The oracle needs no run: its
lambda starts at 0 and its step is 0, so its mean is 0 whatever it meets. Nothing in the tables
depends on a machine except the version of the solver, so latencies are left out. Sums of floats
are rounded once, so that the order of the episodes is of no account: a bundle stores them by seed.

What a link costs are paired differences between conditions that differ in nothing but their link.
Pairing:   partner, seed, episode and start agree, and so does the luck of the links: every
           difference comes from the profiles.
Baseline:  the first condition with the same filter settings; it is listed too, without differences.
Interval:  95 %, Student t on the means of the seeds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import fsum
from typing import Any, Final, cast

from cadenza.aht.config import SafetyConfig
from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan
from cadenza.evaluation.results import EpisodeResult, SafetyRecord
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.statistics.paired import Metric, pair_episodes, paired_comparison
from cadenza.safety.reporting.report import (
    AssumptionRow,
    ConditionDetails,
    ConditionRow,
    GapRow,
    ReportDetails,
    ThreeTableReport,
)

#: Predictors that know the partner's next state instead of forecasting it.
GROUND_TRUTH_PREDICTORS: Final = frozenset({"ground_truth"})
#: What the assumptions say and how they are counted.
_ASSUMPTIONS: Final = {
    "A1": "The gradient of the barrier is bounded: robots, with the safety margin, do not overlap.",
    "A2": "The error of the partner forecast is bounded: no partner accelerates beyond its "
    "declared bound.",
    "A3": "Some action meets every row.",
    "A5": "The ego accelerates as its control model says.",
}
_FROZEN_ORACLE: Final = (
    "Table 3: the oracle, which knows the partner's next state and does not adapt, is frozen at "
    "lambda = 0 by definition; its mean is not measured."
)
#: Mean lambda of that oracle, m/s^2.
_ORACLE_LAMBDA_MEAN: Final = 0.0
_NO_LATENCY: Final = (
    "Latencies are not part of these tables, which are the same on every machine; perf/ measures "
    "them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filtered:
    """One filtered condition with its episodes and their safety records."""

    entry: ConditionEntry
    episodes: Sequence[EpisodeResult]
    records: Sequence[SafetyRecord]

    @property
    def n_steps(self) -> int:
        return sum(episode.n_steps or 0 for episode in self.episodes)


def safety_report(
    plan: EvaluationPlan,
    episodes: Sequence[EpisodeResult],
    *,
    solver_version: str | None,
) -> ThreeTableReport | None:
    """Return the tables of one policy.

    Returns:
        None if no filtered episode carries a safety record of a filter with lambda: the tables are
        about its assumptions.
    """
    conditions = [c for c in _filtered(plan, episodes) if c.records]
    if not conditions:
        return None
    settings = [condition.entry.safety for condition in conditions]
    timesteps = {record.control_timestep_s for c in conditions for record in c.records}
    return ThreeTableReport(
        table_1=tuple(row for condition in conditions for row in _assumptions(condition)),
        table_2=tuple(_condition_row(condition) for condition in conditions),
        table_3=tuple(_gap(condition) for condition in conditions),
        details=ReportDetails(
            conditions=tuple(_details(condition) for condition in conditions),
            seeds=plan.seeds,
            config_hash=plan.digest,
            solver=_only(safety.to_options().solver for safety in settings),
            solver_version=solver_version,
            control_timestep_s=timesteps.pop() if len(timesteps) == 1 else None,
            predictor_kind=_only(safety.predictor_kind for safety in settings),
            notes=(_FROZEN_ORACLE, _NO_LATENCY),
        ),
    )


def solver_version_of(plan: EvaluationPlan) -> str | None:
    """Return the installed version of the solver that the plan's filtered conditions share."""
    solver = _only(
        entry.safety.to_options().solver for entry in plan.conditions if entry.safety.enabled
    )
    if solver is None:
        return None
    try:
        return metadata.version(solver)
    except metadata.PackageNotFoundError:  # our own closed form, or a chain of several
        return None


def _filtered(plan: EvaluationPlan, episodes: Sequence[EpisodeResult]) -> list[_Filtered]:
    result: list[_Filtered] = []
    for entry in plan.conditions:
        if entry.safety.enabled:
            played = [episode for episode in episodes if episode.condition == entry.name]
            records = [
                episode.safety
                for episode in played
                if episode.safety is not None and episode.safety.lambda_mean is not None
            ]
            result.append(_Filtered(entry=entry, episodes=played, records=records))
    return result


def _assumptions(condition: _Filtered) -> list[AssumptionRow]:
    records = condition.records
    counts = {
        "A1": (sum(r.overlapping_steps for r in records), condition.n_steps),
        "A2": (sum(r.accel_breaches for r in records), sum(r.accel_checks for r in records)),
        "A3": (sum(e.infeasible_steps or 0 for e in condition.episodes), condition.n_steps),
    }
    breaches = sum(r.ego_breaches or 0 for r in records)
    if breaches:
        counts["A5"] = (breaches, sum(r.accel_checks for r in records))
    return [
        AssumptionRow(
            assumption=label,
            description=f"{_ASSUMPTIONS[label]} Condition {condition.entry.name}.",
            violations=violations,
            n_steps=steps,
        )
        for label, (violations, steps) in counts.items()
    ]


def _condition_row(condition: _Filtered) -> ConditionRow:
    safety, episodes = condition.entry.safety, condition.episodes
    return ConditionRow(
        predictor=_predictor(safety),
        conformal_mode=_mode(safety),
        vendor_compliance=None,
        n_episodes=len(episodes),
        violations=sum(episode.violating_steps or 0 for episode in episodes),
        fallback_fires=sum(episode.fallback_fired for episode in episodes),
    )


def _details(condition: _Filtered) -> ConditionDetails:
    episodes, records = condition.episodes, condition.records
    changed = sum(episode.interventions or 0 for episode in episodes)
    change = fsum((e.interventions or 0) * (e.intervention_mean or 0.0) for e in episodes)
    distances = [e.min_distance_m for e in episodes if e.min_distance_m is not None]
    return ConditionDetails(
        condition=condition.entry.name,
        n_steps=condition.n_steps,
        violating_episodes=sum((e.violating_steps or 0) > 0 for e in episodes),
        contact_episodes=_contacts(episodes),
        infeasible_steps=sum(e.infeasible_steps or 0 for e in episodes),
        uncertified_steps=sum(e.uncertified_steps or 0 for e in episodes),
        intervened_steps=changed,
        min_distance_m=min(distances, default=None),
        intervention_mean=change / changed if changed else None,
        intervention_peak=max((e.intervention_peak or 0.0 for e in episodes), default=None),
        slack_peak=max((record.slack_peak for record in records), default=None),
        brake_reasons=_total(record.brake_reasons for record in records),
    )


def _gap(condition: _Filtered) -> GapRow:
    mean, variance = _lambda_moments(condition)
    return GapRow(
        condition=condition.entry.name,
        lambda_mean=mean,
        lambda_var=variance,
        oracle_lambda_mean=_ORACLE_LAMBDA_MEAN,
    )


def _lambda_moments(condition: _Filtered) -> tuple[float | None, float | None]:
    """Return mean and variance of lambda over all steps of a condition; None if there were none."""
    played = [
        (e.n_steps or 0, e.safety.lambda_mean, e.safety.lambda_var)
        for e in condition.episodes
        if e.safety is not None
        and e.safety.lambda_mean is not None
        and e.safety.lambda_var is not None
    ]
    steps = sum(n for n, _, _ in played)
    if steps == 0:
        return None, None
    mean = fsum(n * own for n, own, _ in played) / steps
    return mean, fsum(n * (var + (own - mean) ** 2) for n, own, var in played) / steps


def _predictor(safety: SafetyConfig) -> str:
    return "gt" if safety.predictor_kind in GROUND_TRUTH_PREDICTORS else "pred"


def _mode(safety: SafetyConfig) -> str:
    options = safety.to_options()
    adapts = options.conformal_rule == "dtaci" or options.eta > 0.0
    return "Learn" if adapts else "noLearn"


def _contacts(episodes: Sequence[EpisodeResult]) -> int | None:
    flags = [episode.contact for episode in episodes]
    return None if None in flags else sum(bool(flag) for flag in flags)


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for entry in counts:
        total.update(entry)
    return dict(sorted(total.items()))


def _only(values: Iterable[str]) -> str | None:
    """Return the value that all share; None if they differ or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


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
    """Return one entry per condition with a link, in the plan's order; empty if there are none."""
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
        return paired_comparison(pairing, bounds=bounds).difference

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

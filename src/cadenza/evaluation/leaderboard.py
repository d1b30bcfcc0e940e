"""From spike runs to the leaderboard: what each axis costs, one score, one table.

Gap:       mean paired difference homogeneous - heterogeneous, in percentage points, with a 95 %
           interval on the seed means; no random draw, so neither order nor number of runs matters.
Survival:  an axis enters the score if the lower bound of its gap reaches `GATE_PP`: an axis that
           costs nothing measures nothing.
Score:     per axis the heterogeneous success rate s; the scalar is G = sum w s / sum w, penalised
           G (1 - v), v the violation rate. The vector always goes with them.
Interval:  of the scalar, the wider of Student t on the scalars of shared seeds and MOVER from the
           axes' rates, G - sqrt(sum (w / sum w)^2 (s - l)^2); of all rows at once by Bonferroni.
           The penalised one takes v at its value.
Ranks:     from those intervals: a row is behind another only if their intervals do not touch.
           Source: Klein, Wright and Wieczorek 2020, JRSS A 183, 589-606.
Admitted:  runs that a tag registered. Rehearsals (dry runs, stage 1a, debugging) never get here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from cadenza.core.errors import InputError, PreregistrationError
from cadenza.core.tables import LATEX_HEAD, Table
from cadenza.evaluation.prereg import LockedRegistration, PreregistrationSpec, run_differences
from cadenza.evaluation.results import (
    SCHEMA_VERSION,
    Archive,
    Count,
    EpisodeResult,
    Finite,
    Identifier,
    Integer,
    NonNegative,
    Rate,
    SchemaVersion,
    SpikeRun,
)
from cadenza.evaluation.statistics.beta_binomial import beta_binomial_interval
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate, group_by_seed
from cadenza.evaluation.statistics.paired import pair_episodes, paired_comparison, success_of

#: Weight of each axis in the scalar, in the order of the headline.
DEFAULT_AXIS_WEIGHTS: Final[dict[str, float]] = {
    "CM": 1.0,
    "PF": 0.9,
    "CR": 0.8,
    "SA": 0.7,
    "OM": 0.6,
    "AS": 0.5,
}
#: Gap that an axis must show, percentage points.
GATE_PP: Final = 20.0


class ConditionResult(Archive):
    """One axis: success rates of both sides, and their gap in percentage points.

    ``violation_rate`` counts steps, or episodes where steps were not counted; ``fallback_rate``
    episodes in which the braking fallback acted.
    """

    axis: Identifier
    n_episodes: Count
    homogeneous_success: Rate
    heterogeneous_success: Rate
    gap_pp: Finite
    ci_low_pp: Finite
    ci_high_pp: Finite
    violation_rate: Rate
    fallback_rate: Rate

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.ci_low_pp > self.ci_high_pp:
            raise ValueError(
                f"ConditionResult: expected ci_low_pp <= ci_high_pp, got {self.ci_low_pp} > "
                f"{self.ci_high_pp}."
            )
        return self


class HRSVectorEntry(Archive):
    """Score of one axis, in [0, 1], its gap and its weight in the scalar."""

    axis: Identifier
    score: Rate
    gap_pp: Finite
    weight: NonNegative


class HRSVector(Archive):
    """Scores of the axes that survived, in the order of the headline."""

    entries: list[HRSVectorEntry]

    @model_validator(mode="after")
    def _axes_differ(self) -> Self:
        axes = [entry.axis for entry in self.entries]
        if len(set(axes)) != len(axes):
            raise ValueError(f"HRSVector: expected every axis once, got {axes}.")
        return self


class SeedOutcome(Archive):
    """Solved episodes of one seed of a surviving axis, under the heterogeneous condition."""

    axis: Identifier
    seed: Integer
    successes: Count
    episodes: Count


class LeaderboardEntry(Archive):
    """One method: the runs behind it, its scores and its safety; older files lack ``outcomes``."""

    method_id: Identifier
    spike_runs: list[str]
    hrs_vector: HRSVector
    hrs_scalar: Rate
    violation_rate: Rate
    fallback_rate: Rate
    outcomes: list[SeedOutcome] = Field(default_factory=list[SeedOutcome])
    schema_version: SchemaVersion = SCHEMA_VERSION


def compute_hrs_vector(
    condition_results: dict[str, ConditionResult], *, weights: dict[str, float] | None = None
) -> HRSVector:
    """Return the scores of the measured axes in the order of ``weights``.

    Axes that were not measured are left out, not scored 0.

    Raises:
        InputError: An axis has no weight.
    """
    order = DEFAULT_AXIS_WEIGHTS if weights is None else weights
    unknown = sorted(condition_results.keys() - order.keys())
    if unknown:
        raise InputError(
            f"compute_hrs_vector: expected axes among {list(order)}, got {unknown}; give weights."
        )
    return HRSVector(
        entries=[
            HRSVectorEntry(
                axis=axis,
                score=condition_results[axis].heterogeneous_success,
                gap_pp=condition_results[axis].gap_pp,
                weight=weight,
            )
            for axis, weight in order.items()
            if axis in condition_results
        ]
    )


def compute_hrs_scalar(vector: HRSVector, *, weights: dict[str, float] | None = None) -> float:
    """Return the weighted mean of the scores; 0 for an empty vector, or without any weight.

    ``weights`` replace those of the vector.

    Raises:
        KeyError: An axis of the vector is not among ``weights``.
    """
    own = {
        entry.axis: entry.weight if weights is None else weights[entry.axis]
        for entry in vector.entries
    }
    total = sum(own.values())
    if total <= 0.0:
        return 0.0
    score = sum(own[entry.axis] * entry.score for entry in vector.entries) / total
    return min(score, 1.0)  # rounding of the sums


def condition_result(run: SpikeRun) -> ConditionResult:
    """Return the figures of one axis.

    Raises:
        InputError: Episodes lack their counterpart, so that pairs would be lost silently, or there
            are too few seeds for an interval.
    """
    pair = run.condition_pair
    pairing = pair_episodes(
        run.episode_results,
        treatment=pair.homogeneous_id,
        baseline=pair.heterogeneous_id,
        metric=success_of,
    )
    lost = pairing.unmatched_treatment + pairing.unmatched_baseline
    found = paired_comparison(pairing, method=StudentT(), bounds=(-1.0, 1.0))
    gap = found.difference
    if lost or gap.value is None or gap.low is None or gap.high is None:
        raise InputError(
            f"{run.spike_id}: expected every episode to have its counterpart and at least two "
            f"seeds, got {lost} without one ({gap.undefined_reason or 'gap defined'})."
        )
    sides = (pair.homogeneous_id, pair.heterogeneous_id)
    played = [episode for episode in run.episode_results if episode.condition in sides]
    return ConditionResult(
        axis=run.axis,
        n_episodes=len(played),
        homogeneous_success=found.treatment_mean or 0.0,
        heterogeneous_success=found.baseline_mean or 0.0,
        gap_pp=100.0 * gap.value,
        ci_low_pp=100.0 * gap.low,
        ci_high_pp=100.0 * gap.high,
        violation_rate=_violation_rate(played),
        fallback_rate=sum(e.fallback_fired > 0 for e in played) / len(played),
    )


def leaderboard_entry(
    method_id: str,
    runs: Sequence[SpikeRun],
    *,
    registrations: Mapping[str, LockedRegistration],
    weights: dict[str, float] | None = None,
) -> LeaderboardEntry:
    """Return the row of a method from one run per axis; ``registrations`` are locked, by axis.

    Raises:
        InputError: A rehearsal, an axis twice, no run, or no axis that survives.
        PreregistrationError: A run is not the registered one.
    """
    results: dict[str, ConditionResult] = {}
    for run in runs:
        if run.rehearsal_reason is not None:
            raise InputError(
                f"{run.spike_id}: expected a run that counts, got {run.rehearsal_reason}; a "
                "rehearsal never reaches a table."
            )
        if run.axis in results:
            raise InputError(f"{run.spike_id}: expected one run per axis, got {run.axis} twice.")
        _require_registered(run, registrations.get(run.axis))
        results[run.axis] = condition_result(run)
    surviving = {axis: row for axis, row in results.items() if row.ci_low_pp >= GATE_PP}
    if not surviving:
        raise InputError(
            f"{method_id}: expected an axis whose gap is at least {GATE_PP:g} points by its lower "
            f"bound, got {', '.join(f'{a} {row.ci_low_pp:.1f}' for a, row in results.items())}."
        )
    vector = compute_hrs_vector(surviving, weights=weights)
    total = sum(row.n_episodes for row in results.values())
    return LeaderboardEntry(
        method_id=method_id,
        spike_runs=[run.spike_id for run in runs],
        hrs_vector=vector,
        hrs_scalar=compute_hrs_scalar(vector),
        violation_rate=sum(r.violation_rate * r.n_episodes for r in results.values()) / total,
        fallback_rate=sum(r.fallback_rate * r.n_episodes for r in results.values()) / total,
        outcomes=[
            SeedOutcome(axis=run.axis, seed=seed, successes=int(won.sum()), episodes=won.size)
            for run in runs
            if run.axis in surviving
            for seed, won in group_by_seed(
                (e.seed, success_of(e))
                for e in run.episode_results
                if e.condition == run.condition_pair.heterogeneous_id
            ).items()
        ],
    )


def hrs_estimate(
    entry: LeaderboardEntry, *, penalised: bool = False, confidence: float = 0.95
) -> Estimate:
    """Return the scalar of a row with its interval, raw or times 1 - violation rate."""
    total = sum(axis.weight for axis in entry.hrs_vector.entries)
    seeds: dict[int, list[float]] = {}
    half, below, above, fewest = 0.0, 0.0, 0.0, math.inf
    for axis in entry.hrs_vector.entries:
        own = [o for o in entry.outcomes if o.axis == axis.axis]
        fewest = min(fewest, len(own))
        if total <= 0.0 or len(own) < 2:
            continue
        won = np.array([float(o.successes) for o in own])
        played = np.array([float(o.episodes) for o in own])
        low, high = beta_binomial_interval(won, played, confidence=confidence)
        below += (axis.weight / total * max(0.0, axis.score - low)) ** 2
        above += (axis.weight / total * max(0.0, high - axis.score)) ** 2
        for outcome, rate in zip(own, (won / played).tolist(), strict=True):
            seeds.setdefault(outcome.seed, []).append(axis.weight / total * rate)
    shared = [sum(r) for r in seeds.values() if len(r) == len(entry.hrs_vector.entries)]
    if len(shared) > 1:
        low, high = StudentT().interval(np.array(shared), confidence=confidence)
        half = (high - low) / 2.0
    scalar, factor = entry.hrs_scalar, 1.0 - entry.violation_rate if penalised else 1.0
    reason = "fewer than two seeds recorded" if total <= 0.0 or fewest < 2 else None
    return Estimate(
        value=factor * scalar,
        low=factor * max(0.0, scalar - max(half, math.sqrt(below))),
        high=factor * min(1.0, scalar + max(half, math.sqrt(above))),
        confidence=confidence,
        estimator="hrs/cluster/t-mover/v1",
        n=sum(o.episodes for o in entry.outcomes),
        n_clusters=len(seeds),
        undefined_reason=reason,
    )


def leaderboard_table(
    entries: Sequence[LeaderboardEntry], *, axes: Sequence[str] = tuple(DEFAULT_AXIS_WEIGHTS)
) -> Table:
    """Return the leaderboard by falling scalar, intervals and ranks for all rows at once.

    A method without some of ``axes``, the declared set, is marked with those it lacks.

    Raises:
        InputError: A method has no score of any axis.
    """
    ranked = sorted(entries, key=lambda entry: entry.hrs_scalar, reverse=True)
    level = 1.0 - 0.05 / max(1, len(ranked))
    found = [hrs_estimate(entry, confidence=level) for entry in ranked]
    bounds = [(0.0, 1.0) if e.low is None or e.high is None else (e.low, e.high) for e in found]
    rows: list[tuple[str, ...]] = []
    for entry, estimate, (low, high) in zip(ranked, found, bounds, strict=True):
        scores = entry.hrs_vector.entries
        if not scores:
            raise InputError(
                f"leaderboard_table: expected the scores behind the scalar, got none of "
                f"{entry.method_id!r}; no axis survived, so it has no row."
            )
        missing = [axis for axis in axes if axis not in {score.axis for score in scores}]
        mark = f"[PARTIAL: without {', '.join(missing)}] " if missing else ""
        first = 1 + sum(other_low > high for other_low, _ in bounds)
        last = len(bounds) - sum(other_high < low for _, other_high in bounds)
        rows.append(
            (
                f"{first}" if first == last else f"{first} to {last}",
                f"{mark}{entry.method_id}",
                _scalar(estimate),
                _scalar(hrs_estimate(entry, penalised=True, confidence=level)),
                ", ".join(f"{s.axis}={s.score:.3f} (w={s.weight:.2f})" for s in scores),
                f"{entry.violation_rate:.1%}",
                f"{entry.fallback_rate:.1%}",
            )
        )
    return Table(
        title="Leaderboard",
        columns=(
            "Rank", "Method", "HRS scalar", "Penalised", "HRS vector", "Violation rate",
            "Fallback rate",
        ),
        rows=tuple(rows),
        caption="Violation rate: steps that violated the filter's own barrier, not contacts. "
        "Penalised: times 1 - violation rate. Intervals hold for all rows at once, 95 % "
        "(Bonferroni); a rank is the range that they allow. A row asks for a lower bound of the "
        f"gap of {GATE_PP:g} points; the gate to the next stage asks for Holm's p as well.",
        text_columns=(0, 1, 4),
    )  # fmt: skip


def render_leaderboard(
    entries: Sequence[LeaderboardEntry],
    *,
    axes: Sequence[str] = tuple(DEFAULT_AXIS_WEIGHTS),
    fmt: Literal["markdown", "latex"] = "markdown",
) -> str:
    """Return `leaderboard_table` as text; errors as there."""
    table = leaderboard_table(entries, axes=axes)
    text = f"{LATEX_HEAD}\n{table.to_latex()}" if fmt == "latex" else table.to_markdown()
    return text + "\n"


def _scalar(estimate: Estimate) -> str:
    bounds = "" if estimate.low is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.value:.3f}{bounds}"


def _require_registered(run: SpikeRun, registration: LockedRegistration | None) -> None:
    if registration is None:
        raise PreregistrationError(
            f"{run.spike_id}: expected a registration of axis {run.axis}, got none."
        )
    spec = registration.protocol
    if not isinstance(spec, PreregistrationSpec):
        raise PreregistrationError(f"{run.spike_id}: expected the registration of an axis.")
    found = run_differences(spec, run)
    if run.prereg_sha != registration.blob_sha:
        found.insert(0, f"prereg_sha: {registration.blob_sha} locked, {run.prereg_sha} run")
    if spec.run_purpose != "leaderboard":
        found.insert(0, f"run_purpose: {spec.run_purpose}, which is not ranked")
    if found:
        raise PreregistrationError(f"{run.spike_id}: not as registered: {'; '.join(found[:3])}.")


def _violation_rate(episodes: Sequence[EpisodeResult]) -> float:
    """Return violating steps of all steps; of episodes where some did not count steps."""
    counted = [(e.violating_steps, e.n_steps) for e in episodes]
    if all(bad is not None and steps for bad, steps in counted):
        return sum(bad or 0 for bad, _ in counted) / sum(steps or 0 for _, steps in counted)
    return sum(e.constraint_violation_peak > 0.0 for e in episodes) / len(episodes)

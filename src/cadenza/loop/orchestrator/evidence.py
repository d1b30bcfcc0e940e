"""What the episodes of a candidate and of the reference say about their difference.

Pairing:  episodes of equal task and seed start from the same initial state; every episode needs
          its counterpart.
Success:  exact bounds from the pairs that only one of the two solved.
Score:    mean difference with bounds from sign flips, exact for equal policies at any number of
          pairs; without spread (every pair differs by the same) the bounds are unknown.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final, TypeAlias

import numpy as np
from pydantic import Field

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.cluster_means import SignFlips
from cadenza.evaluation.statistics.paired import Pair, Pairing, paired_comparison
from cadenza.evaluation.statistics.paired_outcomes import paired_outcome_interval
from cadenza.loop.config import Metric
from cadenza.loop.contracts.records import EpisodeOutcome, Record
from cadenza.loop.errors import EvidenceError

#: Most keys that a message names.
_NAMED: Final = 5

_PairKey: TypeAlias = tuple[str, int]


class Evidence(Record):
    """What one look at a candidate showed.

    Attributes:
        candidate: Mean success, or score, of the candidate.
        baseline: The same of the reference on the same initial states; None without a reference.
        difference: Mean of candidate - reference; None without a reference.
        lower: Lower bound of the difference; None if unbounded or without a reference.
        upper: Upper bound of the difference; None if unbounded or without a reference.
        n_pairs: Initial states.
        look: Look of the sequential plan, from 0.
        confidence: Nominal two-sided coverage of the bounds.
        method: How the bounds were made.
    """

    candidate: float
    baseline: float | None = None
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    n_pairs: int = Field(ge=1)
    look: int = Field(default=0, ge=0)
    confidence: float | None = None
    method: str


def first_evidence(outcomes: Sequence[EpisodeOutcome], *, metric: Metric) -> Evidence:
    """Return what the run's first candidate showed; there is nothing to compare it with.

    Raises:
        EvidenceError: No episode, two of one task and seed, or one without the metric.
    """
    values = _by_key("candidate", outcomes, metric)
    return Evidence(candidate=_mean(values.values()), n_pairs=len(values), method=f"{metric}/mean")


def paired_evidence(
    candidate: Sequence[EpisodeOutcome],
    reference: Sequence[EpisodeOutcome],
    *,
    metric: Metric,
    alpha: float,
    look: int,
    seed: int,
) -> Evidence:
    """Return what candidate and reference showed on the same initial states.

    Args:
        candidate: All episodes of the candidate so far, in any order.
        reference: All episodes of the reference so far, in any order.
        metric: What of an episode is compared.
        alpha: Probability that each bound may fail at this look, in [0, 0.5).
        look: Look of the sequential plan, from 0.
        seed: Root of the draws that bounds of scores need; equal seeds give equal bounds.

    Raises:
        EvidenceError: No episode, two of one task and seed on one side, one without counterpart,
            or one without the metric.
        InputError: ``alpha`` out of range.
    """
    if not 0.0 <= alpha < 0.5:
        raise InputError(f"paired_evidence.alpha: expected in [0, 0.5), got {alpha}.")
    left = _by_key("candidate", candidate, metric)
    right = _by_key("reference", reference, metric)
    _require_counterparts(left, right)
    keys = sorted(left)
    pairs = [(left[key], right[key]) for key in keys]
    if metric == "success":
        difference, bounds, method = _success_bounds(pairs, alpha)
    else:
        difference, bounds, method = _score_bounds(keys, pairs, alpha, seed)
    return Evidence(
        candidate=_mean([a for a, _ in pairs]),
        baseline=_mean([b for _, b in pairs]),
        difference=difference,
        lower=bounds[0],
        upper=bounds[1],
        n_pairs=len(pairs),
        look=look,
        confidence=1.0 - 2.0 * alpha,
        method=method,
    )


_Bounds: TypeAlias = tuple[float | None, float | None]


def _success_bounds(
    pairs: Sequence[tuple[float, float]], alpha: float
) -> tuple[float, _Bounds, str]:
    """Return the difference of success rates, its exact bounds, and the method's name."""
    wins = sum(a > b for a, b in pairs)
    losses = sum(a < b for a, b in pairs)
    bounds = paired_outcome_interval(wins, losses, len(pairs), tail=alpha)
    return (wins - losses) / len(pairs), bounds, "success/paired/exact-mcnemar/v1"


def _score_bounds(
    keys: Sequence[_PairKey], pairs: Sequence[tuple[float, float]], alpha: float, seed: int
) -> tuple[float, _Bounds, str]:
    """Return the mean difference of scores, its bounds, and the method's name."""
    rng = derive_substream("loop.evidence.sign_flips", root_seed=seed).default_rng()
    differences = np.array([a - b for a, b in pairs])
    method = SignFlips(rng=rng)
    low = high = None
    if alpha * (method.n_resamples + 1) >= 1.0:
        pairing = Pairing(
            pairs=tuple(
                Pair(
                    partner=task,
                    seed=index,  # every initial state is a cluster of its own
                    episode_idx=index,
                    initial_state_seed=start,
                    treatment=a,
                    baseline=b,
                )
                for index, ((task, start), (a, b)) in enumerate(zip(keys, pairs, strict=True))
            )
        )
        estimate = paired_comparison(pairing, method=method, confidence=1.0 - 2.0 * alpha)
        low, high = estimate.difference.low, estimate.difference.high
    return (
        float(differences.mean()),
        (_finite_or_none(low), _finite_or_none(high)),
        f"score/paired/{method.name}/v1",
    )


def _finite_or_none(bound: float | None) -> float | None:
    """Return ``bound``, or None if it is infinite or unknown."""
    return bound if bound is not None and isfinite(bound) else None


def _by_key(side: str, outcomes: Sequence[EpisodeOutcome], metric: Metric) -> dict[_PairKey, float]:
    """Return the metric by task and seed."""
    if not outcomes:
        raise EvidenceError(f"{side}: expected at least one episode, got none; evaluate it first.")
    values: dict[_PairKey, float] = {}
    for outcome in outcomes:
        key = (outcome.task, outcome.seed)
        if key in values:
            raise EvidenceError(
                f"{side}: expected one episode per task and seed, got two of task "
                f"{outcome.task!r}, seed {outcome.seed}; evaluate every initial state once."
            )
        value = float(outcome.success) if metric == "success" else outcome.score
        if value is None:
            raise EvidenceError(
                f"{side}: expected every episode to have a score, got none for task "
                f"{outcome.task!r}, seed {outcome.seed}; set eval.metric to success."
            )
        values[key] = value
    return values


def _require_counterparts(left: dict[_PairKey, float], right: dict[_PairKey, float]) -> None:
    """Raise unless both sides hold the same tasks and seeds."""
    problems = [
        f"{len(keys)} only of the {side} (first: {', '.join(map(_name, sorted(keys)[:_NAMED]))})"
        for side, keys in (
            ("candidate", left.keys() - right.keys()),
            ("reference", right.keys() - left.keys()),
        )
        if keys
    ]
    if problems:
        raise EvidenceError(
            f"paired_evidence: expected equal tasks and seeds on both sides, got "
            f"{' and '.join(problems)}; evaluate both policies on the same seeds."
        )


def _name(key: _PairKey) -> str:
    """Return how a message names an initial state."""
    return f"{key[0]!r} seed {key[1]}"


def _mean(values: Iterable[float]) -> float:
    """Return the mean of ``values``, at least one."""
    return float(np.mean(list(values)))

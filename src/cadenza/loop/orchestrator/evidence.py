"""What the episodes of a candidate and of the reference say about them and their difference.

Pairing:  episodes of equal task and seed start from the same initial state; every episode needs
          its counterpart. Several looks count as one evaluation.
Success:  exact bounds: of the difference from the pairs that only one of the two solved, of a
          candidate's own success from how many it solved. So are scores that are all 0 or 1.
Score:    the wider of two bounds, each way, at `RESERVE` of the level; open without spread. Sign
          flips are exact for values symmetric about their mean, but too narrow where a value far to
          one side is rare; the studentised bootstrap follows that skewness. A resample without
          spread has an infinite studentised mean, so values of which many resamples miss every rare
          one have open bounds. docs/loop.md has the measured error rates.
Limits:   no method can bound the mean of values of unknown range if a catastrophe is so rare that
          it was not seen (Bahadur and Savage 1956, Ann. Math. Stat. 27, 1115-1122).
Source:   Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 12.5; Hartigan 1969,
          JASA 64, 1303-1317.
"""

import json
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any, Final, TypeAlias, cast

import numpy as np
from pydantic import Field

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.cluster_means import CHUNK_BYTES, SignFlips
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds, paired_outcome_interval
from cadenza.loop.config import Metric
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport, Record
from cadenza.loop.llm.protocol import shortened

#: Name of the method in `Evidence.method`.
METHOD: Final = "sign-flips-and-bootstrap-t"

#: Share of a level at which a bound is made.
RESERVE: Final = 1.0 / 3.0

#: Resamples of each method: 1 / (20 000 `RESERVE`) = 1.5e-4 is the least level that they resolve;
#: below it bounds are open.
RESAMPLES: Final = 19_999

#: Relative spread below which values differ by float64 rounding only.
_SAME: Final = 1e-12

#: Share of the standard error below which a resample has no spread; rounding makes less.
_NO_SPREAD: Final = 1e-6

Bounds: TypeAlias = tuple[float | None, float | None]


def mean_bounds(values: FloatArray, *, tail: float, rng: np.random.Generator) -> Bounds:
    """Return bounds for the mean of what ``values`` were drawn from; None where they are open.

    Args:
        values: Independent values, shape (N,), N >= 1.
        tail: Probability that each bound may fail, in [0, 0.5).
        rng: Only source of randomness; equal state gives equal bounds.

    Raises:
        InputError: No value, one that is not finite, or ``tail`` out of range.
    """
    if values.ndim != 1 or not values.size or not bool(np.isfinite(values).all()):
        raise InputError(
            f"mean_bounds.values: expected finite numbers of shape (N,), N >= 1, got {values!r}."
        )
    if not 0.0 <= tail < 0.5:
        raise InputError(f"mean_bounds.tail: expected in [0, 0.5), got {tail}.")
    rank = int(RESERVE * tail * (RESAMPLES + 1) + 1e-9)
    scale = float(np.abs(values).max())
    if not rank or np.ptp(values) <= _SAME * scale:
        return None, None
    flips = SignFlips(rng=rng, n_resamples=RESAMPLES)
    low, high = flips.interval(values, confidence=1.0 - 2.0 * RESERVE * tail)
    lower, upper = _studentised(values / scale, rank, rng)
    return _or_none(min(low, lower * scale)), _or_none(max(high, upper * scale))


def _studentised(values: FloatArray, rank: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return mean - t(high) se and mean - t(low) se, t by its ``rank``-th extreme resamples."""
    n = values.size
    mean, error = float(values.mean()), float(values.std(ddof=1)) / n**0.5
    centred = values - mean
    rows = max(1, CHUNK_BYTES // (8 * n))
    chunks: list[FloatArray] = []
    for start in range(0, RESAMPLES, rows):
        size = (min(rows, RESAMPLES - start), n)
        drawn = centred[rng.integers(n, size=size, dtype=np.int32)]
        shift = drawn.mean(axis=1)
        variance = np.einsum("ij,ij->i", drawn, drawn) / n - shift**2
        spread = np.sqrt(np.maximum(variance, 0.0) / (n - 1))
        pivots = np.copysign(np.inf, shift)
        np.divide(shift, spread, out=pivots, where=spread > _NO_SPREAD * error)
        chunks.append(pivots)
    ordered = np.sort(np.concatenate(chunks))
    return mean - float(ordered[-rank]) * error, mean - float(ordered[rank - 1]) * error


def _or_none(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None


#: Most keys that a message names.
_NAMED: Final = 5

_PairKey: TypeAlias = tuple[str, int]


class Evidence(Record):
    """What one look at a candidate showed; None where it was not asked, or a bound is open.

    Attributes:
        candidate: Mean success, or score, of the candidate.
        baseline: The same of the reference on the same initial states.
        difference: Mean of candidate - reference, with its bounds ``lower`` and ``upper``.
        likely_lower: Lower bound of the difference at the level of the plan's futility.
        look: Look of the sequential plan, from 0.
        confidence: Nominal two-sided coverage of the bounds of the difference.
        spent: Part of the run's error budget that is spent after this comparison, unless it shows
            a gain.
        candidate_lower: Lower bound of the candidate's own mean.
        candidate_confidence: Nominal two-sided coverage of the bounds of the candidate's own mean.
        method: How the bounds were made.
    """

    candidate: float
    baseline: float | None = None
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    likely_lower: float | None = None
    likely_upper: float | None = None
    n_pairs: int = Field(ge=1)
    look: int = Field(default=0, ge=0)
    confidence: float | None = None
    spent: float | None = None
    candidate_lower: float | None = None
    candidate_upper: float | None = None
    candidate_confidence: float | None = None
    method: str


def first_evidence(
    outcomes: Sequence[EpisodeOutcome],
    *,
    metric: Metric,
    alpha: float,
    look: int,
    seed: int,
) -> Evidence:
    """Return what a candidate showed that there is nothing to compare with.

    Of all its episodes so far, in any order, ``metric`` counts. ``alpha`` is the probability that
    each bound of the mean may fail at this look, in [0, 0.5); ``seed`` the root of the draws that
    bounds of scores need.

    Raises:
        InputError: ``alpha`` is out of range, there is no episode, two are of one task and seed, or
            one is without the metric.
    """
    _require_level("first_evidence.alpha", alpha)
    values = _by_key("candidate", outcomes, metric)
    own, method = _own_bounds(_in_order(values), metric, alpha, seed)
    return Evidence(
        candidate=_mean(values.values()),
        n_pairs=len(values),
        look=look,
        method=method,
        **own,
    )


def paired_evidence(
    candidate: Sequence[EpisodeOutcome],
    reference: Sequence[EpisodeOutcome],
    *,
    metric: Metric,
    alpha: float,
    look: int,
    seed: int,
    own_alpha: float | None = None,
    likely_alpha: float | None = None,
) -> Evidence:
    """Return what candidate and reference showed on the same initial states.

    All their episodes so far count, in any order. Each bound of the difference may fail with
    probability ``alpha`` at this look, in [0, 0.5); those of a second pair with ``likely_alpha``,
    those of the candidate's own mean with ``own_alpha``. ``seed`` is the root of the draws that
    bounds of scores need.

    Raises:
        InputError: A level is out of range, there is no episode, two are of one task and seed on
            one side, or one is without counterpart or metric.
    """
    levels = {"alpha": alpha, "own_alpha": own_alpha, "likely_alpha": likely_alpha}
    for name, level in levels.items():
        if level is not None:
            _require_level(f"paired_evidence.{name}", level)
    left = _by_key("candidate", candidate, metric)
    right = _by_key("reference", reference, metric)
    _require_counterparts(left, right)
    one, other = _in_order(left), _in_order(right)
    bounds, method = _difference_bounds(one, other, metric, alpha, seed)
    likely: Bounds = (None, None)
    if likely_alpha is not None:
        likely, _ = _difference_bounds(one, other, metric, likely_alpha, seed)
    return Evidence(
        candidate=_mean(one),
        baseline=_mean(other),
        difference=_mean([a - b for a, b in zip(one, other, strict=True)]),
        lower=bounds[0],
        upper=bounds[1],
        likely_lower=likely[0],
        likely_upper=likely[1],
        n_pairs=len(one),
        look=look,
        confidence=1.0 - 2.0 * alpha,
        method=method,
        **({} if own_alpha is None else _own_bounds(one, metric, own_alpha, seed)[0]),
    )


def _difference_bounds(
    one: Sequence[float], other: Sequence[float], metric: Metric, alpha: float, seed: int
) -> tuple[Bounds, str]:
    """Return the bounds of the mean difference, and the method's name."""
    if {*one, *other} <= {0.0, 1.0}:
        wins = sum(a > b for a, b in zip(one, other, strict=True))
        losses = sum(a < b for a, b in zip(one, other, strict=True))
        bounds = paired_outcome_interval(wins, losses, len(one), tail=alpha)
        return bounds, f"{metric}/paired/exact-mcnemar/v1"
    rng = derive_substream("loop.evidence.difference", root_seed=seed).default_rng()
    differences = np.array(one) - np.array(other)
    return mean_bounds(differences, tail=alpha, rng=rng), f"{metric}/paired/{METHOD}/v1"


def _own_bounds(
    values: Sequence[float], metric: Metric, alpha: float, seed: int
) -> tuple[dict[str, float | None], str]:
    """Return the fields with the bounds of the candidate's own mean, and the method's name."""
    if set(values) <= {0.0, 1.0}:
        name = "clopper-pearson"
        bounds: Bounds = exact_bounds(round(sum(values)), len(values), tail=alpha)
    else:
        name = METHOD
        rng = derive_substream("loop.evidence.candidate", root_seed=seed).default_rng()
        bounds = mean_bounds(np.array(values), tail=alpha, rng=rng)
    fields = {
        "candidate_lower": bounds[0],
        "candidate_upper": bounds[1],
        "candidate_confidence": 1.0 - 2.0 * alpha,
    }
    return fields, f"{metric}/{name}/v1"


def _require_level(name: str, alpha: float) -> None:
    if not 0.0 <= alpha < 0.5:
        raise InputError(f"{name}: expected in [0, 0.5), got {alpha}.")


def _in_order(values: dict[_PairKey, float]) -> list[float]:
    """Return the values by task and seed, so that the order of playing does not matter."""
    return [values[key] for key in sorted(values)]


def _by_key(side: str, outcomes: Sequence[EpisodeOutcome], metric: Metric) -> dict[_PairKey, float]:
    """Return the metric by task and seed."""
    if not outcomes:
        raise InputError(f"{side}: expected at least one episode, got none; evaluate it first.")
    values: dict[_PairKey, float] = {}
    for outcome in outcomes:
        key = (outcome.task, outcome.seed)
        if key in values:
            raise InputError(
                f"{side}: expected one episode per task and seed, got two of task "
                f"{outcome.task!r}, seed {outcome.seed}; evaluate every initial state once."
            )
        value = float(outcome.success) if metric == "success" else outcome.score
        if value is None:
            raise InputError(
                f"{side}: expected every episode to have a score, got none for task "
                f"{outcome.task!r}, seed {outcome.seed}; set eval.metric to success."
            )
        values[key] = value
    return values


def _require_counterparts(left: dict[_PairKey, float], right: dict[_PairKey, float]) -> None:
    """Raise unless both sides hold the same tasks and seeds."""
    problems: list[str] = []
    for side, keys in (
        ("candidate", left.keys() - right.keys()),
        ("reference", right.keys() - left.keys()),
    ):
        if keys:
            first = ", ".join(f"{task!r} seed {seed}" for task, seed in sorted(keys)[:_NAMED])
            problems.append(f"{len(keys)} only of the {side} (first: {first})")
    if problems:
        raise InputError(
            f"paired_evidence: expected equal tasks and seeds on both sides, got "
            f"{' and '.join(problems)}; evaluate both policies on the same seeds."
        )


def _mean(values: Collection[float]) -> float:
    """Return the mean of ``values``, at least one."""
    return float(np.mean(list(values)))


#: Most characters of raw data, as JSON, that the state of a run keeps for proposers.
RAW_CHARS: Final = 8000
#: Most entries of a list or mapping, tried in turn until raw data fit, and characters of a text.
_CUTS: Final = (64, 32, 16, 8, 4, 2)
_TEXT_CHARS: Final = 200


def pooled_report(latest: EvalReport, outcomes: Sequence[EpisodeOutcome]) -> EvalReport:
    """Return one report on all episodes of a policy.

    Args:
        latest: Report of the last look; gives everything that is no count.
        outcomes: Episodes of all looks in the order played, the last look's included.

    Raises:
        InputError: There is no episode.
    """
    if not outcomes:
        raise InputError(
            f"{latest.checkpoint}: expected an evaluation with its episodes, got none; nothing is "
            "decided on a rate alone."
        )
    by_task: dict[str, list[bool]] = {}
    for outcome in outcomes:
        by_task.setdefault(outcome.task, []).append(outcome.success)
    return latest.model_copy(
        update={
            "n_episodes": len(outcomes),
            "success_rate": fmean(outcome.success for outcome in outcomes),
            "per_task": {task: fmean(by_task[task]) for task in sorted(by_task)},
            "outcomes": tuple(outcomes),
        }
    )


def bare_report(report: EvalReport) -> EvalReport:
    """Return ``report`` without episodes and raw data, which the store holds elsewhere."""
    return report.model_copy(update={"outcomes": (), "raw": {}})


def told_report(report: EvalReport) -> EvalReport:
    """Return ``report`` as proposers get it: without episodes, raw data cut to `RAW_CHARS`.

    Of several looks, the raw data are those of the last.
    """
    return report.model_copy(update={"outcomes": (), "raw": _bounded_raw(report.raw)})


def _bounded_raw(raw: dict[str, Any]) -> dict[str, Any]:
    """Return raw data, its lists, mappings and texts cut until it fits; empty if it cannot."""
    for most in (None, *_CUTS):
        cut = raw if most is None else _cut(raw, most)
        if len(json.dumps(cut, default=str)) <= RAW_CHARS:
            return cut
    return {}


def _cut(value: Any, most: int) -> Any:
    """Return ``value`` with at most so many entries per list or mapping, and what is left out."""
    match value:
        case dict():
            entries = cast("dict[str, Any]", value)
            kept = {key: _cut(entries[key], most) for key in [*entries][:most]}
            return kept | ({} if len(entries) <= most else {"left out": len(entries) - most})
        case list() | tuple():
            items = cast("Sequence[Any]", value)
            more = [f"{len(items) - most} left out"] if len(items) > most else []
            return [*(_cut(item, most) for item in items[:most]), *more]
        case str():
            return shortened(value, _TEXT_CHARS)
        case _:
            return value


def mean_value(outcomes: Sequence[EpisodeOutcome], metric: Metric) -> float:
    """Return the mean success or score.

    Raises:
        InputError: There is no episode, or one without a score.
    """
    values = [
        float(outcome.success) if metric == "success" else outcome.score for outcome in outcomes
    ]
    scores = [value for value in values if value is not None]
    if not scores or len(scores) < len(values):
        raise InputError(
            f"expected episodes that all have a {metric}, got {len(scores)} of {len(values)}; set "
            "eval.metric to success."
        )
    return fmean(scores)

"""What the episodes of a candidate and of the reference say about them and their difference.

Pairing:  episodes of equal task and seed start from the same initial state; every episode needs
          its counterpart. Several jobs count as one evaluation.
Rounds:   one initial state each, in the order of the seeds, with one episode of every task.
"""

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final, cast

from pydantic import Field

from cadenza.core.errors import InputError
from cadenza.loop.config import EvalConfig
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport, Record
from cadenza.loop.llm.protocol import shortened

#: Most keys that a message names.
_NAMED: Final = 5


class Evidence(Record):
    """What one look at a candidate showed; None where it was not asked, or a bound is open.

    Attributes:
        candidate: Mean success, or score, of the candidate.
        baseline: The same of the reference on the same initial states.
        difference: Mean of candidate - reference, with its bounds ``lower`` and ``upper``.
        likely_lower: Lower bound of the difference at the level at which candidates are given up.
        n_pairs: Pairs, or episodes of a first candidate, that are judged.
        n_played: Those that were played; the rest came after the stop. None for the same.
        look: Job of the comparison, from 0.
        confidence: Nominal two-sided coverage of the bounds of the difference.
        spent: Part of the run's error budget that is spent after this comparison, unless it shows
            a gain.
        candidate_lower: Lower bound of the candidate's own mean.
        candidate_confidence: Nominal two-sided coverage of the bounds of the candidate's own mean.
        level: Probability that the comparison blesses what is no better.
        most: Pairs of the whole plan, over all tasks.
        wins: Pairs that the candidate wins, by success or by score; None for means of scores.
        clipped: Scores outside the declared range, of both policies.
        deviation: Standard deviation of the paired differences of scores, a share of the range.
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
    n_played: int | None = None
    look: int = Field(default=0, ge=0)
    confidence: float | None = None
    spent: float | None = None
    candidate_lower: float | None = None
    candidate_upper: float | None = None
    candidate_confidence: float | None = None
    level: float | None = None
    most: int | None = None
    wins: int | None = None
    losses: int | None = None
    clipped: int = 0
    deviation: float | None = None
    method: str


def in_rounds(side: str, outcomes: Sequence[EpisodeOutcome]) -> list[list[EpisodeOutcome]]:
    """Return the episodes of each initial state, in the order of the seeds, by task."""
    if not outcomes:
        raise InputError(f"{side}: expected at least one episode, got none; evaluate it first.")
    rounds: dict[int, dict[str, EpisodeOutcome]] = {}
    for outcome in outcomes:
        tasks = rounds.setdefault(outcome.seed, {})
        if outcome.task in tasks:
            raise InputError(
                f"{side}: expected one episode per task and seed, got two of task "
                f"{outcome.task!r}, seed {outcome.seed}; evaluate every initial state once."
            )
        tasks[outcome.task] = outcome
    sizes = {len(tasks) for tasks in rounds.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{side}: expected equally many tasks from every initial state, got {min(sizes)} to "
            f"{max(sizes)}; evaluate every task on the same seeds."
        )
    return [[tasks[name] for name in sorted(tasks)] for _, tasks in sorted(rounds.items())]


def paired_rounds(
    candidate: Sequence[EpisodeOutcome], reference: Sequence[EpisodeOutcome]
) -> tuple[list[list[EpisodeOutcome]], list[list[EpisodeOutcome]]]:
    """Return the rounds of both sides; an `InputError` unless both have equal tasks and seeds."""
    left, right = ({(e.task, e.seed) for e in side} for side in (candidate, reference))
    problems: list[str] = []
    for side, keys in (("candidate", left - right), ("reference", right - left)):
        if keys:
            first = ", ".join(f"{task!r} seed {seed}" for task, seed in sorted(keys)[:_NAMED])
            problems.append(f"{len(keys)} only of the {side} (first: {first})")
    if problems:
        raise InputError(
            f"evidence: expected equal tasks and seeds on both sides, got "
            f"{' and '.join(problems)}; evaluate both policies on the same seeds."
        )
    return in_rounds("candidate", candidate), in_rounds("reference", reference)


def score_of(outcome: EpisodeOutcome) -> float:
    """Return the score of an episode; an `InputError` if it has none."""
    if outcome.score is None:
        raise InputError(
            f"expected every episode to have a score, got none for task {outcome.task!r}, seed "
            f"{outcome.seed}; set eval.metric to success."
        )
    return outcome.score


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


def selection_values(
    policies: Sequence[Sequence[EpisodeOutcome]], measured: EvalConfig
) -> list[float]:
    """Return what policies that played the same are chosen by: means, or mean shares of wins.

    Means of scores are those within ``eval.score_range``, as when they are compared.
    """
    played = [
        [episode for row in in_rounds(f"policy {number}", outcomes) for episode in row]
        for number, outcomes in enumerate(policies)
    ]
    if measured.metric == "success":
        return [fmean(episode.success for episode in episodes) for episodes in played]
    scores = [[score_of(episode) for episode in episodes] for episodes in played]
    if measured.score_range is not None:
        least, most = measured.score_range
        return [fmean(min(max(score, least), most) for score in own) for own in scores]
    return [
        fmean(
            a > b for other in scores if other is not own for a, b in zip(own, other, strict=True)
        )
        for own in scores
    ]

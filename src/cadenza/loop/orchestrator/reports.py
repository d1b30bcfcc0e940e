"""Evaluations of several looks as one."""

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final, cast

from cadenza.core.errors import InputError
from cadenza.loop.config import Metric
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport
from cadenza.loop.llm.untrusted import shortened

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

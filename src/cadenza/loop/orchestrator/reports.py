"""Evaluations of several looks as one."""

from collections.abc import Sequence
from statistics import fmean

from cadenza.loop.config import Metric
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport
from cadenza.loop.errors import EvidenceError


def pooled_report(latest: EvalReport, outcomes: Sequence[EpisodeOutcome]) -> EvalReport:
    """Return one report on all episodes of a policy.

    Args:
        latest: Report of the last look; gives everything that is no count.
        outcomes: Episodes of all looks in the order played, the last look's included.

    Raises:
        EvidenceError: There is no episode.
    """
    if not outcomes:
        raise EvidenceError(
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


def mean_value(outcomes: Sequence[EpisodeOutcome], metric: Metric) -> float:
    """Return the mean success or score.

    Raises:
        EvidenceError: There is no episode, or one without a score.
    """
    values = [
        float(outcome.success) if metric == "success" else outcome.score for outcome in outcomes
    ]
    scores = [value for value in values if value is not None]
    if not scores or len(scores) < len(values):
        raise EvidenceError(
            f"expected episodes that all have a {metric}, got {len(scores)} of {len(values)}; set "
            "eval.metric to success."
        )
    return fmean(scores)

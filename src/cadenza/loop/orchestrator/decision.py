"""What becomes of a candidate: pure functions of what was measured.

`decide` compares two numbers, as a loop does that measures each policy once. `judge` asks what the
episodes behind them show and lets a run measure on while the answer is open; runs use it.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from cadenza.core.errors import InputError
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import Record
from cadenza.loop.orchestrator.evidence import Evidence


class Decision(StrEnum):
    """What to do with a candidate.

    Attributes:
        PROMOTE: It is the run's best; bless it.
        ITERATE: Nothing shown; try again on the same rung.
        ESCALATE: This rung shows nothing new; go to the next.
        ROLLBACK: It is worse than the reference.
        PROVISIONAL: It becomes the reference without being good enough to be blessed.
    """

    PROMOTE = "promote"
    ITERATE = "iterate"
    ESCALATE = "escalate"
    ROLLBACK = "rollback"
    PROVISIONAL = "provisional"


class Judgement(Record):
    """A decision and why.

    Attributes:
        decision: The decision; None while further episodes could still change it.
        reason: Why, in one sentence for people.
    """

    decision: Decision | None
    reason: str


def decide(
    candidate: float,
    baseline: float | None,
    history: Sequence[float],
    thresholds: ThresholdConfig,
) -> Decision:
    """Return the decision on two scores, in this order.

    1. No baseline: promote. 2. Gain >= ``promote_delta``: promote. 3. Loss >= ``regression_delta``:
    roll back. 4. The last ``plateau_cycles`` scores, this one included, all within
    ``plateau_epsilon`` of the baseline: escalate, or iterate below ``escalate_floor``. 5. Iterate.

    Args:
        candidate: Score of the candidate.
        baseline: Score of the best policy; None before there is one.
        history: Scores of earlier candidates of this rung that were not promoted, oldest first.
        thresholds: What a difference must be to mean something.

    Raises:
        InputError: A score is NaN or infinite.
    """
    _require_scores(candidate, baseline, history)
    if baseline is None:
        return Decision.PROMOTE
    difference = candidate - baseline
    if difference >= thresholds.promote_delta:
        return Decision.PROMOTE
    if difference <= -thresholds.regression_delta:
        return Decision.ROLLBACK
    scores = [*history, candidate]
    if not _is_plateau(scores, baseline, thresholds.plateau_epsilon, thresholds.plateau_cycles):
        return Decision.ITERATE
    return Decision.ITERATE if baseline < thresholds.escalate_floor else Decision.ESCALATE


def judge(
    evidence: Evidence,
    history: Sequence[float],
    thresholds: ThresholdConfig,
    *,
    warm_up: bool,
    looks_left: int,
    provisional: bool = False,
) -> Judgement:
    """Return what the evidence at one look decides.

    Promotion needs bounds above 0 and a gain of ``promote_delta``; a rollback needs bounds below 0
    and a loss of ``regression_delta``. While the bounds hold differences that would lead to
    either, and looks are left, nothing is decided. After that the plateau rule of `decide` holds,
    with the tolerance of `_tolerance`.

    Args:
        evidence: What the episodes so far show.
        history: Scores of earlier candidates of this rung that were not promoted, oldest first.
        thresholds: What a difference must be to mean something.
        warm_up: Whether the rung is so new that a worse candidate is no regression.
        looks_left: Further looks that the plan allows.
        provisional: Whether the reference is provisional: a better candidate below
            ``min_promote`` then replaces it without being blessed.

    Raises:
        InputError: A score is NaN or infinite, ``looks_left`` is negative, or the evidence has a
            baseline without a difference.
    """
    _require_scores(evidence.candidate, evidence.baseline, history)
    if looks_left < 0:
        raise InputError(f"judge.looks_left: expected >= 0, got {looks_left}.")
    if evidence.baseline is None:
        return _judge_first(evidence, thresholds)
    if evidence.difference is None:
        raise InputError("judge: expected a difference beside the baseline, got None.")
    lower = -math.inf if evidence.lower is None else evidence.lower
    upper = math.inf if evidence.upper is None else evidence.upper
    found = _describe(evidence)
    if lower > 0.0 and evidence.difference >= thresholds.promote_delta:
        return _judge_better(evidence, thresholds, found, provisional=provisional)
    if upper < 0.0 and evidence.difference <= -thresholds.regression_delta:
        if not warm_up:
            return Judgement(decision=Decision.ROLLBACK, reason=f"It is worse: {found}.")
        return Judgement(
            decision=Decision.ITERATE,
            reason=f"It is worse, which a new policy type may be while it warms up: {found}.",
        )
    gain_possible = upper >= thresholds.promote_delta
    loss_possible = lower <= -thresholds.regression_delta and not warm_up
    if looks_left and (gain_possible or loss_possible):
        return Judgement(decision=None, reason=f"Further episodes may decide: {found}.")
    return _judge_level(evidence, evidence.baseline, history, thresholds, found)


def _judge_first(evidence: Evidence, thresholds: ThresholdConfig) -> Judgement:
    """Return whether the run's first candidate is good enough to be blessed."""
    rate, least = evidence.candidate, thresholds.min_promote
    found = f"{rate:.3f} in {evidence.n_pairs} episodes"
    if rate >= least:
        return Judgement(
            decision=Decision.PROMOTE,
            reason=f"The first candidate reaches min_promote {least:.3f}: {found}.",
        )
    return Judgement(
        decision=Decision.PROVISIONAL,
        reason=f"The first candidate is the reference, but too weak to be blessed: {found}, "
        f"min_promote is {least:.3f}.",
    )


def _judge_better(
    evidence: Evidence, thresholds: ThresholdConfig, found: str, *, provisional: bool
) -> Judgement:
    """Return what a candidate shown to be better becomes."""
    if provisional and evidence.candidate < thresholds.min_promote:
        return Judgement(
            decision=Decision.PROVISIONAL,
            reason="It is better than the provisional reference and replaces it, but below "
            f"min_promote {thresholds.min_promote:.3f}: {found}.",
        )
    return Judgement(decision=Decision.PROMOTE, reason=f"It is better: {found}.")


def _judge_level(
    evidence: Evidence,
    baseline: float,
    history: Sequence[float],
    thresholds: ThresholdConfig,
    found: str,
) -> Judgement:
    """Return whether candidates that are neither better nor worse make a plateau."""
    tolerance = _tolerance(evidence, thresholds)
    scores = [*history, evidence.candidate]
    if not _is_plateau(scores, baseline, tolerance, thresholds.plateau_cycles):
        return Judgement(
            decision=Decision.ITERATE, reason=f"No difference that counts is shown: {found}."
        )
    plateau = (
        f"The last {thresholds.plateau_cycles} candidates are within {tolerance:.3f} of the "
        f"reference: {found}"
    )
    if baseline < thresholds.escalate_floor:
        return Judgement(
            decision=Decision.ITERATE,
            reason=f"{plateau}; it solves too little to escalate, escalate_floor is "
            f"{thresholds.escalate_floor:.3f}.",
        )
    return Judgement(decision=Decision.ESCALATE, reason=f"{plateau}.")


def _tolerance(evidence: Evidence, thresholds: ThresholdConfig) -> float:
    """Return the difference below which a score counts as equal to the reference's.

    Two equal policies rarely measure within ``plateau_epsilon`` of each other, so the half-width
    of the bounds, which the episodes cannot resolve, counts as equal too; but never a difference
    that would count as a gain or a regression.
    """
    if evidence.lower is None or evidence.upper is None:
        resolution = math.inf
    else:
        resolution = (evidence.upper - evidence.lower) / 2.0
    matters = min(thresholds.promote_delta, thresholds.regression_delta)
    return max(thresholds.plateau_epsilon, min(resolution, matters))


def _is_plateau(scores: Sequence[float], baseline: float, tolerance: float, cycles: int) -> bool:
    """Return whether each of the last ``cycles`` scores is closer than ``tolerance``."""
    return len(scores) >= cycles and all(
        abs(score - baseline) < tolerance for score in scores[-cycles:]
    )


def _describe(evidence: Evidence) -> str:
    """Return what was measured, as the end of a sentence."""
    lower = "-inf" if evidence.lower is None else f"{evidence.lower:+.3f}"
    upper = "+inf" if evidence.upper is None else f"{evidence.upper:+.3f}"
    level = "" if evidence.confidence is None else f" at {_percent(evidence.confidence)} %"
    return (
        f"{evidence.candidate:.3f} against {evidence.baseline:.3f} on {evidence.n_pairs} shared "
        f"initial states, difference {evidence.difference:+.3f} in [{lower}, {upper}]{level}"
    )


def _percent(confidence: float) -> str:
    """Return a level below 1 in percent; an early look's is so high that it would round to 100."""
    text = f"{100.0 * confidence:.4g}"
    return "over 99.99" if text == "100" else text


def _require_scores(candidate: float, baseline: float | None, history: Sequence[float]) -> None:
    """Raise unless all scores are finite numbers."""
    named = [("candidate", candidate), ("baseline", 0.0 if baseline is None else baseline)]
    named += [(f"history[{index}]", score) for index, score in enumerate(history)]
    for name, score in named:
        if not math.isfinite(score):
            raise InputError(
                f"{name}: expected a finite score, got {score}; nothing is decided on a failed "
                "evaluation, repeat it."
            )

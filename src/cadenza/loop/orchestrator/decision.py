"""What becomes of a candidate: pure functions of what was measured.

`decide` compares two numbers, as a loop does that measures each policy once. `judge` asks what the
episodes behind them show and lets a run measure on while the answer is open; runs use it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cadenza.core.errors import InputError
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.state import PastCandidate

#: Gain that must stay possible while a comparison goes on, in units of ``promote_delta``.
SEEN_DELTAS: Final = 2.0


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision, None while further episodes could still change it, and why, in one sentence."""

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
    An epsilon of 0 so makes no plateau.

    Args:
        candidate: Score of the candidate.
        baseline: Score of the best policy; None before there is one.
        history: Scores of earlier candidates of this rung that were not promoted, oldest first.
        thresholds: What a difference must be to mean something.

    Raises:
        InputError: A score is NaN or infinite.
    """
    named = {"candidate": candidate, "baseline": baseline}
    for name, score in (named | {f"history[{i}]": one for i, one in enumerate(history)}).items():
        if score is not None and not math.isfinite(score):
            raise InputError(
                f"{name}: expected a finite score, got {score}; nothing is decided on a failed "
                "evaluation, repeat it."
            )
    if baseline is None:
        return Decision.PROMOTE
    difference = candidate - baseline
    if difference >= thresholds.promote_delta:
        return Decision.PROMOTE
    if difference <= -thresholds.regression_delta:
        return Decision.ROLLBACK
    recent = [*history, candidate][-thresholds.plateau_cycles :]
    flat = all(abs(score - baseline) < thresholds.plateau_epsilon for score in recent)
    if len(recent) < thresholds.plateau_cycles or not flat:
        return Decision.ITERATE
    return Decision.ITERATE if baseline < thresholds.escalate_floor else Decision.ESCALATE


def past_candidate(evidence: Evidence) -> PastCandidate:
    """Return what later cycles need to know of a candidate that was not promoted."""
    return PastCandidate(
        score=evidence.candidate,
        difference=evidence.difference,
        half_width=_half_width(evidence.lower, evidence.upper),
        likely_half_width=_half_width(evidence.likely_lower, evidence.likely_upper),
    )


def _half_width(lower: float | None, upper: float | None) -> float | None:
    return None if lower is None or upper is None else (upper - lower) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown of a candidate, at levels that hold for all checks together.

    Attributes:
        better: That it is better than the reference, by however little.
        worse: The same the other way round.
        open: Whether a difference that counts is likely enough to play on for.
        bar_reached: That its own mean reaches ``min_promote``.
        bar_open: Whether that may still be shown.
    """

    better: bool = False
    worse: bool = False
    open: bool = True
    bar_reached: bool = False
    bar_open: bool = True


def judge(
    evidence: Evidence,
    history: Sequence[PastCandidate],
    thresholds: ThresholdConfig,
    *,
    warm_up: bool,
    looks_left: int,
    shown: Shown,
    provisional: bool = False,
) -> Judgement:
    """Return what the evidence at one check decides.

    Promotion needs a candidate that is shown to be better and a gain of ``promote_delta``; a
    rollback one that is shown to be worse and a loss of ``regression_delta``. While a difference
    that counts is likely enough and checks are left, nothing is decided. After that a plateau
    escalates as in `decide`: the last ``plateau_cycles`` candidates, this one included, each level
    with the reference by the episodes of its own cycle, see `_is_level`.

    As long as nothing is blessed, a promotion also needs a candidate whose own success, or score,
    is shown to reach ``min_promote``; the reference, if any, is ``provisional`` then, and replaced
    by a better candidate that does not reach it. In the ``warm_up`` of a rung a worse candidate is
    no regression.
    """
    bar, own = f"min_promote {thresholds.min_promote:.3f}", _own(evidence)
    if evidence.baseline is None:
        reasons = (
            f"The first candidate reaches {bar}: {own}.",
            f"Further episodes may show whether the first candidate reaches {bar}: {own}.",
            f"The first candidate is the reference, but not shown to reach {bar}, so it is not "
            f"blessed: {own}.",
        )
        return _judge_bar(shown, looks_left, reasons)
    if evidence.difference is None:
        raise InputError("judge: expected a difference beside the baseline, got None.")
    found = _describe(evidence)
    if shown.better and evidence.difference >= thresholds.promote_delta:
        if not provisional:
            return Judgement(Decision.PROMOTE, f"It is better: {found}.")
        reasons = (
            f"It is better and reaches {bar}: {own}; {found}.",
            f"It is better; further episodes may show whether it reaches {bar}: {own}; {found}.",
            "It is better than the provisional reference and replaces it, but is not shown to "
            f"reach {bar}: {own}; {found}.",
        )
        return _judge_bar(shown, looks_left, reasons)
    if shown.worse and evidence.difference <= -thresholds.regression_delta:
        if not warm_up:
            return Judgement(Decision.ROLLBACK, f"It is worse: {found}.")
        return Judgement(
            Decision.ITERATE,
            f"It is worse, which a new policy type may be while it warms up: {found}.",
        )
    if looks_left and shown.open:
        return Judgement(None, f"Further episodes may decide: {found}.")
    if provisional and shown.bar_reached:
        return Judgement(
            Decision.PROMOTE,
            "Nothing is blessed yet, it is not worse than the provisional reference and "
            f"reaches {bar}: {own}; {found}.",
        )
    verdict = _judge_level(evidence, evidence.baseline, history, thresholds, found)
    if not shown.better or verdict.decision is not Decision.ITERATE:
        return verdict
    return Judgement(
        Decision.ITERATE,
        f"It is better, but by less than promote_delta {thresholds.promote_delta:.3f}, so it is "
        f"not blessed: {found}.",
    )


def _judge_bar(shown: Shown, looks_left: int, reasons: tuple[str, str, str]) -> Judgement:
    """Return whether a candidate is good enough to be blessed, may be, or is not shown to be."""
    reached, open_, missed = reasons
    if shown.bar_reached:
        return Judgement(Decision.PROMOTE, reached)
    if looks_left and shown.bar_open:
        return Judgement(None, open_)
    return Judgement(Decision.PROVISIONAL, missed)


def _own(evidence: Evidence) -> str:
    """Return what was measured of the candidate alone, as a part of a sentence."""
    bounds = _interval(
        evidence.candidate_lower, evidence.candidate_upper, evidence.candidate_confidence, ".3f"
    )
    told = _told_of_episodes(evidence) if evidence.baseline is None else ""
    return f"{evidence.candidate:.3f} in {evidence.n_pairs} episodes, mean in {bounds}{told}"


def _judge_level(
    evidence: Evidence,
    baseline: float,
    history: Sequence[PastCandidate],
    thresholds: ThresholdConfig,
    found: str,
) -> Judgement:
    """Return whether candidates that are neither better nor worse make a plateau."""
    recent = [*history, past_candidate(evidence)][-thresholds.plateau_cycles :]
    level = all(_is_level(candidate, thresholds) for candidate in recent)
    if len(recent) < thresholds.plateau_cycles or not level:
        return Judgement(Decision.ITERATE, f"No difference that counts is shown: {found}.")
    largest = max(abs(candidate.difference or 0.0) for candidate in recent)
    plateau = (
        f"The last {thresholds.plateau_cycles} candidates are level with the reference, each on "
        f"its own initial states, with differences up to {largest:.3f}: {found}"
    )
    if baseline < thresholds.escalate_floor:
        return Judgement(
            Decision.ITERATE,
            f"{plateau}; it solves too little to escalate, escalate_floor is "
            f"{thresholds.escalate_floor:.3f}.",
        )
    return Judgement(Decision.ESCALATE, f"{plateau}.")


def _is_level(candidate: PastCandidate, thresholds: ThresholdConfig) -> bool:
    """Return whether a candidate's difference from the reference, of its own cycle, is none.

    Two equal policies rarely measure within ``plateau_epsilon`` of each other, so what the bounds
    cannot resolve, a difference up to their half-width, counts as none too; but never a difference
    as large as ``promote_delta`` or ``regression_delta``. A delta of 0 names no size: the bounds
    alone tell what counts then. Candidates that are given up early mostly measured a loss: one that
    the likely bounds cannot resolve counts as none, too. A candidate whose difference is not known
    is not level.
    """
    if candidate.difference is None:
        return False
    size = abs(candidate.difference)
    likely = candidate.likely_half_width
    given_up_by_chance = likely is not None and size <= likely and candidate.difference < 0.0
    if size < thresholds.plateau_epsilon or given_up_by_chance:
        return True
    unresolved = candidate.half_width is None or size <= candidate.half_width
    deltas = (thresholds.promote_delta, thresholds.regression_delta)
    return unresolved and all(size < delta for delta in deltas if delta > 0.0)


def _describe(evidence: Evidence) -> str:
    """Return what was measured, as the end of a sentence."""
    bounds = _interval(evidence.lower, evidence.upper, evidence.confidence, "+.3f")
    means = (
        f"{evidence.candidate:.3f} against {evidence.baseline:.3f} on {evidence.n_pairs} shared "
        "initial states, difference"
    )
    if evidence.method.startswith("wins/"):
        means = (
            f"it scores higher on {evidence.wins} and lower on {evidence.losses} of "
            f"{evidence.n_pairs} shared initial states, which says nothing of its mean score, "
            "difference of these shares"
        )
    return f"{means} {evidence.difference:+.3f} in {bounds}{_told_of_episodes(evidence)}"


def _told_of_episodes(evidence: Evidence) -> str:
    """Return what became of scores outside the range and of episodes after the stop."""
    told = ""
    if evidence.clipped:
        count = evidence.n_pairs if evidence.baseline is None else 2 * evidence.n_pairs
        told += (
            f"; {evidence.clipped} of {count} scores clipped to eval.score_range, the decision is "
            "about the clipped score"
        )
    unused = (evidence.n_played or 0) - evidence.n_pairs
    if unused > 0:
        told += f"; {unused} further ones were played after the stop and are not used"
    return told


def _interval(lower: float | None, upper: float | None, confidence: float | None, form: str) -> str:
    """Return bounds with their level."""
    low = "-inf" if lower is None else f"{lower:{form}}"
    high = "+inf" if upper is None else f"{upper:{form}}"
    level = "" if confidence is None else f" at {_percent(confidence)} %"
    return f"[{low}, {high}]{level}"


def _percent(confidence: float) -> str:
    """Return a level below 1 in percent; an early look's is so high that it would round to 100."""
    text = f"{100.0 * confidence:.4g}"
    return "over 99.99" if text == "100" else text

"""What becomes of a candidate: pure functions of what was measured.

`decide` compares two numbers, as a loop does that measures each policy once. `judge` asks what the
episodes behind them show and lets a run measure on while the answer is open; runs use it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_level, normal_quantile
from cadenza.loop.config import LoopConfig, ThresholdConfig
from cadenza.loop.constitution.lerobot_programs import suite_sizes, tasks_played
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.state import PastCandidate

#: Numbers of the tasks that a run plays of a suite, in the further arguments.
_TASK_IDS: Final = re.compile(r"--env\.task_ids=\[([0-9, ]+)\]")


def tasks_of(config: LoopConfig) -> int:
    """Return the number of tasks; 1 natively, where an episode is one of all tasks.

    Raises:
        ConstitutionError: Nobody says how many tasks a suite has.
        ConfigurationError: ``data.instructions`` names no file of suites.
    """
    measured, described = config.eval, config.data.instructions
    if config.backend == "native":
        return 1
    chosen = [
        int(number)
        for word in (*measured.env_args, *measured.extra_args)
        for found in _TASK_IDS.findall(word)
        for number in found.split(",")
        if number.strip()
    ]
    suites = [name.strip() for name in measured.task_suite.split(",")]
    known = {} if described is None else suite_sizes(described)
    return tasks_played(measured.env_type, suites, chosen, known)


#: Multiple of 10 episodes with which a true gain of 10 points is promoted in at least 80 % of first
#: comparisons, whatever the reference's success; `tools/simulate_loop_decisions.py` measures it.
RECOMMENDED_MAX_EPISODES: Final = 480
#: Probability, over all looks, of giving up a candidate that is better by `SEEN_DELTAS` deltas.
FUTILITY: Final = 0.2
#: Gain that must stay possible while a comparison goes on, in units of ``promote_delta``.
SEEN_DELTAS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """Looks at one comparison.

    Attributes:
        first: Episodes per policy at the first look, >= 1.
        growth: Factor from look to look, > 1.
        max_episodes: Episodes per policy at the last look, >= ``first``.
        alpha: Probability over the whole run of a promotion of what is no better, and again of a
            first blessing below ``min_promote``, in (0, 0.5).
    """

    first: int
    growth: float
    max_episodes: int
    alpha: float

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.max_episodes:
            raise InputError(
                f"SequentialPlan: expected 1 <= first <= max_episodes, got {self.first} and "
                f"{self.max_episodes}."
            )
        if not 1.0 < self.growth < math.inf:
            raise InputError(f"SequentialPlan.growth: expected > 1, got {self.growth}.")
        if not 0.0 < self.alpha < 0.5:
            raise InputError(
                f"SequentialPlan.alpha: expected a probability in (0, 0.5), got {self.alpha}."
            )

    @classmethod
    def of_run(cls, config: LoopConfig) -> Self:
        """Return the plan of a run.

        Without ``eval.max_episodes`` the budget is `RECOMMENDED_MAX_EPISODES` over all tasks, or
        ``n_episodes`` of each if that is more.

        Raises:
            ConstitutionError: Nobody says how many tasks a suite has.
            ConfigurationError: ``data.instructions`` names no file of suites.
        """
        of_each = math.ceil(RECOMMENDED_MAX_EPISODES / tasks_of(config))
        recommended = max(config.eval.n_episodes, of_each)
        return cls(
            first=config.eval.n_episodes,
            growth=config.eval.extension_growth,
            max_episodes=config.eval.max_episodes or recommended,
            alpha=config.thresholds.alpha,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Episodes per policy at each look, all looks so far together; strictly increasing."""
        sizes: list[int] = []
        size = self.first
        while size * math.sqrt(self.growth) < self.max_episodes:
            sizes.append(size)
            size = max(size + 1, math.ceil(min(size * self.growth, self.max_episodes)))
        if not sizes:
            sizes = [self.first]
        if sizes[-1] < self.max_episodes:
            sizes.append(self.max_episodes)
        return tuple(sizes)

    @property
    def futility(self) -> float:
        """Probability that each look but the last may add of giving up what is worth it."""
        return FUTILITY / max(1, len(self.sizes) - 1)

    def alphas(self, spent: float) -> tuple[float, ...]:
        """Return the one-sided probability of a wrong promotion that each look may add.

        ``spent`` is what earlier comparisons of the run spent, in [0, ``alpha``].
        """
        share = max(0.0, self.alpha - spent) / 2.0
        used = [_late_spending(size / self.max_episodes, share) for size in self.sizes]
        return tuple(now - before for now, before in zip(used, [0.0, *used], strict=False))

    def bar_alphas(self, cycle: int) -> tuple[float, ...]:
        """Return the probability that each look may add of a first blessing below the bar."""
        looks = len(self.sizes)
        return (self.alpha / ((cycle + 1) * (cycle + 2)) / looks,) * looks

    def looks_left(self, look: int) -> int:
        """Return how many looks may follow look ``look``, counted from 0.

        Raises:
            InputError: The plan has no such look.
        """
        looks = len(self.sizes)
        if not 0 <= look < looks:
            raise InputError(f"SequentialPlan: expected a look in 0..{looks - 1}, got {look}.")
        return looks - 1 - look

    def episodes_needed(self, gain: float) -> int:
        """Return about how many episodes show a true gain, in (0, 1), at once, per policy.

        As ``max_episodes`` they promote it in four of five runs where that is hardest: with success
        around a half, and independent outcomes. Normal approximation with Fleiss' correction for
        counts, and `_PRICE_OF_LOOKS`.
        """
        if not 0.0 < gain < 1.0:
            raise InputError(f"episodes_needed.gain: expected in (0, 1), got {gain}.")
        differing = (1.0 + gain**2) / 2.0
        level, power = -normal_quantile(self.alpha / 2.0), normal_quantile(0.8)
        spread = level * math.sqrt(differing) + power * math.sqrt(differing - gain**2)
        count = (spread / gain) ** 2
        corrected = count / 4.0 * (1.0 + math.sqrt(1.0 + 4.0 / (count * gain))) ** 2
        return math.ceil(_PRICE_OF_LOOKS * corrected)


#: Share by which looks and futility raise the episodes of one look at the same power; measured.
_PRICE_OF_LOOKS: Final = 1.15


def _late_spending(fraction: float, alpha: float) -> float:
    """Return the part of ``alpha`` spent when ``fraction`` of all episodes, in (0, 1], is in."""
    bound = -normal_quantile(alpha / 2.0) / math.sqrt(fraction)
    return min(alpha, 2.0 * normal_level(-bound))


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
    _require_scores(candidate, baseline, history)
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


def judge(
    evidence: Evidence,
    history: Sequence[PastCandidate],
    thresholds: ThresholdConfig,
    *,
    warm_up: bool,
    looks_left: int,
    provisional: bool = False,
) -> Judgement:
    """Return what the evidence at one look decides.

    Promotion needs bounds above 0 and a gain of ``promote_delta``; a rollback needs bounds below 0
    and a loss of ``regression_delta``. While the bounds hold differences that would lead to
    either, a gain worth further episodes is likely enough, see `SequentialPlan`, and looks are
    left, nothing is decided. After that a plateau escalates as in `decide`: the last
    ``plateau_cycles`` candidates, this one included, each level with the reference by the
    episodes of its own cycle, see `_is_level`.

    As long as nothing is blessed, a promotion also needs the lower bound of the candidate's own
    success, or score, at ``min_promote`` or above; the reference, if any, is ``provisional`` then,
    and replaced by a better candidate that does not reach it. In the ``warm_up`` of a rung a worse
    candidate is no regression.

    Raises:
        InputError: ``looks_left`` is negative, or the evidence has a baseline without a difference.
    """
    if looks_left < 0:
        raise InputError(f"judge.looks_left: expected >= 0, got {looks_left}.")
    bar, own = f"min_promote {thresholds.min_promote:.3f}", _own(evidence)
    if evidence.baseline is None:
        reasons = (
            f"The first candidate reaches {bar}: {own}.",
            f"Further episodes may show whether the first candidate reaches {bar}: {own}.",
            f"The first candidate is the reference, but not shown to reach {bar}, so it is not "
            f"blessed: {own}.",
        )
        return _judge_bar(evidence, thresholds, looks_left, reasons)
    if evidence.difference is None:
        raise InputError("judge: expected a difference beside the baseline, got None.")
    lower = -math.inf if evidence.lower is None else evidence.lower
    upper = math.inf if evidence.upper is None else evidence.upper
    found = _describe(evidence)
    if lower > 0.0 and evidence.difference >= thresholds.promote_delta:
        if not provisional:
            return Judgement(Decision.PROMOTE, f"It is better: {found}.")
        reasons = (
            f"It is better and reaches {bar}: {own}; {found}.",
            f"It is better; further episodes may show whether it reaches {bar}: {own}; {found}.",
            "It is better than the provisional reference and replaces it, but is not shown to "
            f"reach {bar}: {own}; {found}.",
        )
        return _judge_bar(evidence, thresholds, looks_left, reasons)
    if upper < 0.0 and evidence.difference <= -thresholds.regression_delta:
        if not warm_up:
            return Judgement(Decision.ROLLBACK, f"It is worse: {found}.")
        return Judgement(
            Decision.ITERATE,
            f"It is worse, which a new policy type may be while it warms up: {found}.",
        )
    gain_possible = upper >= thresholds.promote_delta
    loss_possible = lower <= -thresholds.regression_delta and not warm_up
    likely = evidence.likely_upper
    futile = likely is not None and likely < SEEN_DELTAS * thresholds.promote_delta
    if looks_left and not futile and (gain_possible or loss_possible):
        return Judgement(None, f"Further episodes may decide: {found}.")
    if provisional and _reaches_bar(evidence, thresholds):
        return Judgement(
            Decision.PROMOTE,
            "Nothing is blessed yet, it is not worse than the provisional reference and "
            f"reaches {bar}: {own}; {found}.",
        )
    return _judge_level(evidence, evidence.baseline, history, thresholds, found)


def _judge_bar(
    evidence: Evidence, thresholds: ThresholdConfig, looks_left: int, reasons: tuple[str, str, str]
) -> Judgement:
    """Return whether a candidate is good enough to be blessed, may be, or is not shown to be."""
    reached, open_, missed = reasons
    if _reaches_bar(evidence, thresholds):
        return Judgement(Decision.PROMOTE, reached)
    upper = evidence.candidate_upper
    if looks_left and (upper is None or upper >= thresholds.min_promote):
        return Judgement(None, open_)
    return Judgement(Decision.PROVISIONAL, missed)


def _reaches_bar(evidence: Evidence, thresholds: ThresholdConfig) -> bool:
    """Return whether the candidate is shown to be good enough to be blessed."""
    lower = evidence.candidate_lower
    return lower is not None and lower >= thresholds.min_promote


def _own(evidence: Evidence) -> str:
    """Return what was measured of the candidate alone, as a part of a sentence."""
    bounds = _interval(
        evidence.candidate_lower, evidence.candidate_upper, evidence.candidate_confidence, ".3f"
    )
    return f"{evidence.candidate:.3f} in {evidence.n_pairs} episodes, mean in {bounds}"


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
    return (
        f"{evidence.candidate:.3f} against {evidence.baseline:.3f} on {evidence.n_pairs} shared "
        f"initial states, difference {evidence.difference:+.3f} in {bounds}"
    )


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

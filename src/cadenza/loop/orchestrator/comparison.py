"""The comparison of a cycle: candidate and reference in rounds, judged while they are played.

Rules:   success, and wins by score, by the exact sequential rule; means of scores of a declared
         range, and every own mean, by betting; see `cadenza.evaluation.statistics.sequential`.
Checks:  at the first complete round after each `CHECK_EVERY` pairs, in the order of the seeds, and
         at the end. A crossing is remembered: a candidate that is shown to be better is blessed at
         the first check at which its mean gain reaches ``promote_delta``.
Jobs:    a job plays several checks. What it played after the stop counts for nothing, so the
         decision does not depend on the size of the jobs, nor on who was killed meanwhile.
Fixed:   level, most pairs and range are stored with the state before the first episode.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.paired_outcomes import paired_outcome_interval
from cadenza.evaluation.statistics.sequential import (
    betting_bounds,
    chance_of_mean,
    chance_of_signs,
    comparison_level,
    log_capital,
    pairs_for_mean,
    pairs_for_signs,
    sign_bounds,
    sign_path,
    spent_after,
)
from cadenza.loop.config import LoopConfig, Metric
from cadenza.loop.constitution.suites import suite_sizes, tasks_played
from cadenza.loop.contracts.records import OUTLOOK, EpisodeOutcome
from cadenza.loop.orchestrator.decision import SEEN_DELTAS, Decision, Judgement, Shown, judge
from cadenza.loop.orchestrator.evidence import Evidence, in_rounds, paired_rounds, score_of
from cadenza.loop.state import Comparison, LoopState, needed

#: Pairs between two checks, or as many more as complete the round.
CHECK_EVERY: Final = 10
#: Multiple of 10 pairs with which a true gain of 10 points is promoted in at least 80 % of first
#: comparisons, whatever the reference's success; `tools/simulate_loop_decisions.py` measures it.
RECOMMENDED_MAX_EPISODES: Final = 480
#: Probability of giving up a candidate whose mean score is better by `SEEN_DELTAS` deltas.
SCORE_FUTILITY: Final = 0.1
#: Share of the most pairs after which bets on an own mean are boldest.
_OWN_SHARE: Final = 0.25
#: Deviation of paired scores, as a share of the range, where none was measured yet.
UNKNOWN_DEVIATION: Final = 0.4
#: A chance of blessing a gain worth it below which people are warned.
WEAK: Final = 0.3

#: Numbers of the tasks that a run plays of a suite, in the further arguments.
_TASK_IDS: Final = re.compile(r"--env\.task_ids=\[([0-9, ]+)\]")


def tasks_of(config: LoopConfig) -> int:
    """Return the number of tasks; 1 natively, where an episode is one of all tasks."""
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


def most_episodes(config: LoopConfig) -> int:
    """Return the most episodes per policy in each task.

    Without ``eval.max_episodes`` `RECOMMENDED_MAX_EPISODES` over all tasks, or ``n_episodes`` of
    each if that is more.
    """
    if config.eval.max_episodes is not None:
        return config.eval.max_episodes
    return max(config.eval.n_episodes, math.ceil(RECOMMENDED_MAX_EPISODES / tasks_of(config)))


def episodes_per_job(config: LoopConfig) -> int:
    """Return the episodes that a job plays of one policy in each task."""
    return min(config.eval.episodes_per_job or config.eval.n_episodes, most_episodes(config))


def comparison_of(config: LoopConfig, state: LoopState) -> Comparison:
    """Return the rule of the next comparison."""
    alpha, spent, failed = config.thresholds.alpha, state.spent, state.failed
    return Comparison(
        level=comparison_level(alpha, spent, failed),
        bar_level=alpha / ((failed + 1) * (failed + 2)),
        spent=spent,
        most=most_episodes(config),
        first=config.eval.n_episodes,
        growth=config.eval.extension_growth,
        per_job=episodes_per_job(config),
        score_range=config.eval.score_range,
    )


#: Probability, over all looks, of giving up a candidate that is better by `SEEN_DELTAS` deltas.
FUTILITY: Final = 0.2


def look_sizes(first: int, growth: float, most: int) -> tuple[int, ...]:
    """Return the episodes, all so far together, after which candidates may be given up."""
    if not 1 <= first <= most:
        raise InputError(f"look_sizes: expected 1 <= first <= most, got {first} and {most}.")
    if not 1.0 < growth < math.inf:
        raise InputError(f"look_sizes.growth: expected > 1, got {growth}.")
    sizes: list[int] = []
    size = first
    while size * math.sqrt(growth) < most:
        sizes.append(size)
        size = max(size + 1, math.ceil(min(size * growth, most)))
    if not sizes:
        sizes = [first]
    return (*sizes, most) if sizes[-1] < most else tuple(sizes)


def futility_tail(sizes: Sequence[int]) -> float:
    """Return the probability that each look but the last may add of giving up what is worth it."""
    return FUTILITY / max(1, len(sizes) - 1)


def job_ends(comparison: Comparison) -> tuple[int, ...]:
    """Return the episodes per policy and task after each job, all jobs so far together."""
    return (*range(comparison.per_job, comparison.most, comparison.per_job), comparison.most)


def weigh(
    comparison: Comparison,
    config: LoopConfig,
    state: LoopState,
    candidate: Sequence[EpisodeOutcome],
    reference: Sequence[EpisodeOutcome] | None,
) -> tuple[Judgement, Evidence]:
    """Return the judgement at the first check that decides, or None with all that was played.

    A pure function of the episodes: those of both sides so far, in any order.
    """
    series = _Series(comparison, config, candidate, reference)
    thresholds = config.thresholds
    provisional = state.blessed is None

    def judged(shown: Shown, evidence: Evidence) -> Judgement:
        return judge(
            evidence,
            state.history,
            thresholds,
            warm_up=warms_up(state, config),
            looks_left=int(evidence.n_pairs < series.most),
            provisional=provisional,
            shown=shown,
        )

    look, bar = state.current.look, thresholds.min_promote if provisional else None
    shown_at = series.shown(thresholds.promote_delta, bar)
    for pairs, shown in zip(series.checks, shown_at, strict=True):
        decision = judged(shown, series.measured(pairs)).decision
        if decision is None:
            continue
        evidence, told = series.evidence(pairs, look, own=provisional), ""
        if decision in (Decision.PROMOTE, Decision.PROVISIONAL) and not _is_consistent(evidence):
            shown = replace(shown, better=False, bar_reached=False)
            told = (
                " The bounds exclude what was measured, so the difference drifts along the initial "
                "states and nothing is blessed on them."
            )
        verdict = judged(shown, evidence)
        if verdict.decision is not None:
            return Judgement(verdict.decision, f"{verdict.reason}{told}"), evidence
    evidence = series.evidence(series.played, look, own=provisional)
    return Judgement(None, judged(Shown(), evidence).reason), evidence


def warms_up(state: LoopState, config: LoopConfig) -> bool:
    """Return whether a worse candidate is no regression yet, as its policy type is new."""
    return state.rung > 0 and state.rung_cycles < config.thresholds.warm_up_cycles


def _is_consistent(evidence: Evidence) -> bool:
    """Return whether the measured means lie within their bounds."""
    means = (
        (evidence.lower, evidence.difference, evidence.upper),
        (evidence.candidate_lower, evidence.candidate, evidence.candidate_upper),
    )
    return all(
        low is None or high is None or mean is None or low <= mean <= high
        for low, mean, high in means
    )


class _Series:
    """What was played, pair by pair; T tasks, N pairs in R rounds.

    Attributes:
        own: Success or score of the candidate, a share of the range, shape (R, T).
        other: The same of the reference; None without one.
        signs: Wins and losses, shape (N,); None for means of scores.
        outside: Scores of the pair outside the range, shape (N,).
        checks: Pairs after which the rule is checked, of those played.
        most: Pairs of the whole plan.
        least: Least value of an own mean; ``width`` is that of its range.
        own_most: Episodes after which bets on an own mean are boldest.
    """

    def __init__(
        self,
        comparison: Comparison,
        config: LoopConfig,
        candidate: Sequence[EpisodeOutcome],
        reference: Sequence[EpisodeOutcome] | None,
    ) -> None:
        self.comparison, metric = comparison, config.eval.metric
        self.metric: Metric = metric
        if reference is None:
            sides = [in_rounds("candidate", candidate)]
        else:
            sides = list(paired_rounds(candidate, reference))
        self.tasks, rounds = len(sides[0][0]), len(sides[0])
        self.played, self.most = rounds * self.tasks, comparison.most * self.tasks
        self.own_most: float = max(1.0, _OWN_SHARE * self.most)
        self.least, top = comparison.score_range or (0.0, 1.0)
        self.width: float = top - self.least
        scale = comparison.score_range
        values = [np.array([[_value(e, scale) for e in row] for row in side]) for side in sides]
        self.own: FloatArray = np.clip(values[0], 0.0, 1.0)
        self.other: FloatArray | None = np.clip(values[1], 0.0, 1.0) if values[1:] else None
        outside = sum(((side < 0.0) | (side > 1.0)).astype(int) for side in values)
        self.outside: list[int] = np.ravel(outside).tolist()
        self.signs: list[int] | None = None
        if scale is None and reference is not None:
            pairs = zip(*([e for row in side for e in row] for side in sides), strict=True)
            self.signs = [_sign(one, other, metric) for one, other in pairs]
        steps = range(1, self.played // CHECK_EVERY + 1)
        ends = {math.ceil(step * CHECK_EVERY / self.tasks) for step in steps} | {comparison.most}
        self.checks = tuple(end * self.tasks for end in sorted(ends) if end <= rounds)

    @property
    def scaled(self) -> FloatArray:
        """Differences from [-1, 1] scaled to [0, 1], shape (R, T)."""
        return (self.own - needed(self.other) + 1.0) / 2.0

    def shown(self, delta: float, bar: float | None) -> list[Shown]:
        """Return what is shown at each check, of a gain and, as long as nothing is blessed, a bar.

        Without a bar a gain that is worth seeing must stay likely. A provisional reference needs
        none to be replaced, so nobody gives up against it.
        """
        never = [False] * len(self.checks)
        better, worse = self._sides() if self.other is not None else (never, never)
        futile = never if self.other is None or bar is not None else self._futile(delta)
        reached, missed = [True] * len(self.checks), never
        if bar is not None:
            level, goal = self.comparison.bar_level, (bar - self.least) / self.width
            reached = self._crossed(self.own, goal, level, self.own_most)
            missed = self._crossed(1.0 - self.own, 1.0 - goal, level, self.own_most)
        rows = zip(better, worse, futile, reached, missed, strict=True)
        return [
            Shown(better=b, worse=w, open=not f, bar_reached=r, bar_open=not m)
            for b, w, f, r, m in rows
        ]

    def _sides(self) -> tuple[list[bool], list[bool]]:
        """Return whether each check, or one before it, shows a gain, and a loss."""
        level, most = self.comparison.level, self.most
        if self.signs is None:
            y = self.scaled
            return self._crossed(y, 0.5, level, most), self._crossed(1.0 - y, 0.5, level, most)
        stops = (
            sign_path(signs, self.checks, level=level, most=most).stop
            for signs in (self.signs, [-sign for sign in self.signs])
        )
        up, down = ([stop is not None and check >= stop for check in self.checks] for stop in stops)
        return up, down

    def _crossed(self, values: FloatArray, null: float, level: float, most: float) -> list[bool]:
        """Return whether each check, or a round before it, shows a mean above ``null``.

        A mean of at least 0 needs no showing, one above 1 cannot be shown.
        """
        if null <= 0.0 or null >= 1.0 or level <= 0.0:
            return [null <= 0.0] * len(self.checks)
        capital = np.maximum.accumulate(log_capital(values, null, level=level, most=most))
        return [bool(capital[end // self.tasks - 1] >= -math.log(level)) for end in self.checks]

    def _futile(self, delta: float) -> list[bool]:
        """Return whether a gain that is worth seeing is unlikely at each check."""
        if self.signs is None:
            goal = 0.5 - _worth_seeing(delta, self.width) / (2.0 * self.width)
            return self._crossed(1.0 - self.scaled, goal, SCORE_FUTILITY, self.most)
        sizes = self._look_sizes()
        looks = {next((c for c in self.checks if c >= size * self.tasks), 0) for size in sizes}
        return [
            check in looks
            and self._likely_of_signs(check, futility_tail(sizes))[1] < _worth_seeing(delta, 1.0)
            for check in self.checks
        ]

    def measured(self, pairs: int) -> Evidence:
        """Return the means of the first ``pairs`` pairs, without bounds."""
        least, width = self.least, self.width
        rounds = pairs // self.tasks
        facts: dict[str, Any] = {
            "candidate": least + width * float(self.own[:rounds].mean()),
            "n_pairs": pairs,
            "n_played": self.played,
            "most": self.most,
            "clipped": sum(self.outside[:pairs]),
            "method": f"{self.metric}/betting/v1",
        }
        if self.other is not None:
            level = self.comparison.level
            facts["baseline"] = least + width * float(self.other[:rounds].mean())
            facts |= {"level": level, "confidence": 1.0 - 2.0 * level}
            differences = self.own[:rounds] - self.other[:rounds]
            facts |= {
                "difference": width * float(differences.mean()),
                "deviation": float(differences.std()),
                "method": "score/paired/betting/v1",
            }
        if self.signs is not None:
            wins, losses = (self.signs[:pairs].count(sign) for sign in (1, -1))
            facts |= {"wins": wins, "losses": losses, "difference": (wins - losses) / pairs}
            facts |= {"deviation": None, "method": f"{self.metric}/paired/exact-sequential/v1"}
        return Evidence(**facts)

    def evidence(self, pairs: int, look: int, *, own: bool) -> Evidence:
        """Return what the first ``pairs`` pairs show, with all bounds, ``own`` ones if asked."""
        least, width = self.least, self.width
        comparison, rounds = self.comparison, pairs // self.tasks
        update: dict[str, object] = {"look": look}
        if own:
            level, most = comparison.bar_level, self.own_most
            low, high = betting_bounds(self.own[:rounds], level=level, most=most)
            update |= {
                "candidate_lower": least + width * low,
                "candidate_upper": least + width * high,
                "candidate_confidence": 1.0 - 2.0 * comparison.bar_level,
            }
        found = self.measured(pairs)
        if self.other is None:
            return found.model_copy(update=update)
        final = None
        if self.signs is None:
            scaled = self.scaled[:rounds]
            bounds = betting_bounds(scaled, level=comparison.level, most=self.most)
            likely = betting_bounds(scaled, level=SCORE_FUTILITY, most=self.most)
            lower, upper, likely_lower, likely_upper = (
                width * (2.0 * bound - 1.0) for bound in (*bounds, *likely)
            )
            if comparison.level > 0.0:
                capital = log_capital(scaled, 0.5, level=comparison.level, most=self.most)
                final = float(capital[-1])
        else:
            checks = [check for check in self.checks if check <= pairs]
            signs = self.signs[:pairs]
            lower, upper = sign_bounds(signs, checks, level=comparison.level, most=self.most)
            tail = futility_tail(self._look_sizes())
            likely_lower, likely_upper = self._likely_of_signs(pairs, tail)
        update |= {
            "lower": lower,
            "upper": upper,
            "likely_lower": likely_lower,
            "likely_upper": likely_upper,
            "spent": spent_after(comparison.spent, comparison.level, final),
        }
        return found.model_copy(update=update)

    def _look_sizes(self) -> tuple[int, ...]:
        return look_sizes(self.comparison.first, self.comparison.growth, self.comparison.most)

    def _likely_of_signs(self, pairs: int, tail: float) -> tuple[float, float]:
        signs = (self.signs or [])[:pairs]
        return paired_outcome_interval(signs.count(1), signs.count(-1), pairs, tail=tail)


def _value(outcome: EpisodeOutcome, score_range: tuple[float, float] | None) -> float:
    """Return the success of an episode, or its score as a share of the range, not yet clipped."""
    if score_range is None:
        return float(outcome.success)
    least, most = score_range
    return (score_of(outcome) - least) / (most - least)


def _sign(one: EpisodeOutcome, other: EpisodeOutcome, metric: Metric) -> int:
    if metric == "success":
        return one.success - other.success
    return (score_of(one) > score_of(other)) - (score_of(one) < score_of(other))


def outlook(
    config: LoopConfig, *, spent: float, failed: int, most: int, deviation: float | None = None
) -> str:
    """Return what the next comparison of a run can show with at most so many pairs, all tasks'.

    Its level, and the chance of a gain that counts, with a warning where that is small.
    ``deviation`` is that of paired scores as last measured, a share of the range.
    """
    level = comparison_level(config.thresholds.alpha, spent, failed)
    gain, width = _gain_that_counts(config)
    share = min(gain / width, 1.0 - 1e-9)
    if config.eval.metric == "score":
        chance = chance_of_mean(share, level, most, deviation or UNKNOWN_DEVIATION)
    else:
        chance = chance_of_signs(share, level, most)
    told = (
        f"{OUTLOOK} {100.0 * level:.3g} %: {_told(gain, config)} would be "
        f"blessed in about {100.0 * chance:.0f} %."
    )
    if chance >= WEAK:
        return told
    return (
        f"{told} Warning: it hardly detects a gain that counts; raise eval.max_episodes, or go on "
        "from the blessed policy in a new run."
    )


def _gain_that_counts(config: LoopConfig) -> tuple[float, float]:
    """Return a gain worth a comparison, a tenth of the range without a delta, and its width."""
    least, top = config.eval.score_range or (0.0, 1.0)
    width = top - least
    return _worth_seeing(config.thresholds.promote_delta, width) or width / 10.0, width


def _worth_seeing(delta: float, width: float) -> float:
    """Return `SEEN_DELTAS` deltas, or what lies half way to the whole ``width`` if that is less."""
    return min(SEEN_DELTAS * delta, (delta + width) / 2.0)


def _told(gain: float, config: LoopConfig) -> str:
    return f"+{gain:.3g}" if config.eval.metric == "score" else f"+{100.0 * gain:.3g} points"


def spends(decision: Decision, evidence: Evidence) -> bool:
    """Return whether a comparison showed no gain: it counts as failed and spends of the budget."""
    shown_better = evidence.baseline is None or (evidence.lower or 0.0) > 0.0
    return decision is not Decision.PROMOTE or not shown_better


def comparison_costs(config: LoopConfig) -> list[str]:
    """Return how many pairs gains need, and what jobs cost.

    Episodes past the stop are half a job's on average; LeRobot's programs take 10 to 22 s to start.
    """
    metric, tasks, most = config.eval.metric, tasks_of(config), most_episodes(config)
    level, (gain, width) = (
        comparison_level(config.thresholds.alpha, 0.0, 0),
        _gain_that_counts(config),
    )
    gains = [one for one in (gain, 1.5 * gain, 2.0 * gain) if one < width]
    if metric == "score":
        pairs = [pairs_for_mean(one / width, level, UNKNOWN_DEVIATION) for one in gains]
        where = f"if paired scores deviate by {UNKNOWN_DEVIATION:g} of eval.score_range"
    else:
        pairs = [pairs_for_signs(one, level) for one in gains]
        where = "where it is hardest"
    seen = ", ".join(f"{_told(one, config)}: {n}" for one, n in zip(gains, pairs, strict=True))
    size = episodes_per_job(config)
    jobs, first = (
        2 * math.ceil(most / size),
        outlook(config, spent=0.0, failed=0, most=most * tasks),
    )
    starts = f", {10 * jobs} to {22 * jobs} s of starts" if config.backend == "lerobot" else ""
    told = [
        f"episodes needed to see {seen} (of each policy, in four of five first comparisons, "
        f"{where}); this configuration plays up to {most * tasks}",
        first.replace("The next", "the first", 1),
        f"a comparison takes up to {jobs} jobs of {size * tasks} episodes{starts}, and plays about "
        f"{size * tasks / 2.0:.0f} episodes of each policy past its stop, which are not used; set "
        "eval.episodes_per_job to trade one for the other",
    ]
    if metric == "wins":
        told.insert(
            0,
            "eval.metric wins: a policy is blessed that scores higher on more initial states than "
            "lower; its mean score may still be worse",
        )
    return told

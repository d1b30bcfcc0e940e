"""How soon the first candidate of a run is blessed, and how often below the bar: exact, no draws.

Counts:   successes of the looks are binomial; the distribution of those that `judge` leaves
          undecided is carried from look to look.
Promise:  whatever the true success below ``min_promote``, the parts of the level that all looks of
          all cycles add sum to ``alpha``, so a run that tries in every cycle blesses such a policy
          first with probability <= ``alpha``.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.orchestrator.decision import Decision, judge
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan

#: True success of first candidates that are shown; the bar is 0.05.
FIRST_RATES: Final = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBlessing:
    """What becomes of a first candidate.

    Attributes:
        blessed: Probability that it is blessed.
        mean_episodes: Mean episodes that it plays.
    """

    blessed: float
    mean_episodes: float


def first_blessing(rate: float, plan: SequentialPlan, thresholds: ThresholdConfig) -> FirstBlessing:
    """Return what becomes of a first candidate whose true success is ``rate``.

    Raises:
        InputError: ``rate`` lies outside [0, 1].
    """
    if not 0.0 <= rate <= 1.0:
        raise InputError(f"first_blessing.rate: expected in [0, 1], got {rate}.")
    open_: FloatArray = np.ones(1)  # probability of s successes, undecided so far, shape (n + 1,)
    blessed = episodes = 0.0
    before = 0
    for look, size in enumerate(plan.sizes):
        episodes += (size - before) * float(open_.sum())
        open_ = np.convolve(open_, _binomial(size - before, rate))
        before = size
        for successes in np.flatnonzero(open_):
            decision = _decision(int(successes), look, plan, thresholds)
            if decision is Decision.PROMOTE:
                blessed += float(open_[successes])
            if decision is not None:
                open_[successes] = 0.0
    return FirstBlessing(blessed=blessed, mean_episodes=episodes)


def _decision(
    successes: int, look: int, plan: SequentialPlan, thresholds: ThresholdConfig
) -> Decision | None:
    """Return what `judge` says of the counts."""
    size = plan.sizes[look]
    lower, upper = exact_bounds(successes, size, tail=plan.bar_alphas[look])
    evidence = Evidence(
        candidate=successes / size,
        n_pairs=size,
        look=look,
        candidate_lower=lower,
        candidate_upper=upper,
        method="simulated",
    )
    left = plan.looks_left(look)
    return judge(evidence, (), thresholds, warm_up=False, looks_left=left).decision


def _binomial(trials: int, rate: float) -> FloatArray:
    """Return the probability of each number of successes, shape (trials + 1,)."""
    return np.array(
        [math.comb(trials, k) * rate**k * (1.0 - rate) ** (trials - k) for k in range(trials + 1)]
    )

"""Whether measurements of success agree, and whether runs do.

Difference:  p1 - p2 of independent trials lies, with 95 % confidence, in
             d - sqrt((p1 - l1)^2 + (u2 - p2)^2) .. d + sqrt((u1 - p1)^2 + (p2 - l2)^2)
             with Wilson's bounds l, u. Source: Newcombe 1998, Statist. Med. 17, 873-890, method 10.
Agreement:   two runs agree on a policy and suite if the interval of the difference of their last
             successes holds 0, that difference is at most `MARGIN`, and their changes from first
             to last success are not significant in opposite directions.
Independent: runs of different known seeds. Runs of one seed play the same initial states, and a
             repeated run gives the same numbers: that they agree shows nothing. A run of an unknown
             seed may repeat any other one.
Precise:     a success whose interval is at most `MAX_WIDTH` wide: 21 episodes where half of them
             succeed, 6 where all or none do. Runs of fewer, or of an unknown number, agree with
             nearly everything: they replicate nothing, but they can contradict.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from cadenza.core.proportions import wilson_interval

#: Largest difference of success between runs that agree: few episodes have intervals so wide
#: that everything would agree.
MARGIN: Final = 0.2
#: Widest interval of a success that can replicate another one: half of it is the margin.
MAX_WIDTH: Final = 2 * MARGIN


@dataclass(frozen=True, slots=True)
class Measurement:
    """A share of successes.

    Attributes:
        rate: Successes / episodes, in [0, 1].
        episodes: Episodes; 0 if not known.
    """

    rate: float
    episodes: int

    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % bounds; [0, 1] without episodes."""
        if self.episodes == 0:
            return 0.0, 1.0
        return wilson_interval(round(self.rate * self.episodes), self.episodes)

    @property
    def precise(self) -> bool:
        """Whether there are enough episodes to replicate another measurement."""
        low, high = self.interval()
        return high - low <= MAX_WIDTH


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run found about one policy on one suite.

    Attributes:
        run: The run.
        first: First measurement of a policy that it kept.
        last: Last one.
        seed: Root of its randomness; None if not known.
    """

    run: str
    first: Measurement
    last: Measurement
    seed: int | None = None


def difference_interval(one: Measurement, other: Measurement) -> tuple[float, float]:
    """Return Newcombe's 95 % bounds of ``one.rate - other.rate``."""
    (low_1, high_1), (low_2, high_2) = one.interval(), other.interval()
    p_1, p_2 = one.rate, other.rate
    below = math.hypot(p_1 - low_1, high_2 - p_2)
    above = math.hypot(high_1 - p_1, p_2 - low_2)
    return p_1 - p_2 - below, p_1 - p_2 + above


def direction(before: Measurement, after: Measurement) -> int:
    """Return 1 for a significant gain, -1 for a significant loss, 0 for neither."""
    low, high = difference_interval(after, before)
    return 1 if low > 0.0 else -1 if high < 0.0 else 0


def contradict(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs disagree beyond their intervals."""
    opposite = direction(one.first, one.last) * direction(other.first, other.last) == -1
    return opposite or direction(one.last, other.last) != 0


def agree(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs agree."""
    return not contradict(one, other) and abs(one.last.rate - other.last.rate) <= MARGIN


def independent(outcomes: list[RunOutcome]) -> list[RunOutcome]:
    """Return the newest run of each seed, and of those whose seed is not known."""
    return list({outcome.seed: outcome for outcome in outcomes}.values())


def all_agree(outcomes: list[RunOutcome]) -> bool:
    """Return whether two independent precise runs or more agree, and no run contradicts."""
    precise = [outcome for outcome in outcomes if outcome.last.precise]
    seeds = {outcome.seed for outcome in precise} - {None}
    return (
        len(seeds) > 1
        and all(agree(a, b) for a, b in combinations(precise, 2))
        and not any(contradict(a, b) for a, b in combinations(outcomes, 2))
    )

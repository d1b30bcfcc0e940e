"""How often and how strictly a candidate is compared with the reference while nothing is decided.

Sizes:     first, first * growth, first * growth^2, ..., max_episodes; a size within a factor
           sqrt(growth) of the last, other than the first, is left out: it would cost level and
           decide little.
Level:     a run spends at most ``alpha``, however many cycles it makes. A comparison spends half of
           what is left, a: 2 (1 - Phi(z / sqrt(t))) of it by the look at the share t of all
           episodes, where z is the normal quantile of 1 - a/2. A look gets what is newly spent. A
           promotion on evidence of a gain gives back what its comparison spent.
Why:       what is spent on a policy that is no better is given back only by a wrong promotion. So
           what such policies cost until the first one sums to at most ``alpha``, and the union
           bound holds whatever the candidates have in common (Wiens 2003, Pharmaceutical
           Statistics 2, 211-215, the fallback procedure). What looks would spend that are never
           taken is not given back: a look is taken where it may promote.
Futility:  a comparison ends, too, when a gain of `SEEN_DELTAS` times ``promote_delta`` is excluded
           at the level `SequentialPlan.futility`. So a candidate that is better by so much is given
           up with probability <= `FUTILITY`; candidates that are no better are promoted less often.
The bar:   whether the first policy to be blessed reaches ``min_promote`` is a question of its
           own, with an ``alpha`` of its own: 1 / ((k + 1) (k + 2)) of it in cycle k, in equal parts
           for its looks. A policy worth blessing mostly lies far above the bar, so that early looks
           answer.
Source:    Lan and DeMets 1983, Biometrika 70, 659-663 (O'Brien-Fleming type). docs/loop.md has what
           all of it is worth, `tools/simulate_loop_decisions.py` simulates it.
Tasks:     LeRobot plays the episodes in every task of a suite.
"""

import math
import re
from dataclasses import dataclass
from typing import Final, Self

from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_level, normal_quantile
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution.lerobot_programs import suite_sizes, tasks_played

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
        """Return the probability of a wrong promotion that each look may add; one-sided.

        Args:
            spent: What earlier comparisons of the run spent, in [0, ``alpha``].
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
        """Return about how many episodes show a true gain at the first comparison, per policy.

        As ``max_episodes`` they promote it in four of five runs where that is hardest: with success
        around a half, and independent outcomes. Normal approximation with Fleiss' correction for
        counts, and `_PRICE_OF_LOOKS`.

        Args:
            gain: Gain in success, in (0, 1).

        Raises:
            InputError: ``gain`` is out of range.
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

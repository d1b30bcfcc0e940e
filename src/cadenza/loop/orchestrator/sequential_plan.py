"""How often and how strictly a candidate is compared with the reference while nothing is decided.

Sizes:     first, first * growth, first * growth^2, ..., max_episodes; a size within a factor
           sqrt(growth) of the last, other than the first, is left out: it would cost level and
           decide little.
Level:     the run's ``alpha`` is split evenly over its comparisons; a comparison spends
           2 (1 - Phi(z / sqrt(t))) of its share a by the look at the share t of all episodes, where
           z is the normal quantile of 1 - a/2. A look gets what is newly spent, so the sum over
           looks and comparisons is ``alpha`` and the union bound holds whatever the dependence.
The bar:   whether the first policy to be blessed reaches ``min_promote`` is a question of its
           own, with an ``alpha`` of its own: an equal part at every look of every cycle. A policy
           worth blessing mostly lies far above the bar, so that early looks answer.
Source:    Lan and DeMets 1983, Biometrika 70, 659-663 (O'Brien-Fleming type). Against equal shares
           per look it needs fewer episodes for the same power: docs/loop.md has the table.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from cadenza.core.errors import InputError
from cadenza.core.quantiles import normal_level, normal_quantile
from cadenza.loop.config import LoopConfig
from cadenza.loop.orchestrator.task_counts import tasks_of

#: Smallest multiple of 10 episodes with which a true gain of 10 points is promoted in at least
#: 80 % of comparisons of a run of 3 cycles, whatever the reference's success;
#: `cadenza.loop.orchestrator.operating_characteristics` measures it.
RECOMMENDED_MAX_EPISODES: Final = 420

#: ``"late"`` keeps most of the level for the last look, ``"even"`` gives every look the same.
Spending: TypeAlias = Literal["late", "even"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """Looks at one comparison.

    Attributes:
        first: Episodes per policy at the first look, >= 1.
        growth: Factor from look to look, > 1.
        max_episodes: Episodes per policy at the last look, >= ``first``.
        alpha: Probability over the whole run of a promotion of what is no better, and again of a
            first blessing below ``min_promote``, in (0, 0.5).
        comparisons: Comparisons that the run may make, >= 1.
        spending: How a comparison divides its share over its looks.
    """

    first: int
    growth: float
    max_episodes: int
    alpha: float
    comparisons: int
    spending: Spending = "late"

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
        if self.comparisons < 1:
            raise InputError(f"SequentialPlan.comparisons: expected >= 1, got {self.comparisons}.")

    @classmethod
    def of_run(cls, config: LoopConfig) -> Self:
        """Return the plan of a run; its first cycle has nothing to compare with.

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
            comparisons=max(1, config.budgets.max_cycles - 1),
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
    def alphas(self) -> tuple[float, ...]:
        """Probability of a wrong promotion that each look may add; one-sided."""
        share = self.alpha / self.comparisons
        sizes = self.sizes
        if self.spending == "even":
            return (share / len(sizes),) * len(sizes)
        spent = [_late_spending(size / self.max_episodes, share) for size in sizes]
        return tuple(now - before for now, before in zip(spent, [0.0, *spent], strict=False))

    @property
    def bar_alphas(self) -> tuple[float, ...]:
        """Probability that each look may add of a first blessing below the bar; one-sided.

        The run has one cycle more than comparisons: the first has nothing to compare with.
        """
        looks = len(self.sizes)
        return (self.alpha / (self.comparisons + 1) / looks,) * looks

    def looks_left(self, look: int) -> int:
        """Return how many looks may follow look ``look``, counted from 0.

        Raises:
            InputError: The plan has no such look.
        """
        looks = len(self.sizes)
        if not 0 <= look < looks:
            raise InputError(f"SequentialPlan: expected a look in 0..{looks - 1}, got {look}.")
        return looks - 1 - look


def _late_spending(fraction: float, alpha: float) -> float:
    """Return the part of ``alpha`` spent when ``fraction`` of all episodes, in (0, 1], is in."""
    bound = -normal_quantile(alpha / 2.0) / math.sqrt(fraction)
    return min(alpha, 2.0 * normal_level(-bound))

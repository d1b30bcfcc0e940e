"""What a planned comparison can show: power by simulation of the registered rule itself.

World:      beta-binomial. Each seed draws its two rates from beta distributions with the registered
            means and standard deviation; in a share of the pairs both methods have the same luck.
Rule:       the bounds of `differences.seed_difference` with S seeds of E pairs, shown if the lower
            one lies above the gate.
Curve:      power by true gap; the smallest gap with the target power (MDE); the cheapest seeds and
            episodes that reach it.
Errors:     a power p from B replicates has standard error sqrt(p (1 - p) / B): 0.9 points at 2000.
Axes:       B = replicates, S = seeds, E = pairs of one seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence
from cadenza.evaluation.statistics.differences import paired_outcome_bounds

#: Replicates of one power.
REPLICATES: Final = 2000
#: Halvings of the search for the smallest gap: to 0.004.
_HALVINGS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered decision: the interval's lower bound must lie above ``gate``."""

    seeds: int
    episodes: int
    gate: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_confidence(self.confidence)
        if self.seeds < 2 or self.episodes < 1 or not -1.0 <= self.gate < 1.0:
            raise InputError(
                "Rule: expected at least two seeds, an episode and a gate in [-1, 1), got "
                f"{self.seeds}, {self.episodes} and {self.gate}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is assumed before the run.

    Attributes:
        rate: Success rate of the reference.
        gap: Candidate's rate minus the reference's.
        seed_sd: Standard deviation of a method's rate between seeds; cut to what its mean allows.
        shared_luck: Share of pairs in which both methods meet the same luck, in [0, 1].
    """

    rate: float
    gap: float
    seed_sd: float = 0.1
    shared_luck: float = 0.0

    def __post_init__(self) -> None:
        if not (
            0.0 <= self.rate <= 1.0
            and 0.0 <= self.rate + self.gap <= 1.0
            and 0.0 <= self.seed_sd <= 0.5
            and 0.0 <= self.shared_luck <= 1.0
        ):
            raise InputError(f"World: expected rates and shares in [0, 1], got {self}.")


def power(
    rule: Rule, world: World, *, rng: np.random.Generator, replicates: int = REPLICATES
) -> float:
    """Return the probability that ``rule`` shows the gap of ``world``.

    Raises:
        InputError: ``replicates`` < 1.
    """
    if replicates < 1:
        raise InputError(f"power.replicates: expected >= 1, got {replicates}; 2000 give 1 point.")
    shape = replicates, rule.seeds
    theirs = _seed_rates(world.rate, world.seed_sd, shape, rng)[..., None]
    ours = _seed_rates(world.rate + world.gap, world.seed_sd, shape, rng)[..., None]
    luck = rng.random((*shape, rule.episodes))
    same = rng.random(luck.shape) < world.shared_luck
    won = luck < ours, np.where(same, luck, rng.random(luck.shape)) < theirs
    low = paired_outcome_bounds(*won, confidence=rule.confidence)[:, 0]
    return float((low > rule.gate).mean())


def power_curve(
    rule: Rule,
    world: World,
    gaps: Sequence[float],
    *,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> tuple[float, ...]:
    """Return the power at each true gap; the gap of ``world`` is not used."""
    return tuple(
        power(rule, replace(world, gap=gap), rng=rng, replicates=replicates) for gap in gaps
    )


def smallest_gap(
    rule: Rule,
    world: World,
    *,
    rng: np.random.Generator,
    target: float = 0.8,
    replicates: int = REPLICATES,
) -> float | None:
    """Return the smallest true gap that ``rule`` shows with probability ``target``, None for none.

    Bisection between the gate and the largest feasible gap, to 1 / 2^8 of it.

    Raises:
        InputError: ``target`` outside (0, 1).
    """
    if not 0.0 < target < 1.0:
        raise InputError(f"smallest_gap.target: expected a power in (0, 1), got {target}.")

    def reached(gap: float) -> bool:
        return power(rule, replace(world, gap=gap), rng=rng, replicates=replicates) >= target

    low, high = max(rule.gate, -world.rate), 1.0 - world.rate
    if low >= high or not reached(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A size that reaches the target power, and what it costs."""

    rule: Rule
    power: float
    cost: float


def cheapest_plan(
    world: World,
    *,
    seeds: Sequence[int],
    episodes: Sequence[int],
    rng: np.random.Generator,
    gate: float = 0.0,
    confidence: float = 0.95,
    target: float = 0.8,
    cost_of_seed: float = 1.0,
    cost_of_episode: float = 0.0,
    replicates: int = REPLICATES,
) -> Plan | None:
    """Return the cheapest of the sizes whose power reaches ``target``, None if none does.

    Cost: seeds x (cost_of_seed + episodes x cost_of_episode); of equal costs the stronger one.
    """
    sizes = [(s * (cost_of_seed + e * cost_of_episode), s, e) for s in seeds for e in episodes]
    best: Plan | None = None
    for cost, s, e in sorted(sizes):
        if best is not None and cost > best.cost:
            break
        rule = Rule(seeds=s, episodes=e, gate=gate, confidence=confidence)
        found = power(rule, world, rng=rng, replicates=replicates)
        if found >= target and (best is None or found > best.power):
            best = Plan(rule=rule, power=found, cost=cost)
    return best


def _seed_rates(
    mean: float, sd: float, shape: tuple[int, int], rng: np.random.Generator
) -> FloatArray:
    """Return beta-distributed rates with this mean and standard deviation, at most feasible."""
    variance = min(sd**2, 0.999 * mean * (1.0 - mean))
    if variance <= 0.0:
        return np.full(shape, mean)
    total = mean * (1.0 - mean) / variance - 1.0
    return rng.beta(mean * total, (1.0 - mean) * total, size=shape)

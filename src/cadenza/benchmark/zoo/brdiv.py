"""Best-response diversity: confederates that want one best response each, and not the others'.

With SP_i the return of confederate i beside its own best response, and XP_ij beside that of j:
    maximise  E_{i ≠ j} [ (1 + 2β) SP_i − β (XP_ij + XP_ji) ]
Pairs with i = j and with i ≠ j are played equally often, so a reward counts (1 + 2β) in the former
and −2β in the latter, for both players. Confederates are one network, best responses another; each
knows its own identity, and the critics know both.

Source:  arXiv:2207.14138.
Axes:    K = confederates, N = environments.
"""

from collections.abc import Sequence

import numpy as np

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import (
    Labels,
    PairPlayers,
    Population,
    shared_reward,
)
from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.partners.zoo_member import MemberPolicies


def pair_weights(count: int) -> tuple[float, float]:
    """Return what a pair with i = j and one with i ≠ j weigh against a uniform draw of K² pairs.

    With these weights, K/2 and K / (2 (K − 1)), both kinds have half of the total.
    """
    return count / 2.0, count / (2.0 * (count - 1))


def draw_pairs(count: int, pairs: int, rng: np.random.Generator) -> Labels:
    """Return ``pairs`` pairs (best response, confederate), (2, N), weighted by `pair_weights`."""
    same, other = pair_weights(count)
    weights = np.where(np.eye(count, dtype=bool), same, other) / count**2
    drawn = rng.choice(count * count, size=pairs, p=weights.reshape(-1))
    return np.stack(np.divmod(drawn, count)).astype(np.int64)


def reward_factors(labels: Labels, beta: float) -> FloatArray:
    """Return what a reward counts for pairs (2, N): 1 + 2β where both are i, else −2β; (N,)."""
    return np.where(labels[0] == labels[1], 1.0 + 2.0 * beta, -2.0 * beta)


class Confederates(Population):
    """K confederates, the partner's place, and K best responses, the ego's: a stack of two."""

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        self.count: int = config.population
        self.iterations: int = config.population * config.iterations
        self.players: PairPlayers = PairPlayers(
            config,
            env,
            seeds=[self.seed(keys[0], f"learner.{robot}") for robot in range(2)],
            names=[f"{keys[0]} {name}" for name in ("best responses", "confederates")],
            identities=self.count,
        )
        self.stacks = [self.players.learner]

    def iterate(self, iteration: int) -> None:
        """Draw pairs, play a rollout and learn from it."""
        config, (key,) = self.config, self.keys
        stream = derive_substream(f"zoo.{key}.pairs.{iteration}", root_seed=config.seed)
        labels = draw_pairs(self.count, config.num_envs, stream.default_rng())
        factors = reward_factors(labels, config.beta)
        self.players.play(
            [self.seed(key, f"rollout.{iteration}")],
            lambda moment: factors * shared_reward(moment),
            labels,
        )
        self.players.update(iteration, self.iterations)

    def member(self, index: int) -> MemberPolicies:
        """Return confederate ``index``, its best response in the ego's place."""
        return self.players.member(0, 1, index)

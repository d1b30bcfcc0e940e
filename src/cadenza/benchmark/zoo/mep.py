"""Maximum-entropy population: policies that learn together to differ from their mean.

In every round each of K policies plays a rollout with itself, and learns from
    r − α log π̄(a|s),   π̄(a|s) = (1/K) Σ_j π_j(a|s)
for each robot's own s and a; the mean is one of densities, by log-sum-exp. All densities of a round
are of the policies before its updates. Partners are those of `fcp` for each policy.

Source:      arXiv:2112.11701.
Departures:  all policies play and learn in every round, so that all train equally long. Densities
             are those before clipping to the bounds.
Axes:        K = policies, R = rows, T = steps.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import PairPlayers, Population, shared_reward
from cadenza.partners.zoo_member import MemberPolicies


def mixture_log_density(log_densities: Tensor) -> Tensor:
    """Return log[(1/K) Σ_j π_j(a|s)], (R,), of log π_j(a|s), (K, R)."""
    return torch.logsumexp(log_densities, dim=0) - math.log(len(log_densities))


class EntropyPopulation(Population):
    """K policies, each in self-play, rewarded for what the others would not do."""

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        self.count: int = config.population
        self.iterations: int = config.iterations
        names = [f"{keys[0]}-{k}" for k in range(self.count)]
        seeds = [self.seed(keys[0], f"learner.{k}") for k in range(self.count)]
        self.players: PairPlayers = PairPlayers(config, env, seeds=seeds, names=names)
        self.stacks = [self.players.learner]

    def iterate(self, iteration: int) -> None:
        """Play a round, add the surprise at the population, and learn from it."""
        firsts = [self.seed(self.keys[0], f"rollout.{iteration}.{k}") for k in range(self.count)]
        self.players.play(firsts, shared_reward)
        rewards = self.players.rollout.rewards
        for own, rows, decisions in zip(
            rewards, self.players.rows, self.players.rollout.decisions, strict=True
        ):
            densities = self.players.learner.log_density(
                rows.reshape(own.size, -1), decisions.reshape(own.size, *decisions.shape[2:])
            )
            surprise = -mixture_log_density(torch.from_numpy(densities)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
            own += self.config.alpha * surprise.reshape(own.shape)
        self.players.update(iteration, self.iterations)

    def member(self, index: int) -> MemberPolicies:
        """Return policy ``index`` as it is now."""
        return self.players.member(index, index)

"""Maximum-entropy population: policies that learn together to differ from their mean.

Every rollout is self-play of one policy π_i, which learns from
    r − α log π̄(a|s),   π̄(a|s) = (1/K) Σ_j π_j(a|s)
for each robot's own s and a; the mean is one of densities, by log-sum-exp. Partners are those of
`fcp` for each policy.

Source:      arXiv:2112.11701.
Departures:  the policy of a rollout is drawn without replacement, so that all train equally long.
             Densities are those before clipping to the bounds.
Axes:        K = policies, R = rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import Moment, RewardRule, shared_reward
from cadenza.benchmark.zoo.training import Cast, CastPopulation, PairPlayer, member_of
from cadenza.core.seeding import derive_substream
from cadenza.partners.zoo_member import MemberPolicies


def mixture_log_density(log_densities: Tensor) -> Tensor:
    """Return log[(1/K) Σ_j π_j(a|s)], (R,), of log π_j(a|s), (K, R)."""
    return torch.logsumexp(log_densities, dim=0) - math.log(len(log_densities))


class EntropyPopulation(CastPopulation):
    """K policies, each in self-play, rewarded for what the others would not do."""

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        self.players: list[PairPlayer] = [
            PairPlayer(config, env, seed=self.own_seed(f"learner.{k}"))
            for k in range(config.population)
        ]
        self.count: int = config.population
        self.iterations: int = config.population * config.iterations

    def cast(self, iteration: int) -> Cast:
        """Return the policy that plays: in each round of K rollouts, each once."""
        turn, position = divmod(iteration, self.count)
        stream = derive_substream(f"zoo.{self.keys[0]}.round.{turn}", root_seed=self.config.seed)
        order = stream.default_rng().permutation(self.count)
        return Cast([self.players[int(order[position])]])

    def rewards(self, cast: Cast) -> RewardRule:
        """Return the task's rewards plus α times the surprise at the population."""
        del cast

        def rule(moment: Moment) -> Any:
            rows = self.players[0].rows(moment.before)
            decided = moment.decided.reshape(len(rows), *moment.decided.shape[2:])
            densities = [player.log_density(rows, decided) for player in self.players]
            surprise = -mixture_log_density(torch.stack(densities)).numpy()
            return shared_reward(moment) + self.config.alpha * surprise.reshape(2, -1)

        return rule

    def member(self, index: int) -> MemberPolicies:
        """Return policy ``index`` as it is now."""
        return member_of(self.players[index], self.players[index])

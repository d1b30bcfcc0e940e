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

import torch
from torch import Tensor

from cadenza.benchmark.zoo.fcp import SelfPlay


def mixture_log_density(log_densities: Tensor) -> Tensor:
    """Return log[(1/K) Σ_j π_j(a|s)], (R,), of log π_j(a|s), (K, R)."""
    return torch.logsumexp(log_densities, dim=0) - math.log(len(log_densities))


class EntropyPopulation(SelfPlay):
    """K policies of one job, each in self-play, rewarded for what the others would not do."""

    def suffixes(self) -> list[str]:
        """Return one for each policy."""
        return [f".{k}" for k in range(self.config.population)]

    def reshape_rewards(self) -> None:
        """Add the surprise at the population."""
        players = self.players
        for own, rows, decisions in zip(
            players.rollout.rewards, players.rows, players.rollout.decisions, strict=True
        ):
            densities = players.learner.log_density(
                rows.reshape(own.size, -1), decisions.reshape(own.size, *decisions.shape[2:])
            )
            surprise = -mixture_log_density(torch.from_numpy(densities)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
            own += self.config.alpha * surprise.reshape(own.shape)

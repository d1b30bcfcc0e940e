"""Fictitious co-play: independent self-play runs, and partners of every skill from each.

One policy plays both robots, told which it is. Of the learning curve R(t), smoothed over a few
evaluations, with R_0 its first value and R_∞ the mean of the last 5 % of its evaluations:
    mid = earliest evaluation with R(t) >= R_0 + (R_∞ − R_0) / 2
Partners are the policies at the start, at mid and at the end.

Source:  arXiv:2110.08176.
Axes:    T = evaluations.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import (
    Moment,
    PairPlayers,
    Population,
    SeatedPartners,
    shared_reward,
)
from cadenza.core.arrays import FloatArray
from cadenza.partners.zoo_member import MemberPolicies

#: Share of the evaluations, at the end, whose mean is R_∞.
FINAL_SHARE: Final = 0.05


def smoothed(returns: Sequence[float], window: int) -> FloatArray:
    """Return means over the last ``window`` evaluations, fewer at the beginning, (T,)."""
    values = np.asarray(returns, dtype=np.float64)
    return np.array([values[max(0, k + 1 - window) : k + 1].mean() for k in range(len(values))])


def halfway(returns: Sequence[float], *, window: int = 1) -> int:
    """Return the index of the evaluation at which half of the way is done; 0 if nothing rose.

    Args:
        returns: R at every evaluation, (T,), from before the first update to the end.
        window: Evaluations that R is smoothed over.
    """
    curve = smoothed(returns, window)
    last = curve[-ceil(FINAL_SHARE * len(curve)) :].mean()
    return int(np.argmax(curve >= curve[0] + 0.5 * (last - curve[0]))) if last > curve[0] else 0


class SelfPlay(Population):
    """One policy per job, all of them as one stack.

    Each plays with itself, or with a partner of its own that does not learn.
    """

    def __init__(
        self,
        config: ZooConfig,
        env: PairEnv,
        keys: Sequence[str],
        partners: SeatedPartners | None = None,
    ) -> None:
        super().__init__(config, env, keys)
        self.count: int = len(self.suffixes())
        self.iterations: int = config.iterations
        names = [key + suffix for key in keys for suffix in self.suffixes()]
        self.players: PairPlayers = PairPlayers(
            config, env, seeds=self._seeds("learner"), names=names, partners=partners
        )
        self.stacks = [self.players.learner]

    def suffixes(self) -> list[str]:
        """Return what follows a job's key in the names of its policies, and purposes of seeds."""
        return [""]

    def reward(self, moment: Moment) -> FloatArray:
        """Return what both robots learn from, (E,): the task's rewards."""
        return shared_reward(moment)

    def iterate(self, iteration: int) -> None:
        """Play a rollout and learn from it."""
        self.players.play(self._seeds(f"rollout.{iteration}"), self.reward)
        self.reshape_rewards()
        self.players.update(iteration, self.iterations)

    def reshape_rewards(self) -> None:
        """Change the rewards of a whole rollout, if a method does."""

    def member(self, index: int) -> MemberPolicies:
        """Return a policy as it is now."""
        return self.players.member(index, index)

    def _seeds(self, purpose: str) -> list[int]:
        return [self.seed(key, purpose + end) for key in self.keys for end in self.suffixes()]

"""What K members did in one rollout, and what scales it: arrays with the members in front.

Rewards and critics' rows are kept as they came and scaled after the rollout, step by step as
`cadenza.learn.nn.running_normalizer` does it, for all members at once.

Axes:    K = members, T = steps, R = rows of a step (environments, or environments times robots),
         D = observation, S = critic observation, A = action components.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.learn.nn.running_normalizer import CLIP, EPSILON


class Cut(NamedTuple):
    """Rows of one member that a time limit ended and the task did not.

    Attributes:
        member: Whose.
        step: When, in [0, T).
        rows: Which, (C,).
        critic_observations: What the critic saw last there, before any reset, (C, S).
    """

    member: int
    step: int
    rows: NDArray[np.int64]
    critic_observations: Float32Array


class StackedRollout:
    """One rollout of all members, in memory allocated once; the caller writes into the arrays.

    Every row decides in every step, so its environments reset themselves within the step.

    Args:
        members: K.
        steps: T.
        rows: R.
        observation_dim: D.
        critic_dim: S.
        action_dim: A; None for choices.
        fresh: Whether every rollout begins with new episodes, so that running returns do, too.

    Attributes:
        observations: What the actor saw, scaled where it is, (K, T, R, D).
        critic_observations: What the critic is to see, unscaled, (K, T + 1, R, S); the last ones
            are what followed the rollout.
        decisions: What `StackedPPO.act` returned, (K, T, R) int64 or (K, T, R, A) float32.
        rewards: Unscaled, (K, T, R).
        terminated: The task ended the episode, (K, T, R).
        boundaries: The episode ended in either way, (K, T, R).
        cuts: Rows that time limits ended, in the order of their steps.
        weights: What each advantage counts after it was normalised, (K, T, R); None is 1.
    """

    def __init__(
        self,
        members: int,
        steps: int,
        rows: int,
        *,
        observation_dim: int,
        critic_dim: int,
        action_dim: int | None,
        fresh: bool = True,
    ) -> None:
        shape = (members, steps, rows)
        self.fresh = fresh
        self.observations: Float32Array = np.zeros((*shape, observation_dim), np.float32)
        self.critic_observations: Float32Array = np.zeros(
            (members, steps + 1, rows, critic_dim), np.float32
        )
        self.decisions: NDArray[Any] = (
            np.zeros(shape, np.int64)
            if action_dim is None
            else np.zeros((*shape, action_dim), np.float32)
        )
        self.rewards: FloatArray = np.zeros(shape)
        self.terminated: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.boundaries: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.cuts: list[Cut] = []
        self.weights: FloatArray | None = None


class StackedMoments:
    """`RunningNormalizer` of every member: mean and variance (K, D) float64, counts (K, 1)."""

    def __init__(self, members: int, dim: int) -> None:
        self.mean: FloatArray = np.zeros((members, dim))
        self.variance: FloatArray = np.ones((members, dim))
        self.count: NDArray[np.int64] = np.zeros((members, 1), np.int64)

    def update(self, rows: NDArray[Any]) -> None:
        """Take in rows (K, R, D), R >= 1."""
        exact = rows.astype(np.float64)
        mean, variance, count = exact.mean(axis=1), exact.var(axis=1), exact.shape[1]
        total = self.count + count
        shift = mean - self.mean
        between = shift**2 * (self.count * count / total)
        self.variance = (self.variance * self.count + variance * count + between) / total
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def normalize(self, rows: NDArray[Any]) -> Float32Array:
        """Return scaled rows, (K, R, D) float32; before the first update only clipped."""
        spread = np.sqrt(self.variance + EPSILON)
        scaled = (rows - self.mean[:, None]) / spread[:, None]
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def normalize_member(self, member: int, rows: NDArray[Any]) -> Float32Array:
        """Return scaled rows of one member, (C, D) float32."""
        scaled = (rows - self.mean[member]) / np.sqrt(self.variance[member] + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def member_state(self, member: int) -> dict[str, Any]:
        """Return one member's statistics, JSON scalars and lists only."""
        return {
            "mean": self.mean[member].tolist(),
            "variance": self.variance[member].tolist(),
            "count": int(self.count[member, 0]),
        }

    def load_member_state(self, member: int, state: Mapping[str, Any]) -> None:
        """Take over one member's statistics."""
        self.mean[member] = state["mean"]
        self.variance[member] = state["variance"]
        self.count[member] = state["count"]


class StackedRewardScaler:
    """`RewardScaler` of every member, for a whole rollout at once."""

    def __init__(self, members: int, gamma: float) -> None:
        self._gamma = gamma
        self._returns: FloatArray = np.zeros((members, 0))
        self._moments = StackedMoments(members, 1)

    def scale(
        self, rewards: FloatArray, boundaries: NDArray[np.bool_], *, fresh: bool
    ) -> Float32Array:
        """Take in rewards (K, T, R) and where episodes ended; return them scaled.

        ``fresh`` says that every episode began with the rollout.
        """
        members, steps, rows = rewards.shape
        if fresh or self._returns.shape[1] != rows:
            self._returns = np.zeros((members, rows))
        spreads = np.empty((members, steps, 1))
        for t in range(steps):
            self._returns = self._gamma * self._returns + rewards[:, t]
            self._moments.update(self._returns[:, :, None])
            spreads[:, t] = np.sqrt(self._moments.variance + EPSILON)
            self._returns[boundaries[:, t]] = 0.0
        return np.clip(rewards / spreads, -CLIP, CLIP).astype(np.float32)

    @property
    def spread(self) -> FloatArray:
        """What rewards are divided by at the end of the last rollout, (K,)."""
        return np.sqrt(self._moments.variance[:, 0] + EPSILON)

    def member_state(self, member: int) -> dict[str, Any]:
        """Return one member's returns and statistics, JSON scalars and lists only."""
        statistics = self._moments.member_state(member)
        return {"returns": self._returns[member].tolist(), "statistics": statistics}

    def load_member_state(self, member: int, state: Mapping[str, Any]) -> None:
        """Take over one member's state."""
        returns = np.asarray(state["returns"], dtype=np.float64)
        if self._returns.shape[1] != len(returns):
            self._returns = np.zeros((len(self._returns), len(returns)))
        self._returns[member] = returns
        self._moments.load_member_state(member, state["statistics"])


def scale_critic_rows(rollout: StackedRollout, moments: StackedMoments) -> None:
    """Scale what critics are to see, in place, by what was known at each step."""
    rows, cuts = rollout.critic_observations, iter([*rollout.cuts, None])
    cut, scaled = next(cuts), list[Cut]()
    for t in range(rollout.rewards.shape[1]):
        moments.update(rows[:, t])
        rows[:, t] = moments.normalize(rows[:, t])
        while cut is not None and cut.step == t:
            final = moments.normalize_member(cut.member, cut.critic_observations)
            scaled.append(cut._replace(critic_observations=final))
            cut = next(cuts)
    rows[:, -1] = moments.normalize(rows[:, -1])
    rollout.cuts[:] = scaled

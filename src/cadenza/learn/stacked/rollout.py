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
from cadenza.learn.nn.running_normalizer import CLIP, EPSILON, merged, standardized


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

    Every row decides in every step, so its environments reset themselves within the step; every
    rollout begins with new episodes.

    Args:
        members: K.
        steps: T.
        rows: R.
        observation_dim: D.
        critic_dim: S.
        action_dim: A; None for choices.

    Attributes:
        observations: What the actor saw, scaled where it is, (K, T, R, D).
        critic_observations: What the critic is to see, unscaled, (K, T + 1, R, S); the last ones
            are what followed the rollout.
        decisions: What `StackedPPO.act` returned, (K, T, R) int64 or (K, T, R, A) float32.
        rewards: Unscaled, (K, T, R).
        boundaries: The episode ended, by the task or a time limit, (K, T, R).
        cuts: Rows that time limits ended, in the order of their steps.
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
    ) -> None:
        shape = (members, steps, rows)
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
        self.boundaries: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.cuts: list[Cut] = []


class StackedMoments:
    """`RunningNormalizer` of every member: mean and variance (K, D) float64, counts (K, 1)."""

    def __init__(self, members: int, dim: int) -> None:
        self.mean: FloatArray = np.zeros((members, dim))
        self.variance: FloatArray = np.ones((members, dim))
        self.count: NDArray[np.int64] = np.zeros((members, 1), np.int64)

    @property
    def spread(self) -> FloatArray:
        """Standard deviations, (K, D)."""
        return np.sqrt(self.variance + EPSILON)

    def update(self, rows: NDArray[Any]) -> None:
        """Take in rows (K, R, D), R >= 1."""
        self.mean, self.variance, self.count = merged(self.mean, self.variance, self.count, rows)

    def normalize(self, rows: NDArray[Any]) -> Float32Array:
        """Return scaled rows, (K, R, D) float32; before the first update only clipped."""
        return standardized(rows, self.mean[:, None], self.variance[:, None])

    def normalize_member(self, member: int, rows: NDArray[Any]) -> Float32Array:
        """Return scaled rows of one member, (C, D) float32."""
        return standardized(rows, self.mean[member], self.variance[member])

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


def scale_rewards(
    rewards: FloatArray, boundaries: NDArray[np.bool_], moments: StackedMoments, gamma: float
) -> Float32Array:
    """Return rewards (K, T, R) scaled as `RewardScaler` does, by moments (K, 1) of returns.

    Episodes began with the rollout, and where ``boundaries`` say.
    """
    returns = np.zeros_like(rewards[:, 0])
    spreads = np.empty((*rewards.shape[:2], 1))
    for t in range(rewards.shape[1]):
        returns = gamma * returns + rewards[:, t]
        moments.update(returns[:, :, None])
        spreads[:, t] = moments.spread
        returns[boundaries[:, t]] = 0.0
    return np.clip(rewards / spreads, -CLIP, CLIP).astype(np.float32)


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

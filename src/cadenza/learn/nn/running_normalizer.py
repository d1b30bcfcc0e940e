"""Scales observations and rewards by statistics of everything seen so far.

Observations:  x' = clip((x − mean) / sqrt(variance + ε), −10, 10), per component.
Rewards:       r' = clip(r / sqrt(variance of R + ε), −10, 10), where R_t = γ R_{t−1} + r_t is the
               running discounted return of each environment; the mean stays, so signs are kept.
Source:        merge of batch moments: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise
               Algorithm for Computing Sample Variances" (1979); use in PPO: arXiv:2005.12729.
Axes:          N = rows, D = components.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import CheckpointError
from cadenza.learn.nn.layers import Layer

#: Added to variances before the root; in squared units of what is scaled.
EPSILON: Final = 1e-8
#: Bound of a scaled entry, in standard deviations.
CLIP: Final = 10.0


def merged(
    mean: FloatArray, variance: FloatArray, known: Any, rows: NDArray[Any]
) -> tuple[FloatArray, FloatArray, Any]:
    """Return moments (..., D) of ``known`` rows and these, (..., N, D), and how many they are."""
    exact, count = rows.astype(np.float64), rows.shape[-2]
    total = known + count
    shift = exact.mean(axis=-2) - mean
    between = shift**2 * (known * count / total)
    spread = (variance * known + exact.var(axis=-2) * count + between) / total
    return mean + shift * (count / total), spread, total


def standardized(rows: NDArray[Any], mean: FloatArray, variance: FloatArray) -> Float32Array:
    """Return (rows − mean) / deviation, within ±`CLIP`."""
    return np.clip((rows - mean) / np.sqrt(variance + EPSILON), -CLIP, CLIP).astype(np.float32)


class RunningNormalizer:
    """Mean and variance of ``dim`` components, in float64."""

    def __init__(self, dim: int) -> None:
        self.mean: FloatArray = np.zeros(dim)
        self.variance: FloatArray = np.ones(dim)
        self.count: int = 0

    def update(self, rows: NDArray[Any]) -> None:
        """Take in ``rows``, shape (N, D), N >= 1."""
        if self.count == 0:
            exact = rows.astype(np.float64)
            self.mean, self.variance, self.count = exact.mean(axis=0), exact.var(axis=0), len(rows)
        else:
            known = self.mean, self.variance, self.count
            self.mean, self.variance, self.count = merged(*known, rows)

    def normalize(self, rows: NDArray[Any]) -> Float32Array:
        """Return scaled rows, float32; before the first update only clipped."""
        return standardized(rows, self.mean, self.variance)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics, JSON scalars and lists only."""
        return {
            "mean": self.mean.tolist(),
            "variance": self.variance.tolist(),
            "count": self.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over stored statistics."""
        mean = np.array(state["mean"], dtype=np.float64)
        if mean.shape != self.mean.shape:
            raise CheckpointError(
                f"RunningNormalizer: expected statistics of {self.mean.shape[0]} components, got "
                f"{mean.shape[0]}; the state belongs to another environment."
            )
        self.mean, self.count = mean, int(state["count"])
        self.variance = np.array(state["variance"], dtype=np.float64)


def scaled(x: Tensor, moments: Tensor) -> Tensor:
    """Return states (B, O), scaled by mean and variance, (2, O), as float32."""
    mean, variance = moments
    return ((x - mean) / torch.sqrt(variance + EPSILON)).clamp(-CLIP, CLIP).float()


class Scaling(nn.Module):
    """`RunningNormalizer.normalize` for tensors, by the moments at the time of the call.

    Those of ``columns`` alone, where observations are these of the rows that were seen.
    """

    def __init__(self, moments: RunningNormalizer, columns: slice = slice(None)) -> None:
        super().__init__()
        self._moments, self._columns = moments, columns

    def forward(self, observations: Tensor) -> Tensor:
        """Return scaled observations, (B, O)."""
        moments = np.stack((self._moments.mean, self._moments.variance))[:, self._columns]
        there = torch.tensor(moments).to(observations.device, non_blocking=True)
        return scaled(observations, there)

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        mean, variance = self._moments.mean[self._columns], self._moments.variance[self._columns]
        tensors = {"mean": torch.tensor(mean), "spread": torch.tensor(np.sqrt(variance + EPSILON))}
        return [Layer("standardise", {"limit": CLIP}, tensors)]


class RewardScaler:
    """Divides rewards by the spread of the running discounted return; not without ``gamma``."""

    def __init__(self, gamma: float | None) -> None:
        self.gamma = gamma
        self._returns: FloatArray = np.zeros(0)
        self._statistics = RunningNormalizer(1)

    def scale(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> NDArray[Any]:
        """Take in one step's rewards, (N,), and whose episode ended with it; return them scaled."""
        if self.gamma is None:
            return rewards
        if len(self._returns) != len(rewards):  # at first, or of other environments
            self._returns = np.zeros(len(rewards))
        self._returns = self.gamma * self._returns + rewards
        self._statistics.update(self._returns[:, None])
        self._returns[ended] = 0.0
        return np.clip(rewards / self._spread, -CLIP, CLIP).astype(np.float32)

    def rescale(self, rewards: Tensor) -> Tensor:
        """Return rewards that were taken in before, scaled by what is known now."""
        return rewards if self.gamma is None else (rewards / self._spread).clamp(-CLIP, CLIP)

    def forget(self) -> None:
        """Begin new episodes in every environment."""
        self._returns[:] = 0.0

    @property
    def _spread(self) -> float:
        return float(np.sqrt(self._statistics.variance[0] + EPSILON))

    def state_dict(self) -> dict[str, Any]:
        """Return returns and statistics, JSON scalars and lists only."""
        return {"returns": self._returns.tolist(), "statistics": self._statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state."""
        self._returns = np.array(state["returns"], dtype=np.float64)
        self._statistics.load_state_dict(state["statistics"])


class Normalization:
    """How a learner sees rows of observations and rewards: scaled, where its settings say so.

    Rows, (N, D), may end with further columns, such as masks, which stay as they are.

    Args:
        dim: D.
        observations: Whether observations are scaled.
        gamma: Discount of the returns whose spread scales rewards; None leaves them.
    """

    def __init__(self, dim: int, *, observations: bool, gamma: float | None = None) -> None:
        self.moments: RunningNormalizer | None = RunningNormalizer(dim) if observations else None
        self.rewards: RewardScaler = RewardScaler(gamma)

    def see(self, rows: NDArray[Any]) -> None:
        """Take in observations that environments are at."""
        if self.moments is not None:
            self.moments.update(rows[:, : len(self.moments.mean)])

    def scale(self, rows: NDArray[Any]) -> Float32Array:
        """Return rows as a learner sees them."""
        if self.moments is None:
            return rows.astype(np.float32, copy=False)
        numbers, others = np.split(rows, [len(self.moments.mean)], axis=1)
        return np.concatenate((self.moments.normalize(numbers), others.astype(np.float32)), axis=1)

    def rescale(self, rows: Tensor) -> Tensor:
        """Return rows as a learner sees them, on their device."""
        if self.moments is None:
            return rows
        width = len(self.moments.mean)
        numbers = Scaling(self.moments)(rows[:, :width])
        return numbers if rows.shape[1] == width else torch.cat((numbers, rows[:, width:]), dim=1)

    def layers(self, columns: slice = slice(None)) -> list[nn.Module]:
        """Return what comes before a network for rows, or some columns of them, as they are."""
        return [] if self.moments is None else [Scaling(self.moments, columns)]

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of each that is scaled, JSON scalars and lists only."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, from a state with further parts."""
        for name, part in self._parts().items():
            if name in state:  # a setting that was switched on begins anew
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        scalers = {} if self.rewards.gamma is None else {"reward_moments": self.rewards}
        return scalers if self.moments is None else {"observation_moments": self.moments, **scalers}

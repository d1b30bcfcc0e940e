"""Behaviour cloning: a perceptron that learns the executed action from the ego's state.

Equations:  x_0 = clip((s - mean) / sqrt(variance + 1e-8), -10, 10), x_k = relu(W_k x_{k-1} + b_k),
            action = W_K x_{K-1} + b_K, clipped to the bounds when it is played;
            loss = mean over steps of |action - done|^2.
Step size:  Adam, falling along half a cosine: lr_t = lr_0 (1 + cos(pi t / T)) / 2.
Axes:       O = state, A = action, n = batch, c = steps of a chunk.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from cadenza.learn.nn.mlp_policy import MlpPolicy
from cadenza.learn.running_normalizer import CLIP, EPSILON

#: Step size of Adam at the first update.
LEARNING_RATE: Final = 2e-3


class Clone(nn.Module):
    """Perceptron from states to actions that scales its inputs.

    Attributes:
        moments: Mean and variance of states, (2, O).
        layers: Linear layers, W_1 and b_1 to W_K and b_K.
    """

    def __init__(
        self, moments: Tensor, hidden: Sequence[int], action_dim: int, generator: torch.Generator
    ) -> None:
        """Draw the weights.

        Args:
            moments: Mean and variance of states, (2, O).
            hidden: Widths of the hidden layers.
            action_dim: A.
            generator: Source of the weights.
        """
        super().__init__()
        self.moments = moments
        sizes = (moments.shape[1], *hidden, action_dim)
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)

    def forward(self, states: Tensor) -> Tensor:
        """Return actions, (..., A), not clipped, for states (..., O)."""
        scaled = (states - self.moments[0]) / torch.sqrt(self.moments[1] + EPSILON)
        x = scaled.clamp(-CLIP, CLIP)
        *hidden, output = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        return output(x)

    def portable(self, low: Tensor, high: Tensor) -> MlpPolicy:
        """Return the policy as plain data.

        Args:
            low: Smallest action, (A,).
            high: Largest action, (A,).
        """
        return MlpPolicy(
            weights=self.ordered_parameters(),
            activation="relu",
            output="mean",
            low=low,
            high=high,
            moments=self.moments,
        )

    def ordered_parameters(self) -> list[Tensor]:
        """Return W_1, b_1, ..., W_K, b_K."""
        return list(self.parameters())

    @torch.no_grad()
    def load_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Copy W_1, b_1, ..., W_K, b_K of equal shapes."""
        for own, given in zip(self.ordered_parameters(), parameters, strict=True):
            own.copy_(given)


def state_moments(states: Tensor) -> Tensor:
    """Return mean and variance, (2, O), of states (..., O)."""
    flat = states.flatten(0, -2)
    return torch.stack((flat.mean(0), flat.var(0)))


def cloning_loss(predicted: Tensor, done: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean squared error of the action over the steps that count.

    Args:
        predicted: Actions of the clone, (..., A).
        done: Actions of the expert, (..., A).
        valid: Steps that count, (...); all if None.
    """
    errors = ((predicted - done) ** 2).sum(-1)
    return errors.mean() if valid is None else errors[valid].mean()


def cosine_rate(step: int, steps: int, first: float = LEARNING_RATE) -> float:
    """Return the step size of update ``step`` of ``steps``."""
    return first * 0.5 * (1.0 + math.cos(math.pi * step / steps))

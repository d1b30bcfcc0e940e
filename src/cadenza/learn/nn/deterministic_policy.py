"""Deterministic policies and the noise they explore with, as TD3 needs them.

Equations:  a = tanh(f(o));  exploring: clip(a + σ ε, -1, 1)
Source:     arXiv:1802.09477, section 5 and algorithm 1.
Axes:       B = batch, O = observation, A = action.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import xavier_uniform_init_
from cadenza.learn.nn.layers import apply_layers, relu_mlp
from cadenza.learn.nn.noise import NoisyModule

#: Gain of the output layer: the first actions are close to zero.
OUTPUT_GAIN = 0.01


class DeterministicMlpPolicy(nn.Module):
    """ReLU perceptron and a tanh.

    Args:
        observation_dim: O, >= 1.
        action_dim: A, >= 1.
        hidden_dims: Widths of the hidden layers.
        init_generator: Source of the initial weights; None draws from the package's own.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        *,
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mlp = relu_mlp(observation_dim, hidden_dims, action_dim, generator=init_generator)
        xavier_uniform_init_(self.mlp[-1], OUTPUT_GAIN, generator=init_generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions in (-1, 1), shape (B, A), for ``obs``, shape (B, O)."""
        return torch.tanh(apply_layers(self.mlp, obs))


class ExploringPolicy(NoisyModule):
    """Adds Gaussian noise to the actions of a policy in training mode; none in evaluation mode.

    The noise is this module's own: its state travels in the state dict.

    Args:
        policy: Returns actions in [-1, 1].
        noise_std: Standard deviation σ, in units of the action, >= 0.
        generator: Source of the noise; None makes one seeded 0.

    Raises:
        InputError: ``noise_std`` is negative.
    """

    def __init__(
        self,
        policy: nn.Module,
        noise_std: float = 0.1,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if not noise_std >= 0.0:
            raise InputError(f"ExploringPolicy: expected noise_std >= 0, got {noise_std}.")
        self.policy = policy
        self.noise_std = noise_std

    def forward(self, *observation: Tensor, **named: Tensor) -> Tensor:
        """Return actions, shape (B, A), in [-1, 1]."""
        actions: Tensor = self.policy(*observation, **named)
        if not self.training:
            return actions
        noise = torch.randn(actions.shape, generator=self.generator, device=self.generator.device)
        return (actions + self.noise_std * noise.to(actions)).clamp(-1.0, 1.0)

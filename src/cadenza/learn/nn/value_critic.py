"""State-value network.

Equation:  V(s) = w2 · tanh(W1 tanh(W0 s + b0) + b1) + b2
Axes:      B = batch, O = observation, H = hidden.
Limits:    neither observations nor returns are normalised.
"""

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.linear import default_linear


class ValueCritic(nn.Module):
    """Two tanh layers and a linear output, with torch's default initialisation.

    Args:
        observation_dim: O, >= 1.
        hidden_dim: H, >= 1.
        generator: CPU generator that initialises the weights.

    Raises:
        InputError: A size is below one.
    """

    def __init__(
        self, observation_dim: int, *, hidden_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        if min(observation_dim, hidden_dim) < 1:
            raise InputError(
                "ValueCritic: expected every size >= 1, got "
                f"observation_dim = {observation_dim}, hidden_dim = {hidden_dim}."
            )
        self.net = nn.Sequential(
            default_linear(observation_dim, hidden_dim, generator),
            nn.Tanh(),
            default_linear(hidden_dim, hidden_dim, generator),
            nn.Tanh(),
            default_linear(hidden_dim, 1, generator),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Return values, shape (B, 1), for ``observations``, shape (B, O)."""
        return self.net(observations)

"""State-value network.

Equation:  V(s) = w · tanh(... tanh(W0 s + b0) ...) + b
Axes:      B = batch, O = observation.
Limits:    neither observations nor returns are normalised.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.linear import default_linear


class ValueCritic(nn.Module):
    """Tanh layers and a linear output, with torch's default initialisation.

    Args:
        observation_dim: O, >= 1.
        hidden_sizes: Widths of the hidden layers, >= 1.
        generator: CPU generator that initialises the weights.

    Raises:
        InputError: A size is below one.
    """

    def __init__(
        self, observation_dim: int, *, hidden_sizes: Sequence[int], generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [observation_dim, *hidden_sizes]
        if min(widths) < 1:
            raise InputError(
                "ValueCritic: expected every size >= 1, got "
                f"observation_dim = {observation_dim}, hidden_sizes = {list(hidden_sizes)}."
            )
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [default_linear(width_in, width_out, generator), nn.Tanh()]
        self.net = nn.Sequential(*layers, default_linear(widths[-1], 1, generator))

    def forward(self, observations: Tensor) -> Tensor:
        """Return values, shape (B, 1), for ``observations``, shape (B, O)."""
        return self.net(observations)

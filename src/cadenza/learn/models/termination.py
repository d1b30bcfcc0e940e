"""Learned termination: the probability that a transition ends its episode.

Loss:    mean_b BCE(logit(x_b), terminated_b), so the probabilities are calibrated on the data.
Input:   x = [normalised observation and action | normalised change of the observation].
Axes:    B = rows, I = inputs.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.core.errors import InputError
from cadenza.learn.nn.linear import default_linear

#: Ends are decided by a few inequalities; a small network is enough.
DEFAULT_HIDDEN_SIZE: Final = 64
DEFAULT_HIDDEN_LAYERS: Final = 2


class TerminationModel(nn.Module):
    """A small classifier of final transitions.

    Args:
        in_size: I = 2 * observation size + action size (observation as the dynamics model sees it).
        device: Where the parameters live.
        hidden_size: Units per hidden layer.
        num_hidden_layers: Hidden layers, >= 1.
        seed: Fixes the initial weights.

    Raises:
        InputError: A size is below one.
    """

    def __init__(
        self,
        *,
        in_size: int,
        device: torch.device | str,
        hidden_size: int = DEFAULT_HIDDEN_SIZE,
        num_hidden_layers: int = DEFAULT_HIDDEN_LAYERS,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(in_size, hidden_size, num_hidden_layers) < 1:
            raise InputError(
                f"TerminationModel: expected every size >= 1, got in_size = {in_size}, "
                f"hidden_size = {hidden_size}, num_hidden_layers = {num_hidden_layers}."
            )
        self.in_size = in_size
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        size = in_size
        for _ in range(num_hidden_layers):
            layers += [default_linear(size, hidden_size, generator), nn.ReLU()]
            size = hidden_size
        layers.append(default_linear(size, 1, generator))
        self.net = nn.Sequential(*layers).to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (B, 1).

        Args:
            x: Shape (B, I).

        Raises:
            InputError: ``x`` has another shape.
        """
        if x.ndim != 2 or x.shape[1] != self.in_size:
            raise InputError(
                f"TerminationModel: expected shape (rows, {self.in_size}), got {tuple(x.shape)}; "
                "in_size is 2 * observation size + action size."
            )
        return self.net(x)

    def loss(self, x: Tensor, terminated: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats.

        Args:
            x: Shape (B, I).
            terminated: 1 where the transition ended its episode, else 0, shape (B,) or (B, 1).
        """
        logits = self(x)
        labels = terminated.reshape(logits.shape).to(logits)
        return functional.binary_cross_entropy_with_logits(logits, labels)

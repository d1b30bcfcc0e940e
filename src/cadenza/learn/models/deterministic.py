"""Deterministic dynamics network with batch norm.

Loss:   mean_{b,d} (f(x_b)_d - y_bd)^2.
Axes:   B = rows, I = inputs, O = outputs, H = hidden units.
Limits: batch norm needs two rows or more while training.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.core.errors import InputError
from cadenza.learn.models.evaluation_mode import evaluation_mode
from cadenza.learn.nn.initialization import normal_init_
from cadenza.learn.nn.linear import default_linear


class DeterministicModel(nn.Module):
    """Linear, batch norm, ReLU, repeated; then linear. Weights start at N(0, 0.001^2).

    Args:
        in_size: I, >= 1.
        out_size: O, >= 1.
        device: Where the parameters live.
        hidden_size: H, >= 1.
        num_hidden_layers: Hidden layers, >= 1.
        seed: Fixes the initial weights.

    Raises:
        InputError: A size is below one.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        device: torch.device | str,
        hidden_size: int = 256,
        num_hidden_layers: int = 4,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(in_size, out_size, hidden_size, num_hidden_layers) < 1:
            raise InputError(
                f"DeterministicModel: expected every size >= 1, got in_size = {in_size}, out_size "
                f"= {out_size}, hidden_size = {hidden_size}, num_hidden_layers = "
                f"{num_hidden_layers}."
            )
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([in_size] + [hidden_size] * num_hidden_layers):
            layers += [default_linear(inputs, outputs, generator)]
            layers += [nn.BatchNorm1d(outputs), nn.ReLU()]
        layers.append(default_linear(hidden_size, out_size, generator))
        self.model = nn.Sequential(*layers)
        for layer in layers:
            normal_init_(layer, generator=generator)
        self.to(self.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions, shape (B, O), for ``x``, shape (B, I)."""
        return self.model(x)

    def loss(self, model_in: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the mean squared error, a scalar, and an empty dict.

        Args:
            model_in: Shape (B, I).
            target: Shape (B, O).

        Raises:
            InputError: ``target`` has another shape.
        """
        prediction = self(model_in)
        if target.shape != prediction.shape:
            raise InputError(
                f"DeterministicModel.loss: expected target of shape {tuple(prediction.shape)}, got "
                f"{tuple(target.shape)}."
            )
        return functional.mse_loss(prediction, target), {}

    def sample(self, model_input: Tensor, rng: torch.Generator) -> Tensor:
        """Return the prediction, shape (B, O), with batch norm frozen; nothing is drawn.

        Args:
            model_input: Shape (B, I).
            rng: Not needed by a network without noise.
        """
        del rng
        with evaluation_mode(self):
            return self(model_input)

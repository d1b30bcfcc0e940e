"""Perceptrons with ReLU: x_{i+1} = max(0, W_i x_i + b_i); a linear layer may come last."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialised_linear

#: Gain that keeps the variance of ReLU layers (arXiv:1312.6120, section 3).
RELU_GAIN: Final = math.sqrt(2.0)


def relu_mlp(
    inputs: int,
    hidden_dims: Sequence[int],
    outputs: int | None = None,
    *,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Return linear, ReLU, linear, ReLU, ... with orthogonal weights and zero biases.

    Args:
        inputs: Width of the input, >= 1.
        hidden_dims: Widths of the hidden layers, at least one unless ``outputs`` is given.
        outputs: Width of the linear layer at the end, of gain 1; None ends with the last ReLU.
        generator: Source of the initial weights; None draws from the package's own
            (`initialization.default_generator`).

    Raises:
        InputError: A width is below one or there is no layer.
    """
    widths = [inputs, *hidden_dims, *([] if outputs is None else [outputs])]
    if len(widths) < 2 or min(widths) < 1:
        raise InputError(
            "relu_mlp: expected at least one layer and every width >= 1, got "
            f"inputs = {inputs}, hidden_dims = {list(hidden_dims)}, outputs = {outputs}."
        )
    layers: list[nn.Module] = []
    last = len(hidden_dims)
    for index, (width_in, width_out) in enumerate(pairwise(widths)):
        gain = RELU_GAIN if index < last else 1.0
        layers.append(initialised_linear(width_in, width_out, gain=gain, generator=generator))
        if index < last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def apply_layers(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Return what ``layers`` make of ``x``; where autocast rounds, the last stays in float32.

    Rounded to bfloat16, a value of 100 would be known to 0.5 only.
    """
    *hidden, output = layers
    for layer in hidden:
        x = layer(x)
    if not torch.is_autocast_enabled(x.device.type):
        return output(x)
    with torch.autocast(x.device.type, enabled=False):
        return output(x.float())

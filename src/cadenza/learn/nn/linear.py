"""Linear layers initialised from an explicit generator, with the draws of a plain torch layer.

A plain ``torch.nn.Linear`` draws its weights from the global generator. These constructors make the
same draws, in the same order, from the generator they are given: seeded alike, they return bitwise
the weights that ``torch.manual_seed`` followed by ``torch.nn.Linear`` gives.

Axes:  I = inputs, O = outputs; weights have shape (O, I).
"""

import math
from typing import Final

import torch
from torch import nn

#: Negative slope in `torch.nn.Linear.reset_parameters`; makes the weight bound 1 / sqrt(I).
DEFAULT_LINEAR_SLOPE: Final = math.sqrt(5.0)


def default_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's default initialisation, drawn from ``generator``.

    Args:
        inputs: I.
        outputs: O.
        generator: CPU generator; advanced by O·I + O uniform draws.
    """
    layer = _empty_linear(inputs, outputs)
    nn.init.kaiming_uniform_(layer.weight, a=DEFAULT_LINEAR_SLOPE, generator=generator)
    bound = 1.0 / math.sqrt(inputs)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def orthogonal_linear(
    inputs: int, outputs: int, *, gain: float, generator: torch.Generator
) -> nn.Linear:
    """Return a layer with orthogonal weights and zero bias.

    The default initialisation is drawn first and overwritten: code that initialises a finished
    ``torch.nn.Linear`` consumes those draws too, and only so do later draws agree with it.

    Source: arXiv:1312.6120.

    Args:
        inputs: I.
        outputs: O.
        gain: Factor on the orthonormal rows or columns.
        generator: CPU generator; advanced by the default draws and the O·I normal draws.
    """
    layer = default_linear(inputs, outputs, generator)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return an uninitialised CPU layer without touching the global generator."""
    layer = nn.Linear(inputs, outputs, device="meta")
    return layer.to_empty(device="cpu")

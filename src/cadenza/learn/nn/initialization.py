"""Initial weights, drawn from an explicit `torch.Generator`.

Called without one, every function here draws from one generator that belongs to this package and
starts at seed 0 in each process; torch's global generator is neither read nor moved.

`default_linear` and `orthogonal_linear` make the draws of a plain ``torch.nn.Linear`` from their
generator, in its order: seeded alike, they give bitwise the weights that ``torch.manual_seed`` and
``torch.nn.Linear`` give.

Axes:  I = inputs, O = outputs; weights have shape (O, I).
"""

import math
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError

#: Standard deviations of `normal_init_`; small, so that a new model predicts almost zero.
CONV_STD: Final = 0.01
LINEAR_STD: Final = 0.001
#: `truncated_normal_` keeps values within this many standard deviations of the mean.
TRUNCATION: Final = 2.0


@cache
def default_generator() -> torch.Generator:
    """Return the generator used where none is given; one per process, seeded 0 at first use."""
    return torch.Generator().manual_seed(0)


def ortho_init_(
    m: nn.Module, gain: float = math.sqrt(2.0), *, generator: torch.Generator | None = None
) -> None:
    """Make a linear or 2-D convolution layer's weights orthogonal, times ``gain``, its bias zero.

    Made for ``module.apply``: other modules are left alone.  Source: arXiv:1312.6120.
    """
    if isinstance(m, nn.Linear | nn.Conv2d):
        nn.init.orthogonal_(m.weight, gain=gain, generator=_chosen(generator))
        _zero_bias(m.bias)


def xavier_uniform_init_(
    m: nn.Module, gain: float, *, generator: torch.Generator | None = None
) -> None:
    """Draw a linear layer's weights uniformly in ±gain·sqrt(6 / (inputs + outputs)), bias zero.

    Other modules are left alone.  Source: Glorot and Bengio, AISTATS 2010, equation 16.
    """
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight, gain=gain, generator=_chosen(generator))
        _zero_bias(m.bias)


def normal_init_(m: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """Draw small normal weights: linear N(0, 0.001²), 1-D convolution N(0, 0.01²), biases zero.

    A 1-D batch norm starts as the identity; other modules are left alone.
    """
    if isinstance(m, nn.Linear | nn.Conv1d):
        std = LINEAR_STD if isinstance(m, nn.Linear) else CONV_STD
        nn.init.normal_(m.weight, 0.0, std, generator=_chosen(generator))
        _zero_bias(m.bias)
    elif isinstance(m, nn.BatchNorm1d):
        nn.init.ones_(m.weight)
        nn.init.zeros_(m.bias)


#: The same function under the name it has among the model utilities.
normal_init = normal_init_


@torch.no_grad()
def truncated_normal_(
    tensor: Tensor,
    mean: float = 0,
    std: float = 1,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill ``tensor`` with normal draws, redrawing those more than 2 std off the mean; return it.

    Raises:
        InputError: ``std`` is not positive.
    """
    if not std > 0.0:
        raise InputError(f"truncated_normal_: expected std > 0, got {std}.")
    chosen = _chosen(generator)
    drawn = torch.empty(tensor.shape, dtype=torch.float64)
    outside = torch.ones(tensor.shape, dtype=torch.bool)
    while bool(outside.any()):
        drawn[outside] = torch.empty(int(outside.sum()), dtype=torch.float64).normal_(
            generator=chosen
        )
        outside = drawn.abs() > TRUNCATION
    return tensor.copy_(drawn.mul_(std).add_(mean))


def initialized_linear(
    inputs: int, outputs: int, *, gain: float, generator: torch.Generator | None
) -> nn.Linear:
    """Return a linear layer with orthogonal weights and zero bias; nothing else is drawn."""
    layer = _empty_linear(inputs, outputs)
    ortho_init_(layer, gain, generator=generator)
    return layer


#: Negative slope in `torch.nn.Linear.reset_parameters`; makes the weight bound 1 / sqrt(I).
DEFAULT_LINEAR_SLOPE: Final = math.sqrt(5.0)


def default_init_(m: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """Draw a linear layer's weights and bias as torch does, uniformly in ±1 / sqrt(inputs).

    Made for ``module.apply``: other modules are left alone.
    """
    if isinstance(m, nn.Linear):
        chosen, bound = _chosen(generator), 1.0 / math.sqrt(m.in_features)
        for name, parameter in m.named_parameters():
            if name == "weight":  # the same bound, but for its rounding
                nn.init.kaiming_uniform_(parameter, DEFAULT_LINEAR_SLOPE, generator=chosen)
            else:
                nn.init.uniform_(parameter, -bound, bound, generator=chosen)


def default_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's default initialisation: O·I + O uniform draws."""
    layer = _empty_linear(inputs, outputs)
    default_init_(layer, generator=generator)
    return layer


def orthogonal_linear(
    inputs: int, outputs: int, *, gain: float, generator: torch.Generator
) -> nn.Linear:
    """Return a layer with orthogonal weights, times ``gain``, and zero bias.

    The default initialisation is drawn first and overwritten: code that initialises a finished
    ``torch.nn.Linear`` consumes those draws too, and only so do later draws agree with it.

    Source: arXiv:1312.6120.
    """
    layer = default_linear(inputs, outputs, generator)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return an uninitialised CPU layer without touching the global generator."""
    return nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")


def _chosen(generator: torch.Generator | None) -> torch.Generator:
    return default_generator() if generator is None else generator


def _zero_bias(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)

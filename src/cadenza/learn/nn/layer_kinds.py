"""The kinds of layers that a policy file may consist of, and how they compute.

Exactness:   rows go through the layers in whole blocks of `BLOCK_ROWS`, and images one by one: what
             a row becomes does not depend on how many are asked together, or beside which ones.
Axes:        N = rows, P = N filled up to whole blocks, H = what is remembered, S = its state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cadenza.core.arrays import BLOCK_ROWS
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.recurrent import moved_on, remembered

#: Most numbers that a row may become on its way through the layers.
MAX_ROW: Final = 2**24


@runtime_checkable
class Portable(Protocol):
    """A module of our own that says which layers and modules it consists of."""

    def portable(self) -> Sequence[nn.Module | Layer]:
        """Return them in order."""
        ...


def layers_of(*parts: nn.Module | Layer) -> tuple[Layer, ...]:
    """Return the layers that ``parts`` consist of; they share their weights.

    Raises:
        ConfigurationError: One contains a module that no layer of `KINDS` stands for.
    """
    found: list[Layer] = []
    for part in parts:
        if isinstance(part, Layer):
            found.append(part)
        elif isinstance(part, Portable):
            found += layers_of(*part.portable())
        elif type(part) in (nn.Sequential, nn.ModuleList):
            found += layers_of(*part.children())
        elif type(part) is not nn.Identity:
            make = _TORCH_LAYERS.get(type(part))
            layer = None if make is None else make(part)
            if layer is None:
                expected, advice = f"layers of {', '.join(KINDS)}", "export the policy to ONNX"
                owner = "policy file"
                refuse(ConfigurationError, owner, expected=expected, got=str(part), do=advice)
            found.append(layer)
    return tuple(found)


def _weighted(kind: str, module: Any, **numbers: Any) -> Layer | None:
    """Return a layer with weight and bias, if there are both."""
    if module.weight is None or module.bias is None:
        return None
    return Layer(kind, numbers, {"weight": module.weight, "bias": module.bias})


def _convolution(module: Any) -> Layer | None:
    plain = module.dilation == (1, 1) and module.groups == 1 and module.padding_mode == "zeros"
    if not plain or isinstance(module.padding, str):
        return None
    stride, padding = list(module.stride), list(module.padding)
    return _weighted("conv2d", module, stride=stride, padding=padding)


#: The layers of torch's modules, by their exact class: a subclass may compute something else.
_TORCH_LAYERS: Final[Mapping[type[nn.Module], Callable[[Any], Layer | None]]] = {
    nn.Linear: lambda m: _weighted("linear", m),
    nn.Conv2d: _convolution,
    nn.LayerNorm: lambda m: _weighted("layer_norm", m, eps=m.eps),
    nn.ReLU: lambda _: Layer("relu"),
    nn.Tanh: lambda _: Layer("tanh"),
    nn.SiLU: lambda _: Layer("silu"),
    nn.ELU: lambda m: Layer("elu") if m.alpha == 1.0 else None,
    nn.GELU: lambda m: Layer("gelu") if m.approximate == "none" else None,
    nn.Sigmoid: lambda _: Layer("sigmoid"),
    nn.Hardtanh: lambda m: Layer("clamp", {"low": float(m.min_val), "high": float(m.max_val)}),
    nn.Flatten: lambda m: Layer("flatten") if (m.start_dim, m.end_dim) == (1, -1) else None,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer: ``run(x, layer, rows)`` for x (P, ...), of which ``rows`` are asked for."""

    run: Callable[[Tensor, Layer, int], Tensor]
    numbers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


def _blocks(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W x + b, block by block."""
    if len(x) == BLOCK_ROWS:
        return nn.functional.linear(x, weight, bias)
    return torch.cat(
        [nn.functional.linear(block, weight, bias) for block in torch.split(x, BLOCK_ROWS)]
    )


def _linear(x: Tensor, layer: Layer, _: int) -> Tensor:
    return _blocks(x, layer.tensors["weight"], layer.tensors["bias"])


def _conv2d(x: Tensor, layer: Layer, rows: int) -> Tensor:
    """Return the convolution of every image by itself, and zeros for those that fill up."""
    weight, bias = layer.tensors["weight"], layer.tensors["bias"]
    stride, padding = layer.numbers["stride"], layer.numbers["padding"]
    images = [
        nn.functional.conv2d(x[row : row + 1], weight, bias, stride, padding) for row in range(rows)
    ]
    return torch.cat([*images, images[0].new_zeros((len(x) - rows, *images[0].shape[1:]))])


def _standardise(x: Tensor, layer: Layer, _: int) -> Tensor:
    mean, limit = layer.tensors["mean"], layer.numbers["limit"]
    return ((x.to(mean.dtype) - mean) / layer.tensors["spread"]).clamp(-limit, limit).float()


def _dueling(x: Tensor, layer: Layer, _: int) -> Tensor:
    """Return Q = V + A − mean A."""
    own = layer.tensors
    advantages = _blocks(x, own["advantage_weight"], own["advantage_bias"])
    value = _blocks(x, own["value_weight"], own["value_bias"])
    return value + advantages - advantages.mean(dim=1, keepdim=True)


def _remembered(x: Tensor, layer: Layer, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is remembered after x, (P, H), and the next state, (P, S)."""
    if layer.kind == "window":
        state = moved_on(x, state)
        return state, state
    if layer.kind == "previous":  # the action that follows replaces it
        return torch.cat((x, state), dim=1), state
    own = layer.tensors
    state = remembered(
        layer.kind,
        x,
        state,
        lambda x: _blocks(x, own["weight_ih"], own["bias_ih"]),
        lambda h: _blocks(h, own["weight_hh"], own["bias_hh"]),
    )
    return state[:, : own["weight_hh"].shape[1]], state


def memories(layers: Sequence[Layer]) -> Iterator[tuple[int, bool]]:
    """Yield S of every layer with a memory, in order, and whether it is that of the last action."""
    for layer in layers:
        if layer.kind in MEMORIES:
            yield _state_width(layer), layer.kind == "previous"
        for part in layer.parts:
            yield from memories(part)


def _state_width(layer: Layer) -> int:
    """Return S of a layer with a memory."""
    units = MEMORIES[layer.kind]
    return units * layer.tensors["weight_hh"].shape[1] if units else int(layer.numbers["size"])


def _elementwise(function: Callable[[Tensor], Tensor]) -> Kind:
    return Kind(lambda x, _, __: function(x))


def _unit_length(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=1)


def _elsewhere(x: Tensor, layer: Layer, _: int) -> Tensor:
    """Stand for kinds that `run_layers` runs itself, for they have states or parts."""
    raise ValueError(f"a layer {layer.kind} of {tuple(x.shape)}")


_RECURRENT: Final = Kind(_elsewhere, tensors=("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
KINDS: Final[Mapping[str, Kind]] = {
    "linear": Kind(_linear, tensors=("weight", "bias")),
    "layer_norm": Kind(
        lambda x, layer, _: nn.functional.layer_norm(
            x, x.shape[1:], layer.tensors["weight"], layer.tensors["bias"], layer.numbers["eps"]
        ),
        ("eps",),
        ("weight", "bias"),
    ),
    "conv2d": Kind(_conv2d, ("stride", "padding"), ("weight", "bias")),
    "relu": _elementwise(torch.relu),
    "tanh": _elementwise(torch.tanh),
    "silu": _elementwise(nn.functional.silu),
    "elu": _elementwise(nn.functional.elu),
    "gelu": _elementwise(nn.functional.gelu),
    "sigmoid": _elementwise(torch.sigmoid),
    "leaky_relu": _elementwise(nn.functional.leaky_relu),
    "selu": _elementwise(torch.selu),
    "hardswish": _elementwise(nn.functional.hardswish),
    "flatten": _elementwise(lambda x: x.flatten(start_dim=1)),
    "permute": Kind(lambda x, layer, _: x.permute(0, *layer.numbers["axes"]), ("axes",)),
    "shape": Kind(lambda x, layer, _: x.reshape(len(x), *layer.numbers["sizes"]), ("sizes",)),
    "scale_by": Kind(lambda x, layer, _: x * layer.numbers["factor"], ("factor",)),
    "clamp": Kind(
        lambda x, layer, _: x.clamp(layer.numbers["low"], layer.numbers["high"]), ("low", "high")
    ),
    "standardise": Kind(_standardise, ("limit",), ("mean", "spread")),
    "append": Kind(
        lambda x, layer, _: torch.cat((x, layer.tensors["values"].expand(len(x), -1)), dim=1),
        tensors=("values",),
    ),
    "dueling": Kind(
        _dueling,
        tensors=("value_weight", "value_bias", "advantage_weight", "advantage_bias"),
    ),
    "softmax": _elementwise(lambda x: torch.softmax(x, dim=1)),
    "unit_length": _elementwise(_unit_length),
    "parts": Kind(_elsewhere, ("widths",)),  # each of its own columns, side by side
    "beside": Kind(_elsewhere),  # each of all columns, side by side
    "gru": _RECURRENT,
    "lstm": _RECURRENT,
    "window": Kind(_elsewhere, ("size",)),
    "previous": Kind(_elsewhere, ("size",)),
}
#: Kinds with a memory, and how many numbers a unit of it is; 0 where ``size`` counts them.
MEMORIES: Final = {"gru": 1, "lstm": 2, "window": 0, "previous": 0}


def run_layers(
    layers: Sequence[Layer], x: Tensor, rows: int, states: list[Tensor] | None = None
) -> Tensor:
    """Return what layers make of x; ``states`` of those with a memory become the next ones."""
    for layer in layers:
        if layer.kind in MEMORIES:
            fresh = x.new_zeros((len(x), _state_width(layer))) if states is None else states.pop(0)
            x, following = _remembered(x, layer, fresh)
            if states is not None:
                states.append(following)
        elif layer.parts:
            is_split = layer.kind == "parts"
            pieces = torch.split(x, layer.numbers["widths"], dim=1) if is_split else None
            pairs = zip(layer.parts, pieces or [x] * len(layer.parts), strict=True)
            x = torch.cat([run_layers(part, piece, rows, states) for part, piece in pairs], dim=1)
        else:
            x = KINDS[layer.kind].run(x, layer, rows)
        if x.is_meta and x.numel() > MAX_ROW * len(x):
            raise ValueError(f"a row of {x.numel() // len(x)} numbers, at most {MAX_ROW}")
    return x

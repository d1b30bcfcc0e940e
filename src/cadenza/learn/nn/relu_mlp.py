"""Multi-layer perceptrons with ReLU, evaluated by the fastest float32 kernels of the processor.

Equation:    x_{i+1} = max(0, W_i x_i + b_i); the last layer is linear or has a ReLU too.
Derivative:  written out by hand below, so a net is one node of the autograd graph: backward makes
             only the gradients that are asked for, none for frozen weights.
Kernels:     large products go to oneDNN, which has AVX-512 code for every vendor's processors;
             the BLAS that torch calls by default has it for one vendor's only. Both are float32.
Axes:        B = batch; a layer's weight has shape (outputs, inputs).
Limits:      other dtypes and devices, few rows, compiling, exporting and autocast use plain torch
             operations; the values agree to float32 rounding, not to the bit. Hooks on the single
             layers are not called.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialised_linear

#: Rows from which the derivative written out here beats torch's graph (measured, 256-wide layers).
MIN_FAST_ROWS: Final = 32
#: Smallest edge of a product that oneDNN gets; below it its set-up costs more than it saves.
MIN_ONEDNN_EDGE: Final = 16
#: Gain that keeps the variance of ReLU layers (arXiv:1312.6120, section 3).
RELU_GAIN: Final = math.sqrt(2.0)


class ReluMlp(nn.Sequential):
    """Linear, ReLU, linear, ReLU, ...; behaves as the plain sequence of those layers, faster.

    Args:
        inputs: Width of the input, >= 1.
        hidden_dims: Widths of the hidden layers, at least one unless ``outputs`` is given.
        outputs: Width of the linear layer at the end; None ends with the last ReLU.
        output_gain: Gain of that layer's orthogonal weights.
        generator: Source of the initial weights; None draws from the package's own
            (`initialization.default_generator`).

    Raises:
        InputError: A width is below one or there is no layer.
    """

    def __init__(
        self,
        inputs: int,
        hidden_dims: Sequence[int],
        outputs: int | None = None,
        *,
        output_gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        widths = [inputs, *hidden_dims, *([] if outputs is None else [outputs])]
        if len(widths) < 2 or min(widths) < 1:
            raise InputError(
                "ReluMlp: expected at least one layer and every width >= 1, got "
                f"inputs = {inputs}, hidden_dims = {list(hidden_dims)}, outputs = {outputs}."
            )
        layers: list[nn.Module] = []
        last = len(hidden_dims)
        for index, (width_in, width_out) in enumerate(pairwise(widths)):
            gain = RELU_GAIN if index < last else output_gain
            layers.append(initialised_linear(width_in, width_out, gain=gain, generator=generator))
            if index < last:
                layers.append(nn.ReLU())
        super().__init__(*layers)
        self.ends_in_relu = outputs is None
        # A plain tuple beside the registered modules: looking for them costs as much as a layer.
        self._linear = tuple(layer for layer in layers if isinstance(layer, nn.Linear))

    def layer_parameters(self) -> list[Tensor]:
        """Return weight, bias, weight, ... in the order of the layers."""
        return [parameter for layer in self._linear for parameter in (layer.weight, layer.bias)]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- the name of torch's signature
        """Return the output, shape (B, outputs), for ``input``, shape (B, inputs)."""
        if not _takes_fast_path(input):
            return plain_mlp(input, self.layer_parameters(), self.ends_in_relu)
        parameters = self.layer_parameters()
        if torch.is_grad_enabled():
            return _fast_mlp(input, self.ends_in_relu, *parameters)
        return _output(input, parameters, self.ends_in_relu)


def plain_mlp(x: Tensor, parameters: Sequence[Tensor], ends_in_relu: bool) -> Tensor:
    """Return the net's output by torch's own operations, differentiable any number of times."""
    for index in range(0, len(parameters), 2):
        x = nn.functional.linear(x, parameters[index], parameters[index + 1])
        if ends_in_relu or index < len(parameters) - 2:
            x = torch.relu(x)
    return x


def _takes_fast_path(x: Tensor) -> bool:
    return (
        x.ndim == 2
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and x.shape[0] >= MIN_FAST_ROWS
    )


def _onednn_linear() -> Any:
    """Return oneDNN's ``(x, W, b, activation, [], "") -> activation(x W' + b)``, if it is there."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


#: Looked up once: the kernel does not come or go while a process runs.
_ONEDNN: Final = _onednn_linear()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.T``, shapes (M, K) and (N, K).

    A result with more rows than columns is made transposed: both libraries are up to five times
    faster with the long side last.
    """
    (rows, inner), columns = left.shape, right.shape[0]
    is_tall = columns < rows
    if is_tall:
        left, right, rows = right, left, columns
    if _ONEDNN is None or rows < MIN_ONEDNN_EDGE or inner < MIN_ONEDNN_EDGE:
        product = torch.mm(left, right.t())
    else:
        product = _ONEDNN(left, right, None, "none", [], "")
    return product.t() if is_tall else product


def _through_relu(grad: Tensor, output: Tensor, *, in_place: bool) -> Tensor:
    """Return ``grad`` where ``output`` of the ReLU is positive, else 0."""
    backward = torch.ops.aten.threshold_backward
    if in_place:
        return backward.grad_input(grad, output, 0.0, grad_input=grad)
    return backward(grad, output, 0.0)


def _layer(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Return one layer's output, shape (B, outputs), for B >= `MIN_FAST_ROWS`."""
    if _ONEDNN is None or min(weight.shape) < MIN_ONEDNN_EDGE:
        y = nn.functional.linear(x, weight, bias)
        return torch.relu_(y) if relu else y
    fused: Tensor = _ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
    return fused


def _output(x: Tensor, parameters: Sequence[Tensor], ends_in_relu: bool) -> Tensor:
    """Return the net's output, keeping one layer at a time; call it without gradients."""
    for index in range(0, len(parameters), 2):
        relu = ends_in_relu or index < len(parameters) - 2
        x = _layer(x, parameters[index], parameters[index + 1], relu)
    return x


def _evaluate(x: Tensor, parameters: Sequence[Tensor], ends_in_relu: bool) -> list[Tensor]:
    """Return the input and the output of every layer; call it with gradients switched off."""
    values = [x]
    for index in range(0, len(parameters), 2):
        relu = ends_in_relu or index < len(parameters) - 2
        values.append(_layer(values[-1], parameters[index], parameters[index + 1], relu))
    return values


class _FastMlp(torch.autograd.Function):
    """The whole net as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends_in_relu: bool, *parameters: Tensor) -> Tensor:
        values = _evaluate(x, parameters, ends_in_relu)
        ctx.save_for_backward(*parameters, *values)
        ctx.ends_in_relu = ends_in_relu
        return values[-1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        layers = (len(saved) - 1) // 3
        parameters, values = saved[: 2 * layers], saved[2 * layers :]
        wanted: tuple[bool, ...] = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients: leave them to torch
            return _graph_gradients(
                values[0], parameters, ctx.ends_in_relu, wanted, grad_outputs[0]
            )
        return _gradients(parameters, values, ctx.ends_in_relu, wanted, grad_outputs[0])


def _gradients(
    parameters: Sequence[Tensor],
    values: Sequence[Tensor],
    ends_in_relu: bool,
    wanted: tuple[bool, ...],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients in the order of `_FastMlp.forward`'s arguments, None where not wanted.

    Args:
        parameters: Weight, bias, weight, ...
        values: Input and output of every layer.
        ends_in_relu: Whether the last layer has a ReLU.
        wanted: Whether each argument of the forward call needs a gradient.
        grad: Gradient with respect to the output, shape (B, outputs).
    """
    gradients: list[Tensor | None] = [None] * len(wanted)
    layers = len(parameters) // 2
    is_own = False  # the gradient that comes in belongs to the caller
    for layer in reversed(range(layers)):
        if ends_in_relu or layer < layers - 1:
            grad = _through_relu(grad, values[layer + 1], in_place=is_own)
        weight, bias = 2 + 2 * layer, 3 + 2 * layer
        if wanted[weight]:
            gradients[weight] = _product(grad.t(), values[layer].t())
        if wanted[bias]:
            gradients[bias] = grad.sum(0)
        if not any(wanted[:weight]):
            break
        grad, is_own = _product(grad, parameters[2 * layer].t()), True
    else:
        gradients[0] = grad
    return tuple(gradients)


def _graph_gradients(
    x: Tensor,
    parameters: Sequence[Tensor],
    ends_in_relu: bool,
    wanted: tuple[bool, ...],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    """As `_gradients`, from a graph built anew, so that the result can be differentiated again."""
    arguments: list[Tensor | None] = [x, None, *parameters]
    chosen = [a for a, want in zip(arguments, wanted, strict=True) if want and a is not None]
    found = iter(
        torch.autograd.grad(plain_mlp(x, parameters, ends_in_relu), chosen, grad, create_graph=True)
    )
    return tuple(next(found) if want else None for want in wanted)


#: `_FastMlp` as a function of the input, whether the net ends in a ReLU, and its parameters.
_fast_mlp: Final = cast("Callable[..., Tensor]", _FastMlp.apply)  # pyright: ignore[reportUnknownMemberType]

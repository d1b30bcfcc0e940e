"""Building blocks of networks: stacks of layers, what stands around them, and modules that draw.

MLP:     x_{i+1} = φ(W_i x_i + b_i); a linear layer may come last.
Size:    x' = floor((x - k + 2 p) / s) + 1 per axis and convolution.
Noise:   the state of a module's generator is saved as torch's extra state, so a resumed run draws
         on as an unbroken one. Weights from elsewhere have none; after `let_noise_go_on` they load
         strictly all the same, and the noise goes on where it is.
Axes:    B = batch, O = observation, X, Y = image axes, L = length, C = channels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import (
    DEFAULT_LINEAR_SLOPE,
    default_generator,
    initialized_linear,
)

#: Activations by their names in settings.
ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
#: Gain that keeps the variance of ReLU layers (arXiv:1312.6120, section 3).
RELU_GAIN: Final = math.sqrt(2.0)


def mlp(
    inputs: int,
    hidden_dims: Sequence[int],
    outputs: int | None = None,
    *,
    activation: str = "relu",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Return linear, activation, linear, ... with orthogonal weights and zero biases.

    It ends with the last activation, one of `ACTIVATIONS`, or with a linear layer of gain 1 and
    ``outputs`` units.

    Raises:
        InputError: A width is below one or there is no layer.
    """
    widths = [inputs, *hidden_dims, *([] if outputs is None else [outputs])]
    if len(widths) < 2 or min(widths) < 1:
        raise InputError(
            "mlp: expected at least one layer and every width >= 1, got "
            f"inputs = {inputs}, hidden_dims = {list(hidden_dims)}, outputs = {outputs}."
        )
    layers: list[nn.Module] = []
    last = len(hidden_dims)
    for index, (width_in, width_out) in enumerate(pairwise(widths)):
        gain = RELU_GAIN if index < last else 1.0
        layers.append(initialized_linear(width_in, width_out, gain=gain, generator=generator))
        if index < last:
            layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def apply_layers(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Return what ``layers`` make of ``x``; where autocast rounds, the last stays in float32.

    Rounded to bfloat16, a value of 100 would be known to 0.5 only.
    """
    *hidden, output = layers
    for layer in hidden:
        x = layer(x)
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):  # which does not know meta
        return output(x)
    with torch.autocast(x.device.type, enabled=False):
        return output(x.float())


Activation = Callable[[], nn.Module] | nn.Module


def conv_output_size(
    size: int, kernels: Sequence[int], strides: Sequence[int], padding: Sequence[int]
) -> int:
    """Return the length of one axis after all layers; equation of the module's header."""
    for kernel, stride, pad in zip(kernels, strides, padding, strict=True):
        size = (size - kernel + 2 * pad) // stride + 1
    return size


class Conv2dEncoder(nn.Module):
    """Convolutions, with one entry per layer, and one activation each, orthogonally initialised.

    Images come as (B, X, Y, C), without ``channels_last`` as (B, C, X, Y); ``flatten`` returns
    vectors instead of feature maps.

    Raises:
        InputError: Lists of different lengths, or an image too small for the layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        channels: list[int],
        kernels: list[int],
        strides: list[int],
        padding: list[int],
        channels_last: bool = True,
        activation: Activation = nn.ReLU,
        flatten: bool = True,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        x, y, c = input_shape if channels_last else (*input_shape[1:], input_shape[0])
        self._channels_last = channels_last
        self._flatten = flatten
        self._input_shape = (c, x, y)
        _check_layers("Conv2dEncoder", channels, kernels, strides, padding)
        axes = [conv_output_size(axis, kernels, strides, padding) for axis in (x, y)]
        self._output_shape = (channels[-1], axes[0], axes[1])
        _check_output("Conv2dEncoder", self._input_shape, self._output_shape)
        draws = default_generator() if generator is None else generator
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise([c, *channels])):
            empty = nn.Conv2d(inputs, outputs, kernels[i], strides[i], padding[i], device="meta")
            conv = empty.to_empty(device="cpu")  # no draws from the global generator
            nn.init.orthogonal_(conv.weight, gain=RELU_GAIN, generator=draws)
            nn.init.zeros_(conv.get_parameter("bias"))
            layers += [conv, _made(activation)]
        self.layers: nn.Sequential = nn.Sequential(*layers)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, size), or (B, C, X, Y) without ``flatten``."""
        images = obs.permute(0, 3, 1, 2) if self._channels_last else obs
        features = self.layers(images)
        return features.flatten(start_dim=1) if self._flatten else features

    def portable(self) -> "Sequence[nn.Module | Layer]":
        """Return the layers of a policy file."""
        last = [Layer("permute", {"axes": [3, 1, 2]})] * self._channels_last
        return [*last, self.layers, *[Layer("flatten")] * self._flatten]

    def get_encoder_output_size(self) -> int | tuple[int, int, int]:
        """Return the vector's size, or (C, X, Y) without ``flatten``."""
        return math.prod(self._output_shape) if self._flatten else self._output_shape


class Conv1dEncoder(nn.Module):
    """Convolutions over a sequence with one activation each, with torch's default initialisation.

    Sequences come as (B, L, C), without ``channels_last`` as (B, C, L); ``name`` names the
    submodule that holds the layers.

    Raises:
        InputError: Lists of different lengths, or a sequence too short for the layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, int],
        channels: list[int],
        kernels: list[int],
        strides: list[int],
        padding: list[int],
        activation: Activation = nn.ReLU,
        flatten: bool = True,
        name: str = "conv1d",
        channels_last: bool = True,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        length, c = input_shape if channels_last else (input_shape[1], input_shape[0])
        self._channels_last = channels_last
        self._flatten = flatten
        self._name = name
        self._input_shape = (c, length)
        _check_layers("Conv1dEncoder", channels, kernels, strides, padding)
        self._output_shape = (channels[-1], conv_output_size(length, kernels, strides, padding))
        _check_output("Conv1dEncoder", self._input_shape, self._output_shape)
        draws = default_generator() if generator is None else generator
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise([c, *channels])):
            empty = nn.Conv1d(inputs, outputs, kernels[i], strides[i], padding[i], device="meta")
            conv = empty.to_empty(device="cpu")  # no draws from the global generator
            nn.init.kaiming_uniform_(conv.weight, a=DEFAULT_LINEAR_SLOPE, generator=draws)
            bound = 1.0 / math.sqrt(inputs * kernels[i])
            nn.init.uniform_(conv.get_parameter("bias"), -bound, bound, generator=draws)
            layers += [conv, _made(activation)]
        self.add_module(name, nn.Sequential(*layers))

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, shape (B, size), or (B, C, L) without ``flatten``."""
        rows = obs.permute(0, 2, 1) if self._channels_last else obs
        features = self.get_submodule(self._name)(rows)
        return features.flatten(start_dim=1) if self._flatten else features

    def get_encoder_output_size(self) -> int | tuple[int, int]:
        """Return the vector's size, or (C, L) without ``flatten``."""
        return math.prod(self._output_shape) if self._flatten else self._output_shape


def _made(activation: Activation) -> nn.Module:
    """Return the activation as a module."""
    return activation if isinstance(activation, nn.Module) else activation()


def _check_layers(owner: str, *lists: Sequence[int]) -> None:
    """Raise unless there is one channel, kernel, stride and padding per layer."""
    lengths = [len(values) for values in lists]
    if lengths[0] < 1 or len(set(lengths)) != 1:
        raise InputError(
            f"{owner}: expected channels, kernels, strides and padding with one entry per layer, "
            f"got {lengths} entries."
        )


def _check_output(owner: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Raise unless something is left after the last layer."""
    if min(outputs) < 1:
        raise InputError(
            f"{owner}: expected an input large enough for the layers, got {tuple(inputs)} "
            f"(channels first), which leaves {tuple(outputs)}; use fewer or smaller strides."
        )


#: Makes a module that maps flat observations, (B, O), to features, (B, ``module.width``).
EncoderFactory = Callable[[], nn.Module]
Network = TypeVar("Network", bound=nn.Module)


def with_encoder(
    make: EncoderFactory | None, observation_dim: int, build: Callable[[int], Network]
) -> tuple[Network, list[nn.Module]]:
    """Return what ``build`` makes of a width, and the encoder before it, if there is one."""
    if make is None:
        return build(observation_dim), []
    encoder = make()
    return build(int(cast("Any", encoder).width)), [encoder]


class EncodedNetwork(nn.Module):
    """A network that sees the features of an encoder of ``obs``; other arguments pass."""

    def __init__(self, encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network

    def forward(self, *inputs: Any, obs: Tensor, **options: Any) -> Any:
        """Return what the network does for the features of ``obs``."""
        return self.network(*inputs, obs=self.encoder(obs), **options)


class Layer(NamedTuple):
    """A layer as plain data; see `cadenza.learn.nn.layer_kinds`."""

    kind: str
    numbers: Mapping[str, Any] = {}
    tensors: Mapping[str, Tensor] = {}
    #: Layers of each part, for layers that have parts.
    parts: "tuple[tuple[Layer, ...], ...]" = ()


class Decision(nn.Module):
    """A function as the last layer of a policy.

    ``layers`` do its work in a policy file, but for what the file's output does: to choose, to
    squash a drawn action.
    """

    def __init__(self, decide: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.decide = decide
        self._layers = layers

    def portable(self) -> Sequence[nn.Module]:
        """Return ``layers``."""
        return self._layers

    def forward(self, output: Tensor) -> Tensor:
        """Return the actions."""
        return self.decide(output)


#: What torch appends to a module's path for state that is neither parameter nor buffer.
EXTRA_STATE: Final = "_extra_state"


class NoisyModule(nn.Module):
    """Base of modules that draw; without a generator, each makes one on the CPU, seeded 0."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.generator: torch.Generator = (
            torch.Generator().manual_seed(0) if generator is None else generator
        )

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for `torch.nn.Module.state_dict`."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue the draws where `get_extra_state` was taken."""
        self.generator.set_state(state.cpu())


def let_noise_go_on(module: nn.Module) -> None:
    """Let weights without a generator's state load strictly; the constructor calls this."""
    module.register_load_state_dict_pre_hook(_complete)  # pyright: ignore[reportUnknownMemberType] -- torch leaves it untyped


def _complete(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Give ``state_dict``, torch's copy of what is loaded, the module's own extra state."""
    state_dict.setdefault(prefix + EXTRA_STATE, module.get_extra_state())

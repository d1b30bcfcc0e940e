"""What an encoder and a decoder are, and fully connected ones.

Axes:  B = rows, X = data columns, Z = latent columns, C = condition columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialised_linear
from cadenza.learn.nn.relu_mlp import relu_mlp


class Encoder(Protocol):
    """A module that maps data to a Gaussian over latents."""

    device: torch.device
    input_size: int
    output_size: int
    condition_size: int

    def __call__(self, data: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each (B, Z), for (B, X) and (B, C)."""
        ...


class Decoder(Protocol):
    """A module that maps latents to data."""

    device: torch.device
    input_size: int
    output_size: int
    condition_size: int

    def __call__(self, latent: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return data, shape (B, X), for (B, Z) and (B, C)."""
        ...


def as_encoder(module: nn.Module) -> Encoder:
    """Return ``module`` seen as an encoder.

    Raises:
        InputError: It lacks an attribute of one.
    """
    return cast("Encoder", _checked(module, "encoder"))


def as_decoder(module: nn.Module) -> Decoder:
    """Return ``module`` seen as a decoder.

    Raises:
        InputError: It lacks an attribute of one.
    """
    return cast("Decoder", _checked(module, "decoder"))


class _ConditionedPerceptron(nn.Module, ABC):
    """Hidden ReLU layers on [data | condition]; the outputs on top are the subclass's."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        device: torch.device | str,
        hidden_sizes: Sequence[int],
        condition_size: int = 0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._check_sizes(input_size, output_size, hidden_sizes, condition_size)
        self.device = torch.device(device)
        self.input_size = input_size
        self.output_size = output_size
        self.condition_size = condition_size
        self.net = relu_mlp(input_size + condition_size, hidden_sizes, generator=generator)
        self._add_outputs(hidden_sizes[-1], generator)  # draws after the hidden layers
        self.to(self.device)

    @abstractmethod
    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        """Make the output layers on ``features`` units."""

    def _features(self, data: Tensor, condition: Tensor | None) -> Tensor:
        """Return the last hidden layer for [data | condition]."""
        columns = 0 if condition is None else condition.shape[-1]
        if columns != self.condition_size:
            raise InputError(
                f"{type(self).__name__}: expected a condition with {self.condition_size} columns, "
                f"got {columns}; condition_size and the conditioning function must agree."
            )
        features: Tensor = self.net(
            data if condition is None else torch.cat([data, condition], dim=-1)
        )
        return features

    def _check_sizes(
        self, inputs: int, outputs: int, hidden_sizes: Sequence[int], condition_size: int
    ) -> None:
        """Raise unless every size makes sense."""
        if min(inputs, outputs, *hidden_sizes, len(hidden_sizes)) < 1 or condition_size < 0:
            raise InputError(
                f"{type(self).__name__}: expected sizes >= 1, at least one hidden layer and "
                f"condition_size >= 0, got {inputs}, {outputs}, {list(hidden_sizes)} and "
                f"{condition_size}."
            )


class FullyConnectedEncoder(_ConditionedPerceptron):
    """ReLU perceptron of [data | condition] with two outputs.

    Args:
        input_size: X, >= 1.
        output_size: Z, >= 1.
        device: Where the parameters live.
        hidden_sizes: Units per hidden layer, at least one layer.
        condition_size: C; 0 takes no condition.
        generator: Draws the weights; None is `default_generator`.

    Raises:
        InputError: A size is out of range.
    """

    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        self.mean = _output_layer(features, self.output_size, generator)
        self.log_std = _output_layer(features, self.output_size, generator)

    def forward(self, data: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each (B, Z).

        Args:
            data: Shape (B, X).
            condition: Shape (B, C), or None where C = 0.
        """
        features = self._features(data, condition)
        return self.mean(features), self.log_std(features)


class FullyConnectedDecoder(_ConditionedPerceptron):
    """ReLU perceptron of [latent | condition]; a tanh keeps its output in [-1, 1].

    Args:
        latent_size: Z, >= 1.
        output_size: X, >= 1.
        device: Where the parameters live.
        hidden_sizes: Units per hidden layer, at least one layer.
        condition_size: C; 0 takes no condition.
        generator: Draws the weights; None is `default_generator`.

    Raises:
        InputError: A size is out of range.
    """

    def __init__(
        self,
        latent_size: int,
        output_size: int,
        device: torch.device | str,
        hidden_sizes: Sequence[int],
        condition_size: int = 0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            latent_size, output_size, device, hidden_sizes, condition_size, generator=generator
        )

    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        self.out = _output_layer(features, self.output_size, generator)

    def forward(self, latent: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return data, shape (B, X), in [-1, 1].

        Args:
            latent: Shape (B, Z).
            condition: Shape (B, C), or None where C = 0.
        """
        return torch.tanh(self.out(self._features(latent, condition)))


def _output_layer(features: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    return initialised_linear(features, outputs, gain=1.0, generator=generator)


def _checked(module: nn.Module, role: str) -> object:
    """Return ``module`` if it has what encoders and decoders have."""
    needed = ("device", "input_size", "output_size", "condition_size")
    missing = [name for name in needed if not hasattr(module, name)]
    if missing:
        raise InputError(
            f"{role}: expected a module with the attributes {', '.join(needed)}, got "
            f"{type(module).__name__} without {', '.join(missing)}."
        )
    return module

"""From flat observations to features: the first part of a network, chosen by the kind of space.

Memories and buffers hold observations flat, as `gymnasium.spaces.flatten` makes them; an encoder
gives them their shape back before it looks at them.

cnn:   convolutions of arXiv:1312.5602's successor (Nature 518, 529-533) for images of 36 pixels or
       more, two of stride 2 for smaller ones, then one layer of `IMAGE_FEATURES`. Bytes become
       numbers in [0, 1]. The shorter of the first and the last axis holds the channels.
dict:  cnn for every image, everything else as it is, side by side.
Axes:  B = batch, O = flat observation, F = features.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError
from cadenza.learn.nn.initialization import orthogonal_linear
from cadenza.learn.nn.layers import Conv2dEncoder

AnySpace: TypeAlias = spaces.Space[Any]
AnyBox: TypeAlias = spaces.Box[Any]

#: Features of an image.
IMAGE_FEATURES: Final = 256
#: Smallest image, in pixels, that the three large convolutions fit.
_LARGE: Final = 36
#: What a network begins with: its name, or a module of one's own that takes observations in their
#: shape, (B, *shape) or a dict of such, and returns (B, F).
Network: TypeAlias = Literal["mlp", "cnn", "dict"] | nn.Module


class ObservationEncoder(nn.Module):
    """Gives flat observations of ``space`` their shape, and takes ``features`` (B, F) of them.

    Raises:
        ConfigurationError: ``features`` returns something else.
    """

    def __init__(self, space: AnySpace, features: nn.Module) -> None:
        super().__init__()
        self._space = space
        self.features = features
        with torch.no_grad():
            out = self(torch.zeros(2, spaces.flatdim(space)))
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigurationError(
                f"network: expected a module that returns features (B, F), got {shape} for two "
                f"observations of {space}; flatten its output."
            )
        self.width = int(out.shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, (B, F), of flat observations, (B, O)."""
        return self.features(shaped(obs.float(), self._space))


class ImageFeatures(nn.Module):
    """Convolutions and one layer, for a Box of rank 3."""

    def __init__(self, space: AnyBox, generator: torch.Generator) -> None:
        super().__init__()
        shape = cast("tuple[int, int, int]", space.shape)
        is_last = shape[2] <= shape[0]
        pixels = shape[:2] if is_last else shape[1:]
        kernels, strides = ([8, 4, 3], [4, 2, 1]) if min(pixels) >= _LARGE else ([3, 3], [2, 2])
        self._scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
        self.convolutions = Conv2dEncoder(
            shape,
            [32, 64, 64][: len(kernels)],
            kernels,
            strides,
            [0] * 3 if len(kernels) == 3 else [1, 1],
            channels_last=is_last,
            generator=generator,
        )
        width = cast("int", self.convolutions.get_encoder_output_size())
        self.layer = orthogonal_linear(width, IMAGE_FEATURES, gain=2**0.5, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, `IMAGE_FEATURES`)."""
        return torch.relu(self.layer(self.convolutions(images * self._scale)))


class DictFeatures(nn.Module):
    """Features of every part, side by side."""

    def __init__(self, space: spaces.Dict, generator: torch.Generator) -> None:
        super().__init__()
        parts = parts_of(space)
        self._names = list(parts)  # a ModuleDict refuses some, e.g. "type" and "a.b"
        self.parts = nn.ModuleList(
            ImageFeatures(part, generator)
            if is_image(part)
            else DictFeatures(part, generator)
            if is_dict(part)
            else nn.Flatten()
            for part in parts.values()
        )

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Return (B, F)."""
        pairs = zip(self._names, self.parts, strict=True)
        return torch.cat([part(observations[name]) for name, part in pairs], dim=1)


def encoder_factory(
    network: Network | None, space: AnySpace, generator: torch.Generator
) -> Callable[[], ObservationEncoder] | None:
    """Return what makes the encoder of one network; None if flat observations are features already.

    Without ``network``, the kind of ``space`` decides.

    Raises:
        ConfigurationError: ``network`` has another name or does not fit ``space``.
    """
    if isinstance(network, nn.Module):
        return lambda: ObservationEncoder(space, copy.deepcopy(network))
    if network is None:
        network = "cnn" if is_image(space) else "dict" if is_dict(space) else "mlp"
    if network == "mlp":
        return None
    if network == "cnn" and is_image(space):
        return lambda: ObservationEncoder(space, ImageFeatures(space, generator))
    if network == "dict" and is_dict(space):
        return lambda: ObservationEncoder(space, DictFeatures(space, generator))
    raise ConfigurationError(
        "network: expected 'mlp', 'cnn' for images (a Box of rank 3), 'dict' for a Dict, or a "
        f"module of your own, got {network!r} for {space}."
    )


def is_image(space: AnySpace) -> TypeGuard[AnyBox]:
    """Return whether ``space`` holds images: arrays of rank 3."""
    return isinstance(space, spaces.Box) and len(space.shape) == len("xyc")


def is_box(space: AnySpace) -> TypeGuard[AnyBox]:
    """Return whether ``space`` holds arrays of numbers."""
    return isinstance(space, spaces.Box)


def is_dict(space: AnySpace) -> TypeGuard[spaces.Dict]:
    """Return whether ``space`` holds dicts."""
    return isinstance(space, spaces.Dict)


def parts_of(space: AnySpace) -> dict[Any, AnySpace]:
    """Return the parts of a Dict or Tuple in the order in which they are flattened."""
    untyped: Any = space
    parts: Any = untyped.spaces if is_dict(space) else enumerate(untyped.spaces)
    return dict(parts)


def shaped(flat: Tensor, space: AnySpace) -> Any:
    """Return flat observations, (B, O), in the shape of ``space``; dicts by name."""
    if is_dict(space):
        parts = parts_of(space)
        pieces = torch.split(flat, [spaces.flatdim(part) for part in parts.values()], dim=1)
        items = zip(parts.items(), pieces, strict=True)
        return {name: shaped(piece, part) for (name, part), piece in items}
    if is_box(space):
        return flat.view(flat.shape[0], *space.shape)
    return flat  # one-hot, as Gymnasium flattens it

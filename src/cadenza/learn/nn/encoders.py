"""From flat observations to features: the first part of a network, chosen by the kind of space.

Memories and buffers hold observations flat, as `gymnasium.spaces.flatten` makes them; an encoder
gives them their shape back before it looks at them.

cnn:   convolutions of arXiv:1312.5602's successor (Nature 518, 529-533) for images of 36 pixels or
       more, two of stride 2 for smaller ones, then one layer of `IMAGE_FEATURES`. The shorter of
       the first and the last axis holds the channels. Gray bytes, (H, W), have one; stacked images,
       (k, H, W, c) or (k, c, H, W) bytes, have k c.
mlp:   observations as they are; of bytes with two axes or more, numbers in [0, 1].
dict:  cnn for every image, everything else as in mlp, side by side; without images that is mlp.
Bytes: become numbers in [0, 1] wherever they are images, or too small for convolutions.
Axes:  B = batch, O = flat observation, F = features.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError
from cadenza.learn.nn.initialization import orthogonal_linear
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import Conv2dEncoder, Layer

AnySpace: TypeAlias = spaces.Space[Any]
AnyBox: TypeAlias = spaces.Box[Any]

#: Features of an image.
IMAGE_FEATURES: Final = 256
#: Smallest image, in pixels, that the three large convolutions fit.
_LARGE: Final = 36
#: Smallest that the two small ones fit.
_SMALL: Final = 7
#: What a network begins with: its name, or a custom module that takes observations in their
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
        self.width: int = int(out.shape[1])

    def forward(self, obs: Tensor) -> Tensor:
        """Return features, (B, F), of flat observations, (B, O)."""
        return self.features(shaped(obs.float(), self._space))

    def portable(self) -> "Sequence[nn.Module | Layer]":
        """Return the layers of a policy file."""
        return _shaped_layers(self._space, self.features)


class ImageFeatures(nn.Module):
    """Convolutions and one layer, for images as of `is_image`."""

    def __init__(self, space: AnyBox, generator: torch.Generator) -> None:
        super().__init__()
        self._stack_last = len(space.shape) == 4 and space.shape[-1] <= space.shape[1]
        self._shape = shape = _image_shape(space)
        self._rank = len(space.shape)
        is_last = self._rank == 3 and shape[2] <= shape[0]
        pixels = shape[:2] if is_last else shape[1:]
        kernels, strides = ([8, 4, 3], [4, 2, 1]) if min(pixels) >= _LARGE else ([3, 3], [2, 2])
        self._scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
        self.convolutions: Conv2dEncoder = Conv2dEncoder(
            shape,
            [32, 64, 64][: len(kernels)],
            kernels,
            strides,
            [0] * 3 if len(kernels) == 3 else [1, 1],
            channels_last=is_last,
            generator=generator,
        )
        width = cast("int", self.convolutions.get_encoder_output_size())
        self.layer: nn.Linear = orthogonal_linear(
            width, IMAGE_FEATURES, gain=2**0.5, generator=generator
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, `IMAGE_FEATURES`)."""
        if self._stack_last:
            images = images.permute(0, 1, 4, 2, 3)
        if self._rank != 3:  # (B, H, W) or (B, k, c, H, W)
            images = images.unsqueeze(1) if self._rank == 2 else images.flatten(1, 2)
        return torch.relu(self.layer(self.convolutions(images * self._scale)))

    def portable(self) -> "Sequence[nn.Module | Layer]":
        """Return the layers of a policy file."""
        return [
            *[Layer("permute", {"axes": [1, 4, 2, 3]})] * self._stack_last,
            *[Layer("shape", {"sizes": list(self._shape)})] * (self._rank != 3),
            Layer("scale_by", {"factor": self._scale}),
            self.convolutions,
            self.layer,
            nn.ReLU(),
        ]


class ByteFeatures(nn.Module):
    """Bytes of any shape as numbers in [0, 1], flat."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, F)."""
        return obs.flatten(start_dim=1) / 255.0


class FlatFeatures(nn.Module):
    """Numbers of any shape, flat."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, F); of single numbers, (B,), too."""
        return obs.reshape(obs.shape[0], -1)


class DictFeatures(nn.Module):
    """Features of every part, side by side."""

    def __init__(self, space: AnySpace, generator: torch.Generator) -> None:
        super().__init__()
        parts = parts_of(space)
        self._names = list(parts)  # a ModuleDict refuses some, e.g. "type" and "a.b"
        self.parts: nn.ModuleList = nn.ModuleList(
            _features(part, generator) for part in parts.values()
        )

    def forward(self, observations: Mapping[Any, Tensor]) -> Tensor:
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
        has_images = has_parts(space) and holds_images(space)
        network = "cnn" if is_image(space) else "dict" if has_images else "mlp"
    if network == "mlp" and _is_bytes(space):
        return lambda: ObservationEncoder(space, ByteFeatures())
    if network == "mlp" or (has_parts(space) and not is_dict(space) and not _holds_bytes(space)):
        return None
    if network == "cnn" and is_image(space):
        return lambda: ObservationEncoder(space, ImageFeatures(space, generator))
    if network == "dict" and has_parts(space):
        return lambda: ObservationEncoder(space, DictFeatures(space, generator))
    raise ConfigurationError(
        "network: expected 'mlp', 'cnn' for images (a Box of rank 3, or of bytes), 'dict' for a "
        f"Dict or Tuple, or a module of your own, got {network!r} for {space}."
    )


def is_image(space: AnySpace) -> TypeGuard[AnyBox]:
    """Return whether ``space`` holds images: arrays of rank 3, or bytes of rank 2 to 4.

    Bytes of fewer than 7 pixels a side, with one channel or stacked, are none.
    """
    if not is_box(space):
        return False
    rank = len(space.shape)
    if rank == len("xyc"):
        return True
    return rank in (2, 4) and _is_bytes(space) and min(_image_shape(space)[1:]) >= _SMALL


def holds_images(space: AnySpace) -> bool:
    """Return whether ``space`` or a part of it holds images, or bytes in two axes or more."""
    if has_parts(space):
        return any(map(holds_images, parts_of(space).values()))
    return is_image(space) or _is_bytes(space)


def has_parts(space: AnySpace) -> bool:
    """Return whether ``space`` is made of others, by name or in order."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


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
    if has_parts(space):
        parts = parts_of(space)
        pieces = torch.split(flat, [spaces.flatdim(part) for part in parts.values()], dim=1)
        items = zip(parts.items(), pieces, strict=True)
        return {name: shaped(piece, part) for (name, part), piece in items}
    if is_box(space):
        return flat.view(flat.shape[0], *space.shape)
    return flat  # one-hot, as Gymnasium flattens it


def _shaped_layers(space: AnySpace, features: nn.Module) -> "list[nn.Module | Layer]":
    """Return the layers from flat observations of ``space`` to its ``features``."""
    if isinstance(features, DictFeatures):
        parts = list(zip(parts_of(space).values(), features.parts, strict=True))
        inner = tuple(layers_of(*_shaped_layers(part, module)) for part, module in parts)
        return [Layer("parts", {"widths": [spaces.flatdim(p) for p, _ in parts]}, parts=inner)]
    if isinstance(features, ByteFeatures):
        width = spaces.flatdim(space)
        scale = {"mean": torch.zeros(width), "spread": torch.full((width,), 255.0)}
        return [Layer("standardise", {"limit": 1.0}, scale)]
    if isinstance(features, FlatFeatures):
        return [Layer("flatten")]
    if isinstance(features, nn.Flatten) or not is_box(space):
        return [features]
    return [Layer("shape", {"sizes": list(space.shape)}), features]


def _features(space: AnySpace, generator: torch.Generator) -> nn.Module:
    """Return what makes features, (B, F), of one part."""
    if is_image(space):
        return ImageFeatures(space, generator)
    if has_parts(space):
        return DictFeatures(space, generator)
    return ByteFeatures() if _is_bytes(space) else FlatFeatures()


def _image_shape(space: AnyBox) -> tuple[int, int, int]:
    """Return the shape of images with one axis of channels: those of a stack are side by side."""
    if len(space.shape) == 2:
        return (1, *space.shape)
    if len(space.shape) == 4:
        count, *image = space.shape
        rows, columns, channels = image if image[2] <= image[0] else (*image[1:], image[0])
        return (count * channels, rows, columns)
    return cast("tuple[int, int, int]", space.shape)


def _is_bytes(space: AnySpace) -> bool:
    """Return whether ``space`` holds bytes in two axes or more."""
    return is_box(space) and space.dtype == np.uint8 and len(space.shape) > 1


def _holds_bytes(space: AnySpace) -> bool:
    return (
        any(map(_holds_bytes, parts_of(space).values())) if has_parts(space) else _is_bytes(space)
    )

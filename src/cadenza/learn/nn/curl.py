"""CURL: an image encoder learns to recognise two changed versions of one image.

Changes: noise, and a rectangle cut out, which leave an image's meaning alone.
Logits:  l_ij = z_i^T W z'_j / temperature, z = projection(encoder(augmented image)),
         z' = the same through the slow target encoder, without gradient.
Loss:    mean_i -ln softmax_j(l_ij)_{j=i}.
Source:  CURL, arXiv:2004.04136, section 4; cut-out: arXiv:1708.04552.
Axes:    B = batch, X, Y = image axes, C = channels (last), Z = latent.
Units:   images in [-1, 1] or [0, 1]; the noise is sized for either.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from cadenza.core.errors import InputError
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.nn.initialization import default_generator, default_linear
from cadenza.learn.nn.layers import Conv2dEncoder

#: How often a batch gets noise, and its standard deviation in image units.
NOISE_PROBABILITY: Final = 0.25
NOISE_STD: Final = 0.015


def rand_uniform(
    minval: float,
    maxval: float,
    shape: Sequence[int],
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return uniform draws in [minval, maxval) on the generator's device.

    Args:
        minval: Lower end.
        maxval: Upper end.
        shape: Shape of the result.
        generator: Only source of randomness; None is `default_generator`.
    """
    generator = default_generator() if generator is None else generator
    draws = torch.rand(tuple(shape), generator=generator, device=generator.device)
    return minval + (maxval - minval) * draws


class ImageAugmentor:
    """Adds noise to, and cuts a rectangle out of, images; in place.

    Args:
        use_fast_augment: Cut the same rectangle out of every image of a batch.
        use_noise_aug: Add N(0, 0.015^2) noise to a batch with probability 1/4.
        use_per_image_mask_size: Draw a size for every image (without ``use_fast_augment``, which
            draws everything once).
        min_mask_relative_size: Smallest side of the rectangle, as a fraction of the image's.
        max_mask_relative_size: Largest side.

    Raises:
        InputError: The relative sizes are not 0 <= min <= max <= 1.
    """

    def __init__(
        self,
        device: torch.device | str,
        use_fast_augment: bool = True,
        use_noise_aug: bool = True,
        use_per_image_mask_size: bool = False,
        min_mask_relative_size: float = 0.2,
        max_mask_relative_size: float = 0.4,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0.0 <= min_mask_relative_size <= max_mask_relative_size <= 1.0:
            raise InputError(
                "ImageAugmentor: expected 0 <= min_mask_relative_size <= max_mask_relative_size "
                f"<= 1, got {min_mask_relative_size} and {max_mask_relative_size}."
            )
        self.device: torch.device = torch.device(device)
        self._fast = use_fast_augment
        self._noise = use_noise_aug
        self._own_sizes = use_per_image_mask_size
        self._sizes = (min_mask_relative_size, max_mask_relative_size)
        self.generator: torch.Generator = (
            torch.Generator(device=self.device).manual_seed(0) if generator is None else generator
        )

    @torch.no_grad()
    def __call__(self, image: Tensor) -> Tensor:
        """Change floating-point images, (B, X, Y, C), in place and return them.

        Raises:
            InputError: Another shape, or integers.
        """
        if image.ndim != 4 or not image.is_floating_point():
            raise InputError(
                "ImageAugmentor: expected floating-point images of shape (B, X, Y, C), got "
                f"{image.dtype} of shape {tuple(image.shape)}; scale integers first."
            )
        if self._noise and float(rand_uniform(0.0, 1.0, (), generator=self.generator)) < (
            NOISE_PROBABILITY
        ):
            noise = torch.randn(
                image.shape, generator=self.generator, device=self.device, dtype=image.dtype
            )
            image.add_(noise, alpha=NOISE_STD)
        return image.masked_fill_(self._rectangles(image).unsqueeze(-1), 0.0)

    def _rectangles(self, image: Tensor) -> Tensor:
        """Return which pixels to cut out, bool, (B, X, Y) or (1, X, Y)."""
        count = 1 if self._fast else image.shape[0]
        sizes = rand_uniform(
            *self._sizes, (count if self._own_sizes else 1, 1), generator=self.generator
        )
        insides: list[Tensor] = []
        for axis in (1, 2):
            length = image.shape[axis]
            side = torch.floor(sizes * length)  # (n, 1)
            place = rand_uniform(0.0, 1.0, (count, 1), generator=self.generator)
            start = torch.floor(place * (length - side + 1))
            pixel = torch.arange(length, device=self.device)
            insides.append((pixel >= start) & (pixel < start + side))  # (n, length)
        return insides[0].unsqueeze(2) & insides[1].unsqueeze(1)


#: Observation that holds the images.
IMAGES: Final = "images"


@torch.no_grad()
def soft_update_from_to(
    source_params: Iterable[Tensor], target_params: Iterable[Tensor], tau: float
) -> None:
    """Move each target the share ``tau`` in [0, 1] of the way to its source, in place.

    Raises:
        InputError: The numbers of tensors differ.
    """
    sources, targets = list(source_params), list(target_params)
    if len(sources) != len(targets):
        raise InputError(
            f"soft_update_from_to: expected equally many tensors, got {len(sources)} and "
            f"{len(targets)}."
        )
    for source, target in zip(sources, targets, strict=True):
        target.lerp_(source.to(target.dtype), tau)


def contrastive_loss(logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of row i against class i, a scalar, for ``logits`` (B, B)."""
    classes = torch.arange(logits.shape[0], device=logits.device)
    return functional.cross_entropy(logits, classes)


class TrainedParameters(list[Tensor]):
    """The parameters of an optimiser, as an attribute or, called, like those of a module."""

    def __call__(self) -> list[Tensor]:
        """Return the parameters."""
        return self


class CurlNetwork(nn.Module):
    """Everything CURL trains or keeps: encoder, projection, bilinear form, and slow copies.

    Z is ``latent_size`` with a projection, a linear layer and a ReLU, else ``feature_size``.
    """

    def __init__(
        self,
        encoder: Conv2dEncoder,
        target_encoder: Conv2dEncoder,
        feature_size: int,
        latent_size: int,
        use_projection: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.target_encoder = target_encoder
        self.projection: nn.Module = nn.Identity()
        self.target_projection: nn.Module = nn.Identity()
        size = feature_size
        if use_projection:
            size = latent_size
            layer = default_linear(feature_size, size, generator)
            copy = default_linear(feature_size, size, generator)
            copy.load_state_dict(layer.state_dict())
            self.projection = nn.Sequential(layer, nn.ReLU())
            self.target_projection = nn.Sequential(copy, nn.ReLU())
        self.bilinear: nn.Parameter = nn.Parameter(
            rand_uniform(0.0, 1.0, (size, size), generator=generator)
        )
        self.target_encoder.load_state_dict(encoder.state_dict())
        self.target_encoder.requires_grad_(False)
        self.target_projection.requires_grad_(False)

    def forward(self, anchors: Tensor, positives: Tensor) -> Tensor:
        """Return logits before the temperature, shape (B, B), for two batches (B, X, Y, C)."""
        anchor = self.projection(self.encoder(anchors).flatten(start_dim=1))
        with torch.no_grad():
            positive = self.target_projection(self.target_encoder(positives).flatten(start_dim=1))
        return anchor @ self.bilinear @ positive.T

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return what the optimiser steps: encoder, projection, W."""
        parts = (self.encoder, self.projection)
        return [p for part in parts for p in part.parameters()] + [self.bilinear]

    def update_targets(self, tau: float) -> None:
        """Let the slow copies follow, buffers included."""
        soft_update_from_to(_tensors(self.encoder), _tensors(self.target_encoder), tau)
        soft_update_from_to(_tensors(self.projection), _tensors(self.target_projection), tau)


class CurlLoss(LossCallback):
    """Trains an encoder contrastively on ``observation["images"]``.

    Args:
        target_encoder_model: An encoder of equal sizes; becomes the slow copy.
        desired_zdim: Z of the projection; without one, Z is the encoder's output size.
        use_temperature_variant: False leaves the logits undivided.
        augment_anchor_and_pos: False compares augmented with plain images.
        log_images: Keep the first image, plain and augmented, for the loggers.

    Raises:
        InputError: ``temperature`` or ``desired_zdim`` is not positive.
    """

    def __init__(
        self,
        encoder_model: Conv2dEncoder,
        target_encoder_model: Conv2dEncoder,
        device: torch.device | str,
        learning_rate: float,
        learning_rate_start_frac: float = 1.0,
        learning_rate_end_frac: float = 1.0,
        learning_rate_steps: int = 1,
        max_grad_norm: float = 1.0,
        data_group: str = "default",
        desired_zdim: int = 128,
        tau: float = 0.005,
        use_noise_aug: bool = False,
        temperature: float = 0.1,
        use_temperature_variant: bool = True,
        use_per_image_mask_size: bool = False,
        use_fast_augment: bool = False,
        use_projection_layer: bool = True,
        augment_anchor_and_pos: bool = True,
        log_images: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        if not temperature > 0.0 or desired_zdim < 1:
            raise InputError(
                "CurlLoss: expected temperature > 0 and desired_zdim >= 1, got "
                f"{temperature} and {desired_zdim}."
            )
        network = CurlNetwork(
            encoder_model,
            target_encoder_model,
            _count(encoder_model.get_encoder_output_size()),
            desired_zdim,
            use_projection_layer,
            torch.Generator().manual_seed(seed),
        ).to(device)
        optimizer = optim.Adam(network.trained_parameters(), lr=learning_rate)
        super().__init__(
            optim.lr_scheduler.LinearLR(
                optimizer, learning_rate_start_frac, learning_rate_end_frac, learning_rate_steps
            ),
            name="curl",
            network=network,
            optimizer=optimizer,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        self.curl = network
        self.augmentor: ImageAugmentor = ImageAugmentor(
            device,
            use_fast_augment,
            use_noise_aug,
            use_per_image_mask_size,
            generator=torch.Generator(device=device).manual_seed(seed + 1),
        )
        self._temperature = temperature if use_temperature_variant else 1.0
        self._tau = tau
        self._augment_both = augment_anchor_and_pos
        self._log_images = log_images
        self.parameters = TrainedParameters(self.parameters)

    def backward(self, observation: dict[str, Tensor]) -> None:
        """Do one optimiser step on ``observation["images"]``, shape (B, X, Y, C)."""
        super().backward(observation)

    def loss(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the contrastive loss of the module's header.

        Raises:
            InputError: The observation has no images.
        """
        if IMAGES not in observation:
            raise InputError(
                f"CurlLoss: expected observation[{IMAGES!r}], got the keys {sorted(observation)}; "
                "name the image input so."
            )
        images = observation[IMAGES]
        anchors = self.augmentor(images.clone())
        positives = self.augmentor(images.clone()) if self._augment_both else images
        if self._log_images:
            for name, batch in (("base", images), ("image1", anchors), ("image2", positives)):
                self.log_image(f"augmentations/{name}_allch", batch[0])
        return contrastive_loss(self.curl(anchors, positives) / self._temperature)

    def end_batch(self) -> None:
        """Let the slow copies follow."""
        self.curl.update_targets(self._tau)

    def state_dict(self) -> dict[str, Any]:
        """Return logs, networks, slow copies, W, optimiser, schedule and generator."""
        return {**super().state_dict(), "augmentor": self.augmentor.generator.get_state()}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts(self.name, state, ("augmentor",))
        self.augmentor.generator.set_state(state["augmentor"].cpu())


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return parameters and floating-point buffers; counters are none of an average's business."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return [*module.parameters(), *buffers]


def _count(size: int | tuple[int, ...]) -> int:
    """Return the number of features of one image."""
    return size if isinstance(size, int) else math.prod(size)

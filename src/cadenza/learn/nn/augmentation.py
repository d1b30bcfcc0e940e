"""Random changes of images that leave their meaning alone: noise, and a rectangle cut out.

Axes:    B = batch, X, Y = image axes, C = channels (last).
Source:  random cut-out, DrQ/CURL family, arXiv:2004.04136 and arXiv:1708.04552.
Units:   images in [-1, 1] or [0, 1]; the noise is sized for either.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import default_generator

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
        device: Device of the images.
        use_fast_augment: Cut the same rectangle out of every image of a batch.
        use_noise_aug: Add N(0, 0.015^2) noise to a batch with probability 1/4.
        use_per_image_mask_size: Draw a size for every image (without ``use_fast_augment``, which
            draws everything once).
        min_mask_relative_size: Smallest side of the rectangle, as a fraction of the image's.
        max_mask_relative_size: Largest side.
        generator: Draws everything, on ``device``; None is a fresh one seeded 0.

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
        self.device = torch.device(device)
        self._fast = use_fast_augment
        self._noise = use_noise_aug
        self._own_sizes = use_per_image_mask_size
        self._sizes = (min_mask_relative_size, max_mask_relative_size)
        self.generator = (
            torch.Generator(device=self.device).manual_seed(0) if generator is None else generator
        )

    @torch.no_grad()
    def __call__(self, image: Tensor) -> Tensor:
        """Change ``image`` in place and return it; clone first what must survive.

        Args:
            image: Floating point, shape (B, X, Y, C).

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

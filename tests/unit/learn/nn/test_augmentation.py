from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.learn.nn.curl import NOISE_STD, ImageAugmentor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augmentor(seed: int = 0, **options: Any) -> ImageAugmentor:
    return ImageAugmentor(
        "cpu", **{"use_noise_aug": False, "generator": generator(seed), **options}
    )


def boxes(images: Tensor) -> list[tuple[int, int, int, int]]:
    """Return (first row, first column, rows, columns) of each image's hole; it must be a box."""
    found: list[tuple[int, int, int, int]] = []
    for image in images:
        hole = (image == 0.0).all(dim=2)
        assert torch.equal(hole, (image == 0.0).any(dim=2))  # all channels alike
        rows, columns = hole.any(dim=1).nonzero(), hole.any(dim=0).nonzero()
        top, left = int(rows[0]), int(columns[0])
        height, width = int(rows[-1]) - top + 1, int(columns[-1]) - left + 1
        assert int(hole.sum()) == height * width
        found.append((top, left, height, width))
    return found


def test_fast_cuts_one_box_out_of_the_whole_batch():
    images = augmentor()(torch.ones(6, 20, 40, 3))
    assert len(set(boxes(images))) == 1


def test_slow_cuts_boxes_of_one_size_at_several_places():
    found = boxes(augmentor(use_fast_augment=False)(torch.ones(30, 20, 40, 3)))
    assert len({box[2:] for box in found}) == 1
    assert len({box[:2] for box in found}) > 15


def test_per_image_sizes_vary():
    images = torch.ones(60, 50, 100, 1)
    found = boxes(augmentor(use_fast_augment=False, use_per_image_mask_size=True)(images))
    heights = {box[2] for box in found}
    assert min(heights) >= 10  # floor(0.2 * 50)
    assert max(heights) <= 20  # floor(0.4 * 50)
    assert len(heights) > 6
    # one fraction u for both axes, floored on each: width is 2 * height or 2 * height + 1
    assert all(width - 2 * height in (0, 1) for _, _, height, width in found)


def test_every_place_is_reached_also_the_last_one():
    cut = augmentor(use_fast_augment=False, min_mask_relative_size=0.5, max_mask_relative_size=0.5)
    tops = {box[0] for box in boxes(cut(torch.ones(400, 4, 4, 1)))}
    assert tops == {0, 1, 2}  # rows of 2 in 4


def test_outside_the_box_nothing_changes_and_the_work_is_in_place():
    original = torch.rand(3, 16, 16, 2, generator=generator(1)) + 0.1
    images = original.clone()
    result = augmentor()(images)
    assert result is images
    kept = images != 0.0
    assert torch.equal(images[kept], original[kept])


def test_noise_comes_to_a_quarter_of_the_batches_with_its_spread():
    noisy = 0
    cut = augmentor(use_noise_aug=True, min_mask_relative_size=0.0, max_mask_relative_size=0.0)
    for _ in range(600):
        images = cut(torch.ones(2, 8, 8, 3))
        if not torch.equal(images, torch.ones(2, 8, 8, 3)):
            noisy += 1
            assert 0.5 * NOISE_STD < float((images - 1.0).std()) < 1.5 * NOISE_STD
    assert noisy / 600 == pytest.approx(0.25, abs=0.06)


def test_draws_come_from_the_generator():
    before = torch.get_rng_state()
    first, second, third = (augmentor(seed)(torch.ones(4, 30, 30, 1)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(
        ImageAugmentor("cpu")(torch.ones(1, 9, 9, 1)), ImageAugmentor("cpu")(torch.ones(1, 9, 9, 1))
    )

from typing import Any

import pytest
import torch
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.layers import Conv1dEncoder, Conv2dEncoder

LAYERS: dict[str, Any] = {
    "channels": [4, 8],
    "kernels": [3, 4],
    "strides": [2, 1],
    "padding": [1, 0],
}
# axis of 9: (9 - 3 + 2) // 2 + 1 = 5, then (5 - 4) // 1 + 1 = 2; of 12: 6, then 3; of 20: 10, 7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channels_last", [True, False])
def test_conv2d_sizes_follow_the_formula(channels_last: bool):
    shape = (9, 12, 3) if channels_last else (3, 9, 12)
    encoder = Conv2dEncoder(shape, **LAYERS, channels_last=channels_last)
    assert encoder.get_encoder_output_size() == 8 * 2 * 3
    assert encoder(torch.zeros(5, *shape)).shape == (5, 48)
    maps = Conv2dEncoder(shape, **LAYERS, channels_last=channels_last, flatten=False)
    assert maps.get_encoder_output_size() == (8, 2, 3)
    assert maps(torch.zeros(5, *shape)).shape == (5, 8, 2, 3)


@pytest.mark.parametrize("channels_last", [True, False])
def test_conv1d_sizes_follow_the_formula(channels_last: bool):
    shape = (20, 3) if channels_last else (3, 20)
    encoder = Conv1dEncoder(shape, **LAYERS, channels_last=channels_last)
    assert encoder.get_encoder_output_size() == 8 * 7
    assert encoder(torch.zeros(5, *shape)).shape == (5, 56)
    maps = Conv1dEncoder(shape, **LAYERS, channels_last=channels_last, flatten=False)
    assert maps.get_encoder_output_size() == (8, 7)
    assert maps(torch.zeros(5, *shape)).shape == (5, 8, 7)


def test_channels_last_is_a_permutation_of_channels_first():
    last = Conv2dEncoder((9, 12, 3), **LAYERS, generator=generator())
    first = Conv2dEncoder((3, 9, 12), **LAYERS, channels_last=False, generator=generator())
    images = torch.rand(2, 9, 12, 3, generator=generator())
    assert torch.equal(last(images), first(images.permute(0, 3, 1, 2)))


def test_layers_are_those_of_torch():
    encoder = Conv2dEncoder((9, 12, 3), **LAYERS, flatten=False)
    convs = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    images = torch.rand(2, 9, 12, 3, generator=generator())
    x = images.permute(0, 3, 1, 2)
    x = nn.functional.conv2d(x, convs[0].weight, convs[0].bias, stride=2, padding=1).relu()
    x = nn.functional.conv2d(x, convs[1].weight, convs[1].bias, stride=1, padding=0).relu()
    torch.testing.assert_close(encoder(images), x)


def test_conv2d_weights_are_orthogonal_with_zero_biases():
    encoder = Conv2dEncoder((9, 12, 3), **LAYERS)
    conv = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    rows = conv.weight.detach().reshape(4, -1)
    torch.testing.assert_close(rows @ rows.T, 2.0 * torch.eye(4), atol=1e-5, rtol=0.0)
    assert conv.bias is not None
    assert not conv.bias.any()


@pytest.mark.parametrize("kind", [Conv1dEncoder, Conv2dEncoder])
def test_weights_come_from_the_generator_and_not_the_global_one(kind: Any):
    shape = (20, 3) if kind is Conv1dEncoder else (20, 20, 3)
    before = torch.get_rng_state()
    one, two, other = (kind(shape, **LAYERS, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    first = [next(iter(e.parameters())) for e in (one, two, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


@pytest.mark.parametrize("kind", [Conv1dEncoder, Conv2dEncoder])
def test_malformed_layers_are_refused(kind: Any):
    shape = (4, 3) if kind is Conv1dEncoder else (4, 4, 3)
    with pytest.raises(InputError, match=r"one entry per layer, got \[2, 1, 2, 2\]"):
        kind(shape, [4, 4], [3], [1, 1], [0, 0])
    with pytest.raises(InputError, match="one entry per layer"):
        kind(shape, [], [], [], [])
    with pytest.raises(InputError, match="large enough for the layers"):
        kind(shape, [4], [5], [1], [0])

"""Layers of the perceptron with ReLU: order, names and initial weights."""

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.nn.layers import mlp


def seeded(*args):
    return mlp(*args, generator=torch.Generator().manual_seed(1))


def test_output_and_gradients_of_one_unit_equal_the_hand_calculation():
    net = seeded(1, [1], 1)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (2.0, 1.0, 3.0, 0.5), strict=True):
            parameter.fill_(value)
    x = torch.full((32, 1), 4.0)
    x[16:] = -4.0  # 2·(-4) + 1 < 0: the unit is off, only the last bias counts
    y = net(x)
    assert y[0].item() == 3 * (2 * 4 + 1) + 0.5
    assert y[16].item() == 0.5
    y.sum().backward()
    w0, b0, w1, b1 = net.parameters()
    assert w0.grad.item() == 16 * 3 * 4
    assert b0.grad.item() == 16 * 3
    assert w1.grad.item() == 16 * (2 * 4 + 1)
    assert b1.grad.item() == 32


def test_hidden_layers_are_orthogonal_with_the_gain_of_relu():
    weight = seeded(16, [16], 1)[0].weight
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(16), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("inputs", "hidden", "outputs"), [(0, [4], 1), (3, [], None), (3, [0], 1)])
def test_empty_layers_are_refused(inputs, hidden, outputs):
    with pytest.raises(InputError, match=r"at least one layer and every width >= 1"):
        mlp(inputs, hidden, outputs)

"""The fast perceptron against torch's own layers."""

import copy

import pytest
import torch
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.nn import relu_mlp
from cadenza.learn.nn.relu_mlp import ReluMlp


def plain_copy(net):
    """Return the same layers as a sequence that torch evaluates one by one."""
    return nn.Sequential(*copy.deepcopy(list(net)))


def seeded(*args, **kwargs):
    return ReluMlp(*args, generator=torch.Generator().manual_seed(1), **kwargs)


SHAPES = [(3, [64, 48], 1), (27, [32], 51), (20, [40, 40], None), (5, [], 2)]


@pytest.mark.parametrize(("inputs", "hidden", "outputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 31, 32, 200])
def test_values_and_gradients_equal_those_of_the_plain_layers(inputs, hidden, outputs, rows):
    net = seeded(inputs, hidden, outputs)
    plain = plain_copy(net)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, inputs, generator=generator, requires_grad=True)
    x_plain = x.detach().clone().requires_grad_(True)
    weights = torch.randn(rows, outputs or hidden[-1], generator=generator)
    (net(x) * weights).sum().backward()
    (plain(x_plain) * weights).sum().backward()
    torch.testing.assert_close(net(x), plain(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.grad, x_plain.grad, atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-4)


def test_gradient_of_one_unit_equals_the_hand_calculation():
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


def test_frozen_weights_get_no_gradient_but_pass_it_on():
    net = seeded(6, [32, 32], 1).requires_grad_(False)
    x = torch.ones(64, 6, requires_grad=True)
    net(x).sum().backward()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert x.grad.abs().sum() > 0


def test_second_derivative_equals_that_of_the_plain_layers():
    net = seeded(4, [32, 32], 1)
    plain = plain_copy(net)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(3), requires_grad=True)
    penalties = []
    for candidate in (net, plain):
        (slope,) = torch.autograd.grad(candidate(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        penalties.append([parameter.grad for parameter in candidate.parameters()])
    assert penalties[0][0].abs().sum() > 0
    for ours, theirs in zip(*penalties, strict=True):
        if theirs is None:  # the last bias does not move a slope
            assert ours is None or ours.abs().sum() == 0
        else:
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_without_onednn_the_same_values_come_from_the_default_kernels(monkeypatch):
    net = seeded(24, [64, 64], 17)
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(4))
    fast = net(x)
    fast.sum().backward()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    monkeypatch.setattr(relu_mlp, "_ONEDNN", None)
    slow = net(x)
    slow.sum().backward()
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    for ours, parameter in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, atol=1e-4, rtol=1e-4)


def test_without_gradients_the_values_are_the_same():
    net = seeded(24, [64, 64], 17)
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        values = net(x)
    assert not values.requires_grad
    assert torch.equal(values, net(x).detach())


def test_builds_without_onednn_are_noticed(monkeypatch):
    assert callable(relu_mlp._onednn_linear())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert relu_mlp._onednn_linear() is None


def test_autocast_takes_the_plain_path():
    net = seeded(24, [64], 17)
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(4))
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype is torch.bfloat16


def test_double_precision_takes_the_plain_path():
    net = seeded(3, [32], 1).double()
    x = torch.ones(64, 3, dtype=torch.float64)
    assert torch.equal(net(x), plain_copy(net)(x))


def test_layers_and_state_dict_are_those_of_the_sequence():
    net = seeded(3, [8, 8], 1)
    assert list(net.state_dict()) == [
        f"{i}.{part}" for i in (0, 2, 4) for part in ("weight", "bias")
    ]
    assert isinstance(seeded(3, [8])[-1], nn.ReLU)


def test_hidden_layers_are_orthogonal_with_the_gain_of_relu():
    weight = seeded(16, [16], 1)[0].weight
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(16), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("inputs", "hidden", "outputs"), [(0, [4], 1), (3, [], None), (3, [0], 1)])
def test_empty_layers_are_refused(inputs, hidden, outputs):
    with pytest.raises(InputError, match=r"at least one layer and every width >= 1"):
        ReluMlp(inputs, hidden, outputs)

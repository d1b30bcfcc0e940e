"""The fast perceptron equals the plain one for any layout, batch and choice of frozen weights."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.learn.nn.relu_mlp import ReluMlp, plain_mlp

widths = st.integers(1, 40)


@given(
    inputs=widths,
    hidden=st.lists(widths, min_size=1, max_size=3),
    outputs=st.none() | widths,
    rows=st.integers(1, 80),
    frozen=st.sets(st.integers(0, 7)),
    wants_input=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_values_and_wanted_gradients_are_those_of_plain_torch(
    inputs, hidden, outputs, rows, frozen, wants_input, seed
):
    generator = torch.Generator().manual_seed(seed)
    net = ReluMlp(inputs, hidden, outputs, generator=generator)
    parameters = net.layer_parameters()
    for index, parameter in enumerate(parameters):
        parameter.requires_grad_(index not in frozen)
    x = torch.randn(rows, inputs, generator=generator, requires_grad=wants_input)
    wanted = [tensor for tensor in (x, *parameters) if tensor.requires_grad]
    fast, plain = net(x), plain_mlp(x, parameters, net.ends_in_relu)
    torch.testing.assert_close(fast, plain, atol=1e-4, rtol=1e-4)
    if not wanted:
        assert not fast.requires_grad
        return
    weight = torch.randn(fast.shape, generator=generator)
    found = torch.autograd.grad(fast, wanted, weight, allow_unused=True)
    expected = torch.autograd.grad(plain, wanted, weight, allow_unused=True)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)

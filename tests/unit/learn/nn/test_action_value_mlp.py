"""Action-value networks."""

import pytest
import torch
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.action_value_mlp import ActionValueMlp, SharedEncoderActionValueNet


def q_net(generator=None):
    return ActionValueMlp(3, 2, [8, 8], generator=generator or torch.Generator().manual_seed(0))


def test_value_sees_the_observation_before_the_action():
    net = q_net()
    obs, action = torch.randn(4, 3), torch.randn(4, 2)
    expected = nn.Sequential(*net.q)(torch.cat((obs, action), dim=1))
    torch.testing.assert_close(net(action, obs), expected)
    assert net(action, obs=obs).shape == (4, 1)


def test_output_layer_has_gain_one():
    weight = q_net().q[-1].weight
    assert weight.norm().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("action", "obs"), [((4, 3), (4, 2)), ((4, 2), (5, 3)), ((2,), (3,)), ((4, 2, 1), (4, 3))]
)
def test_wrong_shapes_are_refused(action, obs):
    with pytest.raises(InputError, match=r"expected action \(B, 2\) and obs \(B, 3\)"):
        q_net()(torch.zeros(action), torch.zeros(obs))


def test_shared_encoder_feeds_the_value_and_is_trained_through_it():
    encoder = nn.Linear(5, 3)
    net = SharedEncoderActionValueNet(
        encoder, 3, 2, [8], generator=torch.Generator().manual_seed(0)
    )
    obs, action = torch.randn(4, 5), torch.randn(4, 2)
    torch.testing.assert_close(net(action, obs), net.action_value_mlp(action, encoder(obs)))
    net(action, obs).sum().backward()
    assert encoder.weight.grad.abs().sum() > 0

import math

import pytest
import torch
from torch import nn

from cadenza.core.seeding import derive_substream
from cadenza.learn.nn.gaussian_actor import GaussianActor, actor_mean
from cadenza.learn.nn.initialization import default_linear
from cadenza.learn.nn.policy_networks import ValueCritic

#: Parameter names in HARL's order; `log_std` precedes the mean head.
HARL_NAMES = [
    "base.feature_norm.weight",
    "base.feature_norm.bias",
    "base.mlp.fc.0.weight",
    "base.mlp.fc.0.bias",
    "base.mlp.fc.2.weight",
    "base.mlp.fc.2.bias",
    "base.mlp.fc.3.weight",
    "base.mlp.fc.3.bias",
    "base.mlp.fc.5.weight",
    "base.mlp.fc.5.bias",
    "act.action_out.log_std",
    "act.action_out.fc_mean.weight",
    "act.action_out.fc_mean.bias",
]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def actor(seed: int = 0, *, hidden: tuple[int, ...] = (8, 8)) -> GaussianActor:
    return GaussianActor(5, 3, hidden_sizes=hidden, generator=generator(seed))


def test_actor_parameters_have_harl_names_in_harl_order():
    assert list(actor().state_dict()) == HARL_NAMES
    assert [name for name, _ in actor().named_parameters()] == HARL_NAMES


def test_networks_seeded_alike_equal_torch_construction_under_manual_seed():
    seed = derive_substream("training.ego_ppo.torch", root_seed=0).integer_seed()
    own = generator(seed)
    network = GaussianActor(10, 2, hidden_sizes=(64, 64), generator=own)
    critic = ValueCritic(10, hidden_sizes=(64, 64), generator=own)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = []
        for inputs, outputs, gain in (
            (10, 64, math.sqrt(2)),
            (64, 64, math.sqrt(2)),
            (64, 2, 0.01),
        ):
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight.data, gain=gain)
            weights.append(layer.weight.data)
        reference = nn.Sequential(
            nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        state_after = torch.get_rng_state()
    state = network.state_dict()
    names = ("base.mlp.fc.0.weight", "base.mlp.fc.3.weight", "act.action_out.fc_mean.weight")
    for name, weight in zip(names, weights, strict=True):
        assert torch.equal(state[name], weight)
    for mine, theirs in zip(critic.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(own.get_state(), state_after)


def test_initial_weights_of_default_task_have_published_sums():
    seed = derive_substream("training.ego_ppo.torch", root_seed=0).integer_seed()
    assert seed == 140323428
    own = generator(seed)
    state = GaussianActor(10, 2, hidden_sizes=(64, 64), generator=own).state_dict()
    sums = {
        "base.mlp.fc.0.weight": 92.976526,
        "base.mlp.fc.3.weight": 578.056342,
        "act.action_out.fc_mean.weight": 0.127667,
    }
    for name, total in sums.items():
        assert float(state[name].abs().sum()) == pytest.approx(total, abs=1e-4)
    first = state["base.mlp.fc.0.weight"][0, :3].tolist()
    assert first == pytest.approx([-0.1315, 0.1991, -0.1622], abs=5e-5)
    critic = ValueCritic(10, hidden_sizes=(64, 64), generator=own).state_dict()
    assert critic["net.0.weight"][0, :3].tolist() == pytest.approx(
        [-0.2057, -0.2001, 0.1476], abs=5e-5
    )


def test_actor_forward_equals_plain_torch_layers():
    network = actor(3)
    state = network.state_dict()
    x = torch.randn((7, 5), generator=generator(1))
    layers = nn.Sequential(
        nn.LayerNorm(5), nn.Linear(5, 8), nn.ReLU(), nn.LayerNorm(8),
        nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3),
    )  # fmt: skip
    values = [value for name, value in state.items() if "log_std" not in name]
    with torch.no_grad():
        for parameter, value in zip(layers.parameters(), values, strict=True):
            parameter.copy_(value)
    assert torch.equal(network(x), layers(x))
    assert torch.equal(actor_mean([p.t() for p in network.parameters()], x), layers(x))


def test_initial_standard_deviation_is_half_the_sigmoid_of_one():
    expected = 0.5 / (1.0 + math.exp(-1.0))
    assert actor().standard_deviation().tolist() == pytest.approx([expected] * 3, abs=1e-7)
    assert expected == pytest.approx(0.36552929, abs=1e-8)


@pytest.mark.parametrize("hidden", [(8, 8), (4,), (6, 3, 9)])
def test_from_state_dict_rebuilds_any_sizes(hidden):
    network = actor(5, hidden=hidden)
    rebuilt = GaussianActor.from_state_dict(network.state_dict())
    x = torch.randn((4, 5), generator=generator(2))
    assert torch.equal(rebuilt(x), network(x))
    assert torch.equal(rebuilt.standard_deviation(), network.standard_deviation())


def test_default_linear_is_bitwise_the_one_of_torch():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = nn.Linear(25, 400)
    for name, value in default_linear(25, 400, generator(0)).named_parameters():
        assert torch.equal(value, expected.get_parameter(name))


def test_actor_with_a_wider_spread_starts_at_its_share_and_draws_the_same_weights():
    narrow, wide = (
        GaussianActor(3, 2, hidden_sizes=(4,), generator=generator(0), **wider)
        for wider in ({}, {"max_standard_deviation": 2.0})
    )
    # 2 * sigmoid(1) = 1.4621171572600098
    torch.testing.assert_close(wide.standard_deviation(), torch.full((2,), 1.4621171572600098))
    for name, value in narrow.state_dict().items():
        assert torch.equal(value, wide.state_dict()[name])

"""Discrete Q-networks: shapes, the dueling formula, seeds, and refusals."""

import torch

from cadenza.learn.nn.action_value_mlp import DiscreteQMlp, dueling_values


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_dueling_values_by_hand():
    values = dueling_values(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    assert values.tolist() == [[8.0, 9.0, 13.0]]  # mean advantage 3


def test_dueling_head_takes_the_mean_advantage_out():
    network = DiscreteQMlp(4, 3, [8], dueling=True, generator=seeded())
    obs = torch.randn(6, 4, generator=seeded(1))
    with torch.no_grad():
        before = network(obs)
        network.advantages.bias += 5.0  # equal for all actions: says nothing about them
        assert torch.allclose(network(obs), before, atol=1e-5)
        network.state_value.bias += 5.0
        assert torch.allclose(network(obs), before + 5.0, atol=1e-5)
        features = network.trunk(obs)
        assert torch.allclose(network(obs).mean(1), network.state_value(features)[:, 0], atol=1e-5)


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    first, same, other = (DiscreteQMlp(4, 3, [8], generator=seeded(s)) for s in (0, 0, 1))
    obs = torch.ones(2, 4)
    assert torch.equal(first(obs), same(obs))
    assert not torch.equal(first(obs), other(obs))
    assert torch.equal(before, torch.random.get_rng_state())

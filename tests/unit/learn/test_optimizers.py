"""Weight-decay groups: rules, order, sharing, and loading a state by name."""

import pytest
import torch
from torch import nn

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.optimizers import (
    ModifiedAdamW,
    separate_modules_for_weight_decay,
)

LISTS = ((nn.Linear,), (nn.LayerNorm,))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def names(optimizer: torch.optim.Optimizer) -> list[list[str]]:
    return [group["param_names"] for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("excluded", "decayed"),
    [
        (set(), {"body.0.weight", "body.2.weight", "head.weight"}),
        ({"head"}, {"body.0.weight", "body.2.weight"}),
        ({"body"}, {"head.weight"}),
        ({""}, set()),
    ],
)
def test_only_linear_weights_outside_the_excluded_layers_decay(excluded, decayed):
    network = Network()
    decay, no_decay = separate_modules_for_weight_decay(network, *LISTS, excluded)
    assert decay == decayed
    assert no_decay == {name for name, _ in network.named_parameters()} - decayed


def test_unknown_excluded_layer_is_an_error():
    with pytest.raises(ConfigurationError, match=r"got \['haed'\]; known layers: .*'head'"):
        separate_modules_for_weight_decay(Network(), *LISTS, {"haed"})


@pytest.mark.parametrize("kind", [AssertionError, ValueError])
def test_type_on_both_lists_is_an_error(kind):
    with pytest.raises(kind, match="Some modules are both whitelisted and blacklisted!"):
        separate_modules_for_weight_decay(Network(), (nn.Linear,), (nn.Linear,))


def test_blacklist_wins_for_a_subclass_of_a_whitelisted_type():
    class Frozen(nn.Linear):
        pass

    network = nn.Sequential(nn.Linear(2, 2), Frozen(2, 2))
    decay, no_decay = separate_modules_for_weight_decay(network, (nn.Linear,), (Frozen,))
    assert decay == {"0.weight"}
    assert "1.weight" in no_decay


def test_parameter_no_rule_covers_is_trained_without_decay_and_with_a_warning():
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(1, 1))
    with pytest.warns(UserWarning, match=r"\['0\.weight'\].*without weight decay"):
        optimizer = ModifiedAdamW(network, lr=0.1, weight_decay=0.5)
    assert names(optimizer) == [["2.weight"], ["0.weight", "0.bias", "2.bias"]]


def test_shared_parameter_appears_once_and_decays_only_if_both_names_do():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    network[1].weight = network[0].weight
    decay, no_decay = separate_modules_for_weight_decay(network, *LISTS)
    assert (decay, no_decay) == ({"0.weight"}, set())
    decay, no_decay = separate_modules_for_weight_decay(network, *LISTS, {"1"})
    assert (decay, no_decay) == (set(), {"0.weight"})
    optimizer = ModifiedAdamW(network, lr=0.1, weight_decay=0.5)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]


def test_optimizer_has_two_groups_in_declaration_order():
    optimizer = ModifiedAdamW(Network(), lr=0.1, weight_decay=0.5)
    assert names(optimizer) == [
        ["body.0.weight", "body.2.weight", "head.weight"],
        ["body.0.bias", "body.1.weight", "body.1.bias", "body.2.bias", "head.bias"],
    ]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_step_decays_weights_by_hand_calculation_and_leaves_biases():
    # Without gradients' effect (zero gradient), AdamW multiplies a decayed weight by 1 - lr * wd.
    network = nn.Linear(1, 1)
    with torch.no_grad():
        network.weight.fill_(2.0)
        network.bias.fill_(3.0)
    optimizer = ModifiedAdamW(network, lr=0.1, weight_decay=0.5)
    network.weight.grad = torch.zeros_like(network.weight)
    network.bias.grad = torch.zeros_like(network.bias)
    optimizer.step()
    assert network.weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5))
    assert network.bias.item() == 3.0


def trained(seed: int) -> tuple[Network, ModifiedAdamW]:
    torch_generator = torch.Generator().manual_seed(seed)
    network = Network()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch_generator))
    optimizer = ModifiedAdamW(network, lr=0.01, weight_decay=0.1)
    network(torch.randn(5, 3, generator=torch_generator)).square().sum().backward()
    optimizer.step()
    return network, optimizer


def test_state_survives_a_payload_and_continues_exactly():
    network, optimizer = trained(0)
    state = deserialise(serialise(optimizer.state_dict()), max_bytes=2**20)
    copy = Network()
    copy.load_state_dict(network.state_dict())
    resumed = ModifiedAdamW(copy, lr=9.0, weight_decay=9.0)
    resumed.load_state_dict(state)
    for one, other in ((network, optimizer), (copy, resumed)):
        other.zero_grad()
        one(torch.ones(2, 3)).square().sum().backward()
        other.step()
    for before, after in zip(network.parameters(), copy.parameters(), strict=True):
        assert torch.equal(before, after)


def test_state_saved_in_another_order_is_matched_by_name():
    network, optimizer = trained(0)
    state = optimizer.state_dict()
    swapped = state["param_groups"][0]
    swapped["params"] = swapped["params"][::-1]
    swapped["param_names"] = swapped["param_names"][::-1]
    fresh = ModifiedAdamW(network, lr=0.01, weight_decay=0.1)
    fresh.load_state_dict(state)
    for parameter in network.parameters():
        assert torch.equal(fresh.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_state_without_names_is_refused():
    _, optimizer = trained(0)
    state = optimizer.state_dict()
    del state["param_groups"][1]["param_names"]
    with pytest.raises(CheckpointError, match="a state without names"):
        optimizer.load_state_dict(state)

"""Every network is a plain module: what is put into it is what it computes with."""

import copy
import importlib
import inspect
import pkgutil

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cadenza.learn.agents
import cadenza.learn.emote
import cadenza.learn.models
import cadenza.learn.nn
from cadenza.learn.agents.hlgauss import EncodedLogits
from cadenza.learn.agents.td3 import DeterministicMlpPolicy
from cadenza.learn.algorithms import hlgauss
from cadenza.learn.algorithms.amp import Discriminator
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy
from cadenza.learn.algorithms.genrl import (
    DecoderWrapper,
    EncoderWrapper,
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    PolicyWrapper,
    VariationalAutoencoder,
)
from cadenza.learn.algorithms.td3 import ExploringPolicy
from cadenza.learn.models.ensemble import EnsembleLinearLayer, EnsembleOfGaussian
from cadenza.learn.models.model import DeterministicModel, DynamicModel, TerminationModel
from cadenza.learn.nn.action_value_mlp import (
    ActionValueMlp,
    DiscreteQMlp,
    SharedEncoderActionValueNet,
)
from cadenza.learn.nn.belief import Believing, EncodedColumns, Foretold
from cadenza.learn.nn.curl import CurlNetwork
from cadenza.learn.nn.encoders import DictFeatures, ImageFeatures, ObservationEncoder
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy, GaussianPolicyHead
from cadenza.learn.nn.layers import Conv1dEncoder, Conv2dEncoder, mlp
from cadenza.learn.nn.policy_networks import (
    DiagonalGaussianHead,
    Masked,
    OrthogonalMlp,
    Policy,
    SquashedGaussianHead,
    ValueCritic,
)
from cadenza.learn.nn.recurrent import Memory, Recurrent, Remembering
from tests.campaigns import size

#: Batch, observation, action, hidden width.
B, D, A, H = 5, 4, 2, 6
IMAGE = spaces.Box(0.0, 1.0, (8, 8, 3))
SEEN = spaces.Dict({"image": IMAGE, "state": spaces.Box(-1.0, 1.0, (D,))})
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.BatchNorm1d, EnsembleLinearLayer)
#: Modules without weights of their own, or around a given network only.
NO_NETWORKS = {
    "BasePolicy",
    "ByteFeatures",
    "CategoricalHead",
    "Decision",
    "Deployed",
    "EncodedNetwork",
    "FactoredHead",
    "FlatFeatures",
    "Foretold",
    "HLGaussLoss",
    "TwoHotLoss",
    "Window",
    "InputScale",
    "NoisyModule",
    "Normalizer",
    "Scaling",
}


def rng():
    return torch.Generator().manual_seed(0)


def rows(width):
    return torch.randn(B, width, generator=torch.Generator().manual_seed(width))


def images():
    return torch.rand(B, 8, 8, 3, generator=rng())


def image_encoder():
    return Conv2dEncoder((8, 8, 3), [4], [3], [2], [1], generator=rng())


def encoder_of(width):
    layer = nn.Linear(width, H)
    layer.width = H
    return layer


def decoder():
    return FullyConnectedDecoder(A, 3, "cpu", [H], generator=rng())


def encoder():
    return FullyConnectedEncoder(3, A, "cpu", [H], generator=rng())


def policy():
    return GaussianMlpPolicy(D, A, [H, H], init_generator=rng())


def gaussian_head():
    return DiagonalGaussianHead(A)


def wrapped_model():
    model = EnsembleOfGaussian(in_size=D, out_size=A, device="cpu", num_layers=1, hidden_size=H)
    return DynamicModel(model=model)


NETWORKS = {
    "mlp": lambda: mlp(D, [H, H], A, generator=rng()),
    "OrthogonalMlp": lambda: OrthogonalMlp(D, [H], A, output_gain=1.0, generator=rng()),
    "GaussianMlpPolicy": policy,
    "GaussianPolicyHead": lambda: GaussianPolicyHead(H, A),
    "DeterministicMlpPolicy": lambda: DeterministicMlpPolicy(D, A, [H], init_generator=rng()),
    "ExploringPolicy": lambda: ExploringPolicy(
        DeterministicMlpPolicy(D, A, [H], init_generator=rng())
    ).eval(),
    "GaussianActor": lambda: GaussianActor(D, A, hidden_sizes=(H, H), generator=rng()),
    "ValueCritic": lambda: ValueCritic(D, hidden_sizes=(H, H), generator=rng()),
    "ActionValueMlp": lambda: ActionValueMlp(D, A, [H]),
    "SharedEncoderActionValueNet": lambda: SharedEncoderActionValueNet(nn.Linear(D, H), H, A, [H]),
    "DiscreteQMlp": lambda: DiscreteQMlp(D, A, [H], dueling=True),
    "EpsilonGreedyPolicy": lambda: EpsilonGreedyPolicy(DiscreteQMlp(D, 3, [H])),
    "Policy": lambda: Policy(D, gaussian_head(), hidden_sizes=[H], generator=rng()),
    "Policy with a critic": lambda: Policy(
        D, gaussian_head(), hidden_sizes=[H], generator=rng(), critic_dim=D
    ),
    "DiagonalGaussianHead": gaussian_head,
    "SquashedGaussianHead": lambda: SquashedGaussianHead(A),
    "Conv2dEncoder": image_encoder,
    "Conv1dEncoder": lambda: Conv1dEncoder((8, 3), [4], [3], [2], [1], generator=rng()),
    "ImageFeatures": lambda: ImageFeatures(IMAGE, rng()),
    "DictFeatures": lambda: DictFeatures(SEEN, rng()),
    "ObservationEncoder": lambda: ObservationEncoder(SEEN, DictFeatures(SEEN, rng())),
    "CurlNetwork": lambda: CurlNetwork(image_encoder(), image_encoder(), 64, H, True, rng()),
    "LogitMlp": lambda: hlgauss.LogitMlp(D, A, [H], 5, generator=rng()),
    "EncodedLogits": lambda: EncodedLogits(hlgauss.LogitMlp(D, A, [H], 5, generator=rng()), 5),
    "QNet": lambda: hlgauss.QNet(hlgauss.LogitMlp(D, A, [H], 5, generator=rng()), -1.0, 1.0),
    "Discriminator": lambda: Discriminator(D, [H]),
    "FullyConnectedEncoder": encoder,
    "FullyConnectedDecoder": decoder,
    "EncoderWrapper": lambda: EncoderWrapper(encoder(), lambda _: None),
    "DecoderWrapper": lambda: DecoderWrapper(decoder(), lambda _: None),
    "PolicyWrapper": lambda: PolicyWrapper(DecoderWrapper(decoder(), lambda _: None), policy()),
    "VariationalAutoencoder": lambda: VariationalAutoencoder(
        encoder(), decoder(), "cpu", keep_weights=True
    ),
    "EnsembleLinearLayer": lambda: EnsembleLinearLayer(2, D, A),
    "EnsembleOfGaussian": lambda: EnsembleOfGaussian(
        in_size=D, out_size=A, device="cpu", num_layers=1, ensemble_size=2, hidden_size=H
    ),
    "DynamicModel": wrapped_model,
    "DeterministicModel": lambda: DeterministicModel(
        D, A, "cpu", hidden_size=H, num_hidden_layers=1
    ).eval(),
    "TerminationModel": lambda: TerminationModel(in_size=D, device="cpu", hidden_size=H),
    "Memory": lambda: Memory("gru", D, H, rng()),
    "Recurrent": lambda: Recurrent([nn.Linear(D, H)], Memory("lstm", H, H, rng()), nn.Linear(H, A)),
    "Remembering": lambda: Remembering(
        [], Recurrent([], Memory("gru", D, H, rng()), nn.Linear(H, A)), torch.tanh
    ),
    "Believing": lambda: Believing(
        [],
        Recurrent([], Memory("gru", D + A, H, rng()), nn.Linear(H, A)),
        Foretold([A]),
        nn.Linear(D + A, A),
        torch.tanh,
        lambda decided: decided,
        actions=A,
    ),
    "EncodedColumns": lambda: EncodedColumns(encoder_of(D), D, A),
    "Masked": lambda: Masked(nn.Linear(D - A, A), A),
}
#: What is called instead of the network itself.
METHODS = {
    "EpsilonGreedyPolicy": "q_net",
    "Policy": "log_prob",
    "Policy with a critic": "value",
    "DiagonalGaussianHead": "log_prob",
    "SquashedGaussianHead": "log_prob",
    "VariationalAutoencoder": "encoder",
    "Memory": "step",
    "Recurrent": "step",
}
#: What is asked, if it is not one batch of observations.
INPUTS = {
    "GaussianMlpPolicy": [rows(D), rows(A)],
    "GaussianPolicyHead": [rows(H), rows(A)],
    "ActionValueMlp": [rows(A), rows(D)],
    "SharedEncoderActionValueNet": [rows(A), rows(D)],
    "Policy": [rows(D), rows(A)],
    "DiagonalGaussianHead": [rows(A), rows(A) + 1],
    "SquashedGaussianHead": [rows(A), rows(A) + 1],
    "Conv2dEncoder": [images()],
    "Conv1dEncoder": [images()[:, 0]],
    "ImageFeatures": [images()],
    "DictFeatures": [{"image": images(), "state": rows(D)}],
    "ObservationEncoder": [rows(spaces.flatdim(SEEN))],
    "CurlNetwork": [images(), images().flip(1)],
    "LogitMlp": [rows(A), rows(D)],
    "EncodedLogits": [rows(A), rows(D)],
    "QNet": [rows(A), rows(D)],
    "FullyConnectedEncoder": [rows(3)],
    "FullyConnectedDecoder": [rows(A)],
    "EncoderWrapper": [rows(3)],
    "DecoderWrapper": [rows(A)],
    "PolicyWrapper": [rows(D), rows(A)],
    "VariationalAutoencoder": [rows(3)],
    "EnsembleLinearLayer": [rows(D)[None]],
    "Memory": [rows(D), rows(H)],
    "Recurrent": [rows(D), rows(2 * H)],
    "Remembering": [rows(D), rows(H)],
    "Believing": [rows(D), rows(A + H)],
    "EncodedColumns": [rows(D + A)],
}
#: Those that are compiled by day: one of each kind.
COMPILED = ["mlp", "GaussianMlpPolicy", "Conv2dEncoder", "DiscreteQMlp", "EnsembleOfGaussian"]


class Asked(nn.Module):
    """A network and the one method that is called."""

    def __init__(self, network, method):
        super().__init__()
        self.network, self.method = network, method

    def forward(self, *inputs):
        result = getattr(self.network, self.method)(*inputs)
        return result if isinstance(result, tuple) else (result,)


class Doubled(nn.Module):
    """An adapter around a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return 2.0 * self.layer(*inputs)


@pytest.fixture(params=NETWORKS, scope="module")
def case(request):
    name = request.param
    network = Asked(NETWORKS[name](), METHODS.get(name, "forward"))
    return network, INPUTS.get(name) or [rows(D)]


def other_weights(net, seed):
    """Return weights of the same shapes, drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(value.shape, generator=generator), value.requires_grad)
        for name, value in net.named_parameters()
    }


def written_in_place(net, weights):
    """Return a copy of ``net`` whose own tensors have been overwritten, and check the copying."""
    changed, before = copy.deepcopy(net), [value.clone() for value in net.parameters()]
    with torch.no_grad():
        for name, value in changed.named_parameters():
            value.copy_(weights[name])
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), before, strict=True))
    return changed


def assert_same(ours, expected, *, different_from=None):
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    if different_from is not None:
        assert any(not torch.equal(*pair) for pair in zip(ours, different_from, strict=True))


MODULES = tuple(f"cadenza.learn.{name}" for name in ("nn", "m", "agents", "emote"))


def test_every_network_class_of_the_package_is_tested_here():
    for package in (
        cadenza.learn.nn,
        cadenza.learn.models,
        cadenza.learn.agents,
        cadenza.learn.emote,
    ):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    classes, left = set(), [nn.Module]
    while left:
        subclasses = left.pop().__subclasses__()
        left += subclasses
        classes |= {
            c.__name__
            for c in subclasses
            if c.__module__.startswith(MODULES)
            and not inspect.isabstract(c)
            and not c.__name__.startswith("_")
        }
    assert len(classes) > 20
    assert classes - NO_NETWORKS <= set(NETWORKS)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_weights_that_are_assigned_passed_or_copied_are_the_ones_used(case, seed):
    net, inputs = case
    weights, before = other_weights(net, seed), net(*inputs)
    expected = written_in_place(net, weights)(*inputs)
    assert_same(torch.func.functional_call(net, weights, tuple(inputs)), expected)
    assert_same(expected, expected, different_from=before)
    assigned = copy.deepcopy(net)
    assigned.load_state_dict({**net.state_dict(), **weights}, assign=True)
    assert_same(assigned(*inputs), expected)
    assert_same(copy.deepcopy(assigned)(*inputs), expected)
    assert_same(net(*inputs), before)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), choice=st.integers(0, 100))
def test_a_replaced_layer_is_the_one_used(case, seed, choice):
    net, inputs = case
    net = written_in_place(net, other_weights(net, seed))
    names = [
        name
        for name, layer in net.named_modules()
        if isinstance(layer, LAYERS) and "target" not in name
    ]
    if not names:  # a distribution, with nothing but its own parameter
        return
    name = names[choice % len(names)]
    swapped, expected = copy.deepcopy(net), copy.deepcopy(net)
    swapped.set_submodule(name, Doubled(swapped.get_submodule(name)))
    with torch.no_grad():
        for value in expected.get_submodule(name).parameters():
            value.mul_(2.0)
    assert_same(swapped(*inputs), expected(*inputs))


@pytest.mark.parametrize("case", size(COMPILED, list(NETWORKS)), indirect=True)
def test_a_compiled_network_computes_the_same_also_with_new_weights(case):
    net, inputs = case
    torch.compiler.reset()
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager")  # traced, no C++
    assert_same(compiled(*inputs), net(*inputs))
    weights = other_weights(net, 1)
    compiled._orig_mod.load_state_dict({**net.state_dict(), **weights}, assign=True)
    assert_same(compiled(*inputs), written_in_place(net, weights)(*inputs))


def test_a_replaced_layer_leaves_the_batch_as_it_was():
    network = mlp(D, [D], A)
    network[0] = nn.Identity()
    batch = -torch.ones(B, D)
    network(batch)
    assert torch.equal(batch, -torch.ones(B, D))

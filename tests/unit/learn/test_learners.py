"""Assembled learners: they solve a bandit, resume to the bit, and give their policy away."""

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.agents.dqn import DQNLearner, action_grid
from cadenza.learn.agents.hatd3 import CentralTD3Learner
from cadenza.learn.agents.hlgauss import HLGaussLearner
from cadenza.learn.agents.mbpo import ImaginedTransitions, MBPOLearner
from cadenza.learn.agents.sac import SACLearner
from cadenza.learn.agents.td3 import TD3Learner
from cadenza.learn.configs import (
    DQNConfig,
    HATD3Config,
    HLGaussConfig,
    MBPOConfig,
    SACConfig,
    TD3Config,
)
from cadenza.learn.memory.builder import TransitionMemory

SMALL = {"learning_rate": 3e-3, "batch_size": 64, "hidden_sizes": (32,), "tau": 0.05}
SIZES = {"observation_dim": 2, "action_dim": 1}
LOW, HIGH = np.array([-1.0], np.float32), np.array([1.0], np.float32)
CONFIGS = {
    "sac": SACConfig(**SMALL, initial_alpha=0.05, max_alpha=1.0),
    "hlgauss": HLGaussConfig(
        **SMALL, initial_alpha=0.05, max_alpha=1.0, min_value=-5.0, max_value=1.0, bins=31
    ),
    "td3": TD3Config(**SMALL, exploration_noise=0.3),
    "hatd3": HATD3Config(**SMALL, exploration_noise=0.3),
    "dqn": DQNConfig(**SMALL, action_bins=9, epsilon_frames=300),
    "mbpo": MBPOConfig(
        **SMALL,
        initial_alpha=0.05,
        max_alpha=1.0,
        ensemble_size=2,
        num_elites=1,
        model_hidden=16,
        model_layers=1,
        model_updates=20,
        rollout_every=5,
        rollout_states=20,
        rollout_length=2,
        imagined_size=200,
    ),
}


def built(name, seed=0, **options):
    options |= {"config": CONFIGS[name], "seed": seed}
    if name == "dqn":
        return DQNLearner(observation_dim=2, choices=action_grid(1, 9), **options)
    if name == "hatd3":
        return CentralTD3Learner(**SIZES, joint_dim=2, **options)
    kinds = {"sac": SACLearner, "hlgauss": HLGaussLearner, "td3": TD3Learner, "mbpo": MBPOLearner}
    return kinds[name](**SIZES, **options)


def memory_of(learner):
    return TransitionMemory(
        observation_dim=2,
        action_dim=learner.action_width,
        num_envs=8,
        max_transitions=5_000,
        seed=0,
        action_dtype=learner.action_dtype,
    )


def train(learner, memory, rng, steps, *, start=0, final=True):
    """One-step episodes; reward = −(a − s)², the second entry of the state is noise."""
    figures = {}
    for t in range(start, start + steps):
        states = rng.uniform(-0.8, 0.8, (8, 2)).astype(np.float32)
        stored = learner.random_actions(8) if t < 20 else learner.act(states, frames=8 * t)
        actions = learner.to_unit(stored)
        assert actions.min() >= -1.0
        assert actions.max() <= 1.0
        ends = np.ones(8, bool)
        memory.add(
            states,
            stored,
            -((actions[:, 0] - states[:, 0]) ** 2),
            terminated=ends & final,
            boundaries=ends,
            next_observations=states,
        )
        figures = learner.learn(memory)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_bandit_is_solved(name):
    learner = built(name)
    train(learner, memory_of(learner), np.random.default_rng(0), 350)
    states = np.array([[-0.6, 0.0], [0.0, 0.0], [0.6, 0.0]], np.float32)
    actions = learner.policy(LOW, HIGH).act(states)[:, 0]
    np.testing.assert_allclose(actions, states[:, 0], atol=0.3)


@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_learner_equals_an_unbroken_one_to_the_bit(name):
    whole, broken = built(name), built(name)
    stores = memory_of(whole), memory_of(broken)
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    train(whole, stores[0], rngs[0], 40)
    train(broken, stores[1], rngs[1], 40)
    state = deserialise(
        serialise({"learner": broken.state_dict(), "memory": stores[1].state_dict()}),
        max_bytes=10**8,
    )
    resumed, store = built(name), memory_of(broken)
    resumed.load_state_dict(state["learner"])
    store.load_state_dict(state["memory"])
    first = train(whole, stores[0], rngs[0], 20, start=40)
    second = train(resumed, store, rngs[1], 20, start=40)
    assert first == second
    assert whole.policy(LOW, HIGH).content_id == resumed.policy(LOW, HIGH).content_id


@pytest.mark.parametrize("name", CONFIGS)
def test_seeds_tell_learners_apart(name):
    def content_id(seed):
        return built(name, seed).policy(LOW, HIGH).content_id

    assert content_id(0) == content_id(0) != content_id(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_policy_and_greedy_network_are_the_learner_without_noise(name):
    learner = built(name)
    train(learner, memory_of(learner), np.random.default_rng(0), 30)
    states = np.random.default_rng(1).uniform(-1, 1, (5, 2)).astype(np.float32)
    actions = learner.policy(LOW, HIGH).act(states)
    with torch.no_grad():
        greedy = learner.greedy(torch.from_numpy(states)).numpy()
    expected = greedy if name != "dqn" else action_grid(1, 9)[greedy]
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    if name == "dqn":
        drawn = [learner.act(states, frames=300)[:, 0] for _ in range(101)]
        assert np.array_equal(greedy, np.median(drawn, axis=0))
    elif name != "hatd3":
        drawn = [learner.act(states, frames=0) for _ in range(401)]
        np.testing.assert_allclose(np.median(drawn, axis=0), actions, atol=0.15)


class Doubled(torch.nn.Module):
    """Features: the observation, and two learned sums of it."""

    width = 4

    def __init__(self):
        super().__init__()
        self.sums = torch.nn.Linear(2, 2)

    def forward(self, obs):
        return torch.cat((obs, self.sums(obs)), dim=1)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "hatd3"])
def test_every_network_learns_an_encoder_of_its_own(name):
    made, before = [], []

    def encoder():
        made.append(Doubled())
        before.append(made[-1].sums.weight.detach().clone())
        return made[-1]

    learner = built(name, encoder=encoder)
    assert len(made) == (1 if name == "dqn" else 3)
    assert all(torch.equal(b, e.sums.weight) for b, e in zip(before, made, strict=True))
    train(learner, memory_of(learner), np.random.default_rng(0), 30)
    assert not any(torch.equal(b, e.sums.weight) for b, e in zip(before, made, strict=True))
    states = torch.rand((3, 2), generator=torch.Generator().manual_seed(0))
    first = learner.greedy(states)
    assert first.shape == ((3,) if name == "dqn" else (3, 1))
    with torch.no_grad():
        made[0].sums.bias += 100.0
    assert not torch.equal(first, learner.greedy(states))
    with pytest.raises(ConfigurationError, match="export the policy to ONNX"):
        learner.policy(LOW, HIGH)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "hatd3"])
def test_foreign_states_are_refused(name):
    learner = built(name)
    with pytest.raises(CheckpointError, match="expected a state of this algorithm, version 3"):
        learner.load_state_dict({"version": 1, "algorithm": "other"})
    state = {"version": 3, "algorithm": "sac" if name == "mbpo" else name}
    with pytest.raises(CheckpointError, match="complete state of a learner of these sizes"):
        learner.load_state_dict(state)


def test_mbpo_wants_its_model_back():
    learner = built("mbpo")
    state = learner.state_dict()
    del state["imagined"]
    with pytest.raises(CheckpointError, match="mbpo: expected a complete state"):
        built("mbpo").load_state_dict(state)


def test_mbpo_imagines_only_once_its_model_is_ready():
    learner = built("mbpo")
    store = memory_of(learner)
    rng = np.random.default_rng(0)
    assert train(learner, store, rng, 19)["n_imagined"] == 0.0
    assert train(learner, store, rng, 6, start=19)["n_imagined"] > 0.0


def test_imagined_transitions_forget_the_oldest():
    imagined = ImaginedTransitions(3, 1, 1)
    for value in range(5):
        imagined.add(*(torch.full((1, 1), float(value)) for _ in range(5)))
    assert len(imagined) == 3
    drawn = imagined.sample(100, torch.Generator().manual_seed(0))
    assert set(drawn[0][:, 0].tolist()) == {2.0, 3.0, 4.0}
    other = ImaginedTransitions(3, 1, 1)
    other.load_state_dict(imagined.state_dict())
    other.add(*(torch.full((1, 1), 9.0) for _ in range(5)))
    kept = other.sample(100, torch.Generator().manual_seed(0))[0]
    assert set(kept[:, 0].tolist()) == {3.0, 4.0, 9.0}
    with pytest.raises(CheckpointError, match="at most 2 imagined transitions"):
        ImaginedTransitions(2, 1, 1).load_state_dict(imagined.state_dict())


def test_action_grid_is_every_combination():
    assert action_grid(2, 2).tolist() == [[-1, -1], [-1, 1], [1, -1], [1, 1]]
    with pytest.raises(ConfigurationError, match=r"at most 4096 combinations of actions, got 9\^4"):
        action_grid(4, 9)


def test_epsilon_falls_linearly_and_stays():
    config = DQNConfig(epsilon_start=1.0, epsilon_end=0.2, epsilon_frames=100)
    assert [config.epsilon(k) for k in (0, 50, 100, 900)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("kind", [SACLearner, HLGaussLearner])
def test_layers_start_as_torch_draws_them_and_heads_of_the_policy_near_zero(kind):
    networks = kind(observation_dim=4, action_dim=2).networks.values()
    layers = [m for net in networks for m in net.modules() if isinstance(m, nn.Linear)]
    heads = [m for m in layers if m.out_features == 2]
    assert (len(layers), len(heads)) == (3 + 3 + 4, 2)
    for layer in layers:
        weight, bias = (float(v.detach().abs().max()) for v in (layer.weight, layer.bias))
        if layer in heads:  # Xavier's bound times 0.01, for 256 inputs and 2 outputs
            assert 0.9 < weight / (0.01 * (6 / (256 + 2)) ** 0.5) <= 1.000001
            assert bias == 0.0
        else:
            assert 0.9 < weight * layer.in_features**0.5 <= 1.000001
            assert 0.0 < bias * layer.in_features**0.5 <= 1.000001

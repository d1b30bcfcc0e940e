"""Widths and activations of the networks, as settings of every algorithm."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import cadenza
from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.train import load_algorithm
from cadenza.core.episodes import Episodes
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.team import TeamAgent
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import ACTIVATIONS, mlp
from cadenza.learn.nn.portable import load_policy_file
from tests.demonstrations import demonstrations
from tests.unit.aht.seats import Frozen, Seats, drive, observation
from tests.unit.learn.counting_envs import TargetTeam

REPLAY = {"batch_size": 8, "warmup_steps": 20, "memory_size": 200}
ROLLOUT = {"rollout_length": 16, "batch_size": 8, "epochs": 1}
SHOWN = spaces.Box(-9.0, 9.0, (3,)), spaces.Box(-4.0, 4.0, (2,))
AGENTS = {
    "SAC": lambda **more: cadenza.SAC("Pendulum-v1", **REPLAY, **more),
    "TD3": lambda **more: cadenza.TD3("Pendulum-v1", **REPLAY, **more),
    "HLGauss": lambda **more: cadenza.HLGauss(
        "Pendulum-v1", min_value=-2_000.0, bins=11, **REPLAY, **more
    ),
    "MBPO": lambda **more: cadenza.MBPO("Pendulum-v1", model_hidden=8, **REPLAY, **more),
    "DQN": lambda **more: cadenza.DQN("CartPole-v1", **REPLAY, **more),
    "PPO": lambda **more: cadenza.PPO("CartPole-v1", **ROLLOUT, **more),
    "PPO that remembers": lambda **more: cadenza.PPO(
        "CartPole-v1", memory="gru", memory_size=6, **ROLLOUT, **more
    ),
    "GRPO": lambda **more: cadenza.GRPO("CartPole-v1", num_envs=4, **ROLLOUT, **more),
    "MAPPO": lambda **more: cadenza.MAPPO(TargetTeam(4), **ROLLOUT, **more),
    "HAPPO": lambda **more: cadenza.HAPPO(TargetTeam(4), **ROLLOUT, **more),
    "HATD3": lambda **more: cadenza.HATD3(TargetTeam(4), **REPLAY, **more),
    "DAgger": lambda **more: cadenza.DAgger(
        "Pendulum-v1", expert=lambda seen: seen[:, 1:2], num_envs=2, round_length=8, **more
    ),
    "BC": lambda **more: cadenza.BC(
        SHOWN, demonstrations=Episodes.of(demonstrations((9, 8))), batch_size=8, **more
    ),
}
CRITICS = ["SAC", "TD3", "HLGauss", "MBPO", "PPO", "PPO that remembers", "MAPPO", "HAPPO", "HATD3"]


def kinds(agent):
    """Return the kinds of layers of the agent's policy files."""
    return {layer.kind for network in agent.networks().values() for layer in network.layers}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", AGENTS)
def test_every_activation_stands_in_the_policy_and_its_file(name, activation, tmp_path):
    agent = AGENTS[name](hidden_sizes=(7, 6), activation=activation)
    assert kinds(agent) & set(ACTIVATIONS) - {"tanh"} == {activation} - {"tanh"}
    widths = [
        tuple(layer.tensors["weight"].shape)[:1]
        for network in agent.networks().values()
        for layer in network.layers
        if layer.kind == "linear"
    ]
    assert (7,) in widths
    assert (6,) in widths
    if name in ("SAC", "PPO", "DQN", "BC"):
        (path,) = agent.export_policy(tmp_path / "agent")
        rows = np.random.default_rng(0).normal(size=(9, agent.envs.space.shape[0]))
        rows = rows.astype(np.float32)
        wanted = agent.predict(rows)
        np.testing.assert_allclose(load_policy_file(path).predict(rows), wanted, atol=1e-6)


@pytest.mark.parametrize("name", CRITICS)
def test_critics_have_widths_of_their_own(name, tmp_path):
    agent = AGENTS[name](hidden_sizes=(7,), critic_sizes=(5, 4))
    learner = agent.learner
    critic = {
        "SAC": lambda: learner.q2,
        "HLGauss": lambda: learner.q2,
        "MBPO": lambda: learner.q1_target,
        "TD3": lambda: learner.q2_target,
        "HATD3": lambda: learner.target_critics[1],
        "HAPPO": lambda: learner.critic,
    }.get(name, lambda: learner.network.critic)()
    outputs = [layer.out_features for layer in critic.modules() if isinstance(layer, nn.Linear)]
    assert outputs == [5, 4, 11 if name == "HLGauss" else 1]
    assert all(
        5 not in layer.tensors["weight"].shape
        for network in agent.networks().values()
        for layer in network.layers
        if layer.kind == "linear"
    )
    agent.learn(64, progress=False)
    team = TargetTeam(4) if isinstance(agent, TeamAgent) else None
    again = type(agent).load(agent.save(tmp_path / "agent"), team)
    assert again.config == agent.config
    state, other = agent.learner.state_dict(), again.learner.state_dict()
    assert repr(state) == repr(other)


@pytest.mark.parametrize("setting", [{"activation": "elu"}, {"critic_sizes": (4,)}])
def test_what_networks_are_built_with_cannot_change_when_they_are_loaded(setting, tmp_path):
    saved = AGENTS["SAC"](hidden_sizes=(4,)).save(tmp_path / "agent")
    (name,) = setting
    with pytest.raises(ConfigurationError, match=rf"SAC.load: {name}: expected .* fixes its net"):
        cadenza.SAC.load(saved, **setting)


@pytest.mark.parametrize("kind", [cadenza.DQN, cadenza.GRPO, cadenza.BC])
def test_algorithms_without_critics_have_no_widths_of_them(kind):
    with pytest.raises(ConfigurationError, match="critic_sizes: unknown setting"):
        kind("CartPole-v1", critic_sizes=(4,))


def test_activations_are_those_of_torch():
    x = torch.linspace(-3.0, 3.0, 13)[:, None]
    for name, wanted in {
        "relu": torch.relu(x),
        "tanh": torch.tanh(x),
        "elu": torch.where(x > 0, x, torch.expm1(x)),
        "silu": x * torch.sigmoid(x),
        "gelu": x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5)),
    }.items():
        stack = mlp(1, [1], activation=name)
        with torch.no_grad():
            stack[0].weight.fill_(1.0)
            torch.testing.assert_close(stack(x), wanted)


@pytest.mark.parametrize("module", [nn.ELU(alpha=0.5), nn.GELU(approximate="tanh")])
def test_variants_that_no_layer_of_a_file_stands_for_are_refused(module):
    with pytest.raises(ConfigurationError, match="expected layers of"):
        layers_of(module)


@pytest.mark.parametrize("algo", ["sac", "td3", "hatd3", "dqn", "ppo"])
def test_egos_have_them_too(algo):
    small = {"hidden_sizes": (7,), "batch_size": 8, "activation": "gelu"}
    small |= {} if algo == "dqn" else {"critic_sizes": (5,)}
    config = EgoAHTConfig.model_validate({"algo": algo, "env": {"task": "any"}, algo: small})
    trainer = load_algorithm(algo)(config, env=Seats(), partner=Frozen(), ego_uid="ego")
    drive(trainer, np.random.default_rng(0), 16)
    network = trainer.network()
    assert "gelu" in {layer.kind for layer in network.layers}
    seen = observation(np.random.default_rng(1))
    wanted = trainer.act(seen, deterministic=True)
    rows = seen["agent"]["ego"]["state"][None]
    np.testing.assert_allclose(network.act(rows)[0], wanted, atol=1e-6)

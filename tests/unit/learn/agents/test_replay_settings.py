"""Returns of several steps and priorities, as settings of the agents with a replay memory."""

import numpy as np
import pytest
import torch

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.off_policy import td_target
from tests.unit.learn.test_api import assert_same

SMALL = {"hidden_sizes": (16, 16), "batch_size": 16, "warmup_steps": 40, "memory_size": 1_000}
AGENTS = [
    ("SAC", "Pendulum-v1", {}),
    ("TD3", "Pendulum-v1", {}),
    ("HLGauss", "Pendulum-v1", {"bins": 11, "min_value": -2_000.0}),
    ("DQN", "CartPole-v1", {}),
]
SETTINGS = [{"n_step": 3}, {"priority_exponent": 0.6}, {"n_step": 2, "priority_exponent": 1.0}]


@pytest.mark.parametrize(("name", "env", "more"), AGENTS)
@pytest.mark.parametrize("settings", SETTINGS, ids=["n-step", "priorities", "both"])
def test_agent_that_was_saved_goes_on_as_if_it_had_not_been(tmp_path, name, env, more, settings):
    kind = getattr(cadenza, name)
    whole = kind(env, seed=3, num_envs=2, **SMALL, **more, **settings).learn(120, progress=False)
    middle = whole.save(tmp_path / "middle")
    whole.learn(80, progress=False)
    assert whole.updates > 0
    assert_same(kind.load(middle).learn(80, progress=False), whole)


def test_target_of_several_steps_has_a_discount_of_its_own():
    rewards, masks = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [0.0]])
    values = torch.tensor([[10.0], [10.0]])
    discounts = torch.tensor([[0.25], [0.5]])
    assert td_target(rewards, masks, values, discounts).tolist() == [[3.5], [2.0]]
    assert td_target(rewards, masks, values, 0.5).tolist() == [[6.0], [2.0]]


def test_transitions_of_large_errors_come_more_often():
    agent = cadenza.DQN("CartPole-v1", seed=0, priority_exponent=1.0, **SMALL)
    agent.learn(400, progress=False)
    weights = torch.cat([agent.memory.sample(64)["sample_weights"] for _ in range(20)])
    assert float(weights.std()) > 0.01  # those of uniform draws would be equal
    plain = cadenza.DQN("CartPole-v1", seed=0, **SMALL).learn(100, progress=False)
    assert "sample_weights" not in plain.memory.sample(4)


def test_weights_correct_as_much_of_the_bias_as_they_are_told():
    found = []
    for exponent in (0.0, 0.4, 1.0):
        settings = {"priority_exponent": 1.0, "importance_exponent": exponent, **SMALL}
        agent = cadenza.DQN("CartPole-v1", seed=0, **settings).learn(60, progress=False)
        found.append(float(agent.memory.sample(64)["sample_weights"].min()))
    assert found[0] == 1.0 > found[1] > found[2]


def test_figures_stay_scalars_beside_priorities():
    seen = []

    class Watch(cadenza.learn.agents.loop.AgentCallback):
        def on_update(self, agent, batch, figures):
            seen.append({name: np.shape(value) for name, value in figures.items()})

    agent = cadenza.TD3("Pendulum-v1", priority_exponent=0.5, **SMALL)
    agent.learn(60, callbacks=Watch(), progress=False)
    assert seen
    assert all(shape == () for figures in seen for shape in figures.values())


def test_priorities_beside_a_share_of_demonstrations_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="beside a share of demonstrations"):
        cadenza.SAC("Pendulum-v1", demonstrations=tmp_path, priority_exponent=0.6)

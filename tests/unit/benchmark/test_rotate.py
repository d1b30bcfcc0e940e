"""ROTATE in a game of arbitrary conventions: regret finds partners that spoiling does not."""

import numpy as np
import pytest

from cadenza.benchmark.rotate import Rotate, RotateConfig, train_rotate
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.core.payloads import serialise
from tests.pair_games import PairGame

TINY = {
    "iterations": 2,
    "partners": 2,
    "num_envs": 4,
    "partner_steps": 3 * 4 * 8 * 2,
    "ego_steps": 4 * 8 * 2,
    "episode_length": 4,
    "partner_ppo": {"rollout_length": 4, "batch_size": 16, "epochs": 2, "hidden_sizes": (8,)},
    "ego": {"rollout_length": 4, "batch_size": 16, "epochs": 1, "hidden_sizes": (8,)},
}


PLAIN = {"memory": None, "rollout_length": 4, "hidden_sizes": (32,)}


@pytest.fixture(autouse=True)
def _one_thread():
    with single_torch_thread():
        yield


class Repeated(PairGame):
    """Three actions, four steps; doing the same pays 1 in each, and both see what was done last."""

    def __init__(self, copies):
        super().__init__(copies, lambda one, other: 0.0 * one, actions=3, steps=4)

    def step(self, actions):
        seen, _, over, cut, info = super().step(actions)
        mine, other = (np.asarray(actions[uid]).reshape(-1) for uid in self.agent_uids)
        return seen, (mine == other).astype(float), over, cut, info


def beside_fixed(agent, action, games=100):
    """Return what the greedy ego gets beside a partner that always does one thing; 3 at least."""
    env, state, total = Repeated(games), None, 0.0
    seen, _ = env.reset()
    for _ in range(4):
        mine, state = agent.predict(seen["agent"]["ego"]["state"], state=state)
        both = {"ego": mine, "partner": np.full((games, 1), action)}
        seen, rewards, *_ = env.step(both)
        total += rewards.mean()
    return total


def config(**changes):
    return RotateConfig(**{"task": "foraging", "seed": 0, **TINY, **changes})


def test_a_training_goes_on_bit_for_bit_after_an_iteration():
    whole, first = Rotate(config(), Repeated), Rotate(config(), Repeated)
    for _ in range(2):
        whole.iterate()
    first.iterate()
    again = Rotate(config(), Repeated)
    again.load_state_dict(first.state_dict())
    again.iterate()
    assert serialise(again.state_dict()) == serialise(whole.state_dict())
    assert len(again.state_dict()["everyone"]["copies"]) == 4


def test_a_task_is_trained_in_a_folder_and_goes_on_from_there(tmp_path):
    pytest.importorskip("lbforaging")
    whole = train_rotate(config(), tmp_path / "whole")
    train_rotate(config(iterations=1), tmp_path / "half")
    again = train_rotate(config(), tmp_path / "half")
    with pytest.raises(ConfigurationError, match="got another one"):
        train_rotate(config(seed=1), tmp_path / "half")
    policies = [folder / "ego.policy.safetensors" for folder in tmp_path.iterdir()]
    assert policies[0].read_bytes() == policies[1].read_bytes()
    np.testing.assert_array_equal(again.figures[1].after, whole.figures[1].after)


@pytest.mark.slow  # two whole iterations
def test_new_partners_do_well_with_their_best_responses_and_badly_with_the_ego():
    learning = {"epochs": 4, "learning_rate": 0.01, "entropy_coefficient": 0.02}
    partner = {**TINY["partner_ppo"], **learning, "batch_size": 128, "max_gradient_norm": 1.0}
    settings = {
        "num_envs": 32,
        "partner_steps": 3 * 4 * 64 * 50,
        "ego_steps": 4 * 64 * 30,
        "partner_ppo": {**partner, "hidden_sizes": (16,)},
        "ego": {**PLAIN, **learning, "learning_rate": 5e-3, "batch_size": 64},
    }
    training = Rotate(config(**settings), Repeated)
    first, second = training.iterate(), training.iterate()
    assert min(first.best.min(), second.best.min()) > 3.5  # of 4: they do not merely spoil
    assert second.regret.min() > 2.5
    assert first.after.max() > first.before.max() + 1.0  # what the ego learns beside them
    assert np.mean([beside_fixed(training.ego, action) for action in range(3)]) > 1.5

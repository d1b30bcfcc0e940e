"""ROTATE in a game of arbitrary conventions: regret finds partners that spoiling does not."""

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.benchmark.tasks import get_task
from cadenza.benchmark.zoo.rotate import Rotate, RotateConfig, train_rotate
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.core.payloads import serialise
from tests.campaigns import size
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


def beside_fixed(agent, action, game, games=100):
    """Return what the greedy ego gets beside a partner that always does one thing; 3 at least."""
    env, state, total = game(games), None, 0.0
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
    train_rotate(config(iterations=1), str(tmp_path / "half"))
    again = train_rotate(config(), tmp_path / "half")
    with pytest.raises(ConfigurationError, match=r"with config\.seed = 0, got 1"):
        train_rotate(config(seed=1), tmp_path / "half")
    policies = [folder / "ego.policy.safetensors" for folder in tmp_path.iterdir()]
    assert policies[0].read_bytes() == policies[1].read_bytes()
    np.testing.assert_array_equal(again.figures[1].after, whole.figures[1].after)


def test_settings_take_the_tasks_episodes_and_at_least_one_partner():
    asked = config(task="crossing", episode_length=None)
    assert asked.horizon == get_task("crossing").episode_length == 200
    with pytest.raises(ConfigurationError, match="partners"):
        config(partners=0)


class Last(Repeated):
    """Shows nothing but what the other did last."""

    def __init__(self, copies):
        super().__init__(copies)
        box = spaces.Box(0.0, 1.0, (4,), np.float32)
        robots = {uid: spaces.Dict({"state": box}) for uid in self.agent_uids}
        self.single_observation_space = spaces.Dict({"agent": spaces.Dict(robots)})

    def _observe(self):
        seen = np.eye(4, dtype=np.float32)[self.chosen]
        return {"agent": {uid: {"state": seen[1 - k]} for k, uid in enumerate(self.agent_uids)}}


@pytest.mark.slow  # whole iterations
def test_partners_that_do_well_elsewhere_teach_the_ego_every_convention():
    learning = {"rollout_length": 4, "batch_size": 512, "epochs": 4, "learning_rate": 0.03}
    learning |= {"hidden_sizes": (), "entropy_coefficient": 0.01}
    settings = {
        "partners": 4,
        "num_envs": 32,
        "partner_steps": 3 * 4 * 128 * 120,
        "ego_steps": 4 * 128 * 150,
        "partner_ppo": learning,
        "ego": {**learning, "memory": None},
    }
    training = Rotate(config(**settings), Last)
    for _ in range(size(1, 2)):
        told = training.iterate()
        assert told.best.mean() > 3.7  # of 4: they do not merely spoil
        fixed = [beside_fixed(training.ego, action, Last) for action in range(3)]
        assert min(fixed) > 2.9  # all but the first step, whatever the partner holds to
    assert told.regret.min() > 2.0

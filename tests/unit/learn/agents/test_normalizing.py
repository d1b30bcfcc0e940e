"""Scaled observations and rewards: what is learned does not depend on their units."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from tests.campaigns import size
from tests.unit.learn.counting_envs import TargetTeam

BOTH = {"normalize_observations": True, "normalize_rewards": True}
SMALL = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 10}
ROLLOUTS = {
    "rollout_length": 16,
    "batch_size": 16,
    "epochs": 4,
    "hidden_sizes": (8,),
    "learning_rate": 3e-3,
}
MODEL = {
    "ensemble_size": 2,
    "num_elites": 1,
    "model_hidden": 8,
    "model_layers": 1,
    "model_updates": 10,
    "rollout_every": 5,
    "rollout_states": 16,
}
#: Quick settings of every algorithm that scales.
SETTINGS = {
    "SAC": SMALL,
    "TD3": SMALL,
    "HLGauss": {**SMALL, "min_value": -40.0, "max_value": 40.0},
    "DQN": SMALL,
    "MBPO": {**SMALL, **MODEL},
    "PPO": {**ROLLOUTS, "num_envs": 4},
    "GRPO": {**ROLLOUTS, "num_envs": 4},
    "MAPPO": {**ROLLOUTS, "num_envs": 4},
    "HAPPO": {**ROLLOUTS, "num_envs": 4},
    "HATD3": {**SMALL, "num_envs": 4, "train_every": 4},
}
#: One for each kind of file: bounded, choices, a density, a team.
EXPORTED = size(("SAC", "DQN", "PPO", "HATD3"), tuple(SETTINGS))
TEAMS = ("MAPPO", "HAPPO", "HATD3")
#: Units of each component of an observation, and of a reward, and where observations begin to
#: count; powers of two round nothing.
UNITS, PAID = np.array([2.0**10, 2.0**-4], np.float32), 2.0**6
ORIGIN = np.array([2.0**14, -8.0], np.float32)


def in_units(told, units):
    """Return numbers in [-1, 1] in these units; without any, as they are."""
    return told * UNITS + ORIGIN if units else told


def drawn(rng, *shape):
    return (np.round(64.0 * rng.uniform(-1.0, 1.0, (*shape, 2))) / 64.0).astype(np.float32)


class Target(gym.Env):
    """Pays for following the first of two numbers, in other units or none; lasts five steps."""

    def __init__(self, units=False, choices=False):
        self.units, self.choices = units, choices
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(3) if choices else spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        done = action - 1.0 if self.choices else float(action[0])
        reward = -abs(float(self.told[0]) - done)
        self.time += 1
        reward *= PAID if self.units else 1.0
        return self._look(), reward, False, self.time == 5, {}

    def _look(self):
        self.told = drawn(self.np_random)
        return in_units(self.told, self.units)


class UnitTeam(TargetTeam):
    """`TargetTeam` in other units or none."""

    def __init__(self, num_envs, units=False):
        super().__init__(num_envs, widths=(2, 2))
        self.units = units

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * (PAID if self.units else 1.0), *rest

    def _observation(self):
        self.x = np.round(64.0 * self.x) / 64.0
        seen = super()._observation()["agent"]
        return {"agent": {uid: {"state": in_units(seen[uid]["state"], self.units)} for uid in seen}}


def world(name, units):
    if name in TEAMS:
        return partial(UnitTeam, units=units)
    return partial(Target, units, choices=name == "DQN")


def trained(name, *, units=False, on=True):
    scaling = BOTH if on else {}
    if name == "GRPO":  # returns are compared within groups, whatever their unit
        scaling = dict(list(scaling.items())[:1])
    made = getattr(cadenza, name)(world(name, units), seed=0, **SETTINGS[name], **scaling)
    return made.learn(128 if on else 192, progress=False)


def rows(name, *, units=False):
    told = in_units(drawn(np.random.default_rng(0), 9), units)
    return np.concatenate((told, told), axis=1) if name in TEAMS else told


def actions(decided):
    return np.concatenate([np.ravel(each) for each in decided]).astype(np.float64)


@pytest.mark.parametrize("name", SETTINGS)
def test_units_change_nothing_that_is_learned_played_or_exported(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    plain, other = trained(name), trained(name, units=True)
    seen = rows(name, units=True)
    decided = actions(other.predict(seen))
    assert decided.std() > 1e-3
    np.testing.assert_allclose(decided, actions(plain.predict(rows(name))), atol=1e-3)
    mean = other.evaluate(5).mean
    assert mean == pytest.approx(PAID * plain.evaluate(5).mean, rel=1e-3)

    again = cadenza.load(other.save(tmp_path / "agent"), world(name, True))
    np.testing.assert_array_equal(actions(again.predict(seen)), decided)
    assert again.evaluate(5).mean == mean
    if name not in EXPORTED:
        return
    session = runtime.InferenceSession(other.export_onnx(tmp_path / "agent.onnx"))
    (given,) = session.get_inputs()
    np.testing.assert_allclose(actions(session.run(None, {given.name: seen})), decided, atol=1e-4)
    files = other.export_policy(tmp_path / "policy")
    parts = np.split(seen, len(files), axis=1)
    played = [cadenza.load(file).predict(part) for file, part in zip(files, parts, strict=True)]
    np.testing.assert_allclose(actions(played), decided, atol=1e-4)


@pytest.mark.parametrize("name", ["SAC", "PPO", "HAPPO"])
def test_without_scaling_units_change_what_is_learned(name):
    plain, other = trained(name, on=False), trained(name, units=True, on=False)
    difference = actions(other.predict(rows(name, units=True))) - actions(plain.predict(rows(name)))
    assert np.abs(difference).max() > 0.05


@pytest.mark.parametrize("name", ["SAC", "PPO", "HAPPO", "HATD3"])
def test_new_episodes_begin_with_no_return_and_keep_the_spread(name):
    agent = trained(name)

    def known():
        return agent.state_dict()["learned"]["learner"]["reward_moments"]

    agent.begin(20)
    agent.step()
    while not all(known()["returns"]):  # until all are in the middle of an episode
        agent.step()
    before = known()
    agent.forget()
    assert not any(known()["returns"])
    assert known()["statistics"] == before["statistics"]


class Far(gym.Env):
    """Pays for following a small number beside a large offset; lasts five steps."""

    observation_space = spaces.Box(-2e4, 2e4, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = -1000.0 * abs(self.told / 0.01 - np.sum(action))
        self.time += 1
        return self._look(), float(reward), False, self.time == 5, {}

    def _look(self):
        self.told = self.np_random.uniform(-0.01, 0.01)
        return np.array([1e4, self.told], np.float32)


def agent(**settings):
    return cadenza.SAC(Far, seed=0, **{**SMALL, **BOTH, **settings})


def test_a_saved_training_goes_on_bit_for_bit(tmp_path):
    whole = agent().learn(60, progress=False)
    path = agent().learn(33, progress=False).save(tmp_path / "half")
    again = cadenza.SAC.load(path, Far).learn(27, progress=False)
    for ours, theirs in zip(*(a.learner.pi.parameters() for a in (again, whole)), strict=True):
        assert torch.equal(ours, theirs)


def test_scaling_learns_a_badly_scaled_task_and_plain_does_not():
    means = {}
    for scaled in (True, False):
        settings = {
            **dict.fromkeys(BOTH, scaled),
            "gamma": 0.0,
            "learning_rate": 3e-3,
            "hidden_sizes": (32,),
            "batch_size": 64,
            "warmup_steps": 100,
        }
        means[scaled] = [
            cadenza.SAC(Far, seed=seed, **settings).learn(400, progress=False).evaluate(20).mean
            for seed in range(size(2, 5))
        ]
    # Standing still costs 5 * 500 per episode.
    assert min(means[True]) > -1500.0 > max(means[False])


def test_a_wrapper_that_normalises_by_itself_is_told_what_to_use_instead():
    def make():
        return gym.wrappers.NormalizeObservation(Far())

    with pytest.warns(UserWarning, match="use normalize_observations=True instead"):
        cadenza.SAC(make)

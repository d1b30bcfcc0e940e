"""Scaled observations and rewards of agents with a replay memory."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.aht.config import EgoAHTConfig
from cadenza.core.errors import ConfigurationError
from cadenza.learn.memory.builder import OBSERVATION_KEY
from tests.campaigns import size

BOTH = {"normalize_observations": True, "normalize_rewards": True}
SMALL = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 10}


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


class FarChoices(Far):
    action_space = spaces.Discrete(2)

    def step(self, action):
        return super().step(2.0 * action - 1.0)


def agent(name="SAC", **settings):
    make = FarChoices if name == "DQN" else Far
    return getattr(cadenza, name)(make, seed=0, **{**SMALL, **BOTH, **settings})


@pytest.mark.parametrize("name", ["SAC", "TD3", "HLGauss", "DQN"])
def test_what_is_learned_from_has_unit_scale_and_files_play_alike(name, tmp_path):
    trained = agent(name).learn(200, progress=False)
    raw = trained.memory.sample(64)["observation"][OBSERVATION_KEY]
    assert (raw[:, 0] == 1e4).all()  # the memory holds what was seen
    batches = [trained.batch() for _ in range(200)]
    small = torch.cat([batch["observation"][OBSERVATION_KEY] for batch in batches])
    assert small[:, 0].abs().max() < 1e-3
    assert small[:, 1].std() == pytest.approx(1.0, abs=0.2)
    rewards = torch.cat([batch["rewards"] for batch in batches])
    assert 0.05 < rewards.std() < 1.0
    seen = Far().observation_space.sample() * 0 + np.array([1e4, 0.003], np.float32)
    path = trained.save(tmp_path / "agent")
    again = cadenza.load(path)
    np.testing.assert_array_equal(again.predict(seen), trained.predict(seen))
    (policy,) = trained.export_policy(tmp_path / "policy")
    np.testing.assert_allclose(
        cadenza.load(policy).predict(seen), trained.predict(seen), rtol=1e-5, atol=1e-6
    )
    assert again.evaluate(5, env=type(trained.envs.make())()).returns == trained.evaluate(5).returns


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
            cadenza.SAC(Far, seed=seed, **settings).learn(900, progress=False).evaluate(20).mean
            for seed in range(size(2, 5))
        ]
    # Standing still costs 5 * 500 per episode.
    assert min(means[True]) > -1500.0 > max(means[False])


def test_mbpo_says_that_its_model_is_not_scaled():
    with pytest.raises(ConfigurationError, match="MBPO: expected neither"):
        cadenza.MBPO(Far, normalize_rewards=True)


def test_a_wrapper_that_normalises_by_itself_is_told_what_to_use_instead():
    def make():
        return gym.wrappers.NormalizeObservation(Far())

    with pytest.warns(UserWarning, match="use normalize_observations=True instead"):
        cadenza.SAC(make)


@pytest.mark.parametrize("setting", list(BOTH))
def test_ego_training_says_that_it_scales_nothing(setting):
    with pytest.raises(ValueError, match=rf"td3\.{setting}"):
        EgoAHTConfig.model_validate({"algo": "td3", "td3": {setting: True}, "env": {"task": "x"}})


@pytest.mark.parametrize(("name", "env"), [("SAC", Far), ("TD3", Far), ("DQN", FarChoices)])
def test_onnx_file_scales_as_the_agent_does(tmp_path, name, env):
    runtime = pytest.importorskip("onnxruntime")
    agent = getattr(cadenza, name)(env, seed=0, **SMALL, **BOTH).learn(40, progress=False)
    session = runtime.InferenceSession(agent.export_onnx(tmp_path / "far.onnx"))
    seen = np.array([[1e4, told] for told in np.linspace(-0.01, 0.01, 9)], np.float32)
    (actions,) = session.run(None, {"obs": seen})
    np.testing.assert_allclose(actions, agent.predict(seen), atol=1e-4)

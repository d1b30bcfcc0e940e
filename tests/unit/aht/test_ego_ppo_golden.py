"""Published numbers of the shipped cooperative-push configuration, root seed 0."""

from pathlib import Path

import numpy as np
import pytest

from cadenza.aht.config import load_config
from cadenza.aht.ego_ppo import EgoPPOTrainer
from cadenza.core.seeding import derive_substream
from cadenza.envs.mpe import MPECooperativePushEnv
from tests.unit.aht.ego_ppo_fakes import StillPartner

CONFIG = Path(__file__).parents[3] / "configs" / "train" / "mpe_cooperative_push.yaml"
FIRST_ACTIONS = [(-0.40382317, 0.2165183), (-0.59025323, -0.69424635), (0.3650584, -0.21932994)]
FIRST_REWARDS = [-1.88605888, -1.84606193, -1.81625015]
FIRST_RETURN = -85.11106


class CentreSeeker(StillPartner):
    """Walks to the origin: the shipped configuration's partner."""

    def act(self, obs, *, deterministic=True):
        return np.clip(-obs["agent"]["partner"]["state"][:2], -1.0, 1.0)


@pytest.fixture(scope="module")
def one_rollout():
    """The first 1024 frames and the update after them."""
    settings = load_config(config_path=CONFIG, overrides=["seed=0"])
    env, partner = MPECooperativePushEnv(root_seed=0), CentreSeeker()
    learner = EgoPPOTrainer.from_config(settings, env=env, partner=partner, ego_uid="ego")
    obs, _ = env.reset(seed=0)
    actions, rewards, episode = [], [], 0
    for _ in range(settings.happo.rollout_length):
        action = learner.act(obs)
        step = {"ego": action, "partner": partner.act(obs)}
        obs, reward, terminated, truncated, _ = env.step(step)
        learner.observe(
            obs, reward, terminated or truncated, truncated=truncated, terminated=terminated
        )
        actions.append(action)
        rewards.append(reward)
        if truncated:
            episode += 1
            stream = derive_substream(f"training.episode.{episode}", root_seed=0)
            obs, _ = env.reset(seed=stream.integer_seed())
    learner.update()
    return np.array(actions), np.array(rewards), learner.state_dict()["actor"]


def test_first_sampled_actions_are_the_published_ones(one_rollout):
    assert np.allclose(one_rollout[0][:3], FIRST_ACTIONS, rtol=0.0, atol=1e-6)


def test_first_rewards_are_the_published_ones(one_rollout):
    assert np.allclose(one_rollout[1][:3], FIRST_REWARDS, rtol=0.0, atol=1e-7)


def test_first_episode_return_is_the_published_one(one_rollout):
    assert one_rollout[1][:50].sum() == pytest.approx(FIRST_RETURN, abs=1e-5)


def test_parameters_after_one_update_are_the_published_ones(one_rollout):
    actor = one_rollout[2]
    log_std = actor["act.action_out.log_std"].tolist()
    bias = actor["act.action_out.fc_mean.bias"].tolist()
    assert log_std == pytest.approx([1.0009, 0.9995], abs=6e-5)
    assert bias == pytest.approx([0.0002, 0.0010], abs=6e-5)

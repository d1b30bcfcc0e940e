"""Soft actor-critic with HL-Gauss critics on Pendulum-v1: some five minutes per seed.

python examples/hl_gauss_pendulum.py --seeds 3
"""

from functools import partial

import gymnasium
import torch
from harness import Run, evaluate_policy, main
from off_policy import Settings
from soft_actor_critic import learn
from torch import nn
from torch.optim import Adam

from cadenza.learn.algorithms.hlgauss import LogitMlp, QLoss, QNet
from cadenza.learn.callbacks import LossCallback

ENV_ID = "Pendulum-v1"
#: Rewards are in [-16.3, 0]; scaled by 0.1, episodes of 200 steps return about -150 at worst with
#: the discount 0.99, and the entropy adds a little.
REWARD_SCALE = 0.1
MIN_VALUE, MAX_VALUE, BINS = -160.0, 20.0, 101


def classifying_critic(
    name: str, observation_dim: int, action_dim: int, settings: Settings, rng: torch.Generator
) -> tuple[nn.Module, LossCallback]:
    """Return a critic that classifies its target into bins."""
    logits = LogitMlp(observation_dim, action_dim, settings.hidden_dims, BINS, generator=rng)
    critic = QNet(logits, MIN_VALUE, MAX_VALUE)
    optimizer = Adam(critic.parameters(), settings.learning_rate, fused=True)
    return critic, QLoss(name=name, q=critic, opt=optimizer)


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(env_steps=run.steps, reward_scale=REWARD_SCALE)
    learned = learn(partial(gymnasium.make, ENV_ID), settings, run, classifying_critic)
    returns = evaluate_policy(learned.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=learned.env_steps, updates=learned.updates)


if __name__ == "__main__":
    main(train, name="hl_gauss_pendulum", steps=20_000, smoke_steps=1_100, evaluation_episodes=50)

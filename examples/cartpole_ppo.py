"""PPO on CartPole-v1: 8 environments, 100 000 steps, about 20 seconds of one core per seed.

python examples/cartpole_ppo.py --seeds 5
"""

from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run, evaluate_policy, main

from cadenza.learn.algorithms.ppo import PPO, PPOReport
from cadenza.learn.configs import PPOConfig

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
CONFIG = PPOConfig(
    rollout_length=32,
    batch_size=256,
    epochs=20,
    learning_rate=1e-3,
    decay_learning_rate=True,
    gamma=0.98,
    gae_lambda=0.8,
)


def learn_cartpole(
    *, seed: int, steps: int, on_update: Callable[[PPOReport], None] | None = None
) -> PPO:
    """Return PPO after ``steps`` environment steps; its ``policy`` is greedy."""
    envs = SyncVectorEnv(
        [lambda: gymnasium.make(ENV_ID)] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    ppo = PPO(envs, CONFIG, seed=seed)
    ppo.learn(steps, on_update)
    envs.close()
    return ppo


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    recent: list[float] = []

    def report(progress: PPOReport) -> None:
        recent.extend(progress.episode_returns)
        if progress.updates % 20 == 0 and recent:
            run.report(progress.steps, float(np.mean(recent)))
            recent.clear()

    ppo = learn_cartpole(seed=run.seed, steps=run.steps, on_update=report)
    returns = evaluate_policy(ppo.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=ppo.steps, updates=ppo.updates)


if __name__ == "__main__":
    main(train, name="cartpole_ppo", steps=100_000, smoke_steps=1_024, evaluation_episodes=100)

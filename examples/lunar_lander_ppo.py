"""PPO on LunarLander-v3: 16 environments, 800 000 steps, about two minutes of one core per seed.

    python examples/lunar_lander_ppo.py --seeds 3

Rewards are divided by the running spread of the return: crashes of -100 would otherwise keep the
critic busy for the first 300 000 steps.
Needs `pip install 'cadenza[box2d]'`.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run, evaluate_policy, main

from cadenza.learn.algorithms.ppo import PPO, PPOReport
from cadenza.learn.configs import PPOConfig

ENV_ID = "LunarLander-v3"
NUM_ENVS = 16
CONFIG = PPOConfig(
    rollout_length=1024,
    batch_size=64,
    epochs=4,
    gamma=0.999,
    gae_lambda=0.98,
    entropy_coefficient=0.01,
    normalize_rewards=True,
)
#: A smoke run updates twice.
SMOKE_CONFIG = PPOConfig(rollout_length=64, batch_size=64, epochs=1, normalize_rewards=True)


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    envs = SyncVectorEnv(
        [lambda: gymnasium.make(ENV_ID)] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    ppo = PPO(envs, SMOKE_CONFIG if run.smoke else CONFIG, seed=run.seed)

    def report(progress: PPOReport) -> None:
        if progress.episode_returns:
            run.report(progress.steps, float(np.mean(progress.episode_returns)))

    ppo.learn(run.steps, report)
    envs.close()
    returns = evaluate_policy(ppo.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=ppo.steps, updates=ppo.updates)


if __name__ == "__main__":
    main(train, name="lunar_lander_ppo", steps=800_000, smoke_steps=2_048, evaluation_episodes=100)

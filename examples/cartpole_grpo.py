"""GRPO on CartPole-v1: no critic; four groups of eight poles that start alike.

    python examples/cartpole_grpo.py --seeds 5

Every rollout is one episode per pole, at most 500 steps, and ends as soon as the last pole fell.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run, evaluate_policy, main

from cadenza.learn.algorithms.grpo import GRPO, GRPOReport
from cadenza.learn.configs import GRPOConfig

ENV_ID = "CartPole-v1"
NUM_ENVS = 32
CONFIG = GRPOConfig(
    rollout_length=500,
    group_size=8,
    batch_size=256,
    epochs=10,
    learning_rate=1e-3,
    decay_learning_rate=True,
    refresh_reference_every=10,
)


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    envs = SyncVectorEnv(
        [lambda: gymnasium.make(ENV_ID)] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    grpo = GRPO(envs, CONFIG, seed=run.seed)

    def report(progress: GRPOReport) -> None:
        run.report(progress.steps, float(np.mean(progress.episode_returns)))

    grpo.learn(run.steps, report)
    envs.close()
    returns = evaluate_policy(grpo.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=grpo.steps, updates=grpo.updates)


if __name__ == "__main__":
    main(train, name="cartpole_grpo", steps=200_000, smoke_steps=2_048, evaluation_episodes=100)

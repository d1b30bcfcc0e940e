"""Soft actor-critic on Pendulum-v1: 20 000 environment steps, some four minutes per seed.

python examples/pendulum_sac.py --seeds 5
"""

from functools import partial

import gymnasium
from harness import Run, evaluate_policy, main
from off_policy import Settings
from soft_actor_critic import learn

ENV_ID = "Pendulum-v1"


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(env_steps=run.steps)
    learned = learn(partial(gymnasium.make, ENV_ID), settings, run)
    returns = evaluate_policy(learned.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=learned.env_steps, updates=learned.updates)


if __name__ == "__main__":
    main(train, name="pendulum_sac", steps=20_000, smoke_steps=1_100, evaluation_episodes=50)

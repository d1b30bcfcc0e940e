"""Soft actor-critic on HalfCheetah-v5: a start, not a record.

    python examples/half_cheetah_sac.py

Published runs take a million steps. This one takes what fits into about ten minutes of one core.
Needs `pip install 'cadenza[mujoco]'`.
"""

from functools import partial

import gymnasium
from harness import Run, evaluate_policy, main
from off_policy import Settings
from soft_actor_critic import learn

ENV_ID = "HalfCheetah-v5"


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(
        env_steps=run.steps,
        # An episode lasts 1 000 steps and reaches the memory with the step after its last.
        warmup_steps=min(4_004, run.steps - 1),
        learning_rate=1e-3,
        memory=1_000_000,
    )
    learned = learn(partial(gymnasium.make, ENV_ID), settings, run)
    returns = evaluate_policy(learned.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=learned.env_steps, updates=learned.updates)


if __name__ == "__main__":
    main(train, name="half_cheetah_sac", steps=60_000, smoke_steps=4_100, evaluation_episodes=10)

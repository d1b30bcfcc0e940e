"""Soft actor-critic on LunarLanderContinuous-v3; needs `pip install 'cadenza[box2d]'`.

python examples/lunar_lander_sac.py --seeds 3
"""

from functools import partial

import gymnasium
from harness import Run, evaluate_policy, main
from off_policy import Settings
from soft_actor_critic import learn

ENV_ID = "LunarLanderContinuous-v3"


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(
        env_steps=run.steps,
        warmup_steps=min(10_000, run.steps * 9 // 10),
        learning_rate=7.3e-4,
        tau=0.01,
    )
    learned = learn(partial(gymnasium.make, ENV_ID), settings, run)
    returns = evaluate_policy(learned.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=learned.env_steps, updates=learned.updates)


if __name__ == "__main__":
    main(train, name="lunar_lander_sac", steps=120_000, smoke_steps=1_600, evaluation_episodes=50)

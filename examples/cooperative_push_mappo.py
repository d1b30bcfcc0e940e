"""MAPPO on cooperative push: both robots share one policy, a central critic sees everything.

python examples/cooperative_push_mappo.py --seeds 3
"""

from harness import Run, main
from team import UIDS, evaluate_team, progress_of, training_envs

from cadenza.learn.algorithms.mappo import MAPPO
from cadenza.learn.configs import PPOConfig

NUM_ENVS = 16
CONFIG = PPOConfig(
    rollout_length=100,
    batch_size=400,
    epochs=5,
    learning_rate=7e-4,
    gamma=0.95,
    max_gradient_norm=10.0,
    normalize_rewards=True,
    initial_log_std=-0.5,
)


def train(run: Run) -> None:
    """Train one seed and evaluate the greedy team."""
    mappo = MAPPO(training_envs(NUM_ENVS, run.seed), UIDS, CONFIG, seed=run.seed)
    mappo.learn(run.steps, progress_of(run, every=5))
    returns = evaluate_team(mappo.policy, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=mappo.steps, updates=mappo.updates)


if __name__ == "__main__":
    main(
        train,
        name="cooperative_push_mappo",
        steps=500_000,
        smoke_steps=3_200,
        evaluation_episodes=100,
    )

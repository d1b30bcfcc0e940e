"""HAPPO on cooperative push: each robot has a policy of its own, updated one after the other.

python examples/cooperative_push_happo.py --seeds 3
"""

from harness import Run, main
from team import UIDS, evaluate_team, progress_of, training_envs

from cadenza.learn.algorithms.happo_team import HAPPO
from cadenza.learn.configs import HAPPOConfig

NUM_ENVS = 16
CONFIG = HAPPOConfig(
    rollout_length=100,
    batch_size=400,
    epochs=5,
    learning_rate=1e-3,
    gamma=0.95,
    entropy_coefficient=0.0,
    max_action_std=1.0,
    normalize_rewards=True,
)


def train(run: Run) -> None:
    """Train one seed and evaluate the greedy team."""
    happo = HAPPO(training_envs(NUM_ENVS, run.seed), UIDS, CONFIG, seed=run.seed)
    happo.learn(run.steps, progress_of(run, every=5))
    returns = evaluate_team(happo.policy, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=happo.steps, updates=happo.updates)


if __name__ == "__main__":
    main(
        train,
        name="cooperative_push_happo",
        steps=500_000,
        smoke_steps=3_200,
        evaluation_episodes=100,
    )

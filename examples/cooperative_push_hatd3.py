"""HATD3 on cooperative push: off-policy, deterministic policies, twin central critics.

    python examples/cooperative_push_hatd3.py --seeds 3

It needs a fifth of the steps of the on-policy examples and about as much time.
"""

from harness import Run, main
from team import UIDS, evaluate_team, progress_of, training_envs

from cadenza.learn.algorithms.hatd3_team import HATD3
from cadenza.learn.configs import HATD3Config

NUM_ENVS = 16
CONFIG = HATD3Config(
    learning_rate=1e-3,
    gamma=0.95,
    hidden_sizes=(64, 64),
    memory_size=200_000,
    warmup_steps=2_000,
    train_every=16,
    updates=2,
)


def train(run: Run) -> None:
    """Train one seed and evaluate the greedy team."""
    hatd3 = HATD3(training_envs(NUM_ENVS, run.seed), UIDS, CONFIG, seed=run.seed)
    hatd3.learn(run.steps, progress_of(run), report_every=2_400)
    returns = evaluate_team(hatd3.policy, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=hatd3.steps, updates=hatd3.learner.updates)


if __name__ == "__main__":
    main(
        train,
        name="cooperative_push_hatd3",
        steps=100_000,
        smoke_steps=3_200,
        evaluation_episodes=100,
    )

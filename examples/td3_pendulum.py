"""TD3 on Pendulum-v1: 10 000 environment steps, about a minute of one core per seed.

python examples/td3_pendulum.py --seeds 5
"""

from functools import partial

import gymnasium
from harness import Run, evaluate_policy, main
from off_policy import Algorithm, Settings, torch_generator, train_off_policy
from soft_actor_critic import squared_error_critic
from torch.optim import Adam

from cadenza.learn.algorithms.td3 import PolicyLoss, QTarget
from cadenza.learn.nn.deterministic_policy import DeterministicMlpPolicy, ExploringPolicy

ENV_ID = "Pendulum-v1"
#: Standard deviation of the exploration, in the scaled action.
EXPLORATION = 0.2


def td3(observation_dim: int, action_dim: int, settings: Settings, seed: int) -> Algorithm:
    """Return policy and callbacks of TD3."""
    weights = torch_generator("td3.weights", seed)
    policy = DeterministicMlpPolicy(
        observation_dim, action_dim, settings.hidden_dims, init_generator=weights
    )
    (q1, q1_loss), (q2, q2_loss) = (
        squared_error_critic(name, observation_dim, action_dim, settings, weights)
        for name in ("q1", "q2")
    )
    policy_loss = PolicyLoss(
        pi=policy, q=q1, opt=Adam(policy.parameters(), settings.learning_rate, fused=True)
    )
    target = QTarget(
        pi=policy,
        q1=q1,
        q2=q2,
        gamma=settings.gamma,
        target_q_tau=settings.tau,
        generator=torch_generator("td3.smoothing", seed),
    )
    exploration = torch_generator("td3.exploration", seed)
    return Algorithm(
        acting=ExploringPolicy(policy, EXPLORATION, generator=exploration),
        returns_log_probability=False,
        callbacks=[q1_loss, q2_loss, policy_loss, target],
    )


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(env_steps=run.steps)
    learned = train_off_policy(partial(gymnasium.make, ENV_ID), settings, run, td3)
    returns = evaluate_policy(learned.policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=learned.env_steps, updates=learned.updates)


if __name__ == "__main__":
    main(train, name="td3_pendulum", steps=10_000, smoke_steps=1_100, evaluation_episodes=50)

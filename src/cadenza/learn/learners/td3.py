"""Twin delayed deep deterministic policy gradient for flat observations.

Source:  arXiv:1802.09477.
Axes:    B = batch, N = environments, O = observation, A = action.
"""

from typing import Any

import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.learn.algorithms.sac_assembly import adam
from cadenza.learn.algorithms.td3 import PolicyLoss, QLoss, QTarget
from cadenza.learn.learners.replay_learner import BoxLearner, linear_weights
from cadenza.learn.learners.settings import LearnerNumbers, TD3Numbers
from cadenza.learn.memory.transitions import TransitionMemory
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.deterministic_policy import DeterministicMlpPolicy, ExploringPolicy
from cadenza.learn.nn.mlp_policy import MlpPolicy


class TD3Learner(BoxLearner):
    """TD3 assembled from its callbacks.

    Args:
        observation_dim: O.
        action_dim: A.
        numbers: Numbers of the updates.
        td3: Delay and noises.
        seed: Root of the streams ``learn.td3.*``.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        numbers: LearnerNumbers,
        td3: TD3Numbers,
        seed: int = 0,
    ) -> None:
        super().__init__("td3", numbers, action_dim=action_dim, seed=seed)
        sizes, rate = list(numbers.hidden_sizes), numbers.learning_rate
        norm = numbers.max_gradient_norm
        self._policy = DeterministicMlpPolicy(
            observation_dim, action_dim, sizes, init_generator=self.weights
        )
        self._explorer = ExploringPolicy(self._policy, td3.exploration_noise, generator=self.noise)
        critics = [
            ActionValueMlp(observation_dim, action_dim, sizes, generator=self.weights)
            for _ in range(2)
        ]
        critic_losses = [
            QLoss(name=f"q{i + 1}", q=critic, opt=adam(critic, rate), max_grad_norm=norm)
            for i, critic in enumerate(critics)
        ]
        policy_loss = PolicyLoss(
            pi=self._policy,
            q=critics[0],
            opt=adam(self._policy, rate),
            max_grad_norm=norm,
            policy_delay=td3.policy_delay,
        )
        target = QTarget(
            pi=self._policy,
            q1=critics[0],
            q2=critics[1],
            gamma=numbers.gamma,
            target_q_tau=numbers.tau,
            target_noise=td3.target_noise,
            noise_clip=td3.noise_clip,
            policy_delay=td3.policy_delay,
            generator=self.noise,
        )
        self.run(
            [critic_losses, [policy_loss]],
            target,
            lambda batch: {"next_policy_noise": target.draw(len(batch["rewards"]), action_dim)},
        )

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return actions with noise, in [−1, 1], (N, A)."""
        del frames
        return self._explorer(torch.from_numpy(states)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of the critics and, when due, of the policy."""
        return self.train_on(memory.sample(self.numbers.batch_size))

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh f(s), scaled."""
        return MlpPolicy(
            weights=linear_weights(self._policy),
            activation="relu",
            output="tanh",
            low=torch.tensor(low),
            high=torch.tensor(high),
        )

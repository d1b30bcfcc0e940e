"""Twin delayed deep deterministic policy gradient for flat observations.

Source:  arXiv:1802.09477.
Axes:    B = batch, N = environments, O = observation, A = action.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from cadenza.core.arrays import Float32Array
from cadenza.learn.algorithms.sac_assembly import adam
from cadenza.learn.algorithms.td3 import PolicyLoss, QLoss, QTarget
from cadenza.learn.configs import TD3Config
from cadenza.learn.learners.replay_learner import BoxLearner
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.deterministic_policy import DeterministicMlpPolicy, ExploringPolicy
from cadenza.learn.nn.encoding import EncoderFactory
from cadenza.learn.nn.mlp_policy import MlpPolicy


class TD3Learner(BoxLearner):
    """TD3 assembled from its callbacks.

    Args:
        observation_dim: O.
        action_dim: A.
        config: Settings.
        seed: Root of the streams ``learn.td3.*``.
        encoder: See `CallbackLearner`.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: TD3Config | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
    ) -> None:
        config = config or TD3Config()
        super().__init__("td3", observation_dim, action_dim, config, seed=seed, encoder=encoder)
        sizes, rate, norm = config.hidden_sizes, config.learning_rate, config.max_gradient_norm
        self._plain, policy, features = self.encoded(
            lambda width: DeterministicMlpPolicy(
                width, action_dim, sizes, init_generator=self.weights
            )
        )
        self.greedy = nn.Sequential(*features, self._plain)
        self._explorer = ExploringPolicy(policy, config.exploration_noise, generator=self.noise)
        critics = [
            self.encoded(
                lambda width: ActionValueMlp(width, action_dim, sizes, generator=self.weights)
            )[1]
            for _ in range(2)
        ]
        critic_losses = [
            QLoss(name=f"q{i + 1}", q=critic, opt=adam(critic, rate), max_grad_norm=norm)
            for i, critic in enumerate(critics)
        ]
        policy_loss = PolicyLoss(
            pi=policy,
            q=critics[0],
            opt=adam(policy, rate),
            max_grad_norm=norm,
            policy_delay=config.policy_delay,
        )
        target = QTarget(
            pi=policy,
            q1=critics[0],
            q2=critics[1],
            gamma=config.gamma,
            target_q_tau=config.tau,
            target_noise=config.target_noise,
            noise_clip=config.noise_clip,
            policy_delay=config.policy_delay,
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
        return self._explorer(obs=torch.from_numpy(states)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh f(s), scaled."""
        return self.relu_policy(self._plain, output="tanh", low=low, high=high)

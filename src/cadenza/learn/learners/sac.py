"""Soft actor-critic for flat observations, with scalar or with HL-Gauss critics.

Sources:  arXiv:1812.05905; HL-Gauss critics: arXiv:2403.03950.
Axes:     B = batch, N = environments, O = observation, A = action.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.learn.algorithms import hlgauss
from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.algorithms.sac_assembly import ActorCriticNumbers, adam, soft_actor_critic
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.learners.replay_learner import BoxLearner, linear_weights
from cadenza.learn.learners.settings import HLGaussNumbers, LearnerNumbers, SACNumbers
from cadenza.learn.memory.transitions import TransitionMemory
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy
from cadenza.learn.nn.mlp_policy import MlpPolicy


class SACLearner(BoxLearner):
    """SAC assembled from its callbacks.

    Args:
        observation_dim: O.
        action_dim: A.
        numbers: Numbers of the updates.
        sac: Temperature.
        histogram: Histogram critics; None takes scalar ones.
        seed: Root of the streams ``learn.sac.*``.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        numbers: LearnerNumbers,
        sac: SACNumbers,
        histogram: HLGaussNumbers | None = None,
        seed: int = 0,
    ) -> None:
        name = "sac" if histogram is None else "hlgauss"
        super().__init__(name, numbers, action_dim=action_dim, seed=seed)
        sizes = list(numbers.hidden_sizes)
        self._policy = GaussianMlpPolicy(
            observation_dim, action_dim, sizes, generator=self.noise, init_generator=self.weights
        )
        critics = [self._critic(observation_dim, histogram) for _ in range(2)]
        *losses, target = soft_actor_critic(
            self._policy,
            [self._critic_loss(f"q{i + 1}", c, histogram) for i, c in enumerate(critics)],
            torch.tensor(math.log(sac.initial_alpha), requires_grad=True),
            action_dim,
            ActorCriticNumbers(
                learning_rate=numbers.learning_rate,
                gamma=numbers.gamma,
                tau=numbers.tau,
                max_alpha=sac.max_alpha,
                target_entropy=sac.target_entropy,
                max_grad_norm=numbers.max_gradient_norm,
                max_alpha_grad_norm=numbers.max_gradient_norm,
            ),
        )
        stages = cast("list[LossCallback]", losses)
        self.run([stages[:2], stages[2:]], target, self._draw)

    def _draw(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the policy's noise of one update."""
        rows, head = len(batch["rewards"]), self._policy.policy
        return {"next_policy_noise": head.draw(rows), "policy_noise": head.draw(rows)}

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return drawn actions in [−1, 1], (N, A)."""
        del frames
        return self._policy(torch.from_numpy(states))[0].numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of critics, policy and temperature."""
        return self.train_on(memory.sample(self.numbers.batch_size))

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh μ(s), scaled."""
        return MlpPolicy(
            weights=linear_weights(self._policy.encoder, self._policy.policy.mean),
            activation="relu",
            output="squashed",
            low=torch.tensor(low),
            high=torch.tensor(high),
        )

    def _critic(
        self, observation_dim: int, histogram: HLGaussNumbers | None
    ) -> ActionValueMlp | hlgauss.QNet:
        sizes = list(self.numbers.hidden_sizes)
        if histogram is None:
            return ActionValueMlp(observation_dim, self.action_width, sizes, generator=self.weights)
        logits = hlgauss.LogitMlp(
            observation_dim, self.action_width, sizes, histogram.bins, generator=self.weights
        )
        return hlgauss.QNet(logits, histogram.min_value, histogram.max_value)

    def _critic_loss(
        self, name: str, critic: ActionValueMlp | hlgauss.QNet, histogram: HLGaussNumbers | None
    ) -> QLoss | hlgauss.QLoss:
        optimizer = adam(critic, self.numbers.learning_rate)
        norm = self.numbers.max_gradient_norm
        if histogram is not None and isinstance(critic, hlgauss.QNet):
            return hlgauss.QLoss(
                name=name,
                q=critic,
                opt=optimizer,
                max_grad_norm=norm,
                smoothing_ratio=histogram.smoothing_ratio,
            )
        return QLoss(name=name, q=critic, opt=optimizer, max_grad_norm=norm)

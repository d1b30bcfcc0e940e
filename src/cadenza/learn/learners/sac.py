"""Soft actor-critic for flat observations, with scalar or with HL-Gauss critics.

Sources:  arXiv:1812.05905; HL-Gauss critics: arXiv:2403.03950.
Axes:     B = batch, N = environments, O = observation, A = action.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.learn.algorithms import hlgauss
from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.algorithms.sac_assembly import adam, soft_actor_critic
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.configs import HLGaussConfig, SACConfig
from cadenza.learn.learners.replay_learner import BoxLearner
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.encoding import Decision, EncoderFactory
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy, squashed_mean
from cadenza.learn.nn.mlp_policy import MlpPolicy


class EncodedLogits(hlgauss.LogitNet):
    """Logits of a network behind an encoder.

    Args:
        network: Returns them.
        num_bins: How many.
    """

    def __init__(self, network: nn.Module, num_bins: int) -> None:
        super().__init__(num_bins)
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits, (B, bins)."""
        return self.network(*args, **kwargs)


class SACLearner(BoxLearner):
    """SAC assembled from its callbacks.

    Args:
        observation_dim: O.
        action_dim: A.
        config: Settings; those of HL-Gauss take histogram critics.
        seed: Root of the streams ``learn.sac.*``, or ``learn.hlgauss.*``.
        encoder: See `CallbackLearner`.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: SACConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
    ) -> None:
        config = config or SACConfig()
        name = "hlgauss" if isinstance(config, HLGaussConfig) else "sac"
        super().__init__(name, observation_dim, action_dim, config, seed=seed, encoder=encoder)
        self._plain, self._policy, features = self.encoded(
            lambda width: GaussianMlpPolicy(
                width,
                action_dim,
                config.hidden_sizes,
                generator=self.noise,
                init_generator=self.weights,
            )
        )
        layers = (self._plain.encoder, self._plain.policy.mean)
        self.greedy = nn.Sequential(*features, *layers, Decision(squashed_mean))
        *losses, target = soft_actor_critic(
            self._policy,
            [self._critic_loss("q1", config), self._critic_loss("q2", config)],
            torch.tensor(math.log(config.initial_alpha), requires_grad=True),
            action_dim,
            config,
        )
        stages = cast("list[LossCallback]", losses)
        self.run([stages[:2], stages[2:]], target, self._draw)

    def _draw(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the policy's noise of one update."""
        rows, head = len(batch["rewards"]), self._plain.policy
        return {"next_policy_noise": head.draw(rows), "policy_noise": head.draw(rows)}

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return drawn actions in [−1, 1], (N, A)."""
        del frames
        return self._policy(obs=torch.from_numpy(states))[0].numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh μ(s), scaled."""
        layers = (self._plain.encoder, self._plain.policy.mean)
        return self.relu_policy(*layers, output="squashed", low=low, high=high)

    def _critic_loss(self, name: str, config: SACConfig) -> QLoss | hlgauss.QLoss:
        """Return the loss of a new critic."""
        sizes, norm = config.hidden_sizes, config.max_gradient_norm
        if not isinstance(config, HLGaussConfig):
            critic = self.encoded(
                lambda width: ActionValueMlp(
                    width, self.action_width, sizes, generator=self.weights
                )
            )[1]
            optimizer = adam(critic, config.learning_rate)
            return QLoss(name=name, q=critic, opt=optimizer, max_grad_norm=norm)
        logits, encoded, features = self.encoded(
            lambda width: hlgauss.LogitMlp(
                width, self.action_width, sizes, config.bins, generator=self.weights
            )
        )
        bins = EncodedLogits(encoded, config.bins) if features else logits
        histogram = hlgauss.QNet(bins, config.min_value, config.max_value)
        return hlgauss.QLoss(
            name=name,
            q=histogram,
            opt=adam(histogram, config.learning_rate),
            max_grad_norm=norm,
            smoothing_ratio=config.smoothing_ratio,
        )

"""Deep Q-learning for flat observations: on choices, or on a grid of continuous actions.

On a grid every component takes one of K evenly spaced values from −1 to 1; a choice is one
combination.

Sources:  double Q-learning arXiv:1509.06461; Huber's loss as in the original DQN.
Axes:     B = batch, N = environments, O = observation, A = components, C = choices.
"""

import itertools
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.learn.algorithms.dqn import QLoss, QTarget
from cadenza.learn.algorithms.exploration import EpsilonGreedyPolicy
from cadenza.learn.algorithms.sac_assembly import adam
from cadenza.learn.configs import DQNConfig
from cadenza.learn.learners.replay_learner import CallbackLearner
from cadenza.learn.nn.discrete_q import DiscreteQMlp
from cadenza.learn.nn.encoding import Decision, EncoderFactory
from cadenza.learn.nn.mlp_policy import MlpPolicy

#: Most choices; beyond it a network with one output per choice learns next to nothing.
MAX_CHOICES: Final = 4096


def action_grid(components: int, bins: int) -> Float32Array:
    """Return every combination of ``bins`` values from −1 to 1, (C, A); the last varies fastest.

    Raises:
        ConfigurationError: There are more than 4096.
    """
    if bins**components > MAX_CHOICES:
        raise ConfigurationError(
            f"dqn: expected at most {MAX_CHOICES} combinations of actions, got {bins}^{components}"
            "; lower dqn.action_bins or use sac or td3."
        )
    values = np.linspace(-1.0, 1.0, bins, dtype=np.float32)
    return np.array(list(itertools.product(values, repeat=components)), dtype=np.float32)


class DQNLearner(CallbackLearner):
    """DQN assembled from its callbacks.

    Args:
        observation_dim: O.
        choices: Actions to choose from, (C, A), in [−1, 1]; see `action_grid`.
        config: Settings.
        seed: Root of the streams ``learn.dqn.*``.
        encoder: See `CallbackLearner`.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        choices: Float32Array,
        config: DQNConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
    ) -> None:
        config = config or DQNConfig()
        super().__init__("dqn", observation_dim, config, seed=seed, encoder=encoder)
        self._epsilon = config.epsilon
        self._choices = choices
        self._plain, q, features = self.encoded(
            lambda width: DiscreteQMlp(
                width, len(choices), config.hidden_sizes, generator=self.weights
            )
        )
        self.greedy = nn.Sequential(*features, self._plain, Decision(partial(torch.argmax, dim=-1)))
        self._explorer = EpsilonGreedyPolicy(q, generator=self.noise)
        loss = QLoss(
            name="q",
            q=q,
            opt=adam(q, config.learning_rate),
            max_grad_norm=config.max_gradient_norm,
            huber_delta=config.huber_delta,
        )
        target = QTarget(q_net=q, gamma=config.gamma, target_q_tau=config.tau, double=config.double)
        self.run([[loss]], target)

    @property
    def action_width(self) -> int:
        """1: the index of a choice."""
        return 1

    @property
    def action_dtype(self) -> type[np.generic]:
        """Element type of stored actions."""
        return np.int64

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return ε-greedy choices, (N, 1) int64."""
        self._explorer.epsilon = self._epsilon(frames)
        return self._explorer(obs=torch.from_numpy(states)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn choices, (``rows``, 1) int64."""
        return torch.randint(len(self._choices), (rows, 1), generator=self.noise).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the chosen actions in [−1, 1], (N, A)."""
        return self._choices[stored[:, 0]]

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return the choice of highest value, scaled."""
        scaled = low + (self._choices + 1.0) * 0.5 * (high - low)
        return self.relu_policy(self._plain, output="choice", low=low, high=high, choices=scaled)

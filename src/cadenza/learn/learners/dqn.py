"""Deep Q-learning on a grid of continuous actions.

Every component takes one of K evenly spaced values from −1 to 1; a choice is one combination.

Sources:  double Q-learning arXiv:1509.06461; Huber's loss as in the original DQN.
Axes:     B = batch, N = environments, O = observation, A = components, C = K^A choices.
"""

import itertools
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.learn.algorithms.dqn import QLoss, QTarget
from cadenza.learn.algorithms.exploration import EpsilonGreedyPolicy
from cadenza.learn.algorithms.sac_assembly import adam
from cadenza.learn.learners.replay_learner import CallbackLearner, linear_weights
from cadenza.learn.learners.settings import DQNNumbers, LearnerNumbers
from cadenza.learn.memory.transitions import TransitionMemory
from cadenza.learn.nn.discrete_q import DiscreteQMlp
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
        action_dim: A.
        numbers: Numbers of the updates.
        dqn: Grid, exploration and loss.
        seed: Root of the streams ``learn.dqn.*``.

    Raises:
        ConfigurationError: The grid is too fine.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        numbers: LearnerNumbers,
        dqn: DQNNumbers,
        seed: int = 0,
    ) -> None:
        super().__init__("dqn", numbers, seed=seed)
        self._dqn = dqn
        self._grid = action_grid(action_dim, dqn.action_bins)
        self._q = DiscreteQMlp(
            observation_dim, len(self._grid), list(numbers.hidden_sizes), generator=self.weights
        )
        self._explorer = EpsilonGreedyPolicy(self._q, generator=self.noise)
        loss = QLoss(
            name="q",
            q=self._q,
            opt=adam(self._q, numbers.learning_rate),
            max_grad_norm=numbers.max_gradient_norm,
            huber_delta=dqn.huber_delta,
        )
        target = QTarget(
            q_net=self._q, gamma=numbers.gamma, target_q_tau=numbers.tau, double=dqn.double
        )
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
        self._explorer.epsilon = self._dqn.epsilon(frames)
        return self._explorer(torch.from_numpy(states)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn choices, (``rows``, 1) int64."""
        return torch.randint(len(self._grid), (rows, 1), generator=self.noise).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the chosen actions in [−1, 1], (N, A)."""
        return self._grid[stored[:, 0]]

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update."""
        return self.train_on(memory.sample(self.numbers.batch_size))

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return the choice of highest value, scaled."""
        scaled = low + (self._grid + 1.0) * 0.5 * (high - low)
        return MlpPolicy(
            weights=linear_weights(self._q),
            activation="relu",
            output="choice",
            low=torch.tensor(low),
            high=torch.tensor(high),
            choices=torch.tensor(scaled),
        )

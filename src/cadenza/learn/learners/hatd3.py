"""HATD3 for one learning robot whose critics see the whole team.

With one learning robot the sequential update has one step: what remains of HATD3 is TD3 with
central critics on the joint state (arXiv:2304.09870).

Axes:  N = environments, S = joint state (own columns first), O = own state, A = action.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.learn.algorithms.hatd3 import HATD3Learner, HATD3Settings, TeamBatch
from cadenza.learn.learners.replay_learner import linear_weights
from cadenza.learn.learners.settings import LearnerNumbers, TD3Numbers
from cadenza.learn.memory.transitions import OBSERVATION_KEY, TransitionMemory
from cadenza.learn.nn.mlp_policy import MlpPolicy


class CentralTD3Learner:
    """One robot of HATD3.

    Args:
        observation_dim: O, the learner's own columns of the joint state.
        joint_dim: S.
        action_dim: A.
        numbers: Numbers of the updates.
        td3: Delay and noises.
        seed: Root of the streams ``learn.hatd3.*``.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        joint_dim: int,
        action_dim: int,
        numbers: LearnerNumbers,
        td3: TD3Numbers,
        seed: int = 0,
    ) -> None:
        if numbers.compile or numbers.precision != "float32":
            raise ConfigurationError(
                "hatd3: expected compile = false and precision = float32, got "
                f"{numbers.compile} and {numbers.precision}; td3 has both options."
            )
        self._batch_size = numbers.batch_size
        self._action_dim = action_dim
        self._learner = HATD3Learner(
            columns=[(0, observation_dim)],
            joint_dim=joint_dim,
            action_dims=[action_dim],
            settings=HATD3Settings(
                learning_rate=numbers.learning_rate,
                gamma=numbers.gamma,
                tau=numbers.tau,
                hidden_sizes=numbers.hidden_sizes,
                max_gradient_norm=numbers.max_gradient_norm,
                policy_delay=td3.policy_delay,
                target_noise=td3.target_noise,
                noise_clip=td3.noise_clip,
                exploration_noise=td3.exploration_noise,
            ),
            seed=seed,
        )

    @property
    def action_width(self) -> int:
        """A."""
        return self._action_dim

    @property
    def action_dtype(self) -> type[np.generic]:
        """Element type of stored actions."""
        return np.float32

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return actions with noise, in [−1, 1], (N, A), for joint states (N, S)."""
        del frames
        return self._learner.act(torch.tensor(states))[0].numpy()

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        return self._learner.random_actions(rows)[0].numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of the critics and, when due, of the policy."""
        sample = memory.sample(self._batch_size)
        return self._learner.update(
            TeamBatch(
                states=sample["observation"][OBSERVATION_KEY],
                actions=sample["actions"],
                rewards=sample["rewards"],
                next_states=sample["next_observation"][OBSERVATION_KEY],
                masks=sample["masks"],
            )
        )

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh f(s) of the own state, scaled."""
        return MlpPolicy(
            weights=linear_weights(self._learner.actors[0]),
            activation="relu",
            output="tanh",
            low=torch.tensor(low),
            high=torch.tensor(high),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._learner.load_state_dict(state)

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
from cadenza.learn.algorithms.hatd3 import HATD3Learner, TeamBatch
from cadenza.learn.configs import HATD3Config
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.mlp_policy import MlpPolicy


class CentralTD3Learner:
    """One robot of HATD3.

    Args:
        observation_dim: O, the learner's own columns of the joint state.
        joint_dim: S.
        action_dim: A.
        config: Settings.
        seed: Root of the streams ``learn.hatd3.*``.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        joint_dim: int,
        action_dim: int,
        config: HATD3Config | None = None,
        seed: int = 0,
    ) -> None:
        config = config or HATD3Config()
        self._batch_size = config.batch_size
        self._action_dim = action_dim
        self._learner = HATD3Learner(
            columns=[(0, observation_dim)],
            joint_dim=joint_dim,
            action_dims=[action_dim],
            config=config,
            seed=seed,
        )
        self.greedy = self._learner.actors[0]

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
        return self._learner.update(TeamBatch.of(memory.sample(self._batch_size)))

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return tanh f(s) of the own state, scaled."""
        return MlpPolicy(
            weights=[p.detach() for p in self.greedy.parameters()],
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

"""A replay memory for loops that step environments in lock step and hand over transitions.

Each environment's running episode is kept aside and enters the table when it ends; the samples then
know which ends were final (mask 0) and which were cut off by a time limit (mask 1).

Axes:    N = environments, O = observation, A = action components, B = sampled transitions.
Limits:  transitions of running episodes are not sampled.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.memory.builder import DictObsMemoryTable

#: Name of the observation in samples.
OBSERVATION_KEY: Final = "obs"


class TransitionMemory:
    """Transitions of N environments, sampled uniformly.

    Args:
        observation_dim: O.
        action_dim: A.
        num_envs: N.
        max_transitions: Most transitions kept; the oldest episodes go first.
        seed: Seed of the sampling.
        action_dtype: Element type of actions; int64 for discrete ones.
        device: Where samples go.
    """

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        num_envs: int,
        max_transitions: int,
        seed: int,
        action_dtype: type[np.generic] = np.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs = num_envs
        self._action_dtype = action_dtype
        self.spaces = MDPSpace(
            rewards=BoxSpace(np.float32, (1,)),
            actions=BoxSpace(action_dtype, (action_dim,)),
            state=DictSpace({OBSERVATION_KEY: BoxSpace(np.float32, (observation_dim,))}),
        )
        self.table = DictObsMemoryTable(
            spaces=self.spaces,
            use_terminal_column=True,
            maxlen=max_transitions,
            device=device,
            seed=seed,
        )
        self._next_identity = 0
        self._open = [_Episode() for _ in range(num_envs)]

    def size(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.table.size()

    def add(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        *,
        terminated: NDArray[np.bool_],
        boundaries: NDArray[np.bool_],
        next_observations: NDArray[Any],
    ) -> None:
        """Take in one transition of every environment.

        Args:
            observations: Shape (N, O).
            actions: Shape (N, A).
            rewards: Shape (N,).
            terminated: The task ended the episode, (N,).
            boundaries: The episode ended in either way, (N,).
            next_observations: What followed, before any reset, (N, O).

        Raises:
            InputError: Not N rows, or an episode holds something that is not finite.
        """
        if not len(observations) == len(actions) == len(rewards) == self.num_envs:
            raise InputError(
                f"TransitionMemory.add: expected {self.num_envs} rows, got {len(observations)} "
                f"observations, {len(actions)} actions and {len(rewards)} rewards."
            )
        for row, episode in enumerate(self._open):
            episode.append(observations[row], actions[row], float(rewards[row]))
            if boundaries[row]:
                self._finish(episode, next_observations[row], final=bool(terminated[row]))

    def sample(self, count: int) -> dict[str, Any]:
        """Return ``count`` transitions, see `cadenza.learn.memory.builder`."""
        return self.table.sample(count, 1)

    def drop_open_episodes(self) -> None:
        """Forget the running episodes, e.g. because the environments were reset."""
        self._open = [_Episode() for _ in range(self.num_envs)]

    def state_dict(self) -> dict[str, Any]:
        """Return the table and the running episodes: tensors and JSON scalars."""
        return {
            "table": self.table.state_dict(),
            "open": [episode.state_dict() for episode in self._open],
            "next_identity": self._next_identity,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is incomplete or of another number of environments.
        """
        try:
            opened = [_Episode.from_state_dict(entry) for entry in state["open"]]
            identity = int(state["next_identity"])
            table = state["table"]
        except KeyError as error:
            raise CheckpointError(
                f"TransitionMemory: expected a complete state, got {sorted(state)}: {error}."
            ) from error
        if len(opened) != self.num_envs:
            raise CheckpointError(
                f"TransitionMemory: expected the episodes of {self.num_envs} environments, got "
                f"{len(opened)}; the state belongs to another configuration."
            )
        self.table.load_state_dict(table)
        self._open, self._next_identity = opened, identity

    def _finish(self, episode: "_Episode", last: NDArray[Any], *, final: bool) -> None:
        """Move an ended episode into the table."""
        sequence = {
            OBSERVATION_KEY: np.stack([*episode.observations, last]).astype(np.float32),
            "actions": np.stack(episode.actions).astype(self._action_dtype),
            "rewards": np.array(episode.rewards, dtype=np.float32).reshape(-1, 1),
            "terminal": np.array([0.0 if final else 1.0], dtype=np.float32),
        }
        episode.clear()
        self.table.add_sequence(self._next_identity, sequence)
        self._next_identity += 1


class _Episode:
    """Observations, actions and rewards of a running episode."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.observations: list[NDArray[Any]] = []
        self.actions: list[NDArray[Any]] = []
        self.rewards: list[float] = []

    def append(self, observation: NDArray[Any], action: NDArray[Any], reward: float) -> None:
        self.observations.append(observation.copy())
        self.actions.append(action.copy())
        self.rewards.append(reward)

    def state_dict(self) -> dict[str, Any]:
        if not self.rewards:
            return {"rewards": []}
        return {
            "observations": torch.tensor(np.stack(self.observations)),
            "actions": torch.tensor(np.stack(self.actions)),
            "rewards": list(self.rewards),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "_Episode":
        episode = cls()
        episode.rewards = list(state["rewards"])
        if episode.rewards:
            episode.observations = _rows(state["observations"])
            episode.actions = _rows(state["actions"])
        return episode


def _rows(values: Tensor) -> list[NDArray[Any]]:
    return [row.copy() for row in values.numpy()]

"""A replay memory for loops that step environments in lock step and hand over transitions.

Each environment's running episode enters the table in parts. The samples know which ends were final
(mask 0); a part's end and one by a time limit are not (mask 1).

Axes:    N = environments, O = observation, A = action components, B = sampled transitions.
Limits:  the last few transitions of running episodes, fewer than a part, are not sampled yet.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import CheckpointError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.episode import Episode, part_steps

#: Name of the observation in samples.
OBSERVATION_KEY: Final = "obs"


class TransitionMemory:
    """Transitions of N environments, sampled uniformly.

    Args:
        observation_dim: O.
        action_dim: A.
        num_envs: N.
        max_transitions: Most transitions kept; the oldest go first.
        seed: Seed of the sampling.
        action_dtype: Element type of actions; int64 for discrete ones.
        observation_dtype: Element type of observations; uint8 for images.
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
        observation_dtype: type[np.generic] = np.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs = num_envs
        self.spaces = MDPSpace(
            rewards=BoxSpace(np.float32, (1,)),
            actions=BoxSpace(action_dtype, (action_dim,)),
            state=DictSpace({OBSERVATION_KEY: BoxSpace(observation_dtype, (observation_dim,))}),
        )
        self.table = DictObsMemoryTable(
            spaces=self.spaces,
            use_terminal_column=True,
            maxlen=max_transitions,
            device=device,
            seed=seed,
            check_finite=False,  # `add` has looked at every number
        )
        self._next_identity = 0
        self._open = [Episode() for _ in range(num_envs)]

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
        valid: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take in one transition of every environment.

        Args:
            observations: Shape (N, O).
            actions: Shape (N, A).
            rewards: Shape (N,).
            terminated: The task ended the episode, (N,).
            boundaries: The episode ended in either way, (N,).
            next_observations: What followed, before any reset, (N, O).
            valid: Environments that took a step at all, (N,); None means all.

        Raises:
            InputError: An array has another shape or is not finite; nothing has been added.
        """
        state, action = self.spaces.state.spaces[OBSERVATION_KEY].shape, self.spaces.actions.shape
        for name, array, shape in (
            ("observations", observations, state),
            ("actions", actions, action),
            ("rewards", rewards, ()),
            ("terminated", terminated, ()),
            ("boundaries", boundaries, ()),
            ("next_observations", next_observations, state),
        ):
            require_shape(f"TransitionMemory.add: {name}", array, (self.num_envs, *shape))
            with np.errstate(over="ignore"):  # as it will be stored: 1e300 is no float32
                stored = array.astype(np.float32, copy=False)
            require_finite(f"TransitionMemory.add: {name}", stored)
        for row, episode in enumerate(self._open):
            if valid is not None and not valid[row]:
                continue
            step = {OBSERVATION_KEY: observations[row], "actions": actions[row]}
            episode.append({**step, "rewards": float(rewards[row])})
            if boundaries[row] or len(episode.data["rewards"]) >= part_steps(self.table.maxlen):
                mask = 0.0 if terminated[row] else 1.0
                last = {OBSERVATION_KEY: next_observations[row], "terminal": mask}
                self._open[row] = Episode()
                self.table.add_sequence(self._next_identity, episode.complete(last))
                self._next_identity += 1

    def sample(self, count: int) -> dict[str, Any]:
        """Return ``count`` transitions, see `cadenza.learn.memory.builder`."""
        return self.table.sample(count, 1)

    def drop_open_episodes(self) -> None:
        """Forget the running episodes, e.g. because the environments were reset."""
        self._open = [Episode() for _ in range(self.num_envs)]

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
            opened = [Episode.from_state_dict(entry) for entry in state["open"]]
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

"""Hindsight: transitions told again as if their goal had been what the episode reached later.

Source:  strategy "future" of arXiv:1707.01495, section 4.5. When an episode ends, every transition
         gets k more of its kind, each with a goal that was achieved by it or by a later one, all
         equally likely.
Rewards: ``compute_reward(achieved_goal, desired_goal, {})`` of the environment, row by row; ends:
         its ``compute_terminated`` with the same arguments, or as they were without it.
Axes:    L = steps of an episode, k = goals per transition, O = flattened observation,
         W = width of a stored action.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.env.making import Environments
from cadenza.learn.env.stepping import VectorStep
from cadenza.learn.loaded_state import generator_state, set_generator_state
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.encoders import is_dict, parts_of

#: Names in observations of what was reached and what is to be reached.
ACHIEVED: Final = "achieved_goal"
DESIRED: Final = "desired_goal"


class Hindsight:
    """Tells the episodes of an agent again; its draws are the stream ``learn.api.hindsight``.

    Raises:
        ConfigurationError: The environments show no goals, or compute no rewards for others.
    """

    def __init__(self, owner: str, envs: Environments, goals: int, seed: int) -> None:
        self._owner, self._envs, self._goals = owner, envs, goals
        columns, start = dict[str, slice](), 0
        for name, part in parts_of(envs.space).items() if is_dict(envs.space) else ():
            columns[name] = slice(start, start := start + spaces.flatdim(part))
        parts: Any = envs.space
        if not columns.keys() >= {ACHIEVED, DESIRED} or parts[ACHIEVED].shape != (
            parts[DESIRED].shape
        ):
            raise ConfigurationError(
                f"{owner}: hindsight: expected observations that are a Dict with {ACHIEVED} and "
                f"{DESIRED} of one shape, got {envs.space}; switch it off."
            )
        self._achieved, self._desired = columns[ACHIEVED], columns[DESIRED]
        self._goal: spaces.Box = parts[DESIRED]
        self._rng = derive_substream("learn.api.hindsight", root_seed=seed).default_rng()
        self.forget()
        if envs.is_made:
            _ = self._reward

    @cached_property
    def _reward(self) -> Callable[..., Any]:
        found = self._envs.method("compute_reward")
        if found is None:
            raise ConfigurationError(
                f"{self._owner}: hindsight: expected environments with compute_reward("
                f"achieved_goal, desired_goal, info), got {self._envs.vector} without, or in "
                "processes of their own; add it, pass what makes one, or switch hindsight off."
            )
        return found

    @cached_property
    def _ends(self) -> Callable[..., Any] | None:
        return self._envs.method("compute_terminated")

    def forget(self) -> None:
        """Forget the running episodes."""
        self._running: list[list[tuple[Any, ...]]] = [[] for _ in range(self._envs.num_envs)]

    def record(
        self,
        rows: NDArray[Any],
        stored: NDArray[Any],
        step: VectorStep,
        following: NDArray[Any],
        memory: TransitionMemory,
    ) -> None:
        """Note a step from ``rows``, (N, O), to ``following``; tell what ended with it again."""
        for row in np.flatnonzero(step.valid):
            self._running[row].append(
                (rows[row], stored[row], step.terminated[row], following[row])
            )
            if step.boundaries[row]:
                seen, acted, ended, reached = map(np.stack, zip(*self._running[row], strict=True))
                self._running[row] = []
                self._tell_again(seen, acted, ended, reached, memory)

    def _tell_again(
        self,
        seen: NDArray[Any],
        acted: NDArray[Any],
        ended: NDArray[np.bool_],
        reached: NDArray[Any],
        memory: TransitionMemory,
    ) -> None:
        """Put the transitions of an episode, (L, ...) each, into ``memory`` with other goals."""
        steps = np.repeat(np.arange(len(seen)), self._goals)
        goals = reached[self._rng.integers(steps, len(seen)), self._achieved]
        before, after = seen[steps], reached[steps]
        before[:, self._desired] = after[:, self._desired] = goals
        told: list[tuple[Any, ...]] = [
            (self._shaped(row[self._achieved]), self._shaped(row[self._desired]), {})
            for row in after
        ]
        ends = [self._ends(*each) for each in told] if self._ends else ended[steps]
        memory.add_apart(
            before,
            acted[steps],
            np.array([float(self._reward(*each)) for each in told]),
            terminated=np.array(ends, dtype=np.bool_),
            next_observations=after,
        )

    def _shaped(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return a goal as the environment has it."""
        return numbers.reshape(self._goal.shape).astype(self._goal.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the stream, and the running episodes: tensors and JSON scalars."""
        running = [
            [torch.tensor(np.stack(column)) for column in zip(*episode, strict=True)]
            for episode in self._running
        ]
        return {"draws": generator_state(self._rng), "running": running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; episodes of other environments do not go on."""
        set_generator_state(self._rng, state["draws"])
        if len(state["running"]) == self._envs.num_envs:
            self._running = [
                list(zip(*(column.numpy() for column in columns), strict=True))
                for columns in state["running"]
            ]

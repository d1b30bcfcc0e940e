"""What an on-policy learner collected since its last update, in memory allocated once.

Axes:   T = capacity in control steps, N = parallel environments, O = observation, A = action.
Staged: `stage` writes the transition that is under way into row ``length``; `commit` completes it.
        A staged row that is never committed is overwritten by the next one.
Layout: network inputs and outputs lie on the learner's device, rewards and flags on the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, NotReadyError


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutShape:
    """Sizes of a rollout: T, N, O and A."""

    capacity: int
    num_envs: int
    observation_dim: int
    action_dim: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinalStates:
    """States at which a time limit cut episodes off.

    Attributes:
        step: Row of the rollout.
        envs: Indices of the environments concerned, shape (K,).
        states: Their true last observations, shape (K, O), on the rollout's device.
    """

    step: int
    envs: NDArray[np.int64]
    states: Tensor


def network_input(states: Any, device: torch.device) -> Tensor:
    """Return a float32 copy of an array or tensor on ``device``."""
    if isinstance(states, Tensor):
        return states.to(device, torch.float32, copy=True)
    return torch.tensor(states, dtype=torch.float32, device=device)


class RolloutBuffer:
    """Transitions in time order.

    Args:
        shape: Sizes.
        device: Where observations, means and actions live.
    """

    def __init__(self, shape: RolloutShape, device: torch.device) -> None:
        self.shape = shape
        self.length = 0
        rows, envs = shape.capacity, shape.num_envs
        # One more row than steps: the last holds the observation after the newest step.
        self.observations = torch.zeros((rows + 1, envs, shape.observation_dim), device=device)
        self.means = torch.zeros((rows, envs, shape.action_dim), device=device)
        self.actions = torch.zeros((rows, envs, shape.action_dim), device=device)
        self.rewards: Float32Array = np.zeros((rows, envs), dtype=np.float32)
        self.terminated = np.zeros((rows, envs), dtype=np.bool_)
        self.boundaries = np.zeros((rows, envs), dtype=np.bool_)
        self.final_states: list[FinalStates] = []
        # Views made once: indexing a tensor costs as much as a small layer.
        self._observation_rows = self.observations.unbind(0)
        self._mean_rows = self.means.unbind(0)
        self._action_rows = self.actions.unbind(0)
        on_host = device.type == "cpu"
        self._host_rows = list(self.observations.numpy()) if on_host else None
        self._host_actions = list(self.actions.numpy()) if on_host else None

    def stage(self, state: Any) -> Tensor:
        """Store the observation before the step; return it as a network input, shape (N, O).

        Args:
            state: Array or tensor, shape (O,) when N = 1, or (N, O).

        Raises:
            NotReadyError: All T steps are taken.
        """
        if self.length >= self.shape.capacity:
            raise NotReadyError(
                f"EgoPPOTrainer.act: expected at most rollout_length = {self.shape.capacity} steps "
                "between updates, got one more; call update() first."
            )
        self._write(self.length, state)
        return self._observation_rows[self.length]

    def stage_action(
        self, mean: Tensor, deviation: Tensor, generator: torch.Generator
    ) -> Float32Array:
        """Draw and store the actions of the staged step; return a copy, shape (N, A).

        Args:
            mean: Shape (N, A).
            deviation: Shape (A,).
            generator: On the rollout's device; advanced by one draw of shape (N, A).
        """
        row = self.length
        self._mean_rows[row].copy_(mean)
        torch.normal(mean, deviation, generator=generator, out=self._action_rows[row])
        if self._host_actions is not None:
            return self._host_actions[row].copy()
        return self._action_rows[row].cpu().numpy()

    def commit(
        self,
        reward: float | NDArray[Any],
        terminated: bool | NDArray[np.bool_],
        boundary: bool | NDArray[np.bool_],
        next_state: Any,
    ) -> None:
        """Complete the staged step.

        Args:
            reward: Reward, number or shape (N,).
            terminated: The task ended, flag or shape (N,).
            boundary: The episode ended in either way, flag or shape (N,).
            next_state: Observation after the step, shape (O,) or (N, O).
        """
        row = self.length
        self.rewards[row] = reward
        self.terminated[row] = terminated
        self.boundaries[row] = boundary
        self._write(self.shape.capacity, next_state)
        self.length = row + 1

    def add_final_states(self, envs: NDArray[np.int64], states: Any) -> None:
        """Remember where a time limit cut off the staged step; call before `commit`.

        Args:
            envs: Environments concerned, shape (K,).
            states: Their last observations, shape (K, O).
        """
        kept = network_input(states, self.observations.device)
        self.final_states.append(FinalStates(step=self.length, envs=envs, states=kept))

    def clear(self) -> None:
        """Forget every transition; the memory stays."""
        self.length = 0
        self.final_states.clear()

    def critic_inputs(self) -> Tensor:
        """Return every state whose value an update needs, shape (length·N + N + K, O).

        Order: the observations of all steps, the observation after the newest step, then the final
        states in the order they were added.
        """
        width = self.shape.observation_dim
        steps = self.observations[: self.length].reshape(-1, width)
        finals = [final.states for final in self.final_states]
        return torch.cat((steps, self._observation_rows[self.shape.capacity], *finals))

    def split_values(self, values: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return V(s_t) and the value that continues each step, both of shape (length, N).

        Args:
            values: Values of `critic_inputs`, shape (length·N + N + K,).
        """
        envs = self.shape.num_envs
        per_row = values[: (self.length + 1) * envs].reshape(-1, envs)
        current = per_row[:-1]
        following = per_row[1:].copy()
        # An episode's end cuts the link to the next row; a time limit puts its own value there.
        following[self.boundaries[: self.length]] = 0.0
        offset = (self.length + 1) * envs
        for final in self.final_states:
            count = len(final.envs)
            following[final.step, final.envs] = values[offset : offset + count]
            offset += count
        return current, following

    def state(self, *, staged: bool) -> dict[str, Any]:
        """Return a copy of the contents: tensors and JSON scalars.

        Args:
            staged: Whether row ``length`` holds a transition that is under way.
        """
        rows = self.length + int(staged)
        return {
            "capacity": self.shape.capacity,
            "num_envs": self.shape.num_envs,
            "length": self.length,
            "observations": self.observations[:rows].cpu().clone(),
            "next_observation": self._observation_rows[self.shape.capacity].cpu().clone(),
            "means": self.means[:rows].cpu().clone(),
            "actions": self.actions[:rows].cpu().clone(),
            "rewards": torch.tensor(self.rewards[: self.length]),
            "terminated": torch.tensor(self.terminated[: self.length]),
            "boundaries": torch.tensor(self.boundaries[: self.length]),
            "final_states": [
                {
                    "step": final.step,
                    "envs": torch.tensor(final.envs),
                    "states": final.states.cpu().clone(),
                }
                for final in self.final_states
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the contents that `state` returned for a buffer of this shape.

        Raises:
            CheckpointError: The other buffer had another capacity.
        """
        if state["capacity"] != self.shape.capacity:
            raise CheckpointError(
                f"RolloutBuffer.load: expected a rollout of capacity {self.shape.capacity} "
                f"(happo.rollout_length), got {state['capacity']}."
            )
        rows, self.length = len(state["observations"]), int(state["length"])
        self.observations[:rows].copy_(state["observations"])
        self._observation_rows[self.shape.capacity].copy_(state["next_observation"])
        self.means[:rows].copy_(state["means"])
        self.actions[:rows].copy_(state["actions"])
        self.rewards[: self.length] = state["rewards"].numpy()
        self.terminated[: self.length] = state["terminated"].numpy()
        self.boundaries[: self.length] = state["boundaries"].numpy()
        self.final_states = [
            FinalStates(
                step=int(final["step"]),
                envs=final["envs"].numpy().copy(),
                states=final["states"].to(self.observations.device, copy=True),
            )
            for final in state["final_states"]
        ]

    def _write(self, row: int, state: Any) -> None:
        if self._host_rows is not None:
            self._host_rows[row][...] = state
        else:
            self._observation_rows[row].copy_(torch.as_tensor(state))

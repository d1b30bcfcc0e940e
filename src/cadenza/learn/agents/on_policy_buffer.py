"""What an on-policy learner collected since its last update, for any kind of action.

Axes:    T = capacity in steps, N = rows per step (environments, or environments times agents),
         O = observation, S = critic observation, A = action components, P = what only learning
         is told.
Rows:    a row is *invalid* if nothing was decided in it: environments that reset themselves in the
         step after an episode ignore that step's action. Invalid rows are never learned from.
Final:   a time limit cuts an episode off but is no end of the task (arXiv:1712.00378), so the true
         last observation is kept and its value continues the return.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.learn.advantages import compute_gae

#: Arrays of the buffer that `OnPolicyBuffer.state_dict` stores up to the current length.
_STEP_ARRAYS: Final = ("observations", "actions", "rewards", "terminated", "boundaries", "valid")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferShape:
    """Sizes of a buffer.

    Attributes:
        capacity: T.
        rows: N.
        observation_dim: O.
        critic_dim: S; None if the critic sees what the actor sees.
        action_dim: A; None for one choice.
        choices: Several choices at once, A of them.
        states: What is remembered of a row from one step to the next.
        means: Keep the mean of the distribution that each action was drawn from, too.
        told: P.
    """

    capacity: int
    rows: int
    observation_dim: int
    critic_dim: int | None = None
    action_dim: int | None = None
    choices: bool = False
    means: bool = False
    states: int = 0
    told: int = 0


class Outcome(NamedTuple):
    """What followed one step.

    Attributes:
        rewards: Shape (N,).
        terminated: The task ended the episode, (N,).
        boundaries: The episode ended in either way, (N,).
        valid: Rows in which an action was decided, (N,); None means all.
        told: What only learning sees of the step, (N, P), such as what a partner saw and did.
    """

    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None = None
    told: NDArray[Any] | None = None


class Estimates(NamedTuple):
    """Values, advantages and returns of every step, each (T, N) float32."""

    values: Float32Array
    advantages: Float32Array
    returns: Float32Array


class OnPolicyBuffer:
    """Transitions in time order, in memory allocated once."""

    def __init__(self, shape: BufferShape) -> None:
        steps, rows = shape.capacity, shape.rows
        if min(steps, rows, shape.observation_dim) < 1:
            raise InputError(f"OnPolicyBuffer: expected every size >= 1, got {shape}.")
        self.shape = shape
        self.length: int = 0
        self.observations: Float32Array = np.zeros((steps, rows, shape.observation_dim), np.float32)
        self.central: bool = shape.critic_dim is not None
        self.critic_observations: Float32Array = self.observations
        if shape.critic_dim is not None:
            self.critic_observations = np.zeros((steps, rows, shape.critic_dim), np.float32)
        self.actions: NDArray[Any] = (
            np.zeros((steps, rows), np.int64)
            if shape.action_dim is None
            else np.zeros(
                (steps, rows, shape.action_dim), np.int64 if shape.choices else np.float32
            )
        )
        self.means: NDArray[Any] = np.zeros_like(self.actions) if shape.means else self.actions
        self.rewards: Float32Array = np.zeros((steps, rows), np.float32)
        self.terminated: NDArray[np.bool_] = np.zeros((steps, rows), np.bool_)
        self.boundaries: NDArray[np.bool_] = np.zeros((steps, rows), np.bool_)
        self.valid: NDArray[np.bool_] = np.zeros((steps, rows), np.bool_)
        self._arrays = [*_STEP_ARRAYS, *["critic_observations"] * self.central]
        self._arrays += ["means"] * shape.means
        self.told: Float32Array = np.zeros((steps, rows, shape.told), np.float32)
        self._arrays += ["told"] * bool(shape.told)
        #: What was remembered when the rollout began, (N, states): all zeros at an episode's begin.
        self.states: Float32Array = np.zeros((rows, shape.states), np.float32)
        self._next: Float32Array = np.zeros(self.critic_observations.shape[1:], np.float32)
        self._finals: list[tuple[int, NDArray[np.int64], Float32Array]] = []

    @property
    def begins(self) -> NDArray[np.bool_]:
        """Whether an episode begins with a step, (T + 1, N); not known of the first."""
        begins = np.zeros((self.length + 1, self.shape.rows), np.bool_)
        begins[1:] = self.boundaries[: self.length] | ~self.valid[: self.length]
        return begins

    @property
    def cuts(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Steps that time limits cut off, and their rows, in the order of their values."""
        return [(step, rows) for step, rows, _ in self._finals]

    @property
    def full(self) -> bool:
        """Whether all T steps are taken."""
        return self.length == self.shape.capacity

    def stage(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        critic_observations: NDArray[Any] | None = None,
        means: NDArray[Any] | None = None,
    ) -> None:
        """Store what was seen and decided; a staged step that is not committed is overwritten.

        Rows are (N, O) and (N,) or (N, A); those of a central critic (N, S), means (N, A) where
        kept.

        Raises:
            NotReadyError: All T steps are taken.
        """
        if self.full:
            raise NotReadyError(
                f"OnPolicyBuffer: expected at most {self.shape.capacity} steps (rollout_length) "
                "between updates, got one more; update first."
            )
        self.observations[self.length] = observations
        self.actions[self.length] = actions
        if self.central:
            self.critic_observations[self.length] = critic_observations
        if means is not None:
            self.means[self.length] = means

    def commit(
        self,
        outcome: Outcome,
        next_critic_observations: NDArray[Any],
        cut: NDArray[np.int64] | None = None,
        final_critic_observations: NDArray[Any] | None = None,
    ) -> None:
        """Complete the staged step.

        The critic sees (N, S) next; rows ``cut`` (K,) were cut off by a time limit, and the last
        thing it saw there was (K, S).

        Raises:
            InputError: A reward is not finite, or a cut row lacks its final observation.
        """
        row = self.length
        require_finite("OnPolicyBuffer: rewards", outcome.rewards)
        if cut is not None and len(cut):
            if final_critic_observations is None or len(final_critic_observations) != len(cut):
                raise InputError(
                    "OnPolicyBuffer: expected the final observation of every episode that a time "
                    f"limit cut off (rows {cut.tolist()}), got "
                    f"{0 if final_critic_observations is None else len(final_critic_observations)}."
                )
            self._finals.append((row, cut.copy(), np.array(final_critic_observations, np.float32)))
        self.rewards[row] = outcome.rewards
        self.terminated[row] = outcome.terminated
        self.boundaries[row] = outcome.boundaries
        self.valid[row] = True if outcome.valid is None else outcome.valid
        if outcome.told is not None:
            self.told[row] = outcome.told
        self._next[...] = next_critic_observations
        self.length = row + 1

    def clear(self) -> None:
        """Forget every transition; the memory stays."""
        self.length = 0
        self._finals.clear()

    def estimate(
        self, value: Callable[[Float32Array], Float32Array], *, gamma: float, gae_lambda: float
    ) -> Estimates:
        """Return values, advantages and returns so far; ``value``, (B, S) to (B,), is called once.

        Raises:
            InputError: An observation or a value is not finite.
        """
        steps, rows = self.length, self.shape.rows
        width = self.critic_observations.shape[-1]
        flat = self.critic_observations[:steps].reshape(-1, width)
        inputs = np.concatenate((flat, self._next, *(final for _, _, final in self._finals)))
        require_finite("OnPolicyBuffer: observations", inputs)
        values = value(inputs)
        per_step = values[: (steps + 1) * rows].reshape(steps + 1, rows)
        following = per_step[1:].copy()
        following[self.boundaries[:steps]] = 0.0
        offset = (steps + 1) * rows
        for step, cut, final in self._finals:
            following[step, cut] = values[offset : offset + len(final)]
            offset += len(final)
        current = per_step[:-1]
        advantages = compute_gae(
            self.rewards[:steps],
            current,
            following,
            self.boundaries[:steps],
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        return Estimates(values=current, advantages=advantages, returns=advantages + current)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the contents: tensors and JSON scalars; a staged step is left out."""
        state: dict[str, Any] = {
            name: torch.tensor(getattr(self, name)[: self.length]) for name in self._arrays
        }
        state["next"] = torch.tensor(self._next)
        state["finals"] = [
            [step, torch.tensor(cut), torch.tensor(final)] for step, cut, final in self._finals
        ]
        if self.shape.states:
            state["states"] = torch.tensor(self.states)
        return {"length": self.length, "capacity": self.shape.capacity, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over stored contents."""
        try:
            length = int(state["length"])
            stored = {name: state[name].numpy() for name in self._arrays}
            finals = [(int(k), c.numpy(), f.numpy()) for k, c, f in state["finals"]]
            following = state["next"].numpy()
            states = state["states"].numpy() if self.shape.states else self.states
            same = states.shape == self.states.shape
            same &= length <= self.shape.capacity and following.shape == self._next.shape
            same &= all(v.shape[1:] == getattr(self, n).shape[1:] for n, v in stored.items())
        except (KeyError, AttributeError) as error:
            raise CheckpointError(
                f"OnPolicyBuffer: expected a stored rollout, got {sorted(state)}: {error}."
            ) from error
        if not same:
            raise CheckpointError(
                f"OnPolicyBuffer: expected a rollout for {self.shape}, got one of length {length} "
                "with other sizes; it belongs to another configuration."
            )
        for name, values in stored.items():
            getattr(self, name)[:length] = values
        self._next[...] = following
        self.states[...] = states
        self._finals = finals
        self.length = length

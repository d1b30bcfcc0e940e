"""What on-policy learners over `gymnasium.vector` environments share: collecting and going on.

A learner collects a rollout, learns from it, forgets it, again and again. Time limits bootstrap
with what follows the true last observation, in every autoreset mode.

Axes:  N = environments, O = flattened observation, A = action components.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import require_step_count
from cadenza.learn.algorithms.action_codec import ActionCodec, flat_observation_size
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.vector_steps import VectorStep, VectorSteps, require_vector_env
from cadenza.learn.loaded_state import complete_state, require_version

Figures = TypeVar("Figures")


# Without slots: Python 3.11 cannot call the alias of a class that is frozen, generic and slotted.
@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateReport(Generic[Figures]):
    """What one update did.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        figures: Losses and moments.
        episode_returns: Unscaled returns of the episodes that ended in this rollout and were
            learned from.
    """

    steps: int
    updates: int
    figures: Figures
    episode_returns: list[float]


class Agent(Protocol):
    """The policy that a learner drives."""

    def act(self, observations: Float32Array, *, deterministic: bool = False) -> NDArray[Any]:
        """Return one decision per row."""
        ...

    def update(self, buffer: OnPolicyBuffer, *, progress: float = 0.0) -> Any:
        """Learn from ``buffer`` and clear it; return the figures."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


AgentKind = TypeVar("AgentKind", bound=Agent)


class VectorLearner(ABC, Generic[AgentKind, Figures]):
    """An on-policy learner with environments of its own.

    Args:
        envs: Vector environment with Box observations and Discrete or Box actions.
        rollout_length: Steps per environment between updates.
        squash_actions: See `ActionCodec`.
        seed: Root of every random stream.

    Attributes:
        agent: The policy; made by the subclass.
        actions: What its decisions become.
        steps: Environment steps so far.

    Raises:
        ConfigurationError: ``envs`` is no vector environment, or a space is of another kind.
    """

    #: Layout version of the state.
    STATE_VERSION: ClassVar[int]
    agent: AgentKind

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        *,
        rollout_length: int,
        squash_actions: bool = False,
        seed: int,
    ) -> None:
        owner = type(self).__name__
        require_vector_env(owner, envs)
        self._steps_of = VectorSteps(envs)
        self._seed = seed
        untyped: Any = envs  # gymnasium leaves the kind of its spaces open
        self.actions = ActionCodec(untyped.single_action_space, owner=owner, squash=squash_actions)
        self._observation_space: Any = untyped.single_observation_space
        self._observation_dim = flat_observation_size(self._observation_space, owner=owner)
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=rollout_length,
                rows=envs.num_envs,
                observation_dim=self._observation_dim,
                action_dim=self.actions.components,
            )
        )
        self._observations: Float32Array | None = None
        self._returns: FloatArray = np.zeros(envs.num_envs)
        self._finished: list[float] = []
        self.steps = 0

    @property
    def envs(self) -> VectorEnv[Any, Any, Any]:
        """The environments."""
        return self._steps_of.envs

    @property
    def rollout_complete(self) -> bool:
        """Whether there is nothing more to learn from this rollout."""
        return self._buffer.full

    def learn(
        self,
        total_steps: int,
        on_update: Callable[[UpdateReport[Figures]], bool | None] | None = None,
    ) -> None:
        """Collect and learn until ``total_steps`` environment steps are done in all.

        A rollout that ``total_steps`` would cut short is still collected in full.

        Args:
            total_steps: Steps of the whole run, those before a resume included.
            on_update: Called after every update; returning False stops the run there.

        Raises:
            InputError: ``total_steps`` is no number, or something is not finite.
        """
        require_step_count(type(self).__name__, total_steps)
        while self.steps < total_steps:
            while not self.rollout_complete:
                self.collect_step()
            report = self.update(total_steps)
            if on_update is not None and on_update(report) is False:
                return

    def collect_step(self) -> None:
        """Take one step in every environment; begin their episodes before the first."""
        if self._observations is None:
            self._observations = self._begin_episodes()
        observations = self._observations
        decided = self.agent.act(observations)
        step = self._steps_of.step(self.actions.to_env(decided))
        self._buffer.stage(observations, decided)
        self._observations = self._seen(step.observations, learn=True)
        self._buffer.commit(
            Outcome(self._learned_rewards(step), step.terminated, step.boundaries, step.valid),
            self._observations,
            step.cut,
            self._seen(step.final_observations, learn=False) if len(step.cut) else None,
        )
        self.steps += len(step.rewards)
        self._returns += step.rewards
        self._finished += self._returns[self._note_ends(step.boundaries)].tolist()
        self._returns[step.boundaries] = 0.0

    def update(self, total_steps: int | None = None) -> UpdateReport[Figures]:
        """Learn from what was collected.

        Args:
            total_steps: Steps of the whole run, for the decay of the learning rate.

        Raises:
            NotReadyError: Nothing was collected.
            InputError: Something is not finite.
        """
        done = self._rollout_start()
        figures: Figures = self.agent.update(
            self._buffer, progress=done / total_steps if total_steps else 0.0
        )
        updates = self._after_update()
        returns, self._finished = self._finished, []
        return UpdateReport(
            steps=self.steps, updates=updates, figures=figures, episode_returns=returns
        )

    @property
    def rollout_size(self) -> int:
        """Decisions that this rollout holds so far."""
        return int(self._buffer.valid[: self._buffer.length].sum())

    def policy(self, observations: NDArray[Any], *, deterministic: bool = True) -> NDArray[Any]:
        """Return actions as the environments take them.

        Args:
            observations: Rows, (N, ...), or one observation, (...).
            deterministic: Without chance; otherwise drawn.
        """
        rows = np.asarray(observations)
        single = rows.shape == self._observation_space.shape
        seen = self._seen(rows[None] if single else rows, learn=False)
        actions = self.actions.to_env(self.agent.act(seen, deterministic=deterministic))
        return actions[0] if single else actions

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        observations = self._observations
        return {
            "version": self.STATE_VERSION,
            "agent": self.agent.state_dict(),
            "buffer": self._buffer.state_dict(),
            "observations": None if observations is None else torch.tensor(observations),
            "returns": self._returns.tolist(),
            "finished": list(self._finished),
            "steps": self.steps,
            **self._own_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, in environments of the same kind.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes, or the
                environments do not repeat what led to it.
        """
        owner = type(self).__name__
        require_version(owner, state, self.STATE_VERSION)
        with complete_state(owner, "these environments"):
            self.agent.load_state_dict(state["agent"])
            self._buffer.load_state_dict(state["buffer"])
            self._load_own_state(state)
            self._returns = np.array(state["returns"], dtype=np.float64)
            self._finished = [float(value) for value in state["finished"]]
            self.steps = int(state["steps"])
            observations, replays = state["observations"], state["envs"]
            saved = None if observations is None else observations.numpy().copy()
        if saved is None:
            self._observations = None
        else:
            self._continue_episodes(saved, replays)

    def forget_rollout(self) -> None:
        """Give up the running rollout; the next step begins new episodes."""
        self._buffer.clear()
        self._returns[:] = 0.0
        self._observations = None

    def _rollout_start(self) -> int:
        """Return the environment steps before the running rollout."""
        return self.steps - self._buffer.length * self._buffer.shape.rows

    def _continue_episodes(self, saved: Float32Array, replays: Mapping[str, Any] | None) -> None:
        """Go on from the observations ``saved``, or with new episodes without ``replays``."""
        if replays is None:
            self.forget_rollout()
        else:
            self._steps_of.load_state_dict(replays)
            self._observations = saved

    def _seen(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        """Return ``observations`` as the policy takes them, (N, O).

        Args:
            observations: Shape (N, ...).
            learn: Whether the environments are at them; nothing is learned from others.
        """
        del learn  # for subclasses that scale by what they have seen
        return self._flat(observations).astype(np.float32, copy=False)

    def _flat(self, observations: NDArray[Any]) -> NDArray[Any]:
        return observations.reshape(len(observations), self._observation_dim)

    def _learned_rewards(self, step: VectorStep) -> NDArray[Any]:
        """Return the rewards of ``step`` as they are learned from, (N,)."""
        return step.rewards

    def _note_ends(self, boundaries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the episodes that ended in this step are learned from, (N,)."""
        return boundaries

    @abstractmethod
    def _begin_episodes(self) -> Float32Array:
        """Reset every environment; return what is seen first, (N, O)."""

    @abstractmethod
    def _after_update(self) -> int:
        """Get ready for the next rollout; return the updates so far."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Return what a kind of learner adds to its state; ``envs`` for `_continue_episodes`."""

    @abstractmethod
    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_own_state` returned; agent and buffer are loaded already."""

"""Group-relative policy optimisation over `gymnasium.vector` environments: PPO without a critic.

Several environments start from the same state, and each return is judged by those of its group at
the same step. Collecting, time limits and the clipped surrogate are PPO's; the group takes the
critic's place.

Source:      arXiv:2402.03300, section 4.1.
Axes:        N = environments, M = members of a group, O = flattened observation, A = action
             components.
Determinism: one seed fixes policy, actions, minibatches and, through the resets, the environments:
             equal seeds give equal bytes on the CPU.
Resume:      `GRPO.state_dict` holds everything, the running rollout included: its actions are done
             again from the seeds of its start, and must lead to the same observations. Without
             ``reset_every_rollout`` environments come back as those of
             `cadenza.learn.algorithms.ppo.PPO` do.
Limits:      without ``tail_value`` a cut-off episode is worth what was collected of it: fair while
             the members of a group are cut at the same step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.algorithms.action_codec import ActionCodec, flat_observation_size
from cadenza.learn.algorithms.group_reset import group_seeds, reset_groups
from cadenza.learn.algorithms.grpo_agent import GRPOAgent, GRPOFigures, TailValue
from cadenza.learn.algorithms.grpo_settings import GRPOSettings
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.vector_steps import VectorSteps
from cadenza.learn.loaded_state import complete_state, require_version

__all__ = ["GRPO", "GRPOReport", "GRPOSettings"]

#: Layout version of `GRPO.state_dict`.
STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GRPOReport:
    """What one update did.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        figures: Losses and moments.
        episode_returns: Returns of the episodes whose end was learned from.
    """

    steps: int
    updates: int
    figures: GRPOFigures
    episode_returns: list[float]


class GRPO:
    """GRPO with environments of its own.

    Args:
        envs: Vector environment with Box observations and Discrete or Box actions; environments
            g M ... g M + M − 1 form group g and must start alike when seeded alike.
        settings: Numbers of GRPO; the defaults if None.
        tail_value: See `GRPOAgent`.
        seed: Root of every random stream.
        device: Where the policy lives.

    Raises:
        ConfigurationError: A space is of another kind, or the environments are no whole number of
            groups.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        settings: GRPOSettings | None = None,
        *,
        tail_value: TailValue | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings = settings or GRPOSettings()
        if envs.num_envs % self.settings.group_size:
            raise ConfigurationError(
                "GRPO: expected a number of environments that group_size = "
                f"{self.settings.group_size} divides, got {envs.num_envs}; change either."
            )
        self._steps_of = VectorSteps(envs)
        self._seed = seed
        untyped: Any = envs  # gymnasium leaves the kind of its spaces open
        self._actions = ActionCodec(
            untyped.single_action_space, owner="GRPO", squash=self.settings.squash_actions
        )
        self._observation_space: Any = untyped.single_observation_space
        self._observation_dim = flat_observation_size(self._observation_space, owner="GRPO")
        self.agent = GRPOAgent(
            self.settings,
            observation_dim=self._observation_dim,
            choices=self._actions.choices,
            action_dim=self._actions.components,
            tail_value=tail_value,
            seed=seed,
            device=device,
        )
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=self.settings.rollout_length,
                rows=envs.num_envs,
                observation_dim=self._observation_dim,
                action_dim=self._actions.components,
            )
        )
        self._observations: Float32Array | None = None
        self._returns: FloatArray = np.zeros(envs.num_envs)
        self._ended: NDArray[np.bool_] = np.zeros(envs.num_envs, np.bool_)  # in this rollout
        self._finished: list[float] = []
        self.steps = 0

    @property
    def envs(self) -> VectorEnv[Any, Any, Any]:
        """The environments."""
        return self._steps_of.envs

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self.agent.updates

    @property
    def rollout_complete(self) -> bool:
        """Whether there is nothing more to learn from this rollout."""
        return self._buffer.full or (
            self.settings.truncate_at_first_done and bool(self._ended.all())
        )

    def learn(
        self, total_steps: int, on_update: Callable[[GRPOReport], bool | None] | None = None
    ) -> None:
        """Collect and learn until ``total_steps`` environment steps are done in all.

        A rollout that ``total_steps`` would cut short is still collected in full.

        Args:
            total_steps: Steps of the whole run, those before a resume included.
            on_update: Called after every update; returning False stops the run there.

        Raises:
            GroupResetError: Members of a group do not start alike.
        """
        while self.steps < total_steps:
            while not self.rollout_complete:
                self.collect_step()
            report = self.update(total_steps)
            if on_update is not None and on_update(report) is False:
                return

    def collect_step(self) -> None:
        """Take one step in every environment; before a rollout's first, begin its episodes.

        Raises:
            GroupResetError: Members of a group do not start alike.
        """
        if self._observations is None:
            self._observations = self._begin_episodes()
        observations = self._observations
        decided = self.agent.act(observations)
        step = self._steps_of.step(self._actions.to_env(decided))
        self._buffer.stage(observations, decided)
        self._observations = self._flat(step.observations)
        self._buffer.commit(
            Outcome(step.rewards, step.terminated, step.boundaries, step.valid),
            self._observations,
            step.cut,
            self._flat(step.final_observations) if len(step.cut) else None,
        )
        self.steps += len(step.rewards)
        self._returns += step.rewards
        for row in np.flatnonzero(step.boundaries).tolist():
            if not (self.settings.truncate_at_first_done and self._ended[row]):
                self._finished.append(float(self._returns[row]))
            self._returns[row] = 0.0
        self._ended |= step.boundaries

    def update(self, total_steps: int | None = None) -> GRPOReport:
        """Learn from what was collected.

        Args:
            total_steps: Steps of the whole run, for the decay of the learning rate.

        Raises:
            NotReadyError: Nothing was collected.
            InputError: Something is not finite.
        """
        done = self._rollout_start()
        figures = self.agent.update(
            self._buffer, progress=done / total_steps if total_steps else 0.0
        )
        self._ended[:] = False
        if self.settings.reset_every_rollout:
            self._observations = None
        returns, self._finished = self._finished, []
        return GRPOReport(
            steps=self.steps, updates=self.updates, figures=figures, episode_returns=returns
        )

    def policy(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the actions without chance, as the environments take them.

        Args:
            observations: Rows, (N, ...), or one observation, (...).
        """
        rows = np.asarray(observations)
        single = rows.shape == self._observation_space.shape
        decided = self.agent.act(self._flat(rows[None] if single else rows), deterministic=True)
        actions = self._actions.to_env(decided)
        return actions[0] if single else actions

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        observations = self._observations
        return {
            "version": STATE_VERSION,
            "agent": self.agent.state_dict(),
            "buffer": self._buffer.state_dict(),
            "observations": None if observations is None else torch.tensor(observations),
            "returns": self._returns.tolist(),
            "finished": list(self._finished),
            "steps": self.steps,
            "envs": None if self.settings.reset_every_rollout else self._steps_of.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, in environments of the same kind.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes, or the
                environments do not repeat the running rollout.
        """
        require_version("GRPO", state, STATE_VERSION)
        with complete_state("GRPO", "these environments"):
            self.agent.load_state_dict(state["agent"])
            self._buffer.load_state_dict(state["buffer"])
            self._returns = np.array(state["returns"], dtype=np.float64)
            self._finished = [float(value) for value in state["finished"]]
            self.steps = int(state["steps"])
            observations, replays = state["observations"], state["envs"]
            saved = None if observations is None else observations.numpy().copy()
        self._ended = np.logical_or.reduce(self._buffer.boundaries[: self._buffer.length], axis=0)
        if saved is None:
            self._observations = None
        elif self.settings.reset_every_rollout:
            self._repeat_rollout(saved)
        elif replays is None:
            self._buffer.clear()
            self._ended[:] = False
            self._observations = self._begin_episodes()
        else:
            self._steps_of.load_state_dict(replays)
            self._observations = saved

    def _begin_episodes(self) -> Float32Array:
        """Begin every episode from the seed of its group; return the first observations, (N, O)."""
        seeds = group_seeds(
            f"learn.grpo.env.{self._rollout_start()}",
            environments=self.envs.num_envs,
            group_size=self.settings.group_size,
            root_seed=self._seed,
        )
        first = reset_groups(self._steps_of, seeds, self.settings.group_size)
        self._returns[:] = 0.0
        return self._flat(first)

    def _repeat_rollout(self, saved: Float32Array) -> None:
        """Bring the environments to where the running rollout had taken them."""
        returns = self._returns.copy()
        reached = self._begin_episodes()
        for actions in self._buffer.actions[: self._buffer.length]:
            reached = self._flat(self._steps_of.step(self._actions.to_env(actions)).observations)
        if not np.array_equal(reached, saved):
            raise CheckpointError(
                f"GRPO: expected {self._buffer.length} repeated steps to reach the saved "
                "observations, got others; the environments are not deterministic or have other "
                "parameters than when they were saved. Load a state that was taken right after an "
                "update."
            )
        self._returns = returns
        self._observations = saved

    def _rollout_start(self) -> int:
        """Return the environment steps before the running rollout; numbers its random stream."""
        return self.steps - self._buffer.length * self._buffer.shape.rows

    def _flat(self, observations: NDArray[Any]) -> Float32Array:
        rows = observations.reshape(len(observations), self._observation_dim)
        return rows.astype(np.float32, copy=False)

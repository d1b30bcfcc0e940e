"""Proximal policy optimisation over `gymnasium.vector` environments.

Collects ``rollout_length`` steps of every environment, learns from them in `PPOAgent.update`,
forgets them. Time limits bootstrap with the value of the true last observation, in every autoreset
mode.

Source:      arXiv:1707.06347; generalised advantages arXiv:1506.02438.
Axes:        N = environments, O = flattened observation, A = action components.
Determinism: one seed fixes networks, actions, minibatches and, through the first reset, the
             environments: equal seeds give equal bytes on the CPU.
Resume:      `PPO.state_dict` holds everything, the running rollout included. Environments come back
             to the middle of their episodes if each is a
             `cadenza.learn.env.replayable.ReplayableEnv`; others begin new episodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.action_codec import ActionCodec, flat_observation_size
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo_agent import PPOAgent, PPOFigures, PPOSettings
from cadenza.learn.algorithms.vector_steps import VectorSteps
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.running_normalizer import RewardScaler

#: Layout version of `PPO.state_dict`.
STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOReport:
    """What one update did.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        figures: Losses and moments.
        episode_returns: Unscaled returns of the episodes that ended in this rollout.
    """

    steps: int
    updates: int
    figures: PPOFigures
    episode_returns: list[float]


class PPO:
    """PPO with environments of its own.

    Args:
        envs: Vector environment with Box observations and Discrete or Box actions.
        settings: Numbers of PPO; the defaults if None.
        seed: Root of every random stream.
        device: Where the networks live.

    Raises:
        ConfigurationError: A space is of another kind.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        settings: PPOSettings | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings = settings or PPOSettings()
        self._steps_of = VectorSteps(envs)
        self._seed = seed
        untyped: Any = envs  # gymnasium leaves the kind of its spaces open
        self._actions = ActionCodec(untyped.single_action_space, owner="PPO")
        self._observation_space: Any = untyped.single_observation_space
        self._observation_dim = flat_observation_size(self._observation_space, owner="PPO")
        self.agent = PPOAgent(
            self.settings,
            observation_dim=self._observation_dim,
            choices=self._actions.choices,
            action_dim=self._actions.components,
            seed=seed,
            device=device,
        )
        count = envs.num_envs
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=self.settings.rollout_length,
                rows=count,
                observation_dim=self._observation_dim,
                action_dim=self._actions.components,
            )
        )
        self._scaler = (
            RewardScaler(count, self.settings.gamma) if self.settings.normalize_rewards else None
        )
        self._observations: Float32Array | None = None
        self._returns: FloatArray = np.zeros(count)
        self._finished: list[float] = []
        self.steps = 0
        self.updates = 0

    @property
    def envs(self) -> VectorEnv[Any, Any, Any]:
        """The environments."""
        return self._steps_of.envs

    def learn(
        self, total_steps: int, on_update: Callable[[PPOReport], bool | None] | None = None
    ) -> None:
        """Collect and learn until ``total_steps`` environment steps are done in all.

        A rollout that ``total_steps`` would cut short is still collected in full.

        Args:
            total_steps: Steps of the whole run, those before a resume included.
            on_update: Called after every update; returning False stops the run there.
        """
        while self.steps < total_steps:
            while not self._buffer.full:
                self.collect_step()
            report = self.update(total_steps)
            if on_update is not None and on_update(report) is False:
                return

    def collect_step(self) -> None:
        """Take one step in every environment; reset them all before the first."""
        if self._observations is None:
            first = self._steps_of.reset(
                derive_substream("learn.ppo.env", root_seed=self._seed).integer_seed()
            )
            self._observations = self._scaled(first, learn=True)
        observations = self._observations
        decided = self.agent.act(observations)
        step = self._steps_of.step(self._actions.to_env(decided))
        self._buffer.stage(observations, decided)
        self._observations = self._scaled(step.observations, learn=True)
        rewards = step.rewards
        if self._scaler is not None:
            rewards = self._scaler.scale(rewards, step.boundaries)
        self._buffer.commit(
            Outcome(rewards, step.terminated, step.boundaries, step.valid),
            self._observations,
            step.cut,
            self._scaled(step.final_observations, learn=False) if len(step.cut) else None,
        )
        self.steps += len(rewards)
        self._returns += step.rewards
        for row in np.flatnonzero(step.boundaries).tolist():
            self._finished.append(float(self._returns[row]))
            self._returns[row] = 0.0

    def update(self, total_steps: int | None = None) -> PPOReport:
        """Learn from what was collected.

        Args:
            total_steps: Steps of the whole run, for the decay of the learning rate.

        Raises:
            NotReadyError: Nothing was collected.
            InputError: Something is not finite.
        """
        done = self.steps - self._buffer.length * self._buffer.shape.rows
        figures = self.agent.update(
            self._buffer, progress=done / total_steps if total_steps else 0.0
        )
        self.updates += 1
        returns, self._finished = self._finished, []
        return PPOReport(
            steps=self.steps, updates=self.updates, figures=figures, episode_returns=returns
        )

    def policy(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the most probable actions as the environments take them.

        Args:
            observations: Rows, (N, ...), or one observation, (...).
        """
        rows = np.asarray(observations)
        single = rows.shape == self._observation_space.shape
        scaled = self._scaled(rows[None] if single else rows, learn=False)
        actions = self._actions.to_env(self.agent.act(scaled, deterministic=True))
        return actions[0] if single else actions

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        observations = self._observations
        return {
            "version": STATE_VERSION,
            "agent": self.agent.state_dict(),
            "buffer": self._buffer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "observations": None if observations is None else torch.tensor(observations),
            "returns": self._returns.tolist(),
            "finished": list(self._finished),
            "steps": self.steps,
            "updates": self.updates,
            "envs": self._steps_of.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, in environments of the same kind.

        Raises:
            CheckpointError: The state is of another version, incomplete, or of other sizes.
        """
        require_version("PPO", state, STATE_VERSION)
        with complete_state("PPO", "these environments"):
            self.agent.load_state_dict(state["agent"])
            self._buffer.load_state_dict(state["buffer"])
            if self._scaler is not None:
                self._scaler.load_state_dict(state["scaler"])
            self._returns = np.array(state["returns"], dtype=np.float64)
            self._finished = [float(value) for value in state["finished"]]
            self.steps, self.updates = int(state["steps"]), int(state["updates"])
            observations, replays = state["observations"], state["envs"]
        if observations is None:
            self._observations = None
        elif replays is None:
            self._begin_new_episodes()
        else:
            self._steps_of.load_state_dict(replays)
            self._observations = observations.numpy().copy()

    def _begin_new_episodes(self) -> None:
        """Reset environments that cannot return to the middle of an episode."""
        seed = derive_substream(f"learn.ppo.env.{self.steps}", root_seed=self._seed)
        self._observations = self._scaled(self._steps_of.reset(seed.integer_seed()), learn=False)
        self._returns[:] = 0.0
        self._buffer.clear()

    def _scaled(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        flat = observations.reshape(len(observations), self._observation_dim)
        return self.agent.scale(flat, learn=learn)

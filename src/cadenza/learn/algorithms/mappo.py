"""MAPPO: one policy network plays every robot, one central critic judges the joint state.

Every robot's row is its own state and a one-hot of which robot it is; the critic sees the states of
all robots side by side. The rows of all robots form one batch of PPO.

Source:  arXiv:2103.01955; parameter sharing with agent identity: its section 3.
Axes:    N = environments, n = robots, O = state of one robot, S = n O, A = action components;
         rows are ordered environment by environment, robots within.
Limits:  one shared reward; robots with equally wide states and actions. For others use
         `cadenza.learn.algorithms.happo_team.HAPPO`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo import PPOReport
from cadenza.learn.algorithms.ppo_agent import PPOAgent, PPOSettings
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.running_normalizer import RewardScaler

#: Layout version of `MAPPO.state_dict`.
STATE_VERSION: Final = 1


class MAPPO:
    """Shared-parameter PPO for a team.

    Args:
        env: See `TeamSteps`.
        uids: Robots that learn.
        settings: Numbers of PPO; the defaults if None.
        seed: Root of every random stream.

    Raises:
        ConfigurationError: The robots' states or actions differ in width.
    """

    def __init__(
        self,
        env: Any,
        uids: Sequence[str],
        settings: PPOSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.settings = settings or PPOSettings()
        self.team = TeamSteps(env, uids)
        dims = {*zip(self.team.observation_dims, self.team.action_dims, strict=True)}
        if len(dims) != 1:
            raise ConfigurationError(
                "MAPPO: expected robots with equally wide states and actions, got "
                f"{self.team.observation_dims} and {self.team.action_dims}; use HAPPO, whose "
                "robots have policies of their own."
            )
        self._seed = seed
        robots = len(self.team.uids)
        width = self.team.observation_dims[0] + robots
        self.agent = PPOAgent(
            self.settings,
            observation_dim=width,
            critic_dim=self.team.joint_dim,
            action_dim=self.team.action_dims[0],
            seed=seed,
        )
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=self.settings.rollout_length,
                rows=self.team.num_envs * robots,
                observation_dim=width,
                critic_dim=self.team.joint_dim,
                action_dim=self.team.action_dims[0],
            )
        )
        self._scaler = (
            RewardScaler(self.team.num_envs, self.settings.gamma)
            if self.settings.normalize_rewards
            else None
        )
        self._joint: Float32Array | None = None
        self.steps = 0
        self.updates = 0

    def learn(
        self, total_steps: int, on_update: Callable[[PPOReport], bool | None] | None = None
    ) -> None:
        """Collect and learn until ``total_steps`` steps of the environments are done in all.

        Args:
            total_steps: Steps of the whole run, counted once per environment, not per robot.
            on_update: Called after every update; returning False stops the run there.
        """
        while self.steps < total_steps:
            while not self._buffer.full:
                self._collect_step()
            done = self.steps - self._buffer.length * self.team.num_envs
            figures = self.agent.update(self._buffer, progress=done / total_steps)
            self.updates += 1
            report = PPOReport(
                steps=self.steps,
                updates=self.updates,
                figures=figures,
                episode_returns=self.team.take_finished(),
            )
            if on_update is not None and on_update(report) is False:
                return

    def policy(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's most probable action, (N, A) each, for joint states (N, S)."""
        rows = self.agent.scale(self._rows(np.asarray(joint)), learn=False)
        return self._per_robot(self.agent.act(rows, deterministic=True))

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, statistics, random streams and counters.

        The environment keeps no state of its own, so a resumed run begins new episodes: take it
        after an update.
        """
        return {
            "version": STATE_VERSION,
            "agent": self.agent.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with new episodes where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"MAPPO: expected a state of version {STATE_VERSION}, got {state.get('version')!r}."
            )
        try:
            self.agent.load_state_dict(state["agent"])
            if self._scaler is not None:
                self._scaler.load_state_dict(state["scaler"])
            self.steps, self.updates = int(state["steps"]), int(state["updates"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"MAPPO: expected a complete state: {error}") from error
        self._joint = None
        self._buffer.clear()

    def _collect_step(self) -> None:
        if self._joint is None:
            stream = derive_substream(f"learn.mappo.env.{self.steps}", root_seed=self._seed)
            self._joint = self.team.reset(stream.integer_seed())
        joint, robots = self._joint, len(self.team.uids)
        seen = self.agent.scale(self._rows(joint), learn=True)
        judged = np.repeat(self.agent.scale_critic(joint, learn=True), robots, axis=0)
        decided = self.agent.act(seen)
        step = self.team.step(self._per_robot(decided))
        self._buffer.stage(seen, decided, judged)
        rewards = step.rewards
        if self._scaler is not None:
            rewards = self._scaler.scale(rewards, step.boundaries)
        cut = (step.cut[:, None] * robots + np.arange(robots)).reshape(-1)
        self._buffer.commit(
            Outcome(
                np.repeat(rewards, robots),
                np.repeat(step.terminated, robots),
                np.repeat(step.boundaries, robots),
            ),
            np.repeat(self.agent.scale_critic(step.states, learn=False), robots, axis=0),
            cut,
            np.repeat(self.agent.scale_critic(step.final_states, learn=False), robots, axis=0),
        )
        self._joint = step.states
        self.steps += self.team.num_envs

    def _rows(self, joint: NDArray[Any]) -> Float32Array:
        """Return one row per environment and robot, (N n, O + n)."""
        robots = len(self.team.uids)
        states = joint.reshape(len(joint), robots, -1)
        identity = np.broadcast_to(np.eye(robots, dtype=np.float32), (len(joint), robots, robots))
        rows = np.concatenate((states, identity), axis=-1)
        return rows.reshape(len(joint) * robots, -1).astype(np.float32, copy=False)

    def _per_robot(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        robots = len(self.team.uids)
        return list(rows.reshape(-1, robots, rows.shape[-1]).transpose(1, 0, 2))

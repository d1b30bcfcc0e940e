"""MAPPO: one policy network plays every robot, one central critic judges the joint state.

Every robot's row is its own state and a one-hot of which robot it is; the critic sees the states of
all robots side by side. The rows of all robots form one batch of PPO.

Source:  arXiv:2103.01955; parameter sharing with agent identity: its section 3.
Axes:    N = environments, n = robots, O = state of one robot, S = n O, A = action components;
         rows are ordered environment by environment, robots within.
Limits:  one shared reward; robots with equally wide states and actions. For others use
         `cadenza.learn.algorithms.happo_team.HAPPO`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, Outcome
from cadenza.learn.algorithms.ppo import PPOReport
from cadenza.learn.algorithms.ppo_agent import PPOAgent
from cadenza.learn.algorithms.team_learner import OnPolicyTeamLearner
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.configs import PPOConfig, config_of


class MAPPO(OnPolicyTeamLearner[PPOReport]):
    """Shared-parameter PPO for a team.

    Args:
        env: See `TeamSteps`.
        uids: Robots that learn.
        config: Settings; the defaults if None.
        seed: Root of every random stream.

    Raises:
        ConfigurationError: The robots' states or actions differ in width.
        InputError: ``config`` is that of something else.
    """

    STATE_VERSION = 1

    def __init__(
        self,
        env: Any,
        uids: Sequence[str],
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        config = config_of("MAPPO", config, PPOConfig)
        team = TeamSteps(env, uids)
        dims = {*zip(team.observation_dims, team.action_dims, strict=True)}
        if len(dims) != 1:
            raise ConfigurationError(
                "MAPPO: expected robots with equally wide states and actions, got "
                f"{team.observation_dims} and {team.action_dims}; use HAPPO, whose "
                "robots have policies of their own."
            )
        robots = len(team.uids)
        width = team.observation_dims[0] + robots
        super().__init__(
            team,
            BufferShape(
                capacity=config.rollout_length,
                rows=team.num_envs * robots,
                observation_dim=width,
                critic_dim=team.joint_dim,
                action_dim=team.action_dims[0],
            ),
            reward_discount=config.gamma if config.normalize_rewards else None,
            stream="learn.mappo",
            seed=seed,
        )
        self.config = config
        self.agent = PPOAgent(
            self.config,
            observation_dim=width,
            critic_dim=self.team.joint_dim,
            action_dim=self.team.action_dims[0],
            seed=seed,
        )

    def policy(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's most probable action, (N, A) each, for joint states (N, S)."""
        rows = self.agent.scale(self._rows(np.asarray(joint)), learn=False)
        return self._in_bounds(self.agent.act(rows, deterministic=True))

    def _learned_state(self) -> dict[str, Any]:
        return {"agent": self.agent.state_dict()}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])

    def _update(self, progress: float) -> PPOReport:
        figures = self.agent.update(self._buffer, progress=progress)
        self.updates += 1
        return PPOReport(
            steps=self.steps,
            updates=self.updates,
            figures=figures,
            episode_returns=self.team.take_finished(),
        )

    def _collect_step(self) -> None:
        joint, robots = self._states(), len(self.team.uids)
        seen = self.agent.scale(self._rows(joint), learn=True)
        judged = np.repeat(self.agent.scale_critic(joint, learn=True), robots, axis=0)
        decided = self.agent.act(seen)
        step = self.team.step(self._in_bounds(decided))
        self._buffer.stage(seen, decided, judged)
        cut = (step.cut[:, None] * robots + np.arange(robots)).reshape(-1)
        self._buffer.commit(
            Outcome(
                np.repeat(self._rewards(step), robots),
                np.repeat(step.terminated, robots),
                np.repeat(step.boundaries, robots),
            ),
            np.repeat(self.agent.scale_critic(step.states, learn=False), robots, axis=0),
            cut,
            np.repeat(self.agent.scale_critic(step.final_states, learn=False), robots, axis=0),
        )
        self._advance(step)

    def _rows(self, joint: NDArray[Any]) -> Float32Array:
        """Return one row per environment and robot, (N n, O + n)."""
        robots = len(self.team.uids)
        states = joint.reshape(len(joint), robots, -1)
        identity = np.broadcast_to(np.eye(robots, dtype=np.float32), (len(joint), robots, robots))
        rows = np.concatenate((states, identity), axis=-1)
        return rows.reshape(len(joint) * robots, -1).astype(np.float32, copy=False)

    def _in_bounds(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's actions, squashed if they are to be; others `TeamSteps` clips."""
        robots = len(self.team.uids)
        actions = list(rows.reshape(-1, robots, rows.shape[-1]).transpose(1, 0, 2))
        if not self.config.squash_actions:
            return actions
        return self.team.from_unit([np.tanh(action) for action in actions])

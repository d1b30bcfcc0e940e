"""MAPPO: one PPO policy plays every robot of a team, one central critic judges the joint state.

Every robot's row is its own state and a one-hot of which robot it is; the rows of all robots,
environment by environment, form one batch of PPO.
Source:  arXiv:2103.01955; parameter sharing with agent identity: its section 3.
Axes:    N = environments, n = robots, B = batch, O, A = state and action of a robot, S = n O =
         joint state.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.agent import AgentKeywords
from cadenza.learn.agents.ppo import MAPPOConfig, MAPPOSettings, PPOLearner
from cadenza.learn.agents.team import RolloutTeam
from cadenza.learn.env.teams import TeamEnvLike
from cadenza.learn.nn.layers import Layer


class _Identified(nn.Module):
    """A policy that several robots share, for one of them: its row ends in who it is."""

    def __init__(self, policy: nn.Module, identity: Tensor) -> None:
        super().__init__()
        self.policy = policy
        self.register_buffer("identity", identity, persistent=False)  # (n,), one at its place

    def forward(self, state: Tensor) -> Tensor:
        """Return actions, (B, A), for states, (B, O)."""
        identity = self.get_buffer("identity").expand(state.shape[0], -1)
        return self.policy(torch.cat((state, identity), dim=1))

    def portable(self) -> "Sequence[nn.Module | Layer]":
        """Return the layers of a policy file."""
        return [Layer("append", tensors={"values": self.get_buffer("identity")}), self.policy]


class _MAPPOKeywords(AgentKeywords, MAPPOSettings, total=False): ...


class MAPPO(RolloutTeam[MAPPOConfig]):
    """One PPO policy plays every robot, one central critic judges the joint state.

    Robots have equally wide states, and equally wide actions or equally many choices; for others
    use `HAPPO`. Settings: `MAPPOConfig`.
    """

    Config = MAPPOConfig
    learner: PPOLearner

    def __init__(self, env: TeamEnvLike, **settings: Unpack[_MAPPOKeywords]) -> None:
        super().__init__(env, **settings)

    def _build(self) -> None:
        super()._build()
        team, robots = self.team, len(self.envs.uids)
        if self.config.squash_actions:
            team.require_scalable(self.name)
        if len({*zip(team.observation_dims, team.action_dims, team.choices, strict=True)}) != 1:
            raise ConfigurationError(
                "MAPPO: expected robots with equally wide states and actions, got "
                f"{team.observation_dims} and {', '.join(map(str, team.action_spaces))}; pad them "
                "in a wrapper, or, for continuous actions, use HAPPO, whose robots have policies "
                "of their own."
            )
        width, choices = team.observation_dims[0] + robots, team.choices[0]
        action_dim = team.action_dims[0] if choices is None else None
        self._begin_rollouts(width, action_dim, copies=robots, critic_dim=team.joint_dim)
        self.learner = PPOLearner(
            self.config,
            observation_dim=width,
            critic_dim=team.joint_dim,
            action_dim=action_dim,
            choices=choices,
            seed=self.seed,
            device=self.device,
        )

    def robots(self) -> list[nn.Module]:
        """Return the shared policy with the index of the robot it plays."""
        identities = torch.eye(len(self.envs.uids), device=self.device)
        return [_Identified(self.learner.greedy, identity) for identity in identities]

    def _draws(self, robot: int) -> tuple[str, Tensor | None]:
        del robot  # they share one policy
        return "tanh" if self.config.squash_actions else "mean", self.learner.log_std

    def _greedy(self, joint: Float32Array) -> list[NDArray[Any]]:
        rows = self.learner.scale(self._rows(joint), learn=False)
        return self._in_bounds(self.learner.act(rows, deterministic=True))

    def _decide(self, joint: Float32Array) -> list[NDArray[Any]]:
        seen = self.learner.scale(self._rows(joint), learn=True)
        judged = self._judged(joint, learn=True)
        decided = self.learner.act(seen)
        self._buffer.stage(seen, decided, judged)
        return self._in_bounds(decided)

    def _judged(self, joint: Float32Array, *, learn: bool = False) -> Float32Array:
        return np.repeat(self.learner.scale_critic(joint, learn=learn), self._copies, axis=0)

    def _rows(self, joint: NDArray[Any]) -> Float32Array:
        """Return one row per environment and robot, (N n, O + n)."""
        robots = len(self.envs.uids)
        states = joint.reshape(len(joint), robots, -1)
        identity = np.broadcast_to(np.eye(robots, dtype=np.float32), (len(joint), robots, robots))
        rows = np.concatenate((states, identity), axis=-1)
        return rows.reshape(len(joint) * robots, -1).astype(np.float32, copy=False)

    def _in_bounds(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's actions, squashed if they are to be; others `TeamSteps` clips."""
        robots = len(self.envs.uids)
        if rows.ndim == 1:
            firsts = [first for first, _ in self.team.bounds]
            return [*(rows.reshape(-1, robots) + np.array(firsts)).T]
        actions = list(rows.reshape(-1, robots, rows.shape[-1]).transpose(1, 0, 2))
        if not self.config.squash_actions:
            return actions
        return self.team.from_unit([np.tanh(action) for action in actions])

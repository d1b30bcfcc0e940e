"""The front door of teams: several robots that learn together, see `cadenza.learn.api`.

    team = cadenza.HAPPO(lambda n: VectorMPECooperativePushEnv(n, root_seed=0)).learn(100_000)
    print(team.evaluate(episodes=100))

Axes:  N = environments, S = joint state, O = state of one robot, A = action of one robot.
"""

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.core.spaces import BoxSpace
from cadenza.learn.algorithms import happo_team, hatd3_team, mappo
from cadenza.learn.algorithms.action_codec import ActionCodec
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.api import Agent, Config, Deployed, Evaluation
from cadenza.learn.configs import HAPPOConfig, HATD3Config, PPOConfig
from cadenza.learn.export import onnx_graph


class TeamWorlds:
    """A batch of environments with several robots, and how to make another one.

    Args:
        source: A batch, see `TeamSteps`, or a function from a number of environments to a batch.
        count: How many; None takes ``default``.
        default: How many unless told otherwise.
    """

    id: str | None = None

    def __init__(self, source: Any, *, count: int | None, default: int) -> None:
        self._make = source if callable(source) else None
        self.can_make: bool = callable(source)
        self.vector: Any = source(count or default) if callable(source) else source
        self.uids: tuple[str, ...] = tuple(self.vector.agent_uids)

    def make(self, count: int) -> Any:
        """Return another batch of ``count`` environments.

        Raises:
            InputError: There is no function that makes one.
        """
        if self._make is None:
            raise InputError(
                "evaluate: expected a batch to judge in, for the team's own is in use; pass "
                "env=..., or make the team from a function: HAPPO(lambda n: MyEnvs(n))."
            )
        return self._make(count)


TeamLearnerKind = TypeVar(
    "TeamLearnerKind", bound="mappo.MAPPO | happo_team.HAPPO | hatd3_team.HATD3"
)


class TeamAgent(Agent[Config], Generic[Config, TeamLearnerKind]):
    """Several robots that learn together in one batch of environments; see `TeamSteps`.

    ``env`` is a batch, or a function from a number of environments to a batch. A batch keeps no
    state that could be saved, so every `learn` begins with new episodes.
    """

    default_envs = 16
    envs: TeamWorlds
    learner: TeamLearnerKind

    def _environments(self, env: Any, count: int | None) -> TeamWorlds:
        return TeamWorlds(env, count=count, default=self.default_envs)

    def learn(self, steps: int, **options: Any) -> Self:
        """Train, see `Agent.learn`; begins with new episodes."""
        self.learner.forget_episodes()
        return super().learn(steps, **options)

    def predict(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's greedy action, (N, A) each, for joint states, (N, S)."""
        actions = self.learner.policy(np.atleast_2d(np.asarray(joint, dtype=np.float32)))
        bounds = self.learner.team.bounds
        return [np.clip(a, low, high) for a, (low, high) in zip(actions, bounds, strict=True)]

    def evaluate(self, episodes: int = 20, *, env: Any = None, seed: int = 0) -> Evaluation:
        """Play greedy episodes side by side, one in each of ``episodes`` environments.

        Args:
            episodes: How many, >= 1.
            env: Batch of as many environments; None makes one.
            seed: Root of the episodes' seeds.
        """
        team = TeamSteps(self.envs.make(episodes) if env is None else env, self.envs.uids)
        stream = derive_substream("learn.evaluation.team", root_seed=seed)
        joint = team.reset(stream.integer_seed())
        returns, lengths = np.zeros(team.num_envs), np.zeros(team.num_envs, np.int64)
        runs = np.ones(team.num_envs, np.bool_)
        while runs.any():
            step = team.step(self.predict(joint))
            returns += np.where(runs, step.rewards, 0.0)
            lengths += runs
            runs &= ~step.boundaries
            joint = step.states
        return Evaluation.of(returns.tolist(), lengths.tolist())

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy team, from joint states (N, S) to every robot's actions, as ONNX.

        Raises:
            MissingExtraError: The extra ``onnx`` is not installed.
        """
        onnx_graph.require_onnx()
        team = self.learner.team
        signature = onnx_graph.PolicySignature(
            inputs={"joint": BoxSpace(np.float32, (team.joint_dim,))},
            outputs=tuple(f"actions.{uid}" for uid in team.uids),
            device=torch.device("cpu"),
        )
        return onnx_graph.write_policy(_DeployedTeam(self.robots(), team), signature, Path(path))

    @abstractmethod
    def robots(self) -> list[nn.Module]:
        """Return every robot's greedy policy, from its state (B, O) to its action (B, A)."""

    def _learned_state(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state)


class RolloutTeam(TeamAgent[Config, Any]):
    """A team that learns from rollouts and forgets them."""

    def _batches(self) -> Generator[dict[str, Any]]:
        while self.steps < self.target_steps:
            size = self.learner.collect_rollout()
            self.steps = self.learner.steps
            yield {"batch_size": size, "inf_step": self.steps}

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        del batch  # the learner holds its rollout
        report = self.learner.update(self.target_steps)
        self._recent.extend(report.episode_returns)
        return report.figures.as_dict()


class MAPPO(RolloutTeam[PPOConfig]):
    """One PPO policy for all robots, with a central critic.

    Source: arXiv:2103.01955. Settings: `PPOConfig`.
    """

    Config = PPOConfig

    def _build(self) -> None:
        self.learner = mappo.MAPPO(self.envs.vector, self.envs.uids, self.config, seed=self.seed)

    def robots(self) -> list[nn.Module]:
        """Return the shared policy, told which robot it plays."""
        greedy, count = self.learner.agent.greedy, len(self.envs.uids)
        return [_Identified(greedy, number, count) for number in range(count)]


class HAPPO(RolloutTeam[HAPPOConfig]):
    """A PPO policy for every robot, updated one after the other.

    Source: arXiv:2304.09870. Settings: `HAPPOConfig`.
    """

    Config = HAPPOConfig

    def _build(self) -> None:
        self.learner = happo_team.HAPPO(
            self.envs.vector, self.envs.uids, self.config, seed=self.seed
        )

    def robots(self) -> list[nn.Module]:
        """Return the actors."""
        return list(self.learner.actors)


class HATD3(TeamAgent[HATD3Config, hatd3_team.HATD3]):
    """A TD3 policy for every robot, updated one after the other.

    Source: arXiv:2304.09870, section 5.2. Settings: `HATD3Config`.
    """

    Config = HATD3Config

    def _build(self) -> None:
        self.learner = hatd3_team.HATD3(
            self.envs.vector, self.envs.uids, self.config, seed=self.seed
        )

    def _batches(self) -> Generator[dict[str, Any]]:
        while self.steps < self.target_steps:
            for batch in self.learner.collect():
                self.steps = self.learner.steps
                yield {"team": batch, "batch_size": len(batch.rewards), "inf_step": self.steps}
            self.steps = self.learner.steps
            self._recent.extend(self.learner.team.take_finished())

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        return self.learner.learner.update(batch["team"])

    def robots(self) -> list[nn.Module]:
        """Return the actors, scaled to their bounds."""
        pairs = zip(self.learner.learner.actors, self.learner.team.bounds, strict=True)
        return [
            Deployed(actor, ActionCodec(spaces.Box(low, high), owner=self.name, unit=True))
            for actor, (low, high) in pairs
        ]


class _Identified(nn.Module):
    """A policy that several robots share, for one of them: its row ends in who it is."""

    def __init__(self, policy: nn.Module, number: int, count: int) -> None:
        super().__init__()
        self.policy = policy
        self.register_buffer("identity", torch.eye(count)[number], persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        """Return actions, (B, A), for states, (B, O)."""
        identity = self.get_buffer("identity").expand(state.shape[0], -1)
        return self.policy(torch.cat((state, identity), dim=1))


class _DeployedTeam(nn.Module):
    """Joint states, (B, S), to every robot's action within its bounds."""

    def __init__(self, robots: Sequence[nn.Module], team: TeamSteps) -> None:
        super().__init__()
        self.robots = nn.ModuleList(robots)
        self._widths = list(team.observation_dims)
        self._bounds = [[torch.tensor(end) for end in bounds] for bounds in team.bounds]

    def forward(self, joint: Tensor) -> tuple[Tensor, ...]:
        """Return actions, (B, A) per robot."""
        states = torch.split(joint, self._widths, dim=1)
        parts = zip(self.robots, states, self._bounds, strict=True)
        return tuple(torch.clamp(robot(state), low, high) for robot, state, (low, high) in parts)

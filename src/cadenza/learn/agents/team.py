"""The front door of teams: several robots that learn together, see `agent`.

    team = cadenza.HAPPO(lambda n: VectorMPECooperativePushEnv(n, root_seed=0)).learn(100_000)
    print(team.evaluate(episodes=100))

A team has one shared reward. What every robot sees, side by side, is the joint state that central
critics learn from. A resumed run begins new episodes, of ``learn.<algorithm>.env.<steps>``.
PettingZoo's parallel environments become a batch by `cadenza.learn.env.parallel_team`.

Axes:  N = environments, n = robots, O_i, A_i = state and action of robot i, S = Σ O_i = joint
       state, K = environments that a time limit cut off.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array, FloatArray, require_finite, require_shape
from cadenza.core.checks import shown, whole_number
from cadenza.core.errors import InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.core.spaces import BoxSpace
from cadenza.learn.agents.agent import Agent, AgentConfig
from cadenza.learn.agents.batches import RolloutLoop
from cadenza.learn.agents.judging import Evaluation, evaluate_batch
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.env.making import agreed
from cadenza.learn.env.parallel_team import flat_states, native_action
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.env.teams import TeamSteps, TeamWorlds, batch_of, contracts_of
from cadenza.learn.export import onnx_graph
from cadenza.learn.loaded_state import learner_state
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network
from cadenza.learn.nn.space_facts import space_facts
from cadenza.learn.settings import ActorCriticConfig

TeamConfig = TypeVar("TeamConfig", bound=ActorCriticConfig)


class TeamAgent(Agent[AgentConfig]):
    """Several robots that learn together in one batch of environments; see `TeamSteps`.

    ``env`` is a batch, or a function from a number of environments to a batch; or a parallel
    environment of PettingZoo, or a function that makes one. The running episodes of a batch cannot
    be saved, so every `learn` begins with new ones; what it remembers beyond episodes comes back,
    see `cadenza.learn.env.held_state`.
    """

    default_envs = 16
    envs: TeamWorlds

    def _environments(self, env: Any, count: int | None) -> TeamWorlds:
        return TeamWorlds(env, count=count, default=self.default_envs)

    def _build(self) -> None:
        self.team: TeamSteps = TeamSteps(self.envs.batch, self.envs.uids)
        #: What the batch held, until the next training puts it back.
        self._saved_held: Mapping[str, Any] | None = None
        self._joint: Float32Array | None = None
        self._returns: FloatArray = np.zeros(self.team.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on; see `Agent.state_dict`."""
        held = self.team.held.read() if self._saved_held is None else dict(self._saved_held)
        return {**super().state_dict(), "held": held, "num_envs": self.envs.num_envs}

    def load_state_dict(self, state_dict: dict[str, Any], *switches: bool, **named: bool) -> None:
        """Continue where `state_dict` was taken; see `Agent.load_state_dict`."""
        rest = dict(state_dict)
        held, count = rest.pop("held", {}), rest.pop("num_envs", self.envs.num_envs)
        super().load_state_dict(rest, *switches, **named)
        self._saved_held = held if count == self.envs.num_envs else None

    def _resume_episodes(self) -> None:
        self.forget()
        left = self.team.held.put_back(self._saved_held or {})
        self._saved_held = None
        self._warn_of_held(left)

    def forget(self) -> None:
        """Begin new episodes with the next step."""
        super().forget()
        self._joint = None
        self._returns[:] = 0.0

    def _states(self) -> Float32Array:
        """Return the joint states to act on, (N, S); without any, begin new episodes."""
        if self._joint is None:
            name = f"learn.{self.name.lower()}.env.{self.steps}"
            self._joint = self.team.reset(
                derive_substream(name, root_seed=self.seed).integer_seed()
            )
        return self._joint

    @overload
    def predict(self, joint: Mapping[str, Any]) -> dict[str, Any]: ...
    @overload
    def predict(self, joint: NDArray[Any]) -> list[NDArray[Any]]: ...
    def predict(
        self, joint: Mapping[str, Any] | NDArray[Any]
    ) -> dict[str, Any] | list[NDArray[Any]]:
        """Return the greedy actions for one environment's observations, or for joint states.

        Observations by robot, as PettingZoo gives them, get actions by robot that its ``step``
        takes. Robots that are missing are taken to be gone: the others see zeros, as in training.
        Joint states, (N, S), get a list of every robot's actions, (N, A), or choices, (N,).

        Raises:
            InputError: ``joint`` is something else, has a robot that is not of the team or an
                observation of another shape, or is not finite.
        """
        where = f"{self.name}.predict"
        if isinstance(joint, Mapping):
            return self._actions_by_robot(where, joint)
        try:
            states = np.atleast_2d(np.asarray(joint, dtype=np.float32))
        except (TypeError, ValueError):
            expected = (
                f"a dict of observations by robot, or joint states (N, {self.team.joint_dim})"
            )
            refuse(
                InputError,
                where,
                expected=expected,
                got=shown(joint),
                do="pass what env.reset() returns first",
            )
        do = "or pass a dict of observations by robot"
        require_shape(f"{where}: joint", states, (len(states), self.team.joint_dim), do)
        require_finite(f"{where}: joint", states)
        return self._in_range(states)

    def _actions_by_robot(self, where: str, seen: Mapping[str, Any]) -> dict[str, Any]:
        native = self.envs.native
        if not seen.keys() <= native.keys():
            expected = f"observations of {', '.join(native)}"
            do = "pass those of one environment, as PettingZoo gives them"
            refuse(InputError, where, expected=expected, got=f"{[*seen]}", do=do)
        states = flat_states(self, seen, seen, native)
        joint = np.concatenate([states[uid] for uid in self.team.uids])[None]
        require_finite(f"{where}: observations", joint)
        actions = dict(zip(self.team.uids, self._in_range(joint), strict=True))
        return {uid: native_action(actions[uid][0], native[uid][1]) for uid in seen}

    def _in_range(self, joint: Float32Array) -> list[NDArray[Any]]:
        """Return every robot's greedy actions within its bounds, (N, A) or (N,)."""
        pairs = zip(self._greedy(joint), self.team.bounds, strict=True)
        return [np.clip(actions, low, high) for actions, (low, high) in pairs]

    def evaluate(
        self,
        episodes: int = 20,
        *,
        env: Any = None,
        num_envs: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> Evaluation:
        """Play greedy episodes in a batch of ``num_envs`` environments, each a fixed number.

        That is one in each by default. ``env`` is what a team takes; None makes another batch.
        Episodes longer than ``max_episode_steps`` are cut.

        Raises:
            InputError: A number is below 1, ``env`` has another number of environments, there is no
                way to make one, a return is not finite, or an episode goes on and on.
        """
        episodes = whole_number("evaluate.episodes", episodes, least=1)
        count = episodes
        if num_envs is not None:
            count = whole_number("evaluate.num_envs", num_envs, least=1)
        env = None if env is None else batch_of(env, count)
        if env is not None and env.num_envs != count:
            raise InputError(
                f"evaluate: expected a batch of episodes = {count} environments, got "
                f"{env.num_envs}; each plays one, unless num_envs={env.num_envs} is given."
            )
        team = TeamSteps(self.envs.make(count) if env is None else env, self.envs.uids)
        agreed(contracts_of(team.envs, self.envs.uids), self.envs.contracts, "evaluate")
        stream = derive_substream("learn.evaluation.team", root_seed=seed)
        return evaluate_batch(
            lambda joint, _: self.predict(joint),
            team,
            episodes,
            seed=stream.integer_seed(),
            max_episode_steps=max_episode_steps,
        )

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy team, from joint states (N, S) to every robot's actions, as ONNX.

        Raises:
            MissingExtraError: The extra ``onnx`` is not installed.
        """
        signature = onnx_graph.PolicySignature(
            inputs={"joint": BoxSpace(np.float32, (self.team.joint_dim,))},
            outputs=tuple(f"actions.{uid}" for uid in self.team.uids),
            device=self.device,
        )
        deployed = _DeployedTeam(self.robots(), self.team)
        return onnx_graph.write_policy(deployed, signature, Path(path), self._onnx_metadata())

    def networks(self) -> dict[str, PortableNetwork]:
        """Return every robot's policy as plain data, by robot."""
        networks: dict[str, PortableNetwork] = {}
        team = self.team
        known = zip(team.uids, team.observation_dims, team.action_spaces, strict=True)
        for robot, (uid, width, space) in enumerate(known):
            if team.choices[robot] is None:
                kind, log_std = self._draws(robot)
                output = Output(kind=kind, low=space.low, high=space.high, log_std=log_std)
            else:
                output = ActionCodec(space).output()
            layers = layers_of(self.robots()[robot])
            made = flat_network(layers, width, output, seat=uid, **self._policy_facts(uid))
            if output.chooses:
                made = replace(made, action=space_facts(space))
            networks[uid] = made
        return networks

    @abstractmethod
    def robots(self) -> list[nn.Module]:
        """Return every robot's greedy policy, from its state (B, O) to its action (B, A)."""

    def _draws(self, robot: int) -> tuple[str, Tensor | None]:
        """Return the output of a robot's policy file, and ln σ of its draws, (A,), if any."""
        del robot
        return "mean", None

    @abstractmethod
    def _greedy(self, joint: Float32Array) -> list[NDArray[Any]]:
        """Return every robot's greedy action before clipping, (N, A), for joint states, (N, S)."""


class RolloutTeam(TeamAgent[TeamConfig], RolloutLoop[TeamConfig]):
    """A team that learns from rollouts and forgets them."""

    def _begin_rollouts(
        self, width: int, action_dim: int | None, *, copies: int = 1, critic_dim: int | None = None
    ) -> None:
        """Make the buffer, with ``copies`` rows per environment."""
        self._copies = copies
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=self.config.rollout_length,
                rows=self.team.num_envs * copies,
                observation_dim=width,
                critic_dim=critic_dim,
                action_dim=action_dim,
            )
        )

    @abstractmethod
    def _decide(self, joint: Float32Array) -> list[NDArray[Any]]:
        """Return every robot's drawn actions for joint states, (N, S), and stage the step."""

    @abstractmethod
    def _judged(self, joint: Float32Array) -> Float32Array:
        """Return what the critic sees of joint states, one row per row of the buffer."""

    def step(self) -> VectorStep:
        """Take a step in every environment and remember it."""
        decided = self._decide(self._states())
        acting = getattr(self.team.envs, "acting", None)  # of a `ParallelTeam`, (N, n)
        step = self.team.step(decided)
        rewards = self.learner.normal.rewards.scale(step.rewards, step.boundaries)
        flags = (rewards, step.terminated, step.boundaries)
        self._buffer.commit(
            Outcome(
                *(np.repeat(values, self._copies) for values in flags),
                # With a row for every robot, none is learned from that was not there.
                valid=None if acting is None or self._copies == 1 else acting.reshape(-1),
            ),
            self._judged(step.observations),
            (step.cut[:, None] * self._copies + np.arange(self._copies)).reshape(-1),
            self._judged(step.following[step.cut]),
        )
        self._joint = step.observations
        self._count(step, step.boundaries)
        return step

    def _learned_state(self) -> dict[str, Any]:
        return {"learner": self.learner.state_dict()}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(learner_state(state))
        self.forget()


class _DeployedTeam(nn.Module):
    """Joint states, (B, S), to every robot's action within its bounds."""

    def __init__(self, robots: Sequence[nn.Module], team: TeamSteps) -> None:
        super().__init__()
        self.robots = nn.ModuleList(robots)
        self._widths = list(team.observation_dims)
        self._codecs = [ActionCodec(space) for space in team.action_spaces]

    def forward(self, joint: Tensor) -> tuple[Tensor, ...]:
        """Return actions, (B, A) or choices (B,) per robot."""
        states = torch.split(joint, self._widths, dim=1)
        parts = zip(self.robots, states, self._codecs, strict=True)
        return tuple(codec.to_env(robot(state)) for robot, state, codec in parts)

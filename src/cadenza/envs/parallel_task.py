"""A PettingZoo parallel environment of two agents, with the interface of our own tasks.

Seats:    ego and partner take the agents in their own order, unless the seats bear the agents'
          names: ``("agent_0", "adversary_0")`` makes agent_0 the ego.
State:    an agent's observation, flattened (`gymnasium.spaces.flatten`) to float32, (D,).
Action:   for a Box the flattened action, (A,), clipped to the bounds; for a Discrete(n) the number
          of the choice as an array (1,) holding a whole number.
Reward:   the ego's own; with ``team_reward`` the sum over both agents.
End:      when the ego's part ends or no agent is left; a time limit of ours cuts off. An agent
          that left earlier acts no more, and its state stays what it last was.
Random:   ``reset(seed=k)`` resets with the integer of stream ``env.parallel.episode.{k}`` under the
          root seed, the n-th unseeded reset after it with that of
          ``env.parallel.episode.{k}.auto.{n}``, or ``env.parallel.automatic.{n}`` before any seed.
Limits:   a step has no duration, so ``control_timestep`` is 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core import environments
from cadenza.core.arrays import Float32Array
from cadenza.core.checks import whole_number
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.environments import ParallelEnvLike
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.envs.inputs import ChamberEnvCompatibilityError, missing_uid_message

#: Family of the streams of seeded episodes, up to the seed.
EPISODE_STREAM: Final = "env.parallel.episode."
#: Distance from a whole number within which an action names a choice; learners compute in float32.
CHOICE_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class _Seat:
    """One agent under the name of its seat."""

    uid: str
    agent: str
    observations: gym.Space[Any]
    actions: gym.Space[Any]

    def state(self, observation: Any) -> Float32Array:
        """Return the observation as a vector, (D,)."""
        return np.asarray(spaces.flatten(self.observations, observation), dtype=np.float32)

    def decode(self, value: Any) -> Any:
        """Return an action of ours as the agent's environment takes it."""
        array = np.asarray(value, dtype=np.float64)
        space: Any = self.actions
        size = math.prod(space.shape)  # 1 for a Discrete
        if array.size != size or not np.isfinite(array).all():
            raise InputError(
                f"ParallelTask: expected the action of {self.uid!r} to be {size} finite number(s) "
                f"for {space}, got {array.tolist()}; check the policy that produced it."
            )
        if not isinstance(self.actions, spaces.Discrete):
            clipped = np.clip(array.reshape(space.shape), space.low, space.high)
            return clipped.astype(space.dtype)
        choice = round(float(array.reshape(-1)[0]))
        if abs(float(array.reshape(-1)[0]) - choice) > CHOICE_TOLERANCE or not (
            space.start <= choice < space.start + space.n
        ):
            raise InputError(
                f"ParallelTask: expected the action of {self.uid!r} to be a whole number from "
                f"{space.start} to {space.start + space.n - 1}, got {array.tolist()}; use a policy "
                "that chooses (ppo, mappo, dqn)."
            )
        return choice


class ParallelTask(gym.Env[dict[str, Any], dict[str, NDArray[Any]]]):
    """Two agents of a parallel environment as ego and partner; see the module.

    Args:
        env: The environment; it is closed with this one.
        agent_uids: Names of the seats, ego first.
        episode_length: Steps until truncation, >= 1; the environment may end earlier.
        root_seed: Experiment seed that scopes every episode.
        team_reward: Reward the sum over both agents instead of the ego's own.
        render_mode: What ``env`` was made for.

    Attributes:
        parallel_env: The environment inside.

    Raises:
        ChamberEnvCompatibilityError: Not a parallel environment of two agents whose actions are Box
            or Discrete and whose observations flatten to a Box.
    """

    control_timestep: float = 1.0

    def __init__(
        self,
        env: ParallelEnvLike,
        *,
        agent_uids: tuple[str, str] = ("ego", "partner"),
        episode_length: int = 100,
        root_seed: int = 0,
        team_reward: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self._seats = _seats_of(env, agent_uids)
        self.parallel_env = env
        self.agent_uids = agent_uids
        self.ego_uid: str = agent_uids[0]
        self.partner_uid: str = agent_uids[1]
        self.root_seed: int = whole_number("ParallelTask.root_seed", root_seed, least=0)
        self.episode_length: int = whole_number(
            "ParallelTask.episode_length", episode_length, least=1
        )
        self.team_reward = team_reward
        self.render_mode = render_mode
        modes = [] if render_mode is None else [render_mode]
        self.metadata: dict[str, Any] = {"render_modes": modes}
        self.action_space: Any = spaces.Dict(
            {seat.uid: _flat_actions(seat.actions) for seat in self._seats}
        )
        robots: dict[str, Any] = {
            seat.uid: spaces.Dict({"state": _flat_state(seat)}) for seat in self._seats
        }
        agent: Any = spaces.Dict(robots)
        self.observation_space: Any = spaces.Dict({"agent": agent})
        self._states: dict[str, Float32Array] = {}
        self._steps = self._automatic = 0
        self._next_names = "env.parallel.automatic."  # of the unseeded episodes, up to their number

    @property
    def unwrapped(self) -> Any:
        """The innermost environment: whose code decides what happens."""
        return getattr(self.parallel_env, "unwrapped", self.parallel_env)

    @property
    def task_contract(self) -> Mapping[str, TaskContract]:
        """What the seats' numbers mean, if the environment says it of its agents."""
        told = {seat.uid: contract_at(self.parallel_env, seat.agent) for seat in self._seats}
        return {uid: contract for uid, contract in told.items() if contract is not None}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the episode that ``seed`` selects; ``options`` are ignored."""
        del options
        name = f"{EPISODE_STREAM}{seed}"
        if seed is None:
            name = f"{self._next_names}{self._automatic}"
            self._automatic += 1
        else:
            self._next_names, self._automatic = f"{name}.auto.", 0
        stream = derive_substream(name, root_seed=self.root_seed)
        observations, infos = self.parallel_env.reset(seed=stream.integer_seed())
        self._steps = 0
        self._see(observations)
        return self._observation(), dict(infos.get(self._seats[0].agent) or {})

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance one step.

        Args:
            action: One array per seat; the number of a choice is an array of shape (1,).

        Raises:
            InputError: A seat has no action, or one that its agent cannot take.
            NotReadyError: The episode is over or never began.
        """
        ego = self._seats[0].agent
        alive = set(self.parallel_env.agents)
        if not self._states or ego not in alive:
            raise NotReadyError("ParallelTask.step: expected an episode in progress; call reset().")
        decided: dict[str, Any] = {}
        for seat in self._seats:
            if seat.uid not in action:
                raise InputError(missing_uid_message("ParallelTask", action, seat.uid))
            if seat.agent in alive:
                decided[seat.agent] = seat.decode(action[seat.uid])
        seen, rewards, terminated, truncated, infos = self.parallel_env.step(decided)
        self._steps += 1
        self._see(seen)
        reward = sum(map(float, rewards.values())) if self.team_reward else float(rewards[ego])
        ended = bool(terminated[ego])
        cut = bool(truncated[ego]) or self._steps >= self.episode_length
        return self._observation(), reward, ended, cut and not ended, dict(infos.get(ego) or {})

    def render(self) -> Any:
        """Return the picture of the environment inside."""
        return cast("Any", self.parallel_env).render()

    def close(self) -> None:
        """Close the environment inside."""
        cast("Any", self.parallel_env).close()

    def _see(self, observations: Mapping[str, Any]) -> None:
        """Keep the states of those who are still there."""
        for seat in self._seats:
            if seat.agent in observations:
                self._states[seat.uid] = seat.state(observations[seat.agent])

    def _observation(self) -> dict[str, Any]:
        return {"agent": {seat.uid: {"state": self._states[seat.uid]} for seat in self._seats}}


def _seats_of(env: ParallelEnvLike, agent_uids: tuple[str, str]) -> tuple[_Seat, _Seat]:
    """Return the seats of ego and partner."""
    name = type(env).__name__
    agents = tuple(getattr(env, "possible_agents", ()))
    if not agents or hasattr(env, "agent_iter"):
        raise ChamberEnvCompatibilityError(
            f"ParallelTask: expected a PettingZoo parallel environment, got {name}; name the "
            "module's parallel_env, or convert it with pettingzoo.utils.aec_to_parallel."
        )
    if len(agents) != 2:
        raise ChamberEnvCompatibilityError(
            f"ParallelTask: expected two agents, got {len(agents)} ({', '.join(agents)}); set the "
            "environment's own option for their number, e.g. +env.options.N=2."
        )
    if set(agents) == set(agent_uids):
        agents = agent_uids
    first, second = (
        _Seat(uid, agent, env.observation_space(agent), env.action_space(agent))
        for uid, agent in zip(agent_uids, agents, strict=True)
    )
    return first, second


def _flat_state(seat: _Seat) -> spaces.Box[Any]:
    """Return the Box of the seat's `state`."""
    flat = environments.flat_state_space(seat.observations)
    if flat is None:
        raise ChamberEnvCompatibilityError(
            f"ParallelTask: expected observations of {seat.agent!r} that flatten to one Box, got "
            f"{seat.observations}; wrap the environment."
        )
    return flat


def _flat_actions(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of a seat's actions: the same Discrete, or a Box of rank 1, float32."""
    flat = environments.flat_action_space(space)
    if flat is None:
        raise ChamberEnvCompatibilityError(
            f"ParallelTask: expected actions of Discrete or of a real Box, got {space}; wrap the "
            "environment so that every agent has one of them."
        )
    return flat

"""PettingZoo's parallel environments, side by side, as one batch of a team.

State:    an agent's observation, flattened (`gymnasium.spaces.flatten`), float32; zeros while the
          agent is not there (death masking, arXiv:2103.01955).
Action:   a Box's, flattened, or the number of a Discrete's choice; of absent agents it is dropped.
Reward:   the sum over the agents, as in HARL.
End:      when no agent is left. The task ended the episode if it ended it for everybody who acted
          last; otherwise a time limit cut it off. The next episode begins in the same step.
Success:  ``is_success`` of an episode if every agent succeeded whose info says whether it did.
Random:   episode n of environment i is reset with the integer of stream
          ``learn.team.env.{i}.episode.{n}`` under the seed of `ParallelTeam.reset`.
Axes:     N = environments, n = agents, O_i, A_i = state and action of agent i.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core import environments
from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream

#: What one agent sees and does.
NativeSpaces: TypeAlias = tuple[Any, Any]


def is_parallel(env: Any) -> bool:
    """Return whether ``env`` is one parallel environment.

    Raises:
        ConfigurationError: It is one whose agents act in turns.
    """
    if not hasattr(env, "possible_agents") or hasattr(env, "num_envs"):
        return False
    if hasattr(env, "agent_iter"):
        raise ConfigurationError(
            f"env: expected a PettingZoo parallel environment, got {type(env).__name__}, whose "
            "agents act in turns; use the module's parallel_env, or aec_to_parallel of "
            "pettingzoo.utils."
        )
    return True


class ParallelTeam:
    """Environments with the same agents and spaces, stepped one after the other; see the module.

    Attributes:
        acting: Who acts next, (N, n).
        native: What every agent sees and does in one environment, by agent.
        unwrapped: The first one without its wrappers.

    Raises:
        ConfigurationError: They differ, or states or actions are of another kind.
    """

    def __init__(self, envs: Sequence[environments.ParallelEnvLike]) -> None:
        self.envs: list[Any] = list(envs)
        first = self.envs[0]
        self.num_envs: int = len(self.envs)
        self.agent_uids: tuple[str, ...] = tuple(first.possible_agents)
        self.task_contract: Any = getattr(first, "task_contract", None)
        self.unwrapped: Any = getattr(first, "unwrapped", first)
        self.native: dict[str, NativeSpaces] = _spaces_of(first, self.agent_uids)
        for env in self.envs:
            environments.require_seeded_reset(env)
            if _spaces_of(env, tuple(env.possible_agents)) != self.native:
                raise ConfigurationError(
                    "env: expected PettingZoo environments with the same agents and spaces, got "
                    f"{[*self.native]} and {[*env.possible_agents]}; make them alike."
                )
        self.observation_space: Any = {"agent": {}}
        self.action_space: Any = {}
        for uid, (seen, done) in self.native.items():
            state = environments.flat_state_space(seen)
            action = environments.flat_action_space(done)
            if state is None or action is None:
                raise ConfigurationError(
                    f"env: expected a PettingZoo environment whose {uid!r} has observations that "
                    f"flatten to one Box and actions of Discrete or of a real Box, got "
                    f"{seen} and {done}; wrap it."
                )
            self.observation_space["agent"][uid] = {"state": batch_space(state, self.num_envs)}
            self.action_space[uid] = batch_space(action, self.num_envs)
        self.acting: NDArray[np.bool_] = np.ones((self.num_envs, len(self.agent_uids)), np.bool_)
        self._seed = 0
        self._episodes = [0] * self.num_envs

    def reset(self, *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin every episode anew."""
        self._seed, self._episodes = seed, [0] * self.num_envs
        states = [self._begin(row) for row in range(self.num_envs)]
        self.acting = self._present()
        return self._batch(states), {}

    def step(self, actions: Mapping[str, NDArray[Any]]) -> tuple[Any, ...]:
        """Advance every environment; the actions of an agent are (N, A_i), or choices, (N,).

        Raises:
            InputError: An environment answers something else.
        """
        states: list[dict[str, Float32Array]] = []
        finals: dict[int, dict[str, Float32Array]] = {}
        rewards, successes = np.zeros(self.num_envs), np.full(self.num_envs, np.nan)
        ends, cuts = np.zeros((2, self.num_envs), np.bool_)
        for row, env in enumerate(self.envs):
            acted: list[str] = list(env.agents)
            given = {uid: native_action(actions[uid][row], self.native[uid][1]) for uid in acted}
            answer = environments.values_of(env, "step", env.step(given))
            seen, told, terminated, truncated, infos = answer
            rewards[row] = sum(map(float, told.values()))
            known = [environments.success(infos.get(uid) or {}) for uid in acted]
            successes[row] = min((each for each in known if each in (0.0, 1.0)), default=np.nan)
            has_ended = [bool(terminated[uid]) for uid in acted]
            if env.agents and not all(np.logical_or(has_ended, [truncated[uid] for uid in acted])):
                states.append(flat_states(env, seen, env.agents, self.native))
                continue
            ends[row], cuts[row] = all(has_ended), not all(has_ended)
            finals[row] = flat_states(env, seen, acted, self.native)
            states.append(self._begin(row))
        info: dict[str, Any] = {"is_success": successes}
        if finals:
            info["final_obs"] = self._batch([finals.get(k, now) for k, now in enumerate(states)])
        self.acting = self._present()
        return self._batch(states), rewards, ends, cuts, info

    def _begin(self, row: int) -> dict[str, Float32Array]:
        """Begin the next episode of one environment; return its agents' states."""
        env, name = self.envs[row], f"learn.team.env.{row}.episode.{self._episodes[row]}"
        self._episodes[row] += 1
        seed = derive_substream(name, root_seed=self._seed).integer_seed()
        seen, _ = environments.values_of(env, "reset", env.reset(seed=seed))
        if not env.agents:
            raise InputError(
                f"{type(env).__name__}: expected agents after reset(), got none; correct it."
            )
        return flat_states(env, seen, env.agents, self.native)

    def _present(self) -> NDArray[np.bool_]:
        return np.array([[uid in env.agents for uid in self.agent_uids] for env in self.envs])

    def _batch(self, states: Sequence[Mapping[str, Float32Array]]) -> dict[str, Any]:
        uids = self.agent_uids
        return {"agent": {u: {"state": np.stack([row[u] for row in states])} for u in uids}}


def flat_states(
    env: Any, seen: Mapping[str, Any], present: Iterable[str], native: Mapping[str, NativeSpaces]
) -> dict[str, Float32Array]:
    """Return every agent's state, (O_i,), from what those ``present`` saw in ``env``.

    Raises:
        InputError: One saw something else than its space.
    """
    states = {u: np.zeros(spaces.flatdim(space), np.float32) for u, (space, _) in native.items()}
    for uid in present:
        value, space = seen.get(uid), native[uid][0]
        environments.require_observation(env, value, space, f"observation[{uid!r}]")
        states[uid] = np.asarray(spaces.flatten(space, cast("Any", value)), np.float32)
    return states


def native_action(action: NDArray[Any], space: Any) -> Any:
    """Return one agent's action, (A_i,) or a choice, as its environment takes it."""
    if isinstance(space, spaces.Discrete):
        return int(action)
    return np.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)


def _spaces_of(env: Any, uids: Sequence[str]) -> dict[str, NativeSpaces]:
    return {uid: (env.observation_space(uid), env.action_space(uid)) for uid in uids}

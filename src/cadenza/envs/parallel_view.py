"""PettingZoo view of a multi-robot environment; use it through `cadenza.envs.adapters`."""

from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym
from numpy.typing import NDArray

from cadenza.core.errors import MissingExtraError, NotReadyError
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.spaces import robot_state_space

try:
    from pettingzoo import ParallelEnv  # pyright: ignore[reportMissingTypeStubs] # it ships none
except ImportError as error:
    raise MissingExtraError(
        "ParallelView: expected the package 'pettingzoo', which is not installed; "
        "run: pip install 'cadenza[pettingzoo]'"
    ) from error


class ParallelView(ParallelEnv[str, NDArray[Any], NDArray[Any]]):
    """Every robot of ``env`` as a PettingZoo agent with its own `state` and action.

    All agents get the env's shared reward and end together. ``reset(seed=k)`` plays episode k under
    the root seed of ``env``.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """View ``env``.

        Raises:
            ChamberEnvCompatibilityError: ``env`` has no ``agent_uids`` or a robot without `state`.
        """
        uids: tuple[str, ...] | None = getattr(env, "agent_uids", None)
        if not uids:
            raise ChamberEnvCompatibilityError(
                f"ParallelView: expected an env with agent_uids, got {type(env).__name__} without."
            )
        self.multi_env = env
        self.possible_agents: list[str] = list(uids)
        self.agents: list[str] = []
        name = type(env.unwrapped).__name__
        self.metadata: dict[str, Any] = {"name": name, "is_parallelizable": True, **env.metadata}
        self.render_mode: str | None = env.render_mode
        action_spaces = cast("Mapping[str, gym.Space[Any]]", env.action_space)
        self._state_spaces = {uid: robot_state_space(env, uid) for uid in uids}
        self._action_spaces = {uid: action_spaces[uid] for uid in uids}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of the agent's `state`; always the same object."""
        return self._state_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of the agent's action; always the same object."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
        """Start an episode; all agents are alive."""
        observation, info = self.multi_env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._states(observation), {uid: dict(info) for uid in self.agents}

    def step(
        self, actions: dict[str, NDArray[Any]]
    ) -> tuple[
        dict[str, NDArray[Any]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Advance one control step.

        Raises:
            NotReadyError: No agent is alive.
        """
        if not self.agents:
            raise NotReadyError("ParallelView.step: expected living agents; call reset().")
        observation, reward, terminated, truncated, info = self.multi_env.step(actions)
        alive = self.agents
        if terminated or truncated:
            self.agents = []
        return (
            self._states(observation),
            dict.fromkeys(alive, float(reward)),
            dict.fromkeys(alive, bool(terminated)),
            dict.fromkeys(alive, bool(truncated)),
            {uid: dict(info) for uid in alive},
        )

    def render(self) -> Any:
        """Return the picture of the env inside."""
        return self.multi_env.render()

    def close(self) -> None:
        """Close the env inside."""
        self.multi_env.close()

    def _states(self, observation: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        return {uid: observation["agent"][uid]["state"] for uid in self.possible_agents}

"""Different senses per robot: channels a robot does not have read as zeros."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import gymnasium as gym

from cadenza.core.errors import InputError
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.forwarding import ForwardingWrapper
from cadenza.envs.wrappers.masking import zeroed


class TextureFilterObsWrapper(ForwardingWrapper):
    """Replace every channel of ``obs["agent"][uid]`` outside the uid's keep list by zeros.

    Shapes, dtypes and the observation space stay as they are, so a policy network need not know
    what it does not see. Kept channels are passed on unchanged, and so are robots without a keep
    list, robots whose observation is no mapping, and everything outside ``obs["agent"]``.
    """

    def __init__(self, env: gym.Env[Any, Any], keep_per_agent: Mapping[str, Iterable[str]]) -> None:
        """Wrap ``env``.

        Args:
            env: Env whose observation holds ``{"agent": {uid: {channel: array}}}``.
            keep_per_agent: Channels to keep per uid; an empty list blanks all of them.

        Raises:
            InputError: A keep list is a single string, names a robot the observation space does not
                hold, or a channel that robot does not have.
        """
        super().__init__(env)
        self._keep: dict[str, frozenset[str]] = {}
        robots = sub_spaces((sub_spaces(env.observation_space) or {}).get("agent"))
        for uid, names in keep_per_agent.items():
            if isinstance(names, str):
                raise InputError(
                    f"TextureFilterObsWrapper: expected a list of channels for {uid!r}, "
                    f"got the string {names!r}; write [{names!r}]."
                )
            keep = self._keep[uid] = frozenset(names)
            if robots is None:
                continue
            if uid not in robots:
                raise InputError(
                    f"TextureFilterObsWrapper: expected uids of the observation space "
                    f"{sorted(robots)}, got {uid!r}."
                )
            channels = sub_spaces(robots[uid])
            if channels is not None and (unknown := sorted(keep - channels.keys())):
                raise InputError(
                    f"TextureFilterObsWrapper: expected channels of {uid!r} among "
                    f"{sorted(channels)}, got {unknown}."
                )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; its first observation is filtered."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step and filter the observation."""
        observation, reward, terminated, truncated, info = self.env.step(cast("Any", action))
        return self.observation(observation), reward, terminated, truncated, info

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` filtered; the argument itself does not change."""
        agent = observation.get("agent")
        if not isinstance(agent, Mapping):
            return observation
        robots = cast("Mapping[str, Any]", agent)
        filtered = {uid: self._filtered(uid, channels) for uid, channels in robots.items()}
        return {**observation, "agent": filtered}

    def _filtered(self, uid: str, channels: Any) -> Any:
        keep = self._keep.get(uid)
        if keep is None or not isinstance(channels, Mapping):
            return channels
        return {
            name: value if name in keep else zeroed(f"obs.agent.{uid}.{name}", value)
            for name, value in cast("Mapping[str, Any]", channels).items()
        }

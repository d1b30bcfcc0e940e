"""What robots hear from one another by packets: what one knows of the others, and ``obs["comm"]``.

Start:  where everybody starts is known to all; until a first packet arrives this is what the robot
        has, growing old like any packet.
Age:    one call of `Listener.listen` per control step; an age of k ticks is k control steps.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.comm.channels import PerLinkChannel
from cadenza.comm.packets import MOTION_SCHEMA_VERSION, CommChannel, CommPacket
from cadenza.core.errors import ConfigurationError
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers import ForwardingWrapper, observation_entries
from cadenza.safety.runtime.env_hooks import hook, optional_hook
from cadenza.safety.snapshot import AgentSnapshot

#: Hook that a safety filter reads the scene from.
SNAPSHOTS: Final = "build_agent_snapshots"


class Listener:
    """Follows what a channel delivers, one episode at a time.

    Attributes:
        known: Last pose and velocity of each other robot, in the form of the env's `comm_state`.
        ages_s: How old they are, s.

    Raises:
        ConfigurationError: The env lacks one of them, or the channel's packets have no velocities.
    """

    def __init__(self, env: Any, channel: PerLinkChannel) -> None:
        if channel.schema_version < MOTION_SCHEMA_VERSION:
            raise ConfigurationError(
                f"Listener: expected packets of schema version >= {MOTION_SCHEMA_VERSION}, whose "
                f"velocities tell what an old pose still means, got {channel.schema_version}."
            )
        self._channel = channel
        self._comm_state: Callable[[], Any] = hook(env, "comm_state")
        self._truth: Callable[[], dict[str, AgentSnapshot]] | None = optional_hook(env, SNAPSHOTS)
        self._dt = float(hook(env, "control_timestep"))
        self.known: dict[str, dict[str, Any]] = {"pose": {}, "velocity": {}}
        self.ages_s: dict[str, float] = {}

    def begin(self, seed: int | None) -> CommPacket:
        """Start an episode of the channel after the env's reset; return the first packet."""
        self._channel.reset(seed=seed)
        said = self._comm_state()
        others = [uid for uid in said["pose"] if uid != self._channel.receiver]
        self.known = {key: {uid: said[key][uid] for uid in others} for key in self.known}
        self.ages_s = dict.fromkeys(others, -self._dt)
        return self.listen()

    def listen(self) -> CommPacket:
        """Take in, and return, the packet that is visible now; once per control step."""
        packet = self._channel.encode(self._comm_state())
        velocity: Mapping[str, Any] = packet.get("velocity", {})
        for uid in self.ages_s:
            if uid in packet["pose"]:
                self.known["pose"][uid] = packet["pose"][uid]
                self.known["velocity"][uid] = velocity[uid]
                self.ages_s[uid] = packet["aoi"][uid] * self._dt
            else:
                self.ages_s[uid] += self._dt
        return packet

    def snapshots(self) -> dict[str, AgentSnapshot]:
        """Return every robot as the receiver knows it, for its safety filter.

        Raises:
            ConfigurationError: The env has no safety hooks.
        """
        if self._truth is None:
            raise ConfigurationError(f"Listener: expected an env with {SNAPSHOTS}, got none.")
        agents = dict(self._truth())
        for uid, age_s in self.ages_s.items():
            dim = len(agents[uid].position_numbers)
            agents[uid] = AgentSnapshot(
                np.array(self.known["pose"][uid]["xyz"][:dim]),
                np.array(self.known["velocity"][uid][:dim]),
                agents[uid].radius,
                age_s,
            )
        return agents


class CommShapingWrapper(ForwardingWrapper):
    """Add the packet that is visible now to every observation; the outermost of the wrappers.

    The channel is asked exactly once per reset and per step. It is told what the env's
    ``comm_state()`` returns, or the observation itself where the env has no such method.

    A channel with a receiver (`cadenza.comm.PerLinkChannel`) also decides what that robot's safety
    filter sees: `build_agent_snapshots` then gives the others as the packets tell, with their ages.
    Behind another channel the filter sees the truth.
    """

    def __init__(self, env: gym.Env[Any, Any], channel: CommChannel) -> None:
        """Wrap ``env``, whose observation space is a Dict; ``channel`` makes the packets.

        Raises:
            ChamberEnvCompatibilityError: The observation space is not a Dict.
            ConfigurationError: The env has safety hooks, and the channel a receiver whose packets
                have no velocities.
        """
        entries = observation_entries("CommShapingWrapper", env)
        super().__init__(env)
        self.channel = channel
        entries["comm"] = packet_space(sub_spaces(entries.get("agent")) or ())
        self.observation_space = gym.spaces.Dict(entries)
        self._comm_state: Callable[[], Any] | None = optional_hook(env, "comm_state")
        self._listener: Listener | None = None
        has_hooks = self._comm_state is not None and optional_hook(env, SNAPSHOTS) is not None
        if has_hooks and isinstance(channel, PerLinkChannel):
            self._listener = Listener(env, channel)
            setattr(self, SNAPSHOTS, self._listener.snapshots)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode of env and channel; ``seed`` goes to both."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._listener is not None:
            return {**observation, "comm": self._listener.begin(seed)}, info
        self.channel.reset(seed=seed)
        return self._shaped(observation), info

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step; the observation carries the packet that is visible then."""
        observation, reward, terminated, truncated, info = self.env.step(cast("Any", action))
        return self._shaped(observation), reward, terminated, truncated, info

    def _shaped(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        if self._listener is not None:
            return {**observation, "comm": self._listener.listen()}
        state = observation if self._comm_state is None else self._comm_state()
        return {**observation, "comm": self.channel.encode(state)}


def packet_space(uids: Iterable[str]) -> gym.spaces.Dict:
    """Return the space of packets about ``uids``; who has not been heard of may be missing."""
    uids = tuple(uids)

    def by_robot(space: gym.Space[Any]) -> gym.Space[Any]:
        return PartialDict(dict.fromkeys(uids, space))

    pose: dict[str, gym.Space[Any]] = {"xyz": Numbers(3), "quat_wxyz": Numbers(4, bound=1.0 + 1e-4)}
    predicate: dict[str, gym.Space[Any]] = {
        "grasp_side": Where("", _is_text),
        "object_class": Where("", _is_text),
        "contact_force": Numbers(),
    }
    return PartialDict(
        {
            "schema_version": gym.spaces.Discrete(1 << 16),
            "pose": by_robot(gym.spaces.Dict(pose)),
            "task_state": by_robot(PartialDict(predicate)),
            "aoi": by_robot(Numbers(low=0.0)),
            "learned_overlay": Where(None, _is_overlay),
            "velocity": by_robot(Numbers(3)),
        }
    )


class PartialDict(gym.spaces.Dict):
    """Mappings with some of the keys of a Dict, each in its space."""

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is such a mapping."""
        if not isinstance(x, Mapping):
            return False
        spaces = sub_spaces(self) or {}
        entries = cast("Mapping[str, Any]", x)
        return all(key in spaces and spaces[key].contains(value) for key, value in entries.items())


class Numbers(gym.spaces.Box):
    """A number, or a tuple or array of ``length`` numbers, as packets hold them."""

    def __init__(self, length: int = 0, *, low: float = -np.inf, bound: float = np.inf) -> None:
        """Create the space of numbers from ``max(low, -bound)`` to ``bound``."""
        shape = (length,) if length else ()
        super().__init__(max(low, -bound), bound, shape, np.float64)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is such a number, or that many."""
        try:
            array: NDArray[Any] = np.asarray(x)
        except ValueError:  # ragged
            return False
        return array.dtype.kind in "fiu" and super().contains(array.astype(np.float64))


class Where(gym.Space[Any]):
    """Whatever a function accepts, for what Gymnasium has no space for."""

    def __init__(self, example: Any, accepts: Callable[[Any], bool]) -> None:
        """Create the space; ``example`` is its only sample."""
        super().__init__(None, None)
        self.example, self.accepts = example, accepts

    def contains(self, x: Any) -> bool:
        """Return whether the function accepts ``x``."""
        return self.accepts(x)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return the example; it cannot be weighed."""
        del mask, probability
        return self.example

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` accepts the same."""
        return isinstance(other, Where) and other.accepts is self.accepts

    def __hash__(self) -> int:
        """Return a hash that agrees with ``==``."""
        return hash(self.accepts)


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


def _is_overlay(x: Any) -> bool:
    return x is None or hasattr(x, "detach")

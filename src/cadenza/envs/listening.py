"""What robots hear from one another by packets: what one knows of the others, and ``obs["comm"]``.

Start:  where everybody starts is known to all; until a first packet arrives this is what the robot
        has, growing old like any packet.
Age:    one call of `Listener.listen` per control step; an age of k ticks is k control steps.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np

from cadenza.comm.channels import PerLinkChannel
from cadenza.comm.packets import (
    MOTION_SCHEMA_VERSION,
    SCHEMA_VERSION,
    ChamberCommError,
    CommChannel,
    CommPacket,
    empty_packet,
    require_packet,
)
from cadenza.core.checks import is_whole
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

    The channel is asked exactly once per reset and per step. It gets what the env's
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
        entries["comm"] = PacketSpace(sub_spaces(entries.get("agent")) or ())
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


class PacketSpace(gym.Space[Any]):
    """Packets about some robots; who has not been heard of may be missing."""

    def __init__(self, uids: Iterable[str]) -> None:
        super().__init__(None, None)
        self.uids: tuple[str, ...] = tuple(uids)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is such a packet, of whatever version."""
        if not isinstance(x, Mapping):
            return False
        told = cast("Mapping[str, Any]", x)
        version: Any = told.get("schema_version")
        try:
            packet = require_packet(told, schema_version=version if is_whole(version) else 0)
        except ChamberCommError:
            return False
        return set(packet["aoi"]) <= set(self.uids)

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """Return a packet in which everybody stands somewhere; it cannot be weighed."""
        del mask, probability
        sample: dict[str, Any] = {**empty_packet(SCHEMA_VERSION)}
        for uid in self.uids:
            place = self.np_random.standard_normal(3)
            sample["pose"][uid] = {"xyz": place, "quat_wxyz": np.array([1.0, 0.0, 0.0, 0.0])}
            sample["aoi"][uid] = 0.0
        return sample

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PacketSpace) and other.uids == self.uids

    def __hash__(self) -> int:
        return hash(self.uids)

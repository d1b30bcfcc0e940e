"""What one robot knows of the others by packets: where they were, how fast, and how long ago.

Start:  where everybody starts is known to all; until a first packet arrives this is what the robot
        has, growing old like any packet.
Age:    one call of `Listener.listen` per control step; an age of k ticks is k control steps.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from cadenza.comm.links import PerLinkChannel
from cadenza.comm.packets import MOTION_SCHEMA_VERSION, CommPacket
from cadenza.core.errors import ConfigurationError
from cadenza.safety.runtime.env_hooks import hook, optional_hook
from cadenza.safety.snapshot import AgentSnapshot

#: Hook that a safety filter reads the scene from.
SNAPSHOTS: Final = "build_agent_snapshots"


class Listener:
    """Follows what a channel delivers, one episode at a time.

    Attributes:
        known: Last pose and velocity of each other robot, in the form of the env's `comm_state`.
        ages_s: How old they are, s.

    Args:
        env: Env with ``comm_state()`` and ``control_timestep``, also under wrappers.
        channel: Brings the packets to its receiver.

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

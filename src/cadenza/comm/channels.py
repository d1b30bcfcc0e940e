"""Channels: the fixed format that every robot can speak, and what one robot hears over its links.

Age:    ``aoi[uid]`` counts the ticks since ``uid`` last said something, 0 in the tick in which it
        does. A robot that falls silent leaves the packet, but its age stays and grows.
Links:  a shared packet would delay all robots at once and lose them at once, and the receiver would
        learn of its own pose by radio. In `PerLinkChannel` each sender has its own luck, queue and
        profile, and the receiver's own entries are of this very tick.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from cadenza.comm.degradation import CommDegradationWrapper, Ordering
from cadenza.comm.packets import (
    MOTION_SCHEMA_VERSION,
    SCHEMA_VERSION,
    ChamberCommError,
    CommChannel,
    CommPacket,
    Pose,
    TaskStatePredicate,
    empty_packet,
    require_packet,
    spoken,
)
from cadenza.comm.profiles import DegradationProfile
from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

#: Entries of a state that are kept by robot.
_BY_ROBOT: Final = ("pose", "task_state", "velocity")


class AoIClock:
    """Age of the information of each robot, in whatever unit the caller ticks it."""

    def __init__(self) -> None:
        """Create a clock that knows nobody."""
        self._ages: dict[str, float] = {}

    def mark_fresh(self, uid: str) -> None:
        """Set the age of ``uid`` to 0; from now on it is known."""
        self._ages[uid] = 0.0

    def tick(self, dt: float) -> None:
        """Add ``dt`` to every known age.

        Raises:
            InputError: ``dt`` is negative or not finite.
        """
        if not 0.0 <= dt < float("inf"):
            raise InputError(f"AoIClock.tick: expected a non-negative, finite dt, got {dt!r}.")
        ages = self._ages
        for uid in ages:
            ages[uid] += dt

    def aoi(self, uid: str) -> float:
        """Return the age of ``uid``.

        Raises:
            UnknownNameError: ``uid`` was never marked fresh.
        """
        if uid not in self._ages:
            known = ", ".join(sorted(self._ages)) or "<none>"
            raise UnknownNameError(f"AoIClock.aoi: expected one of {known}, got {uid!r}.")
        return self._ages[uid]

    def snapshot(self) -> dict[str, float]:
        """Return the ages of all known robots, a copy."""
        return self._ages.copy()

    def reset(self) -> None:
        """Forget everybody."""
        self._ages.clear()


class FixedFormatCommChannel:
    """A perfect channel: what is said in a tick is visible in it, with its age.

    It draws nothing, so a seed changes nothing; the degraded link around it has its own streams.

    Args:
        schema_version: Version of the packets it makes and of those it reads; from
            `cadenza.comm.packets.MOTION_SCHEMA_VERSION` on they carry velocities.

    Raises:
        InputError: ``schema_version`` is not an integer >= 1.
    """

    def __init__(self, *, schema_version: int = SCHEMA_VERSION) -> None:
        self.schema_version: int = whole_number(
            "FixedFormatCommChannel.schema_version", schema_version, least=1
        )
        self._clock = AoIClock()

    def reset(self, *, seed: int | None = None) -> None:
        """Forget all ages; ``seed`` is part of the interface of channels."""
        del seed
        self._clock.reset()

    def encode(self, state: object) -> CommPacket:
        """Return what ``state`` says, as a packet.

        Args:
            state: Mapping with any of ``pose``, ``task_state``, ``velocity`` (by robot) and
                ``learned_overlay``; anything that is no mapping says nothing.
        """
        said = spoken(state)
        pose: Mapping[str, Any] = said.get("pose") or {}
        task_state: Mapping[str, Any] = said.get("task_state") or {}
        clock = self._clock
        clock.tick(1.0)
        for uid in pose:
            clock.mark_fresh(uid)
        for uid in task_state:
            clock.mark_fresh(uid)
        packet = CommPacket(
            schema_version=self.schema_version,
            pose={uid: cast("Pose", _kept(entry)) for uid, entry in pose.items()},
            task_state={
                uid: cast("TaskStatePredicate", dict(entry)) for uid, entry in task_state.items()
            },
            aoi=clock.snapshot(),
            learned_overlay=said.get("learned_overlay"),
        )
        if self.schema_version >= MOTION_SCHEMA_VERSION:
            velocity = _kept(said.get("velocity") or {})
            packet["velocity"] = {uid: velocity[uid] for uid in pose if uid in velocity}
        return packet

    def decode(self, packet: CommPacket) -> dict[str, object]:
        """Return pose, task state, ages and overlay (and velocity, where the version has it).

        Raises:
            ChamberCommError: Another schema version, or a packet that breaks the contract.
        """
        checked = require_packet(packet, schema_version=self.schema_version)
        content = {key: value for key, value in checked.items() if key != "schema_version"}
        return {
            key: dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
            for key, value in content.items()
        }


def _kept(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Return vectors by name as they are now; a simulator may write into its arrays later."""
    return {
        name: tuple(vector.tolist()) if isinstance(vector, np.ndarray) else vector
        for name, vector in vectors.items()
    }


class LearnedOverlay:
    """Slot for the message of jointly trained robots; others leave it empty."""

    def __init__(self, tensor: "Tensor | None" = None) -> None:
        """Create the slot, holding ``tensor``."""
        self._tensor = tensor

    @property
    def tensor(self) -> "Tensor | None":
        """The message held, or None."""
        return self._tensor

    def set(self, tensor: "Tensor | None") -> None:
        """Hold ``tensor`` from now on."""
        self._tensor = tensor

    def reset(self) -> None:
        """Empty the slot, so that no message outlives its episode."""
        self._tensor = None

    def encode(self) -> "Tensor | None":
        """Return the message held, for a packet's ``learned_overlay``."""
        return self._tensor

    @staticmethod
    def decode(packet_overlay: "Tensor | None") -> "Tensor | None":
        """Return the message of a packet, or None if it has none."""
        return packet_overlay


class PerLinkChannel:
    """The packets that reach one robot, merged into one packet.

    A learned overlay names no sender, so it cannot travel here.

    Args:
        profiles: What the link from each sender does, by the sender's uid.
        receiver: The robot that listens; its own state is always current.
        tick_period_ms: Time per call of `encode`, ms.
        root_seed: Root of all links' streams until `reset` brings another; links are named
            ``{sender}.{receiver}`` in them.
        schema_version: Version of the packets.
        ordering: See `CommDegradationWrapper`.

    Raises:
        InputError: The receiver is among the senders, or a value is out of range.
    """

    def __init__(
        self,
        profiles: Mapping[str, DegradationProfile],
        *,
        receiver: str,
        tick_period_ms: float = 1.0,
        root_seed: int = 0,
        schema_version: int = MOTION_SCHEMA_VERSION,
        ordering: Ordering = "freshest",
    ) -> None:
        if receiver in profiles:
            raise InputError(
                f"PerLinkChannel: expected senders other than the receiver {receiver!r}; a robot "
                "needs no link to itself."
            )
        self.receiver = receiver
        self.schema_version = schema_version
        self._own = FixedFormatCommChannel(schema_version=schema_version)
        self._links = {
            sender: CommDegradationWrapper(
                FixedFormatCommChannel(schema_version=schema_version),
                profile,
                tick_period_ms=tick_period_ms,
                root_seed=root_seed,
                ordering=ordering,
                link=f"{sender}.{receiver}",
            )
            for sender, profile in profiles.items()
        }
        self._channels: dict[str, CommChannel] = {receiver: self._own, **self._links}

    @property
    def links(self) -> dict[str, CommDegradationWrapper]:
        """The link from each sender, for its statistics."""
        return dict(self._links)

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode on every link; see `CommDegradationWrapper.reset`."""
        for channel in self._channels.values():
            channel.reset(seed=seed)

    def encode(self, state: object) -> CommPacket:
        """Send what each robot says over its link, and return what the receiver knows now.

        Raises:
            ChamberCommError: A robot without a link speaks, or ``state`` has a learned overlay.
        """
        said = spoken(state)
        fields: dict[str, Mapping[str, Any]] = {key: said.get(key) or {} for key in _BY_ROBOT}
        for key, entries in fields.items():
            if not entries.keys() <= self._channels.keys():
                raise ChamberCommError(
                    f"PerLinkChannel: expected {key} of {sorted(self._channels)}, got "
                    f"{sorted(entries)}; give every sender a profile."
                )
        if said.get("learned_overlay") is not None:
            raise ChamberCommError(
                "PerLinkChannel: expected no learned_overlay, which names no sender, got one; use "
                "CommDegradationWrapper for it."
            )
        heard = empty_packet(self.schema_version)
        for sender, channel in self._channels.items():
            packet = channel.encode(
                {key: {sender: v[sender]} for key, v in fields.items() if sender in v}
            )
            heard["pose"].update(packet["pose"])
            heard["task_state"].update(packet["task_state"])
            heard["aoi"].update(packet["aoi"])
            if "velocity" in heard:
                heard["velocity"].update(packet.get("velocity", {}))
        return heard

    def decode(self, packet: CommPacket) -> dict[str, object]:
        """Return what ``packet`` says; see `FixedFormatCommChannel.decode`."""
        return self._own.decode(packet)

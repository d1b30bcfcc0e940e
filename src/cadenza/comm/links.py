"""What one robot hears: a link of its own from every other robot.

A shared packet would delay all robots at once and lose them at once, and the receiver would learn
of its own pose by radio. Here each sender has its own luck, queue and profile, and the receiver's
own entries are of this very tick. Ages count ticks.
"""

from collections.abc import Mapping
from typing import Any, Final

from cadenza.comm.degradation import CommDegradationWrapper, Ordering
from cadenza.comm.fixed_format import FixedFormatCommChannel
from cadenza.comm.packets import (
    MOTION_SCHEMA_VERSION,
    ChamberCommError,
    CommChannel,
    CommPacket,
    empty_packet,
    spoken,
)
from cadenza.comm.profiles import DegradationProfile
from cadenza.core.errors import InputError

#: Entries of a state that are kept by robot.
_BY_ROBOT: Final = ("pose", "task_state", "velocity")


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

"""Comm: what robots tell each other, and links that deliver it late or not at all.

Start at:    `FixedFormatCommChannel` (packets), `CommDegradationWrapper` (a bad link around it) and
             `PerLinkChannel` (what one robot hears, a link per sender).
Promise:     a visible packet carries the true age of what it says, in every tick; equal seeds give
             equal traces, other episodes other ones.
May import:  `core`.  Must not import: `safety`, `envs` or anything above them.
Adding one:  a class with `reset`, `encode` and `decode` is a channel; nothing is registered.
"""

from cadenza.comm.channels import AoIClock, FixedFormatCommChannel, LearnedOverlay, PerLinkChannel
from cadenza.comm.codec import packet_from_bytes, packet_to_bytes
from cadenza.comm.degradation import CommDegradationStats, CommDegradationWrapper
from cadenza.comm.packets import (
    SCHEMA_VERSION,
    ChamberCommError,
    ChamberCommQPSaturationWarning,
    CommChannel,
    CommPacket,
    Pose,
    TaskStatePredicate,
)
from cadenza.comm.profiles import (
    URLLC_3GPP_R17,
    DegradationProfile,
    SaturationReport,
    saturation_guard,
)

__all__ = [
    "SCHEMA_VERSION",
    "URLLC_3GPP_R17",
    "AoIClock",
    "ChamberCommError",
    "ChamberCommQPSaturationWarning",
    "CommChannel",
    "CommDegradationStats",
    "CommDegradationWrapper",
    "CommPacket",
    "DegradationProfile",
    "FixedFormatCommChannel",
    "LearnedOverlay",
    "PerLinkChannel",
    "Pose",
    "SaturationReport",
    "TaskStatePredicate",
    "packet_from_bytes",
    "packet_to_bytes",
    "saturation_guard",
]

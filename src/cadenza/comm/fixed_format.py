"""The fixed-format channel that every robot can speak, its clock, and a slot for learned messages.

Age:  ``aoi[uid]`` counts the ticks since ``uid`` last said something, 0 in the tick in which it
      does. A robot that falls silent leaves the packet, but its age stays and grows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cadenza.comm.packets import (
    MOTION_SCHEMA_VERSION,
    SCHEMA_VERSION,
    CommPacket,
    Pose,
    TaskStatePredicate,
    require_packet,
    spoken,
)
from cadenza.core.checks import is_whole
from cadenza.core.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor


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
        if not is_whole(schema_version) or schema_version < 1:
            raise InputError(
                "FixedFormatCommChannel: expected schema_version to be an integer >= 1, got "
                f"{schema_version!r}."
            )
        self.schema_version = schema_version
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

"""Packets: what robots tell each other, how a packet is checked, and what carries it.

Layouts:  1 has the keys of `CommPacket` without ``velocity``; 2 has ``velocity`` as well. Another
          key is another version, and a reader refuses versions that it was not built for.
Units:    m and m/s in the frame of the env's base, N; ages in the unit of the channel: ticks,
          which are calls of `encode`, unless it says otherwise.
Axes:     a quaternion is (w, x, y, z), of length 1.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NotRequired,
    Protocol,
    TypedDict,
    cast,
    runtime_checkable,
)

import numpy as np

from cadenza.core.checks import is_real, is_whole, shown
from cadenza.core.errors import CadenzaError

if TYPE_CHECKING:
    from torch import Tensor

#: Version of the packet that every robot can speak.
SCHEMA_VERSION: Final = 1
#: Version from which packets carry ``velocity``, which a safety filter needs beside the pose.
MOTION_SCHEMA_VERSION: Final = 2
#: Departure of a quaternion's length from 1 that is rounding: simulators compute in float32.
QUATERNION_TOLERANCE: Final = 1e-4


class ChamberCommError(CadenzaError, RuntimeError):
    """A packet breaks the contract of its channel: version, keys, numbers or checksum."""


class ChamberCommQPSaturationWarning(UserWarning):
    """A degraded link leaves the safety filter's solver no headroom."""


class Pose(TypedDict):
    """Where a robot is.

    Attributes:
        xyz: Position, m.
        quat_wxyz: Unit quaternion.
    """

    xyz: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]


class TaskStatePredicate(TypedDict, total=False):
    """What a robot says about its task; every key is optional.

    Attributes:
        grasp_side: Side it grasps with.
        object_class: What it holds.
        contact_force: Force, N.
    """

    grasp_side: str
    object_class: str
    contact_force: float


class CommPacket(TypedDict):
    """What a channel delivers.

    Attributes:
        schema_version: Version of the layout.
        pose: Pose by robot.
        task_state: Predicates by robot.
        aoi: Age of the information by robot.
        learned_overlay: Message of jointly trained robots, or None.
        velocity: Velocity by robot, m/s; from `MOTION_SCHEMA_VERSION` on.
    """

    schema_version: int
    pose: dict[str, Pose]
    task_state: dict[str, TaskStatePredicate]
    aoi: dict[str, float]
    learned_overlay: "Tensor | None"
    velocity: NotRequired[dict[str, tuple[float, float, float]]]


@runtime_checkable
class CommChannel(Protocol):
    """Turns the state of an env into packets, once per control step."""

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode.

        Args:
            seed: New root seed of the channel; None keeps the one it has.
        """
        ...

    def encode(self, state: object) -> CommPacket:
        """Return the packet that is visible now; counts as one tick."""
        ...

    def decode(self, packet: CommPacket) -> dict[str, object]:
        """Return what ``packet`` says: pose, task state, ages, overlay.

        Raises:
            ChamberCommError: The packet breaks the contract.
        """
        ...


def spoken(state: object) -> Mapping[str, Any]:
    """Return what a state says; one that is no mapping says nothing."""
    return cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else {}


def empty_packet(schema_version: int) -> CommPacket:
    """Return a packet that says nothing."""
    packet = CommPacket(
        schema_version=schema_version, pose={}, task_state={}, aoi={}, learned_overlay=None
    )
    if schema_version >= MOTION_SCHEMA_VERSION:
        packet["velocity"] = {}
    return packet


def aged(packet: CommPacket, by: float = 0.0, *, unit: float = 1.0) -> CommPacket:
    """Return ``packet`` with ages ``unit * (age + by)``; outer dicts copied, poses shared."""
    copy = packet.copy()
    copy["pose"] = packet["pose"].copy()
    copy["task_state"] = packet["task_state"].copy()
    copy["aoi"] = {uid: unit * (age + by) for uid, age in packet["aoi"].items()}
    if "velocity" in packet:
        copy["velocity"] = packet["velocity"].copy()
    return copy


def require_packet(packet: object, *, schema_version: int) -> CommPacket:
    """Return ``packet`` after a look at every key and number.

    Raises:
        ChamberCommError: Another version, a key missing or unknown, a number that is none or not
            finite, a quaternion that is not of length 1, a negative age, or a robot without age.
    """
    fields = _mapping("packet", packet)
    version = fields.get("schema_version")
    if version != schema_version or not is_whole(version):
        raise ChamberCommError(
            f"packet: schema version mismatch: expected {schema_version}, got {shown(version)}; "
            "sender and reader must use the same version."
        )
    _require_keys("packet", fields, set(empty_packet(schema_version)))
    ages = _mapping("packet.aoi", fields["aoi"])
    for uid, age in ages.items():
        if _number(f"packet.aoi[{uid!r}]", age) < 0.0:
            raise ChamberCommError(f"packet.aoi[{uid!r}]: expected an age >= 0, got {age}.")
    for field, check in _CHECKS.items():
        for uid, value in _mapping(f"packet.{field}", fields.get(field, {})).items():
            name = f"packet.{field}[{uid!r}]"
            if uid not in ages:
                raise ChamberCommError(f"{name}: expected an age in packet.aoi, got none.")
            check(name, value)
    _check_overlay(fields["learned_overlay"])
    return cast("CommPacket", packet)


def _check_pose(name: str, value: object) -> None:
    pose = _mapping(name, value)
    _require_keys(name, pose, {"xyz", "quat_wxyz"})
    _numbers(f"{name}.xyz", pose["xyz"], 3)
    length = math.hypot(*_numbers(f"{name}.quat_wxyz", pose["quat_wxyz"], 4))
    if abs(length - 1.0) > QUATERNION_TOLERANCE:
        raise ChamberCommError(
            f"{name}.quat_wxyz: expected a quaternion of length 1, got length {length:.6g}; "
            "normalize it before it is sent."
        )


def _check_predicate(name: str, value: object) -> None:
    predicate = _mapping(name, value)
    unknown = predicate.keys() - TaskStatePredicate.__annotations__.keys()
    if unknown:
        raise ChamberCommError(
            f"{name}: expected keys among {sorted(TaskStatePredicate.__annotations__)}, got "
            f"{sorted(unknown)}; a new key is a new schema version."
        )
    for key, entry in predicate.items():
        if key == "contact_force":
            _number(f"{name}.{key}", entry)
        elif not isinstance(entry, str):
            raise ChamberCommError(f"{name}.{key}: expected text, got {shown(entry)}.")


def _check_velocity(name: str, value: object) -> None:
    _numbers(name, value, 3)


#: Check of one robot's entry by field.
_CHECKS: Final[dict[str, Callable[[str, object], None]]] = {
    "pose": _check_pose,
    "task_state": _check_predicate,
    "velocity": _check_velocity,
}


def _check_overlay(overlay: object) -> None:
    if overlay is None:
        return
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is None or not isinstance(overlay, torch.Tensor):
        raise ChamberCommError(
            f"packet.learned_overlay: expected a tensor or None, got {type(overlay).__name__}."
        )
    if not bool(torch.isfinite(overlay).all()):
        raise ChamberCommError("packet.learned_overlay: expected finite numbers, got others.")


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ChamberCommError(f"{name}: expected a mapping, got {type(value).__name__}.")
    mapping = cast("Mapping[object, Any]", value)
    for key in mapping:
        if not (isinstance(key, str) and key):
            raise ChamberCommError(f"{name}: expected names as keys, got {shown(key)}.")
    return cast("Mapping[str, Any]", mapping)


def _require_keys(name: str, mapping: Mapping[str, Any], expected: set[str]) -> None:
    if set(mapping) != expected:
        raise ChamberCommError(
            f"{name}: expected the keys {sorted(expected)}, got {sorted(mapping)}."
        )


def _number(name: str, value: object) -> float:
    if not (is_real(value) and math.isfinite(value)):
        raise ChamberCommError(f"{name}: expected a finite number, got {shown(value)}.")
    return float(value)


def _numbers(name: str, value: object, count: int) -> list[float]:
    entries = cast("list[object]", value)
    if not isinstance(value, list | tuple | np.ndarray) or len(entries) != count:
        raise ChamberCommError(
            f"{name}: expected {count} numbers, got {shown(cast('Any', value))}."
        )
    return [_number(name, entry) for entry in entries]

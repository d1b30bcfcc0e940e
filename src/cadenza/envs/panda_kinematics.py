"""A Panda's tool centre for control models: pose, Jacobian and its rate, checked at the door.

Chain:     `cadenza.envs.mujoco.panda`, the one place of the arm's lengths and twists.
Jacobian:  column i is [z_i x (p - o_i); z_i], with z_i and o_i axis and anchor of joint i.
Axes:      B = batch, any leading shape; vectors in the frame of the arm's base unless said.
Units:     m, rad.
Limits:    the arm alone: fingers open and close symmetrically and do not move the tool centre.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.checks import real_array
from cadenza.core.errors import InputError
from cadenza.envs.mujoco.panda import (
    HAND_TCP,
    HAND_TURN,
    JOINT_HIGH,
    JOINT_LOW,
    JOINTS,
    kinematics,
)

if TYPE_CHECKING:
    from cadenza.safety.snapshot import AgentSnapshot

#: Joints of the arm.
PANDA_ARM_DOF: Final = JOINTS
#: Components of a point.
CARTESIAN_POSITION_DIM: Final = 3
#: Joint limits of the arm, rad.
PANDA_JOINT_LOWER: Final = JOINT_LOW
PANDA_JOINT_UPPER: Final = JOINT_HIGH
#: Links at which the chain can end, and their distance from the flange along its axis, m.
_END_LINKS: Final = {"panda_link8": 0.0, "panda_hand": 0.0, "panda_hand_tcp": HAND_TCP}
#: From the axes of the hand to those of the flange.
_HAND_TO_FLANGE: Final = np.array(
    [
        [np.cos(HAND_TURN), np.sin(HAND_TURN), 0.0],
        [-np.sin(HAND_TURN), np.cos(HAND_TURN), 0.0],
        [0.0, 0.0, 1.0],
    ]
)


def _frames(q: FloatArray, tool_m: float) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return axes (..., 7, 3), anchors (..., 7, 3), tip (..., 3) and the hand's (..., 3, 3)."""
    batch = q.shape[:-1]
    found = kinematics(q.reshape(-1, JOINTS))
    tip = found.tcp - (HAND_TCP - tool_m) * found.axes[:, -1]
    shapes = ((JOINTS, 3), (JOINTS, 3), (3,), (3, 3))
    parts = (found.axes, found.origins, tip, found.rotation)
    axes, anchors, tip, rotation = (
        part.reshape(*batch, *shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return axes, anchors, tip, rotation


class PandaJacobianProvider:
    """Where a Panda's tool centre is, and how the seven arm joints move it.

    Called with a snapshot and joint angles it returns the linear Jacobian, as the control model of
    an arm wants it. A batch of angles gives a batch of answers. Everything is float64 and needs
    neither simulator nor URDF: ``urdf_path`` is only looked at to check that the arm it describes
    is this one.

    Args:
        urdf_path: A Panda's description to check against; None checks nothing.
        ee_link: Where the chain ends: ``panda_hand_tcp``, ``panda_hand`` or ``panda_link8``.

    Raises:
        FileNotFoundError: ``urdf_path`` does not exist.
        InputError: The description has another chain, or no such link is known.
    """

    def __init__(self, urdf_path: str | None = None, *, ee_link: str = "panda_hand_tcp") -> None:
        if ee_link not in _END_LINKS:
            raise InputError(
                f"PandaJacobianProvider: expected ee_link to be one of {sorted(_END_LINKS)}, got "
                f"{ee_link!r}."
            )
        if urdf_path is not None:
            _require_seven_joints(Path(urdf_path), ee_link)
        self._ee_link = ee_link
        self._tool_m = _END_LINKS[ee_link]

    @property
    def ee_link(self) -> str:
        """Link at which the chain ends."""
        return self._ee_link

    def __call__(self, snap: "AgentSnapshot | None", qpos_arm: FloatArray) -> FloatArray:
        """Return the linear Jacobian in the base frame, (..., 3, 7), m per rad, at ``qpos_arm``.

        ``snap`` is not read: a Jacobian depends on the joints alone.
        """
        del snap
        return self.jacobian_6x7(qpos_arm)[..., :3, :]

    def fk_tcp_position(self, qpos_arm: FloatArray) -> FloatArray:
        """Return the end of the chain in the base frame, shape (..., 3), m.

        Raises:
            InputError: Another shape than (..., 7), or not finite.
        """
        return _frames(_arm_angles(qpos_arm), self._tool_m)[2]

    def fk_tcp_rotation(self, qpos_arm: FloatArray) -> FloatArray:
        """Return its orientation in the base frame, shape (..., 3, 3).

        Raises:
            InputError: Another shape than (..., 7), or not finite.
        """
        rotation = _frames(_arm_angles(qpos_arm), self._tool_m)[3]
        return rotation @ _HAND_TO_FLANGE if self._ee_link == "panda_link8" else rotation

    def jacobian_6x7(self, qpos_arm: FloatArray) -> FloatArray:
        """Return linear over angular rows in the base frame, shape (..., 6, 7).

        Raises:
            InputError: Another shape than (..., 7), or not finite.
        """
        axes, anchors, tip, _ = _frames(_arm_angles(qpos_arm), self._tool_m)
        linear = np.cross(axes, tip[..., None, :] - anchors)
        return np.swapaxes(np.concatenate((linear, axes), axis=-1), -1, -2)

    def world_jacobian(self, qpos_arm: FloatArray, base_rotation: FloatArray) -> FloatArray:
        """Return the linear Jacobian in the world frame, shape (..., 3, 7), m per rad.

        Args:
            qpos_arm: Joint angles, shape (..., 7), rad.
            base_rotation: Orientation of the arm's base in the world, shape (3, 3).
        """
        return base_rotation @ self(None, qpos_arm)

    def bias_accel(self, qpos_arm: FloatArray, qvel_arm: FloatArray) -> FloatArray:
        """Return J' q' of the end of the chain in the base frame, shape (..., 3), m/s^2.

        Source: differentiating column i, z_i' = w_{i-1} x z_i with w the angular velocity of what
            carries joint i.

        Args:
            qpos_arm: Joint angles, shape (..., 7), rad.
            qvel_arm: Joint velocities, shape (..., 7), rad/s.

        Raises:
            InputError: Another shape, or not finite.
        """
        qvel = _arm_angles(qvel_arm, "qvel_arm")
        axes, anchors, tip, _ = _frames(_arm_angles(qpos_arm), self._tool_m)
        rate = axes * qvel[..., None]
        carrier = np.cumsum(rate, axis=-2) - rate  # angular velocity of what carries joint i
        arm = tip[..., None, :] - anchors
        tip_velocity = np.cross(rate, arm).sum(axis=-2)
        # o_i is carried by the joints before i: its velocity is the sum of their turns about it.
        reach = anchors[..., :, None, :] - anchors[..., None, :, :]  # (..., i, j, 3)
        before = np.tril(np.ones((7, 7)), -1)[..., None]
        anchor_velocity = (before * np.cross(rate[..., None, :, :], reach)).sum(axis=-2)
        spread = tip_velocity[..., None, :] - anchor_velocity
        return (np.cross(np.cross(carrier, rate), arm) + np.cross(rate, spread)).sum(axis=-2)

    def manipulability(self, qpos_arm: FloatArray) -> FloatArray:
        """Return sqrt(det(J J^T)) of the linear Jacobian, shape (...), m^3; 0 where it is singular.

        Source: Yoshikawa (1985), doi:10.1177/027836498500400201.

        Raises:
            InputError: Another shape than (..., 7), or not finite.
        """
        return np.linalg.svd(self(None, qpos_arm), compute_uv=False).prod(axis=-1)


def _arm_angles(values: FloatArray, name: str = "qpos_arm") -> FloatArray:
    """Return seven finite numbers, or rows of them, as float64."""
    q = real_array(name, values).astype(np.float64, copy=False)
    if q.ndim < 1 or q.shape[-1] != PANDA_ARM_DOF:
        raise InputError(
            f"{name} shape: expected (..., {PANDA_ARM_DOF}), the arm joints without the fingers, "
            f"got {q.shape}."
        )
    require_finite(name, q)
    return q


def _require_seven_joints(path: Path, ee_link: str) -> None:
    """Raise unless the chain to ``ee_link`` has seven moving joints."""
    from xml.etree import ElementTree as ET

    if not path.is_file():
        raise FileNotFoundError(f"PandaJacobianProvider: expected a URDF file at {path}, got none.")
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - a local file that the caller names
    except ET.ParseError as error:
        raise InputError(
            f"{path}: expected a URDF, got XML that cannot be read: {error}."
        ) from error
    parents: dict[str, tuple[str, str]] = {}
    for joint in root.iter("joint"):
        child, parent = joint.find("child"), joint.find("parent")
        if child is not None and parent is not None:
            ends = (parent.get("link", ""), joint.get("type", ""))
            parents[child.get("link", "")] = ends
    moving: list[str] = []
    link = ee_link
    while link in parents:
        link, kind = parents.pop(link)
        if kind != "fixed":
            moving.append(kind)
    if len(moving) != PANDA_ARM_DOF:
        raise InputError(
            f"{path}: expected a chain of {PANDA_ARM_DOF} joints that ends at {ee_link!r}, got "
            f"{len(moving)}; pass the description of a Panda."
        )


def quaternion_rotation(quaternion: Sequence[float] | FloatArray) -> FloatArray:
    """Return the rotation of a unit quaternion (w, x, y, z), shape (3, 3)."""
    w, x, y, z = (float(value) for value in quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )

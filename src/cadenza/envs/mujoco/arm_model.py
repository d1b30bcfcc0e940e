"""The Panda as an MJCF body of capsules, and its position actuators.

The body frames are those of `cadenza.envs.mujoco.panda`, so that its kinematics hold here. Every
arm ends in a grip: a body of a milligram at the tool centre point with a force sensor, which reads
what the arm does to whatever hangs on it, in the axes of the grip's site.

Units:   m, kg, N, rad, s.
Limits:  capsules stand for the meshes; contacts are off.
"""

from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.envs.mujoco.panda import (
    FLANGE,
    HAND_TCP,
    HAND_TURN,
    JOINT_HIGH,
    JOINT_LOW,
    JOINTS,
    LINK_A,
    LINK_D,
    TWIST_QUARTERS,
)

#: Masses of links 1 to 7 and of the hand, kg.
LINK_MASSES: Final = (4.97, 0.65, 3.23, 3.59, 1.23, 1.67, 0.74)
HAND_MASS: Final = 0.73
#: Mass of a grip, kg: too small to be felt in its own sensor.
GRIP_MASS: Final = 1e-6
#: Stiffness, Nm/rad, and damping, Nm s/rad, of the actuators of a stiff arm.
STIFFNESS: Final[FloatArray] = np.array([4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0])
DAMPING: Final[FloatArray] = np.array([450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0])
#: Share of that stiffness an arm has unless told otherwise; the damping goes with its root.
STIFFNESS_SCALE: Final = 0.4
#: Largest torques, Nm.
TORQUE_LIMITS: Final = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0)

_Point: TypeAlias = tuple[float, float, float]
_Capsule: TypeAlias = tuple[_Point, _Point, float]

#: Capsules of each link: two end points and a radius, m, in the frame of the link. The first one
#: of a link carries its mass.
_CAPSULES: Final[tuple[tuple[_Capsule, ...], ...]] = (
    (((0, 0, -0.19), (0, 0, 0), 0.06), ((0, -0.03, 0), (0, 0.03, 0), 0.062)),
    (((0, 0, 0), (0, -0.17, 0), 0.06), ((0, 0, -0.03), (0, 0, 0.03), 0.062)),
    (((0, 0, -0.13), (0, 0, 0), 0.058), ((0.0825, -0.02, 0), (0.0825, 0.02, 0), 0.058)),
    (((0, 0, 0), (-0.0825, 0.06, 0), 0.056), ((-0.0825, 0.08, 0), (-0.0825, 0.13, 0), 0.054)),
    (((0, 0, -0.24), (0, 0.05, -0.1), 0.05), ((0, 0.05, -0.1), (0, 0.01, 0), 0.048)),
    (((0, 0, 0), (0.088, 0, 0), 0.046), ((0.088, 0, -0.02), (0.088, 0, 0.02), 0.046)),
    (((0, 0, -0.01), (0, 0, 0.08), 0.043),),
)
_HAND_CAPSULES: Final[tuple[_Capsule, ...]] = (
    ((0, -0.075, 0.03), (0, 0.075, 0.03), 0.028),
    ((0, -0.02, 0.058), (0, -0.014, 0.092), 0.009),
    ((0, 0.02, 0.058), (0, 0.014, 0.092), 0.009),
)
_QUATERNIONS: Final = {0: "1 0 0 0", 1: "1 1 0 0", -1: "1 -1 0 0"}  # turns about x


def arm_body(name: str, base_x: float, *, faces_back: bool, colour: str) -> str:
    """Return the MJCF body of one arm.

    Args:
        name: Prefix of its elements: joints ``<name>_joint1`` ..., body, site and sensor
            ``<name>_grip``.
        base_x: Where its base stands on the x axis, m.
        faces_back: Whether it looks along -x.
        colour: RGBA text of its links.
    """
    inner = _hand(name)
    for joint in reversed(range(JOINTS)):
        a, d, quarter = LINK_A[joint], LINK_D[joint], TWIST_QUARTERS[joint]
        place = f"{a} {-d * quarter} {d * (1 - abs(quarter))}"
        low, high = JOINT_LOW[joint], JOINT_HIGH[joint]
        inner = (
            f'<body name="{name}_link{joint + 1}" pos="{place}" quat="{_QUATERNIONS[quarter]}" '
            f'gravcomp="1"><joint name="{name}_joint{joint + 1}" axis="0 0 1" '
            f'range="{low} {high}" damping="1" armature="0.1"/>'
            f"{_capsules(_CAPSULES[joint], LINK_MASSES[joint], colour)}{inner}</body>"
        )
    turn = "0 0 0 1" if faces_back else "1 0 0 0"
    base = _capsules((((0, 0, 0.05), (0, 0, 0.1), 0.075),), 0.0, "0.25 0.27 0.3 1")
    return f'<body name="{name}_base" pos="{base_x} 0 0" quat="{turn}">{base}{inner}</body>'


def arm_actuators(name: str) -> str:
    """Return position actuators for the joints of the arm ``name``; gains by `actuator_gains`."""
    stiffness, damping = actuator_gains(STIFFNESS_SCALE)
    return "".join(
        f'<position name="{name}_motor{joint + 1}" joint="{name}_joint{joint + 1}" '
        f'kp="{stiffness[joint]}" kv="{damping[joint]}" '
        f'forcerange="{-TORQUE_LIMITS[joint]} {TORQUE_LIMITS[joint]}"/>'
        for joint in range(JOINTS)
    )


def actuator_gains(scale: float) -> tuple[FloatArray, FloatArray]:
    """Return stiffness and damping of the seven actuators, (7,) each.

    Args:
        scale: Share of the stiff arm's stiffness; the damping ratio stays.
    """
    return scale * STIFFNESS, np.sqrt(scale) * DAMPING


def grip_sensor(name: str) -> str:
    """Return the force sensor at the grip of the arm ``name``."""
    return f'<force name="{name}_grip" site="{name}_grip"/>'


def _hand(name: str) -> str:
    half = HAND_TURN / 2
    grip = (
        f'<body name="{name}_grip" pos="0 0 {HAND_TCP}"><inertial pos="0 0 0" '
        f'mass="{GRIP_MASS}" diaginertia="1e-9 1e-9 1e-9"/>'
        f'<site name="{name}_grip" size="0.005" rgba="0 0 0 0"/></body>'
    )
    return (
        f'<body name="{name}_hand" pos="0 0 {FLANGE}" quat="{np.cos(half)} 0 0 {np.sin(half)}" '
        f'gravcomp="1">{_capsules(_HAND_CAPSULES, HAND_MASS, "0.3 0.32 0.35 1")}{grip}</body>'
    )


def _capsules(parts: tuple[_Capsule, ...], mass: float, colour: str) -> str:
    text = ""
    for index, (start, end, radius) in enumerate(parts):
        ends = " ".join(str(number) for point in (start, end) for number in point)
        text += (
            f'<geom type="capsule" fromto="{ends}" size="{radius}" '
            f'mass="{mass if index == 0 else 0.0}" rgba="{colour}"/>'
        )
    return text

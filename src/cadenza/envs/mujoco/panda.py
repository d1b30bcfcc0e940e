"""The Franka Emika Panda: kinematics in closed form for a batch of arms, and its MJCF model.

Source:  modified Denavit-Hartenberg parameters of the manufacturer's documentation: joint i turns
         about the z axis of frame i, which is RotX(alpha_i) TransX(a_i) RotZ(q_i) TransZ(d_i) seen
         from frame i - 1. The hand sits on the flange, turned by -45 degrees; the tool centre point
         (TCP) lies between the finger tips.
Model:   a body of capsules, which stand for the meshes, and position actuators. Its frames are
         those of the kinematics. Every arm ends in a grip: a body of a milligram at the TCP with a
         force sensor, which reads what the arm does to whatever hangs on it, in the axes of the
         grip's site. Contacts are off.
Axes:    N = arms, 7 = joints; positions and Jacobians are in the frame of the arm's base.
Units:   m, rad, kg, N, s.
Limits:  every operation works row by row, so a row has the same bytes in a batch of any size.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray

#: Joints of the arm.
JOINTS: Final = 7
#: Link lengths a_i and offsets d_i, m, and twists alpha_i in quarter turns.
LINK_A: Final = (0.0, 0.0, 0.0, 0.0825, -0.0825, 0.0, 0.088)
LINK_D: Final = (0.333, 0.0, 0.316, 0.0, 0.384, 0.0, 0.0)
TWIST_QUARTERS: Final = (0, -1, 1, 1, -1, 1, 1)
#: From joint 7 to the flange, and from there to the TCP, m.
FLANGE: Final = 0.107
HAND_TCP: Final = 0.1034
#: Turn of the hand about the flange's axis, rad.
HAND_TURN: Final = -np.pi / 4
#: Limits of the joints, rad.
JOINT_LOW: Final[FloatArray] = np.array(
    [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]
)
JOINT_HIGH: Final[FloatArray] = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])
for _limits in (JOINT_LOW, JOINT_HIGH):
    _limits.setflags(write=False)
#: Pose in which the hand points straight down in front of the arm, rad.
READY: Final[FloatArray] = np.pi * np.array([0.0, 1 / 8, 0.0, -5 / 8, 0.0, 3 / 4, 1 / 4])
#: Pose with the hand drawn back out of the way, rad.
RETRACTED: Final[FloatArray] = np.pi * np.array([0.0, -1 / 4, 0.0, -7 / 8, 0.0, 5 / 8, 1 / 4])

#: Damping of `grip_to_joints`, m: far below the arm's singular values (0.2 to 1 m) near `READY`.
_DAMPING: Final = 0.02
#: Length that turns the tilt of the hand into a row of the same unit as the position, m.
_TOOL_WEIGHT: Final = 0.1
#: The same for `twist_to_joints`, whose turns are wanted as exactly as its positions.
_TURN_WEIGHT: Final = 0.3
#: Share of the hand's tilt that one step takes back.
_TOOL_GAIN: Final = 0.5
#: Share of the way to `READY` that one step takes where the task leaves the arm free.
_READY_GAIN: Final = 0.05
#: Newton steps of `inverse_kinematics`; seven reach rounding from `READY`.
_NEWTON_STEPS: Final = 12


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: array == is ambiguous
class Kinematics:
    """Where the joints and the tool of N arms are, in the frames of their bases.

    Attributes:
        tcp: Tool centre point, (N, 3), m.
        rotation: Axes of the hand as columns, (N, 3, 3).
        axes: Directions of the joints, (N, 7, 3).
        origins: A point on every joint's axis, (N, 7, 3), m.
    """

    tcp: FloatArray
    rotation: FloatArray
    axes: FloatArray
    origins: FloatArray

    def jacobian(self) -> FloatArray:
        """Return the geometric Jacobian of the TCP, (N, 6, 7): 3 linear rows, then 3 angular."""
        arms = self.tcp.shape[0]
        jacobian = np.empty((arms, 6, JOINTS))
        arm = self.tcp[:, None, :] - self.origins
        axes = self.axes
        for row, (i, j) in enumerate(((1, 2), (2, 0), (0, 1))):
            jacobian[:, row] = axes[..., i] * arm[..., j] - axes[..., j] * arm[..., i]
            jacobian[:, 3 + row] = axes[..., row]
        return jacobian


def kinematics(q: FloatArray) -> Kinematics:
    """Return where joints and tools of N arms are.

    Args:
        q: Joint angles, (N, 7), rad.
    """
    arms = q.shape[0]
    cosines, sines = np.cos(q.T.copy()), np.sin(q.T.copy())
    x, y, z = np.zeros((3, arms)), np.zeros((3, arms)), np.zeros((3, arms))
    x[0] = y[1] = z[2] = 1.0
    position = np.zeros((3, arms))
    axes, origins = np.empty((arms, JOINTS, 3)), np.empty((arms, JOINTS, 3))
    for joint in range(JOINTS):
        position = position + LINK_A[joint] * x
        if TWIST_QUARTERS[joint] > 0:
            y, z = z, -y
        elif TWIST_QUARTERS[joint] < 0:
            y, z = -z, y
        position = position + LINK_D[joint] * z
        c, s = cosines[joint], sines[joint]
        x, y = c * x + s * y, c * y - s * x
        axes[:, joint], origins[:, joint] = z.T, position.T
    turn_c, turn_s = np.cos(HAND_TURN), np.sin(HAND_TURN)
    x, y = turn_c * x + turn_s * y, turn_c * y - turn_s * x
    tcp = position + (FLANGE + HAND_TCP) * z
    rotation = np.stack((x.T, y.T, z.T), axis=-1)
    return Kinematics(tcp.T.copy(), rotation, axes, origins)


def manipulability(q: FloatArray) -> FloatArray:
    """Return sqrt(det(J J^T)) of the 6 x 7 Jacobian, (N,): 0 where the arm is singular."""
    jacobian = kinematics(q).jacobian()
    squared = np.linalg.det(jacobian @ jacobian.transpose(0, 2, 1))
    return np.sqrt(np.maximum(squared, 0.0))


def grip_to_joints(q: FloatArray, kin: Kinematics, step: FloatArray) -> FloatArray:
    """Return joint steps that move the grips, keep the hands down and stay near `READY`.

    Damped least squares: with J of the position (3 rows) and of the hand's tilt (2 weak rows), and
    e what they ask for, dq = P e + (I - P J) g, P = J^T (J J^T + lambda^2 I)^-1, g towards `READY`.

    Args:
        q: Joint angles, (N, 7), rad.
        kin: `kinematics` of ``q``.
        step: Wanted steps of the TCPs in the frames of the bases, (N, 3), m.

    Returns:
        Steps of the joints, (N, 7), rad; limits are the caller's business.
    """
    full = kin.jacobian()
    tool = kin.rotation[..., 2]
    jacobian = np.concatenate((full[:, :3], _TOOL_WEIGHT * full[:, 3:5]), axis=1)
    # The turn that brings the tool's axis t to straight down: t x (0, 0, -1) = (-t_y, t_x, 0).
    tilt = _TOOL_GAIN * _TOOL_WEIGHT * np.stack((-tool[:, 1], tool[:, 0]), axis=1)
    wanted = np.concatenate((step, tilt), axis=1)
    pull = _READY_GAIN * (READY - q)
    gram = jacobian @ jacobian.transpose(0, 2, 1)
    gram[:, range(5), range(5)] += _DAMPING * _DAMPING
    rest = wanted - (jacobian @ pull[..., None])[..., 0]
    force = np.linalg.solve(gram, rest[..., None])
    return pull + (jacobian.transpose(0, 2, 1) @ force)[..., 0]


def inverse_kinematics(tcp: FloatArray) -> FloatArray:
    """Return joint angles near `READY` that put the TCPs at ``tcp``, hands straight down.

    Args:
        tcp: Wanted positions in the frames of the bases, (N, 3), m, near that of `READY`.

    Returns:
        Joint angles, (N, 7), rad; exact to rounding.
    """
    q = np.tile(READY, (tcp.shape[0], 1))
    wanted = kinematics(q[:1]).rotation
    for _ in range(_NEWTON_STEPS):
        kin = kinematics(q)
        jacobian = kin.jacobian()
        turn = 0.5 * np.cross(kin.rotation, wanted, axis=1).sum(axis=2)
        error = np.concatenate((tcp - kin.tcp, turn), axis=1)
        gram = jacobian @ jacobian.transpose(0, 2, 1)
        force = np.linalg.solve(gram, error[..., None])
        q = q + (jacobian.transpose(0, 2, 1) @ force)[..., 0]
    return q


def twist_to_joints(q: FloatArray, kin: Kinematics, twist: FloatArray) -> FloatArray:
    """Return joint steps that move and turn the grips and stay near `READY`.

    Damped least squares as in `grip_to_joints`, with all three turns of the hand in place of its
    tilt.

    Args:
        q: Joint angles, (N, 7), rad.
        kin: `kinematics` of ``q``.
        twist: Wanted steps of the TCPs, m, then of the hands' turns, rad, in the frames of the
            bases, (N, 6).

    Returns:
        Steps of the joints, (N, 7), rad; limits are the caller's business.
    """
    scale = np.array([1.0, 1.0, 1.0, _TURN_WEIGHT, _TURN_WEIGHT, _TURN_WEIGHT])
    jacobian = scale[:, None] * kin.jacobian()
    pull = _READY_GAIN * (READY - q)
    gram = jacobian @ jacobian.transpose(0, 2, 1)
    gram[:, range(6), range(6)] += _DAMPING * _DAMPING
    rest = scale * twist - (jacobian @ pull[..., None])[..., 0]
    force = np.linalg.solve(gram, rest[..., None])
    return pull + (jacobian.transpose(0, 2, 1) @ force)[..., 0]


def quaternions(rotations: FloatArray) -> FloatArray:
    """Return unit quaternions wxyz, (..., 4), of rotations (..., 3, 3)."""
    m = rotations
    trace = [
        1.0 + m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2],
        1.0 + m[..., 0, 0] - m[..., 1, 1] - m[..., 2, 2],
        1.0 - m[..., 0, 0] + m[..., 1, 1] - m[..., 2, 2],
        1.0 - m[..., 0, 0] - m[..., 1, 1] + m[..., 2, 2],
    ]
    wx, wy, wz = (m[..., j, i] - m[..., i, j] for i, j in ((1, 2), (2, 0), (0, 1)))
    xy, xz, yz = (m[..., i, j] + m[..., j, i] for i, j in ((0, 1), (0, 2), (1, 2)))
    rows = ((trace[0], wx, wy, wz), (wx, trace[1], xy, xz), (wy, xy, trace[2], yz))
    rows = (*rows, (wz, xz, yz, trace[3]))
    candidates = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    best = np.argmax(np.stack(trace, axis=-1), axis=-1)
    chosen = np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]
    return chosen / np.linalg.norm(chosen, axis=-1, keepdims=True)


#: Masses of links 1 to 7 and of the hand, kg.
LINK_MASSES: Final = (4.97, 0.65, 3.23, 3.59, 1.23, 1.67, 0.74)
HAND_MASS: Final = 0.73
#: Mass of a grip, kg: too small to be felt in its own sensor.
GRIP_MASS: Final = 1e-6
#: Stiffness, Nm/rad, and damping, Nm s/rad, of the actuators of a stiff arm.
STIFFNESS: Final[FloatArray] = np.array([4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0])
DAMPING: Final[FloatArray] = np.array([450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0])
#: Share of that stiffness an arm has by default; the damping goes with its root.
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


def arm_body(name: str, base_x: float, *, faces_back: bool, color: str) -> str:
    """Return the MJCF body of one arm.

    Args:
        name: Prefix of its elements: joints ``<name>_joint1`` ..., body, site and sensor
            ``<name>_grip``.
        base_x: Where its base stands on the x axis, m.
        faces_back: Whether it looks along -x.
        color: RGBA text of its links.
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
            f"{_capsules(_CAPSULES[joint], LINK_MASSES[joint], color)}{inner}</body>"
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
    """Return stiffness and damping of the seven actuators, (7,) each."""
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


def _capsules(parts: tuple[_Capsule, ...], mass: float, color: str) -> str:
    text = ""
    for index, (start, end, radius) in enumerate(parts):
        ends = " ".join(str(number) for point in (start, end) for number in point)
        text += (
            f'<geom type="capsule" fromto="{ends}" size="{radius}" '
            f'mass="{mass if index == 0 else 0.0}" rgba="{color}"/>'
        )
    return text

"""One instant of an arm, the seam behind which its model stands, and arms read from MuJoCo models.

MuJoCo computes where the joints are, the inertia matrix and the bias forces; the motion of all
collision spheres comes from the joint axes in one vectorized pass. A state knows where everything
is; what else is asked of it is computed then, from the same instant.

Geometry:  joint i has axis a_i and anchor o_i in the world frame; h_i = 1 for a hinge, 0 for a
           slide. A point p carried by joint i moves with J_i = h_i a_i x (p - o_i) + (1 - h_i) a_i.
           As this is linear in (p, 1), n . J_i for any n is one product of the outer product of n
           and (p, 1) with a matrix of the configuration, `velocity_map`.
Rates:     a_i' = W_i x a_i, where W_i is the angular velocity of what carries joint i, hence
           J' q' = sum_i q'_i [h_i (a_i' x (p - o_i) + a_i x (p' - o_i')) + (1 - h_i) a_i'].
Manipulability: w = sqrt(det(J J^T)) = product of the singular values of J, Yoshikawa (1985),
           doi:10.1177/027836498500400201, with dw / dq_k = w trace(dJ/dq_k J^+). Joint k turns the
           columns behind it, and moves the end effector under those before it:
           dw / dq_k = w [w_k . (sum_{i>=k} v_i x Xv_i + sum_{i>k} w_i x Xw_i)
                          + v_k . sum_{i<k} Xv_i x w_i]
           with linear and angular columns v and w of J, and Xv and Xw of X = (J J^T)^-1 J; see
           Bruyninckx and De Schutter, Symbolic differentiation of the velocity mapping for a serial
           kinematic chain (1996).
Axes:      n joints, S collision spheres or points. Twists and end-effector Jacobians list the three
           linear rows first, then the three angular ones; everything is in the world frame. In
           `MujocoArm` vectors are columns, shape (3, n) or (3, S).
Spheres: a capsule of radius r is covered by spheres of radius R > r along its axis when neighbours
         are at most 2 sqrt(R^2 - r^2) apart: at the midpoint between two centres they still reach r
         (`cadenza.safety.geometry`). Cylinders, ellipsoids, boxes and meshes are covered in the
         same way, through a cylinder around them; a mesh counts with its convex hull. A geom that
         collides with nothing (contype and conaffinity 0, in no pair) is only there to be seen.
Units:   those of the model: m, rad, s, kg, N, Nm; for slides m, m/s, m/s^2 and N in place of angles
         and torques.
Limits:  hinges and slides only; tendons, equality constraints and contacts do not enter the state;
         the end effector's chain must be serial for the manipulability. The instance keeps
         MuJoCo's working memory: use one per thread.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import checked_flag, is_real, real_array, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.core.extras import load_extra
from cadenza.core.lazy_names import Deferred
from cadenza.safety.control_models import ActionKind, JacobianControlModel
from cadenza.safety.geometry import Capsule, SphereCloud, covering_radius, decompose_capsule
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointLimits:
    """Limits per joint; infinity means none. The arrays are read-only copies.

    Raises:
        InputError: Shapes differ, an entry is NaN, ``upper`` <= ``lower``, or a limit is <= 0.
    """

    lower: FloatArray  # Smallest position, shape (n,)
    upper: FloatArray  # Largest position, shape (n,), > ``lower``
    velocity: FloatArray  # Largest speed, shape (n,), > 0
    acceleration: FloatArray  # Largest acceleration, shape (n,), > 0
    torque: FloatArray  # Largest actuator torque, shape (n,), > 0

    def __post_init__(self) -> None:
        shape = real_array("JointLimits.lower", self.lower).shape
        if len(shape) != 1 or shape[0] < 1:
            raise InputError(f"JointLimits.lower: expected shape (n,) with n >= 1, got {shape}.")
        for name in ("lower", "upper", "velocity", "acceleration", "torque"):
            values = np.array(real_array(f"JointLimits.{name}", getattr(self, name)), np.float64)
            if values.shape != shape:
                raise InputError(f"JointLimits.{name}: expected shape {shape}, got {values.shape}.")
            free = name in ("lower", "upper")
            if np.isnan(values).any() or not (free or (values > 0.0).all()):
                raise InputError(
                    f"JointLimits.{name}: expected {'numbers' if free else 'limits > 0'}, got "
                    f"{values}; write infinity where there is no limit."
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if not (self.upper > self.lower).all():
            raise InputError(
                f"JointLimits.upper: expected > lower, got lower {self.lower}, upper {self.upper}."
            )

    @property
    def n_joints(self) -> int:
        """Number of joints."""
        return int(self.lower.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmState(Deferred):
    """Everything a filter asks about one configuration and velocity.

    `MujocoArm` computes most of it when it is read: a filter of velocities reads no dynamics.
    """

    q: FloatArray  # Joint positions, shape (n,)
    q_dot: FloatArray  # Joint velocities, shape (n,)
    ee_position: FloatArray  # End effector's origin, shape (3,), m
    ee_rotation: FloatArray  # End effector's axes as columns, shape (3, 3)
    ee_jacobian: FloatArray  # Twist = J q', shape (6, n)
    ee_bias: FloatArray  # J' q', shape (6,), m/s^2 and rad/s^2
    mass_matrix: FloatArray  # M(q), shape (n, n)
    #: c(q, q') + g(q) less passive forces: M q'' + bias_forces = torque, shape (n,)
    bias_forces: FloatArray
    sphere_centers: FloatArray  # Centres of the collision spheres, shape (S, 3), m
    sphere_jacobians: FloatArray  # Their Jacobians, shape (S, 3, n)
    sphere_velocities: FloatArray  # Their velocities, shape (S, 3), m/s
    sphere_bias: FloatArray  # Their J' q', shape (S, 3), m/s^2
    #: Product of the singular values of ``ee_jacobian``; None if not asked for
    manipulability: float | None = None
    manipulability_gradient: FloatArray | None = None  # Its gradient, shape (n,)
    manipulability_curvature: float = 0.0  # q'^T (Hessian of the manipulability) q'

    def gap_gradients(
        self, normal: FloatArray, sphere: NDArray[np.intp], other: NDArray[np.intp]
    ) -> FloatArray:
        """Return the gradients of gaps between spheres, shape (m, n).

        Args:
            normal: Unit vectors that point to ``sphere`` out of what it may not touch, (m, 3).
            sphere: Index of a sphere per gap, shape (m,).
            other: Index of the other sphere, shape (m,); -1 where the joints do not move it.
        """
        jacobian = self.sphere_jacobians[sphere]
        jacobian = jacobian - self.sphere_jacobians[other] * (other >= 0)[:, None, None]
        return np.vecmat(normal, jacobian)


@runtime_checkable
class ArmModel(Protocol):
    """A manipulator: what it can do, what it is made of, and its state at any instant."""

    @property
    def limits(self) -> JointLimits:
        """Limits of the joints."""
        ...

    @property
    def sphere_radii(self) -> FloatArray:
        """Radii of the collision spheres, shape (S,), m."""
        ...

    @property
    def sphere_links(self) -> tuple[str, ...]:
        """Name of the link that carries each sphere, S names."""
        ...

    @property
    def movable_spheres(self) -> NDArray[np.bool_]:
        """Whether any joint moves each sphere, shape (S,)."""
        ...

    @property
    def self_collision_pairs(self) -> NDArray[np.intp]:
        """Pairs of spheres that may not touch, shape (P, 2)."""
        ...

    def state(
        self, q: FloatArray, q_dot: FloatArray, *, with_manipulability: bool = False
    ) -> ArmState:
        """Return the state at joint positions and velocities, each of shape (n,)."""
        ...


class EndEffectorBall:
    """The arm as the pairwise filter sees it: a ball around its end effector.

    That filter reads a ball's position and velocity and asks a control model how the action
    accelerates it. Both come from one `ArmState`, so they cannot disagree.

    Args:
        radius: Of the ball, m, > 0: it must contain the hand and what it holds.

    Raises:
        InputError: The radius is no positive number.
    """

    def __init__(self, radius: float) -> None:
        if not (is_real(radius) and 0.0 < radius < math.inf):
            raise InputError(f"EndEffectorBall.radius: expected > 0 m, got {shown(radius)}.")
        self._radius = radius
        self._state: ArmState | None = None

    def snapshot(self, state: ArmState) -> AgentSnapshot:
        """Return the ball at ``state``, which answers later questions about this snapshot."""
        self._state = state
        return AgentSnapshot(state.ee_position, state.ee_jacobian[:3] @ state.q_dot, self._radius)

    def jacobian(self, snapshot: AgentSnapshot) -> FloatArray:
        """Return J of the ball's centre, shape (3, n), for the last snapshot."""
        return self._state_behind(snapshot).ee_jacobian[:3]

    def bias(self, snapshot: AgentSnapshot) -> FloatArray:
        """Return J' q' of the ball's centre, shape (3,), m/s^2, for the last snapshot."""
        return self._state_behind(snapshot).ee_bias[:3]

    def control_model(
        self,
        uid: str,
        n_joints: int,
        *,
        max_cartesian_accel: float,
        action_kind: ActionKind = "joint_acceleration",
        control_timestep_s: float | None = None,
    ) -> JacobianControlModel:
        """Return the control model of this ball; see `JacobianControlModel`.

        The filter lowers ``max_cartesian_accel``, m/s^2 in every direction, to what the action box
        reaches; ``control_timestep_s`` is needed for velocities and position steps.
        """
        return JacobianControlModel(
            uid,
            n_joints,
            3,
            jacobian_fn=self.jacobian,
            max_cartesian_accel_value=max_cartesian_accel,
            action_kind=action_kind,
            control_timestep_s=control_timestep_s,
            bias_fn=self.bias,
        )

    def _state_behind(self, snapshot: AgentSnapshot) -> ArmState:
        """Return the state of a snapshot; NotReadyError unless it is the last one."""
        state = self._state
        if state is None or not np.array_equal(snapshot.position, state.ee_position):
            raise NotReadyError(
                "EndEffectorBall: expected the snapshot made last, got another one; call "
                "snapshot(state) first in every step."
            )
        return state


#: The seven-joint arm of capsules and spheres that ships with the package.
SEVEN_DOF_ARM: Final = Path(__file__).with_name("seven_dof_arm.xml")
#: Radius of the covering spheres over that of a capsule: larger means fewer and a thicker arm.
_INFLATION: Final = 1.1
#: Half length over radius of the slimmest cylinder that a geom is put into: a wire would take
#: thousands of balls.
_SLENDERNESS: Final = 20.0
#: Step along the velocity direction for the curvature of the manipulability, rad. Central
#: differences of the exact gradient: error about 1e-8 relative, rounding about 1e-12.
_CURVATURE_STEP: Final = 1e-4
#: Entries of a Jacobian below this are rounding, m/rad.
_AT_REST: Final = 1e-9
#: Which row of (axis, moment) holds the factor of n_j p_k in (a x p + m) . n, by 4 j + k with
#: p_3 = 1, and its sign.
_ROW: Final = np.array([0, 2, 1, 3, 2, 0, 0, 4, 1, 0, 0, 5])
_SIGN: Final = np.array([0.0, -1, 1, 1, 1, 0, -1, 1, -1, 1, 0, 1])[:, None]
#: Sums the products a_i b_j, by 3 i + j, to the components of a x b.
_CROSS: Final = np.zeros((3, 9))
_CROSS[[0, 1, 2], [5, 6, 1]], _CROSS[[0, 1, 2], [7, 2, 3]] = 1.0, -1.0
#: The same from (axis, sliding axis, products of axis and anchor), as the moment is s - a x o.
_MAP: Final = (np.eye(6)[_ROW] * _SIGN) @ np.block(
    [[np.eye(3), np.zeros((3, 12))], [np.zeros((3, 3)), np.eye(3), -_CROSS]]
)
#: LAPACK's solver for a symmetric positive matrix; NumPy's takes three times as long around it.
dposv: Final[Any] = load_extra("scipy.linalg.lapack").dposv
#: Smallest over largest entry of the Cholesky factor's diagonal below which the singular values
#: decide: the gradient of the short way is then off by 1e-10, with 1e-4 already by 1e-2.
_WELL_CONDITIONED: Final = 1e-2


class Chain(NamedTuple):
    """What of a kinematic tree does not depend on its configuration."""

    hinge: FloatArray  # 1 for a hinge, 0 for a slide, shape (n,)
    #: Entry (i, j) is 1 if joint j carries joint i (strictly), shape (n, n)
    carries_joint: FloatArray


class JointFrames(NamedTuple):
    """Where the joints are at one instant."""

    axis: FloatArray  # Unit axes in the world frame, shape (3, n)
    anchor: FloatArray  # Points on the axes in the world frame, shape (3, n), m


class MujocoArm:
    """Kinematics and dynamics of a MuJoCo model with one end effector.

    Joint limits come from ``range``; torque limits from the ``ctrlrange`` of each joint's motor;
    velocity and acceleration limits from ``<custom><numeric name="velocity_limit" .../>`` and
    ``acceleration_limit``. What the model does not state is unlimited.

    Its attributes are those of `ArmModel`, and ``n_joints``.

    Args:
        model: Path of an MJCF file, or the XML text itself.
        ee_site: Site at the end effector.
        exclude: Pairs of bodies whose contact is ignored, beside the model's own exclusions,
            parents with children, and bodies no joint lies between.

    Raises:
        MissingExtraError: MuJoCo is not installed.
        ConfigurationError: The model has a joint, geom or name this class cannot use.
    """

    def __init__(
        self,
        model: str | Path = SEVEN_DOF_ARM,
        ee_site: str = "ee",
        *,
        exclude: tuple[tuple[str, str], ...] = (),
    ) -> None:
        kinds = {
            "model": (model, str | Path),
            "ee_site": (ee_site, str),
            "exclude": (exclude, [tuple]),
        }
        require_kinds("MujocoArm", **kinds)
        self._mujoco = load_extra("mujoco")
        self._model = _compile(self._mujoco, model)
        self._data = self._mujoco.MjData(self._model)
        _require_simple_joints(self._mujoco, self._model)
        self._site = _index(self._mujoco, self._model, "site", ee_site)
        self._chain, self._carried_by_body = _tree(self._mujoco, self._model)
        self._ee_carried = self._carried_by_body[self._model.site_bodyid[self._site]]
        self.n_joints: int = int(self._model.nv)
        self.limits: JointLimits = _limits(self._mujoco, self._model)
        self._spheres = spheres = link_spheres(self._mujoco, self._model)
        self.sphere_radii: FloatArray = spheres.radii
        self.sphere_links: tuple[str, ...] = spheres.links
        self.self_collision_pairs: NDArray[np.intp] = allowed_pairs(
            self._mujoco, self._model, spheres.bodies, exclude
        )
        by_sphere = self._carried_by_body[spheres.bodies]
        self._carried = np.vstack([self._ee_carried, by_sphere])
        self._places = np.ones((len(self._carried), 4))
        self._carried_or_not = np.vstack([by_sphere, np.zeros(self.n_joints)])  # -1: by none
        self.movable_spheres: NDArray[np.bool_] = self._find_movable()

    def home(self) -> FloatArray:
        """Return the first keyframe's joint positions, or the model's reference, shape (n,)."""
        source = self._model.key_qpos[0] if self._model.nkey else self._model.qpos0
        return np.array(source, dtype=np.float64)

    def state(
        self, q: FloatArray, q_dot: FloatArray, *, with_manipulability: bool = False
    ) -> ArmState:
        """Return the state at joint positions ``q`` and velocities ``q_dot``, each (n,).

        Args:
            q: Joint positions, shape (n,), rad.
            q_dot: Joint velocities, shape (n,), rad/s.
            with_manipulability: Also compute the manipulability with its gradient; only a
                singularity rule needs it.

        Raises:
            InputError: Wrong shape, or an entry is not finite.
        """
        checked_flag("MujocoArm.state: with_manipulability", with_manipulability)
        n = self.n_joints
        q = np.array(real_array("MujocoArm.state: q", q), dtype=np.float64)
        q_dot = np.array(real_array("MujocoArm.state: q_dot", q_dot), dtype=np.float64)
        require_shape("MujocoArm.state: q", q, (n,))
        require_shape("MujocoArm.state: q_dot", q_dot, (n,))
        require_finite("MujocoArm.state: q", q)
        require_finite("MujocoArm.state: q_dot", q_dot)
        frames = self._move_to(q, q_dot)
        velocities, bodies = velocity_map(self._chain, frames), self._spheres.bodies
        rotations: FloatArray = self._data.xmat.take(bodies, axis=0).reshape(-1, 3, 3)
        positions: FloatArray = self._data.xpos.take(bodies, axis=0)
        centers = positions + np.matvec(rotations, self._spheres.offsets)
        site: FloatArray = self._data.site_xpos[self._site].copy()
        places = self._places.copy()  # of the end effector, then of the spheres
        places[0, :3], places[1:, :3] = site, centers
        jacobian = self._ee_jacobian(frames, places[0], velocities)
        value, gradient = manipulability(jacobian) if with_manipulability else (None, None)

        def rates() -> dict[str, FloatArray]:
            moved, linear, angular = bias_accelerations(
                self._chain, frames, q_dot, places[:, :3].T, self._carried.T
            )
            return {
                "ee_bias": np.concatenate((linear[:, 0], angular[:, 0])),
                "sphere_velocities": moved.T[1:],
                "sphere_bias": linear.T[1:],
            }

        def jacobians() -> dict[str, FloatArray]:
            every = np.tensordot(places[1:], velocities.reshape(3, 4, n), (1, 1))
            return {"sphere_jacobians": every * self._carried[1:, None, :]}

        def curvature() -> dict[str, float]:
            turn = 0.0 if value is None else self._manipulability_curvature(q, q_dot)
            return {"manipulability_curvature": turn}

        later = dict.fromkeys(("ee_bias", "sphere_velocities", "sphere_bias"), rates)
        dynamics = dict.fromkeys(("mass_matrix", "bias_forces"), lambda: self._dynamics(q, q_dot))
        later |= {"sphere_jacobians": jacobians, "manipulability_curvature": curvature}
        return _MujocoState.deferred(
            later | dynamics,
            q=q,
            q_dot=q_dot,
            ee_position=site,
            ee_rotation=self._data.site_xmat[self._site].reshape(3, 3).copy(),
            ee_jacobian=jacobian,
            sphere_centers=centers,
            manipulability=value,
            manipulability_gradient=gradient,
            _places=places[1:],
            _velocity_map=velocities,
            _carried=self._carried_or_not,
        )

    def _find_movable(self) -> NDArray[np.bool_]:
        """Return which spheres move: one on the axis of the only joint that carries it does not.

        Two configurations that share no joint position decide; a Jacobian that vanishes at both
        vanishes for good but for coincidences, as its entries are analytic in q.
        """
        rest = np.zeros(self.n_joints)
        movable = np.zeros(len(self._spheres.radii), dtype=bool)
        for step in (0.3, 0.7):
            shift = step * np.arange(1, self.n_joints + 1)
            jacobians = self.state(self.home() + shift, rest).sphere_jacobians
            movable |= np.abs(jacobians).max(axis=(1, 2)) > _AT_REST
        return movable

    def _move_to(self, q: FloatArray, q_dot: FloatArray) -> JointFrames:
        self._at = q
        self._data.qpos[:] = q
        self._data.qvel[:] = q_dot
        self._mujoco.mj_kinematics(self._model, self._data)
        return JointFrames(self._data.xaxis.T.copy(), self._data.xanchor.T.copy())

    def _dynamics(self, q: FloatArray, q_dot: FloatArray) -> dict[str, FloatArray]:
        """Return M(q) and c + g less passive forces."""
        mujoco, model, data = self._mujoco, self._model, self._data
        if self._at is not q:
            self._move_to(q, q_dot)
        mujoco.mj_comPos(model, data)
        mujoco.mj_makeM(model, data)
        mass_matrix = np.empty((self.n_joints, self.n_joints))
        mujoco.mj_fullM(model, data, mass_matrix)
        mujoco.mj_comVel(model, data)
        mujoco.mj_passive(model, data)
        bias = np.empty(self.n_joints)
        mujoco.mj_rne(model, data, 0, bias)
        bias_forces: FloatArray = bias - data.qfrc_passive
        return {"mass_matrix": mass_matrix, "bias_forces": bias_forces}

    def _ee_jacobian(
        self, frames: JointFrames, place: FloatArray, velocities: FloatArray
    ) -> FloatArray:
        """Return the Jacobian of the end effector at ``place`` (x, y, z, 1), shape (6, n)."""
        jacobian = np.empty((6, self.n_joints))
        jacobian[:3] = place @ velocities.reshape(3, 4, -1)
        jacobian[3:] = frames.axis * self._chain.hinge
        jacobian *= self._ee_carried
        return jacobian

    def _manipulability_curvature(self, q: FloatArray, q_dot: FloatArray) -> float:
        """Return q'^T (d^2 w / dq^2) q' from the gradients a little ahead and a little behind."""
        speed = float(np.linalg.norm(q_dot))
        if speed == 0.0:
            return 0.0
        step = _CURVATURE_STEP / speed
        slopes: list[float] = []
        for sign in (1.0, -1.0):
            frames = self._move_to(q + sign * step * q_dot, q_dot)
            place = np.append(self._data.site_xpos[self._site], 1.0)
            jacobian = self._ee_jacobian(frames, place, velocity_map(self._chain, frames))
            slopes.append(float(manipulability(jacobian)[1] @ q_dot))
        return (slopes[0] - slopes[1]) / (2.0 * step)


class _MujocoState(ArmState):
    """State that multiplies the rows of all gaps at once; see `velocity_map`."""

    __slots__ = ("_carried", "_places", "_velocity_map")
    _carried: FloatArray
    _places: FloatArray
    _velocity_map: FloatArray

    def gap_gradients(
        self, normal: FloatArray, sphere: NDArray[np.intp], other: NDArray[np.intp]
    ) -> FloatArray:
        if not hasattr(self, "_places"):  # a copy with other fields
            return super().gap_gradients(normal, sphere, other)
        # The other sphere lies along the normal, where n . J_i is the same.
        outer = (normal[:, :, None] * self._places.take(sphere, axis=0)[:, None, :]).reshape(-1, 12)
        carried = self._carried.take(sphere, axis=0) - self._carried.take(other, axis=0)
        return (outer @ self._velocity_map) * carried


def cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the cross products of columns; `numpy.cross` takes twenty times as long."""
    return _CROSS @ (a[:, None] * b).reshape(9, -1)


def velocity_map(chain: Chain, frames: JointFrames) -> FloatArray:
    """Return the matrix that gives n . J_i of any point, by 4 j + k for n_j p_k, shape (12, n)."""
    turning = frames.axis * chain.hinge
    crossed = (turning[:, None] * frames.anchor).reshape(9, -1)
    return _MAP @ np.concatenate((turning, frames.axis - turning, crossed))


def bias_accelerations(
    chain: Chain, frames: JointFrames, q_dot: FloatArray, points: FloatArray, carried: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return velocities of points, (3, S), and J' q' of them and of their bodies' orientation.

    Entry (i, s) of ``carried``, (n, S), is 1 if joint i carries point s. All answers have shape
    (3, S): m/s, what moves the points without joint acceleration, m/s^2, and what turns their
    bodies, rad/s^2.
    """
    rate = frames.axis * q_dot
    turning = rate * chain.hinge
    before = chain.carries_joint.T
    carrier_spin = turning @ before
    # Velocity of a point: spin x p - sum_j turning_j x o_j + sliding of what carries it.
    offset = cross(turning, frames.anchor) - (rate - turning)
    anchor_velocity = cross(carrier_spin, frames.anchor) - offset @ before
    axis_rate = cross(carrier_spin, rate)  # q'_i a_i'
    turning_rate = axis_rate * chain.hinge
    constant = (
        axis_rate
        - turning_rate
        - cross(turning_rate, frames.anchor)
        - cross(turning, anchor_velocity)
    )
    spin, spin_rate = turning @ carried, turning_rate @ carried
    velocities = cross(spin, points) - offset @ carried
    linear = cross(spin_rate, points) + cross(spin, velocities) + constant @ carried
    return velocities, linear, spin_rate


def manipulability(jacobian: FloatArray) -> tuple[float, FloatArray]:
    """Return w = product of the singular values of J, and dw / dq, shape (n,).

    Where J is nearly singular, w X comes from w J^+ = sum_k (product of the other singular values)
    v_k u_k^T, which stays finite where J loses rank.

    Args:
        jacobian: J, linear rows over angular rows, shape (6, n), n >= 6, joints from the base
            outwards.
    """
    factor, scaled, failed = dposv(jacobian @ jacobian.T, jacobian)
    diagonal = factor.diagonal().tolist()
    if not failed and min(diagonal) >= _WELL_CONDITIONED * max(diagonal):
        value = math.prod(diagonal)
        scaled *= value
    else:
        u, singular, v_transposed = np.linalg.svd(jacobian, full_matrices=False)
        others = np.where(np.eye(len(singular), dtype=bool), 1.0, singular).prod(axis=1)
        value = float(singular.prod())
        scaled = np.asarray((u * others) @ v_transposed, dtype=np.float64)
    v, w, xv, xw = jacobian[:3], jacobian[3:], scaled[:3], scaled[3:]
    n = jacobian.shape[1]
    moments = cross(np.concatenate((v, w, xv), axis=1), np.concatenate((xv, xw, w), axis=1))
    behind, before = _sums(n)
    turned = w * (moments[:, : 2 * n] @ behind) + v * (moments[:, 2 * n :] @ before)
    return value, np.add.reduce(turned)


@cache
def _sums(n: int) -> tuple[FloatArray, FloatArray]:
    """Return what adds up, for each k, v_i x Xv_i (i >= k) and w_i x Xw_i (i > k); and i < k."""
    before = np.triu(np.ones((n, n)), 1)
    return np.concatenate((before.T + np.eye(n), before.T)), before


def _compile(mujoco: Any, model: str | Path) -> Any:
    is_text = isinstance(model, str) and model.lstrip().startswith("<")
    if not is_text and not Path(model).is_file():
        raise ConfigurationError(
            f"MujocoArm: expected an MJCF file or XML text, found no file at {str(model)!r}."
        )
    load = mujoco.MjModel.from_xml_string if is_text else mujoco.MjModel.from_xml_path
    try:
        return load(str(model))
    except ValueError as error:
        raise ConfigurationError(f"MujocoArm: MuJoCo refused the model: {error}") from error


def _require_simple_joints(mujoco: Any, model: Any) -> None:
    simple = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    if model.njnt < 1 or any(int(kind) not in simple for kind in model.jnt_type):
        raise ConfigurationError(
            "MujocoArm: expected at least one joint, all of them hinges or slides, got "
            f"{model.njnt} of types {model.jnt_type.tolist()}; give the arm a model of its own, "
            "without free bodies."
        )


def _index(mujoco: Any, model: Any, kind: Literal["site", "body"], name: str) -> int:
    """Return the index of a site or body, or raise ConfigurationError."""
    number = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    index = mujoco.mj_name2id(model, number, name)
    if index < 0:
        count = model.nsite if kind == "site" else model.nbody
        known = [getattr(model, kind)(k).name for k in range(count)]
        raise ConfigurationError(
            f"MujocoArm: expected a {kind} named {name!r}, the model has {known}."
        )
    return int(index)


def _tree(mujoco: Any, model: Any) -> tuple[Chain, FloatArray]:
    """Return the joints' kinds and order, and which joints carry each body, (bodies, n)."""
    n = int(model.nv)
    carried_by_body = np.zeros((model.nbody, n))
    carries_joint = np.zeros((n, n))
    for body in range(1, model.nbody):
        carried_by_body[body] = carried_by_body[model.body_parentid[body]]
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        for joint in range(first, first + count):
            carries_joint[joint] = carried_by_body[body]
            carried_by_body[body, joint] = 1.0
    hinge = (model.jnt_type == int(mujoco.mjtJoint.mjJNT_HINGE)).astype(np.float64)
    return Chain(hinge=hinge, carries_joint=carries_joint), carried_by_body


def _limits(mujoco: Any, model: Any) -> JointLimits:
    n = int(model.nv)
    limited = model.jnt_limited.astype(bool)
    torque = np.full(n, np.inf)
    for actuator in range(model.nu):
        if model.actuator_trntype[actuator] == int(mujoco.mjtTrn.mjTRN_JOINT) and bool(
            model.actuator_ctrllimited[actuator]
        ):
            gear = abs(float(model.actuator_gear[actuator, 0]))
            reach = gear * float(np.abs(model.actuator_ctrlrange[actuator]).min())
            torque[int(model.actuator_trnid[actuator, 0])] = reach
    return JointLimits(
        lower=np.where(limited, model.jnt_range[:, 0], -np.inf),
        upper=np.where(limited, model.jnt_range[:, 1], np.inf),
        velocity=_numeric(mujoco, model, "velocity_limit"),
        acceleration=_numeric(mujoco, model, "acceleration_limit"),
        torque=torque,
    )


def _numeric(mujoco: Any, model: Any, name: str) -> FloatArray:
    """Return the custom field ``name``, one number per joint; infinity when it is absent."""
    n = int(model.nv)
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, name)
    if index < 0:
        return np.full(n, np.inf)
    start, size = int(model.numeric_adr[index]), int(model.numeric_size[index])
    if size != n:
        raise ConfigurationError(
            f"MujocoArm: expected {n} numbers in <numeric name={name!r}>, got {size}."
        )
    return np.array(model.numeric_data[start : start + size], dtype=np.float64)


class LinkSpheres(NamedTuple):
    """Collision spheres fixed to the bodies of a model."""

    bodies: NDArray[np.intp]  # Body that carries each sphere, shape (S,)
    offsets: FloatArray  # Centres in the frame of that body, shape (S, 3), m
    radii: FloatArray  # Radii, shape (S,), m
    links: tuple[str, ...]  # Names of the bodies, S names


def cover_capsule(capsule: Capsule, inflation: float) -> SphereCloud:
    """Return the fewest equal balls along the axis that contain the capsule.

    ``inflation``, > 1, is the largest allowed ball radius over the capsule's.
    """
    length = float(np.linalg.norm(capsule.end - capsule.start))
    spacing = 2.0 * capsule.radius * math.sqrt(inflation * inflation - 1.0)
    # One part in 1e12 keeps a length of exactly k spacings from asking for one ball more.
    count = max(2, 1 + math.ceil(length / spacing * (1.0 - 1e-12)))
    radius = covering_radius(length, capsule.radius, count)
    return decompose_capsule(capsule.start, capsule.end, radius, count)


def cover_cylinder(half: float, radius: float, inflation: float) -> SphereCloud:
    """Return the fewest equal balls along z that contain a cylinder of this half length and radius.

    Each covers a slice: one of n takes a ball of radius R = hypot(radius, half / n). ``inflation``,
    > 1, is the largest allowed R over the radius.
    """
    slices = half / (radius * math.sqrt(inflation * inflation - 1.0))
    count = max(1, math.ceil(slices * (1.0 - 1e-12)))
    centers = np.zeros((count, 3))
    centers[:, 2] = half * (2.0 * np.arange(count) + 1.0 - count) / count
    return SphereCloud(centers, np.full(count, math.hypot(radius, half / count)))


def link_spheres(mujoco: Any, model: Any) -> LinkSpheres:
    """Return spheres that cover every geom of a MuJoCo model that can touch anything."""
    bodies: list[int] = []
    clouds: list[SphereCloud] = []
    for geom in range(model.ngeom):
        if not _collides(model, geom):
            continue
        cloud = _geom_cloud(mujoco, model, geom)
        clouds.append(cloud)
        bodies.extend([int(model.geom_bodyid[geom])] * len(cloud))
    if not bodies:
        raise ConfigurationError(
            "MujocoArm: expected at least one geom that can touch something, got none; give the "
            "links geoms with contype or conaffinity."
        )
    return LinkSpheres(
        bodies=np.array(bodies, dtype=np.intp),
        offsets=np.concatenate([cloud.centers for cloud in clouds]),
        radii=np.concatenate([cloud.radii for cloud in clouds]),
        links=tuple(str(model.body(body).name) for body in bodies),
    )


def _collides(model: Any, geom: int) -> bool:
    """Return whether a geom can touch anything; all others are there to be looked at."""
    bits = int(model.geom_contype[geom]) | int(model.geom_conaffinity[geom])
    return bool(bits) or geom in model.pair_geom1 or geom in model.pair_geom2


def _geom_cloud(mujoco: Any, model: Any, geom: int) -> SphereCloud:
    """Return the balls that cover one geom, in the frame of its body."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    flat = np.empty(9)
    mujoco.mju_quat2Mat(flat, model.geom_quat[geom])
    axes = flat.reshape(3, 3)  # as columns
    center, radius = np.array(model.geom_pos[geom]), float(size[0])
    if kind == int(mujoco.mjtGeom.mjGEOM_SPHERE):
        return SphereCloud(center[None, :], np.array([radius]))
    if kind == int(mujoco.mjtGeom.mjGEOM_CAPSULE):
        reach = float(size[1]) * axes[:, 2]
        return cover_capsule(Capsule(center - reach, center + reach, radius), _INFLATION)
    middle, half, axis, radius = _cylinder_around(mujoco, model, geom)
    local = cover_cylinder(half, max(radius, half / _SLENDERNESS), _INFLATION)
    along = axes[:, axis] * local.centers[:, 2:]
    return SphereCloud(center + axes @ middle + along, local.radii)


def _cylinder_around(mujoco: Any, model: Any, geom: int) -> tuple[FloatArray, float, int, float]:
    """Return middle, half length, axis and radius of a cylinder that contains a geom, in its frame.

    A convex geom lies inside as soon as its corners do; of the three axes the slimmest is taken.
    """
    kind, size = int(model.geom_type[geom]), np.array(model.geom_size[geom])
    shapes, middle = mujoco.mjtGeom, np.zeros(3)
    if kind == int(shapes.mjGEOM_CYLINDER):
        return middle, float(size[1]), 2, float(size[0])
    if kind == int(shapes.mjGEOM_ELLIPSOID):
        axis = int(size.argmax())
        return middle, float(size[axis]), axis, float(np.delete(size, axis).max())
    if kind == int(shapes.mjGEOM_BOX):
        corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3))) * size
    elif kind == int(shapes.mjGEOM_MESH):
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        corners = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])].astype(np.float64)
    else:
        raise ConfigurationError(
            "MujocoArm: expected spheres, capsules, cylinders, ellipsoids, boxes and meshes, got "
            f"geom {model.geom(geom).name!r} of type {kind}; keep tables and walls out of the "
            "arm's model and pass them to the filter."
        )
    low, high = corners.min(0), corners.max(0)
    middle = 0.5 * (low + high)
    squared = np.square(corners - middle)
    radii = np.sqrt((squared.sum(1, keepdims=True) - squared).max(0))
    axis = int(radii.argmin())
    return middle, 0.5 * float(high[axis] - low[axis]), axis, float(radii[axis])


def allowed_pairs(
    mujoco: Any, model: Any, bodies: NDArray[np.intp], exclude: tuple[tuple[str, str], ...]
) -> NDArray[np.intp]:
    """Return the pairs of spheres that must stay apart, shape (P, 2).

    Left out are pairs on one rigid part (bodies no joint lies between), pairs of a part and the one
    that carries it, and the exclusions of the model and of the caller.
    """
    weld = model.body_weldid
    ignored = {
        (int(signature) >> 16, int(signature) & 0xFFFF) for signature in model.exclude_signature
    }
    for first, second in exclude:
        pair = _index(mujoco, model, "body", first), _index(mujoco, model, "body", second)
        ignored.add(pair)
    ignored_parts = {frozenset((int(weld[a]), int(weld[b]))) for a, b in ignored}
    for body in range(1, model.nbody):
        part = int(weld[body])
        ignored_parts.add(frozenset((part, int(weld[model.body_parentid[part]]))))
    parts = weld[bodies]
    pairs = [
        (i, j)
        for i in range(len(bodies))
        for j in range(i + 1, len(bodies))
        if parts[i] != parts[j] and frozenset((int(parts[i]), int(parts[j]))) not in ignored_parts
    ]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)

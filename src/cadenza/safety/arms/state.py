"""One instant of an arm, what its joints can do, and the seam behind which its model stands.

Axes:   n joints, S collision spheres. Twists and end-effector Jacobians list the three linear rows
        first, then the three angular ones; everything is in the world frame.
Units:  m, rad, s, kg, N, Nm; for slides m, m/s, m/s^2 and N in place of angles and torques.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, real_array, shown
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.lazy_names import Deferred
from cadenza.safety.control_models import ActionKind, JacobianControlModel
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

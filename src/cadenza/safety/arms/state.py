"""One instant of an arm, and the seam behind which its model stands.

Axes:   n joints, S collision spheres. Twists and end-effector Jacobians list the three linear rows
        first, then the three angular ones; everything is in the world frame.
Units:  m, rad, s, kg, N, Nm.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.lazy_names import Deferred
from cadenza.safety.arms.limits import JointLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmState(Deferred):
    """Everything a filter asks about one configuration and velocity.

    `MujocoArm` computes most of it when it is read: a filter of velocities reads no dynamics.

    Attributes:
        q: Joint positions, shape (n,).
        q_dot: Joint velocities, shape (n,).
        ee_position: End effector's origin, shape (3,), m.
        ee_rotation: End effector's axes as columns, shape (3, 3).
        ee_jacobian: Twist = J q', shape (6, n).
        ee_bias: J' q', shape (6,), m/s^2 and rad/s^2.
        mass_matrix: M(q), shape (n, n).
        bias_forces: c(q, q') + g(q) less passive forces: M q'' + bias_forces = torque, shape (n,).
        sphere_centers: Centres of the collision spheres, shape (S, 3), m.
        sphere_jacobians: Their Jacobians, shape (S, 3, n).
        sphere_velocities: Their velocities, shape (S, 3), m/s.
        sphere_bias: Their J' q', shape (S, 3), m/s^2.
        manipulability: Product of the singular values of ``ee_jacobian``; None if not asked for.
        manipulability_gradient: Its gradient, shape (n,).
        manipulability_curvature: q'^T (Hessian of the manipulability) q'.
    """

    q: FloatArray
    q_dot: FloatArray
    ee_position: FloatArray
    ee_rotation: FloatArray
    ee_jacobian: FloatArray
    ee_bias: FloatArray
    mass_matrix: FloatArray
    bias_forces: FloatArray
    sphere_centers: FloatArray
    sphere_jacobians: FloatArray
    sphere_velocities: FloatArray
    sphere_bias: FloatArray
    manipulability: float | None = None
    manipulability_gradient: FloatArray | None = None
    manipulability_curvature: float = 0.0

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

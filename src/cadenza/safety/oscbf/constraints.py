"""Rows on joint velocities, A q' <= b, for callers who build their own.

Collision:  h = |c_a - c_b| - (r_a + r_b);  h' >= -alpha h  becomes
            -n^T (J_a - J_b) q' <= alpha h + lambda - n^T v_b,  n from b to a.
Axes:       n joints, m rows.
Units:      rad/s for joint rows, m and m/s for collision rows.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_whole
from cadenza.core.errors import InputError

#: Rate at which a gap may be closed, 1/s: a tenth of the gap in 20 ms.
DEFAULT_CBF_ALPHA: Final = 5.0
#: Distance of centres below which their direction is rounding noise, m.
COINCIDENT_DISTANCE: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class OSCBFConstraints:
    """Rows A q' <= b.

    Attributes:
        a: Row vectors, shape (m, n).
        b: Right-hand sides, shape (m,).

    Raises:
        InputError: Wrong number of axes, unequal row counts, or an entry that is not finite.
    """

    a: FloatArray
    b: FloatArray

    def __post_init__(self) -> None:
        for name, axes in (("a", 2), ("b", 1)):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.ndim != axes:
                raise InputError(
                    f"OSCBFConstraints.{name}: expected {axes}-D, got shape {array.shape}."
                )
            require_finite(f"OSCBFConstraints.{name}", array)
            object.__setattr__(self, name, array)
        if self.a.shape[0] != self.b.shape[0]:
            raise InputError(
                f"OSCBFConstraints: expected as many rows in a as entries in b, got "
                f"{self.a.shape[0]} and {self.b.shape[0]}."
            )


def joint_limit_constraint_row(
    *, n_joints: int, joint_index: int, upper: float | None = None, lower: float | None = None
) -> tuple[FloatArray, float]:
    """Return row and right-hand side of one velocity limit of one joint.

    Args:
        n_joints: n.
        joint_index: Which joint, in [0, n).
        upper: Largest velocity, rad/s; exactly one of ``upper`` and ``lower``.
        lower: Smallest velocity, rad/s.

    Returns:
        (e_k, upper) or (-e_k, -lower).

    Raises:
        InputError: An index out of range, both limits or none, or a limit that is not finite.
    """
    if not (is_whole(joint_index) and is_whole(n_joints) and 0 <= joint_index < n_joints):
        raise InputError(
            f"joint_limit_constraint_row: expected a whole joint_index in [0, {n_joints}), "
            f"got {joint_index!r}."
        )
    if (upper is None) == (lower is None):
        raise InputError(
            "joint_limit_constraint_row: expected exactly one of upper and lower, got "
            f"upper={upper}, lower={lower}; call it once per side."
        )
    row = np.zeros(n_joints)
    if upper is not None:
        row[joint_index], level = 1.0, float(upper)
    else:
        row[joint_index], level = -1.0, -float(lower or 0.0)
    if not np.isfinite(level):
        raise InputError(f"joint_limit_constraint_row: expected a finite limit, got {level}.")
    return row, level


def collision_constraint_row(
    *,
    n_joints: int,
    sphere_a_center: FloatArray,
    sphere_b_center: FloatArray,
    sphere_a_radius: float,
    sphere_b_radius: float,
    sphere_a_jacobian: FloatArray,
    sphere_b_jacobian: FloatArray | None = None,
    cbf_alpha: float = DEFAULT_CBF_ALPHA,
    lambda_ij: float = 0.0,
    sphere_b_velocity: FloatArray | None = None,
) -> tuple[FloatArray, float]:
    """Return row and right-hand side that keep two spheres apart.

    Coincident centres give a zero row with the level lambda - 1, which asks for a slack of
    1 - lambda: no direction would be better than another.

    Args:
        n_joints: n.
        sphere_a_center: Centre of a sphere of the arm, shape (3,), m.
        sphere_b_center: Centre of the other sphere, shape (3,), m.
        sphere_a_radius: Radius, m, > 0.
        sphere_b_radius: Radius, m, > 0.
        sphere_a_jacobian: Jacobian of the first centre, shape (3, n).
        sphere_b_jacobian: Jacobian of the second centre; None when the joints do not move it.
        cbf_alpha: Rate at which the gap may close, 1/s, >= 0.
        lambda_ij: Relaxation, m/s; positive relaxes.
        sphere_b_velocity: Velocity of the second centre that the joints do not cause, shape (3,),
            m/s; None for a sphere at rest.

    Raises:
        InputError: Wrong shapes, entries that are not finite, radii <= 0, or a negative rate.
    """
    name = "collision_constraint_row: "
    offset = _vector(name + "sphere_a_center", sphere_a_center, (3,)) - _vector(
        name + "sphere_b_center", sphere_b_center, (3,)
    )
    jacobian = _vector(name + "sphere_a_jacobian", sphere_a_jacobian, (3, n_joints))
    if sphere_b_jacobian is not None:
        jacobian = jacobian - _vector(name + "sphere_b_jacobian", sphere_b_jacobian, (3, n_joints))
    if not (0.0 < sphere_a_radius < np.inf and 0.0 < sphere_b_radius < np.inf):
        raise InputError(
            f"{name}expected finite radii > 0 m, got {sphere_a_radius} and {sphere_b_radius}."
        )
    if not 0.0 <= cbf_alpha < np.inf or not np.isfinite(lambda_ij):
        raise InputError(
            f"{name}expected a finite cbf_alpha >= 0 1/s and a finite lambda_ij, got "
            f"{cbf_alpha} and {lambda_ij}."
        )
    distance = float(np.linalg.norm(offset))
    if distance < COINCIDENT_DISTANCE:
        return np.zeros(n_joints), lambda_ij - 1.0
    normal = offset / distance
    level = cbf_alpha * (distance - sphere_a_radius - sphere_b_radius) + lambda_ij
    if sphere_b_velocity is not None:
        velocity = _vector(name + "sphere_b_velocity", sphere_b_velocity, (3,))
        level -= float(normal @ velocity)
    return -(normal @ jacobian), level


def _vector(name: str, value: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    require_shape(name, array, shape)
    require_finite(name, array)
    return array

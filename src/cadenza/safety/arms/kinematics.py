"""Jacobians of many points of one arm at once, their rates, and manipulability.

Geometry:  joint i has axis a_i and anchor o_i in the world frame; h_i = 1 for a hinge, 0 for a
           slide. A point p carried by joint i moves with J_i = h_i a_i x (p - o_i) + (1 - h_i) a_i.
Rates:     a_i' = W_i x a_i, where W_i is the angular velocity of what carries joint i, hence
           J' q' = sum_i q'_i [h_i (a_i' x (p - o_i) + a_i x (p' - o_i')) + (1 - h_i) a_i'].
Hessian:   dJ_i / dq_k = a_min x J_max for the linear part (min, max of i and k along the chain)
           and a_k x a_i for k < i in the angular part; Bruyninckx and De Schutter, Symbolic
           differentiation of the velocity mapping for a serial kinematic chain (1996).
Manipulability: w = sqrt(det(J J^T)) = product of the singular values of J, Yoshikawa (1985),
           doi:10.1177/027836498500400201, with dw / dq_k = w trace(dJ/dq_k J^+).
Axes:      n joints, S points.
Units:     m, rad, s.
Limits:    hinges and slides only; the end effector's chain must be serial for the Hessian.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What of a kinematic tree does not depend on its configuration.

    Attributes:
        hinge: 1 for a hinge, 0 for a slide, shape (n,).
        carries_joint: Entry (i, j) is 1 if joint j carries joint i (strictly), shape (n, n).
    """

    hinge: FloatArray
    carries_joint: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JointFrames:
    """Where the joints are at one instant.

    Attributes:
        axis: Unit axes in the world frame, shape (n, 3).
        anchor: Points on the axes in the world frame, shape (n, 3), m.
    """

    axis: FloatArray
    anchor: FloatArray


def cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the cross product along the last axis; `numpy.cross` takes ten times as long."""
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    out[..., 0] = a[..., 1] * b[..., 2] - a[..., 2] * b[..., 1]
    out[..., 1] = a[..., 2] * b[..., 0] - a[..., 0] * b[..., 2]
    out[..., 2] = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return out


def point_jacobians(
    chain: Chain, frames: JointFrames, points: FloatArray, carried: FloatArray
) -> FloatArray:
    """Return the Jacobians of ``points``, shape (S, 3, n), m/rad.

    Args:
        chain: The tree.
        frames: Its joints at this instant.
        points: World positions, shape (S, 3), m.
        carried: Entry (s, i) is 1 if joint i carries point s, shape (S, n).
    """
    turning = frames.axis * chain.hinge[:, None]
    sliding = frames.axis - turning
    moment = sliding - cross(turning, frames.anchor)
    columns = cross(turning, points[:, None, :])  # (S, n, 3)
    columns += moment
    columns *= carried[:, :, None]
    return np.ascontiguousarray(columns.transpose(0, 2, 1))


def bias_accelerations(
    chain: Chain,
    frames: JointFrames,
    q_dot: FloatArray,
    points: FloatArray,
    velocities: FloatArray,
    carried: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return J' q' of points and of the bodies' orientation: what moves without joint acceleration.

    Args:
        chain: The tree.
        frames: Its joints at this instant.
        q_dot: Joint velocities, shape (n,), rad/s.
        points: World positions, shape (S, 3), m.
        velocities: Their velocities J q', shape (S, 3), m/s.
        carried: Entry (s, i) is 1 if joint i carries point s, shape (S, n).

    Returns:
        Linear part, shape (S, 3), m/s^2; angular part, shape (S, 3), rad/s^2.
    """
    hinge = chain.hinge[:, None]
    rate = frames.axis * q_dot[:, None]
    turning = rate * hinge
    carrier_spin = chain.carries_joint @ turning
    # Velocity of each anchor: spin x o_i - sum_j turning_j x o_j + sliding of what carries it.
    offset = cross(turning, frames.anchor) - (rate - turning)
    anchor_velocity = cross(carrier_spin, frames.anchor) - chain.carries_joint @ offset
    axis_rate = cross(carrier_spin, rate)  # q'_i a_i'
    turning_rate = axis_rate * hinge
    constant = (
        axis_rate
        - turning_rate
        - cross(turning_rate, frames.anchor)
        - cross(turning, anchor_velocity)
    )
    spin_rate = carried @ turning_rate
    linear = cross(spin_rate, points) + cross(carried @ turning, velocities) + carried @ constant
    return linear, spin_rate


def end_effector_hessian(
    chain: Chain, frames: JointFrames, jacobian: FloatArray, on_path: NDArray[np.intp]
) -> FloatArray:
    """Return dJ / dq of the end effector, shape (6, n, n); last axis: the joint that moves.

    Args:
        chain: The tree.
        frames: Its joints at this instant.
        jacobian: Linear rows over angular rows, shape (6, n).
        on_path: Joints that carry the end effector, from the base outwards.
    """
    n = jacobian.shape[1]
    size = on_path.shape[0]
    order = np.arange(size, dtype=np.intp)
    nearer = on_path[np.minimum(order[:, None], order)]
    farther = on_path[np.maximum(order[:, None], order)]
    turning = frames.axis * chain.hinge[:, None]
    hessian = np.zeros((6, n, n))
    grid = np.ix_(on_path, on_path)
    linear = cross(turning[nearer], jacobian[:3].T[farther])  # (size, size, 3)
    angular = cross(turning[on_path][None, :, :], turning[on_path][:, None, :])
    angular *= (order[:, None] > order)[:, :, None]
    for row in range(3):
        hessian[row][grid] = linear[:, :, row]
        hessian[3 + row][grid] = angular[:, :, row]
    return hessian


def manipulability(jacobian: FloatArray, hessian: FloatArray) -> tuple[float, FloatArray]:
    """Return w = product of the singular values of J, and dw / dq, shape (n,).

    The gradient uses w J^+ = sum_k (product of the other singular values) v_k u_k^T, which stays
    finite where J loses rank.

    Args:
        jacobian: J, shape (k, n) with k <= n.
        hessian: dJ / dq, shape (k, n, n).
    """
    u, singular, v_transposed = np.linalg.svd(jacobian, full_matrices=False)
    size = singular.shape[0]
    others = np.where(np.eye(size, dtype=bool), 1.0, singular).prod(axis=1)
    scaled_inverse = (v_transposed.T * others) @ u.T  # (n, k)
    # sum over rows a and columns i of dJ_ai/dq_k (w J^+)_ia
    gradient = scaled_inverse.T.reshape(-1) @ hessian.reshape(-1, hessian.shape[2])
    return float(singular.prod()), gradient

"""Jacobians of many points of one arm at once, their rates, and manipulability.

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
Axes:      n joints, S points; vectors are columns, shape (3, n) or (3, S).
Units:     m, rad, s.
Limits:    hinges and slides only; the end effector's chain must be serial for the manipulability.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra

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


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What of a kinematic tree does not depend on its configuration."""

    hinge: FloatArray  # 1 for a hinge, 0 for a slide, shape (n,)
    #: Entry (i, j) is 1 if joint j carries joint i (strictly), shape (n, n)
    carries_joint: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JointFrames:
    """Where the joints are at one instant."""

    axis: FloatArray  # Unit axes in the world frame, shape (3, n)
    anchor: FloatArray  # Points on the axes in the world frame, shape (3, n), m


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

"""Joint limits merged into one interval per joint: position, speed and acceleration at once.

Excess:    e = distance to the position limit; w = speed towards it; a = the share of the
           acceleration limit that braking counts on; the rest is left for model errors.
Position:  the next speed c towards the limit may be at most c_max, the largest from which braking
           with a still stops in time (`cadenza.safety.rows.barrier`, one dimension):
           velocity level, q+ = q + c dt:   c^2 / (2 a) + c dt / 2 + c dt <= e
           torque level, zero-order hold:   c^2 / (2 a) + c dt / 2 + max(c, (w + c) / 2) dt <= e
           and at most gain e, unless that asks for more than a.
Invariance: from w^2 / (2 a) + w dt / 2 <= e braking with a is always inside the interval, and any
           choice inside it leads to such a state again; see docs/safety.md, steps 1 to 5.
Empty:     a state outside that set. The acceleration limit then stands, since it is physical; the
           interval is the point of it nearest to what is asked, and the joint is reported.
Axes:      n joints.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.arms.limits import JointLimits

#: Room for rounding when a bound is compared with what the acceleration limit reaches, rad/s.
_ROUNDING: Final = 1e-9
#: Distance to a limit that does not exist, rad: larger than any, and its products stay finite.
_FAR: Final = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class JointBox:
    """Admissible interval of each joint.

    Attributes:
        lower: Lower bounds, shape (n,).
        upper: Upper bounds, shape (n,), >= ``lower``.
        conflicting: Joints whose limits contradict each other in this state.
    """

    lower: FloatArray
    upper: FloatArray
    conflicting: tuple[int, ...]


def velocity_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    *,
    dt: float,
    gain: float,
    braking_share: float = 1.0,
) -> JointBox:
    """Return the interval of the next joint velocities.

    Args:
        limits: The joints' limits.
        q: Positions, shape (n,), rad.
        q_dot: Velocities of the last step, shape (n,), rad/s.
        dt: Control step, s.
        gain: Rate at which a limit may be approached, 1/s, at most 1 / dt.
        braking_share: Part of the acceleration limit that stopping distances count on, in (0, 1].
    """
    braking = braking_share * limits.acceleration
    return _speed_box(limits, q, q_dot, dt, gain, braking, "semi_implicit")


def acceleration_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    *,
    dt: float,
    gain: float,
    braking_share: float = 1.0,
) -> JointBox:
    """Return the interval of the joint accelerations; arguments as in `velocity_box`.

    The acceleration limits must be finite.
    """
    braking = braking_share * limits.acceleration
    speeds = _speed_box(limits, q, q_dot, dt, gain, braking, "zoh")
    most = limits.acceleration
    return JointBox(
        lower=np.minimum(np.maximum((speeds.lower - q_dot) / dt, -most), most),
        upper=np.minimum(np.maximum((speeds.upper - q_dot) / dt, -most), most),
        conflicting=speeds.conflicting,
    )


def _speed_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    dt: float,
    gain: float,
    braking: FloatArray,
    plant: Literal["zoh", "semi_implicit"],
) -> JointBox:
    """Return the interval of the next joint velocities for a plant."""
    change = limits.acceleration * dt
    slowest, fastest = q_dot - change, q_dot + change
    excess = np.empty((2, q.shape[0]))
    np.subtract(limits.upper, q, out=excess[0])
    np.subtract(q, limits.lower, out=excess[1])
    towards = np.minimum(
        _approach_limit(excess, np.stack((q_dot, -q_dot)), braking, dt, gain, plant),
        limits.velocity,
    )
    upper: FloatArray = towards[0]
    lower: FloatArray = -towards[1]
    empty = (
        (upper < slowest - _ROUNDING) | (lower > fastest + _ROUNDING) | (lower > upper + _ROUNDING)
    )
    if (lower > upper).any():  # the limits themselves contradict each other: between them
        crossed, middle = lower > upper, 0.5 * (lower + upper)
        lower = np.where(crossed, middle, lower)
        upper = np.where(crossed, middle, upper)
    return JointBox(
        lower=np.minimum(np.maximum(lower, slowest), fastest),
        upper=np.minimum(np.maximum(upper, slowest), fastest),
        conflicting=tuple(np.flatnonzero(empty).tolist()) if empty.any() else (),
    )


def _approach_limit(
    excess: FloatArray,
    speed: FloatArray,
    acceleration: FloatArray,
    dt: float,
    gain: float,
    plant: Literal["zoh", "semi_implicit"],
) -> FloatArray:
    """Return the largest next speed towards a limit; negative beyond the limit.

    Excess and speed have shape (2, n): towards the upper and towards the lower limits.
    """
    room = np.minimum(np.maximum(excess, 0.0), _FAR)
    # c (3 dt + sqrt(9 dt^2 + 8 e / a)) = 4 e: divided by a, so that an unlimited a gives e / dt
    # after the reduction below, and no infinity is subtracted from another.
    stopping = 4.0 * room / (3.0 * dt + np.sqrt(9.0 * dt * dt + 8.0 * room / acceleration))
    unlimited = np.isinf(acceleration)
    if unlimited.any():
        stopping = np.where(unlimited, room / dt, stopping)
    if plant == "zoh":
        faster = speed > stopping
        if faster.any():
            spare = 2.0 * (room - 0.5 * speed * dt) / acceleration
            radicand = dt * dt + spare
            slowing = np.where(
                radicand > 0.0,
                acceleration * spare / (dt + np.sqrt(np.maximum(radicand, 0.0))),
                -acceleration * dt,
            )
            stopping = np.where(faster, slowing, stopping)
    at_rate = np.maximum(gain * excess, speed - acceleration * dt)
    return np.where(excess < 0.0, gain * excess, np.minimum(stopping, at_rate))

"""Joint limits merged into one interval per joint: position, speed and acceleration at once.

Excess:    e = distance to the position limit; w = speed towards it; a = the share of the
           acceleration limit that braking counts on; the rest is left for model errors.
Position:  the next speed c towards the limit may be at most c_max, the largest from which braking
           with a still stops in time (`cadenza.safety.cbf`, one dimension):
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
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.safety.arms.state import JointLimits

#: Room for rounding when a bound is compared with what the acceleration limit reaches, rad/s.
_ROUNDING: Final = 1e-9
#: Turns a motion of a joint into one towards its upper and towards its lower limit.
_SIDES: Final = np.array([[1.0], [-1.0]])
#: Distance to a limit that does not exist, rad: larger than any, and its products stay finite.
_FAR: Final = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class JointBox:
    """Admissible interval of each joint."""

    lower: FloatArray  # Lower bounds, shape (n,)
    upper: FloatArray  # Upper bounds, shape (n,), >= ``lower``
    conflicting: tuple[int, ...]  # Joints whose limits contradict each other in this state


def velocity_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    *,
    dt: float,
    gain: float,
    braking_share: float = 1.0,
) -> JointBox:
    """Return the interval of the next joint velocities, from those of the last step, shape (n,).

    ``gain``, 1/s, at most 1 / dt, is the rate at which a limit may be approached, and
    ``braking_share``, in (0, 1], the part of the acceleration limit that stopping counts on.
    """
    return _speed_box(_constants(limits, dt, gain, braking_share), q, q_dot, "semi_implicit")


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
    speeds = _speed_box(_constants(limits, dt, gain, braking_share), q, q_dot, "zoh")
    most = limits.acceleration
    return JointBox(
        lower=np.minimum(np.maximum((speeds.lower - q_dot) / dt, -most), most),
        upper=np.minimum(np.maximum((speeds.upper - q_dot) / dt, -most), most),
        conflicting=speeds.conflicting,
    )


class _Constants(NamedTuple):
    """What does not change from step to step; `bounds` are as seen from their side, upper first."""

    bounds: FloatArray  # (2, n), rad
    velocity: FloatArray  # (n,), as all below
    change: FloatArray  # largest change of the speed in one step
    braking: FloatArray  # a
    slowing: FloatArray  # a dt
    half_over: FloatArray  # 1 / (2 a)
    unlimited: NDArray[np.bool_] | None  # where a is infinite; None if nowhere
    dt: float
    gain: float


@lru_cache(maxsize=32)
def _constants(limits: JointLimits, dt: float, gain: float, braking_share: float) -> _Constants:
    a, most = braking_share * limits.acceleration, limits.acceleration
    bounds = np.minimum(np.stack((limits.upper, -limits.lower)), _FAR)
    unlimited = np.isinf(a) if np.isinf(a).any() else None
    return _Constants(bounds, limits.velocity, most * dt, a, a * dt, 0.5 / a, unlimited, dt, gain)


def _speed_box(
    known: _Constants, q: FloatArray, q_dot: FloatArray, plant: Literal["zoh", "semi_implicit"]
) -> JointBox:
    """Return the interval of the next joint velocities for a plant."""
    speed = _SIDES * q_dot
    limit = _approach_limit(known, known.bounds - _SIDES * q, speed, plant)
    towards = np.minimum(limit, known.velocity)
    slowest, width = speed - known.change, towards[0] + towards[1]
    conflicting: tuple[int, ...] = ()
    if not np.minimum.reduce(np.minimum(towards - slowest, width), axis=None) >= 0.0:
        empty = (towards < slowest - _ROUNDING).any(axis=0) | (width < -_ROUNDING)
        conflicting = tuple(np.flatnonzero(empty).tolist())
        # Where the limits themselves contradict each other: between them.
        middle = _SIDES * (0.5 * (towards[0] - towards[1]))
        towards = np.maximum(np.where(width < 0.0, middle, towards), slowest)
    upper, lower = np.minimum(towards, speed + known.change)
    return JointBox(lower=-lower, upper=upper, conflicting=conflicting)


def _approach_limit(
    known: _Constants,
    excess: FloatArray,
    speed: FloatArray,
    plant: Literal["zoh", "semi_implicit"],
) -> FloatArray:
    """Return the largest next speed towards a limit; negative beyond the limit.

    Excess and speed have shape (2, n): towards the upper and towards the lower limits.
    """
    dt, acceleration = known.dt, known.braking
    at_gain = known.gain * excess
    room = np.maximum(excess, 0.0)
    # c (3 dt + sqrt(9 dt^2 + 8 e / a)) / 4 = e: divided by a, so that an unlimited a gives e / dt
    # after the reduction below, and no infinity is subtracted from another.
    stopping = room / (0.75 * dt + np.sqrt(0.5625 * dt * dt + known.half_over * room))
    if known.unlimited is not None:
        stopping = np.where(known.unlimited, room / dt, stopping)
    if plant == "zoh":
        faster = speed > stopping
        if faster.any():
            spare = 2.0 * (room - 0.5 * speed * dt) / acceleration
            radicand = dt * dt + spare
            slowing = np.where(
                radicand > 0.0,
                acceleration * spare / (dt + np.sqrt(np.maximum(radicand, 0.0))),
                -known.slowing,
            )
            stopping = np.where(faster, slowing, stopping)
    at_rate = np.maximum(at_gain, speed - known.slowing)
    most, beyond = np.minimum(stopping, at_rate), excess < 0.0
    return np.where(beyond, at_gain, most) if np.count_nonzero(beyond) else most

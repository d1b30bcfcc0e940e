"""Motion laws of robots that are exact double integrators in the plane.

Plant:   p' = p + v dt + a dt^2 / 2,  v' = v + a dt,  each component |a| <= L (zero-order hold).
Numbers: every law takes plain floats (one robot) or float64 arrays of shape (N,) and uses only
         + - * / sqrt min max, which IEEE 754 rounds alike in both, so row i of a batch is
         bit-identical to the scalar result. `SCALAR` and `ARRAY` carry the spelling of each.
Units:   m, m/s, m/s^2, s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

#: Control step of the crossing task, s; `cadenza.envs.crossing` uses the same number.
CONTROL_STEP_S: Final = 0.05
#: Declared bound on each acceleration component of a partner, m/s^2: what the ego's safety filter
#: counts on.
ACCELERATION_LIMIT: Final = 0.5
#: Lengths below this are divided by as if they were this: 1 nm is far below float32 positions (m).
MIN_LENGTH: Final = 1e-9
#: Slack of a reachability test, relative and in m: each start meets its own bound with equality, up
#: to a few roundings (1e-16).
_TIME_SLACK: Final = 1e-9

#: A float, or a float64 array of shape (N,).
Real: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The four operations that floats and arrays spell differently."""

    sqrt: Callable[[Real], Real]
    minimum: Callable[[Real, Real], Real]
    maximum: Callable[[Real, Real], Real]
    where: Callable[[Any, Real, Real], Real]


SCALAR: Final = Arithmetic(
    sqrt=math.sqrt,
    minimum=lambda a, b: a if a < b else b,
    maximum=lambda a, b: a if a > b else b,
    where=lambda condition, a, b: a if condition else b,
)
ARRAY: Final = Arithmetic(sqrt=np.sqrt, minimum=np.minimum, maximum=np.maximum, where=np.where)


class Sight(NamedTuple):
    """What a crossing partner sees: itself, its goal and the ego.

    Attributes:
        px: Own position x, m; `py` likewise.
        py: Own position y, m.
        vx: Own velocity x, m/s; `vy` likewise.
        vy: Own velocity y, m/s.
        gx: Goal minus own position, x, m; `gy` likewise.
        gy: Goal minus own position, y, m.
        rx: Ego position minus own position, x, m; `ry` likewise.
        ry: Ego position minus own position, y, m.
        wx: Ego velocity minus own velocity, x, m/s; `wy` likewise.
        wy: Ego velocity minus own velocity, y, m/s.
    """

    px: Real
    py: Real
    vx: Real
    vy: Real
    gx: Real
    gy: Real
    rx: Real
    ry: Real
    wx: Real
    wy: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Corridor:
    """Limits of one coordinate.

    Attributes:
        half_width: Walls at plus and minus this, m.
        speed: Largest speed, m/s.
        acceleration: Largest acceleration, m/s^2.
        step_s: Control step, s.
    """

    half_width: float
    speed: float
    acceleration: float
    step_s: float


def scale_into_box(ax: Real, ay: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return ``(ax, ay)``, shortened along its direction until each component is <= ``limit``."""
    largest = math_of.maximum(math_of.maximum(abs(ax), abs(ay)), limit)
    factor = limit / largest
    return ax * factor, ay * factor


def stretch_to_box(x: Real, y: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return the longest vector along ``(x, y)`` whose components are <= ``limit``."""
    factor = limit / math_of.maximum(math_of.maximum(abs(x), abs(y)), MIN_LENGTH)
    return x * factor, y * factor


def latest_safe_speed(
    distance: Real, speed: Real, limit: Real, step_s: float, math_of: Arithmetic
) -> Real:
    """Return the largest speed after this step from which full braking still stops in time.

    With v' the speed after the step, the step covers (v + v') dt / 2 and stopping from v' another
    v'^2 / (2 L). Setting their sum to the distance d and solving for v':
    v' = L (-dt/2 + sqrt(dt^2/4 + 2 (d - v dt/2) / L)).

    Args:
        distance: Way left, d, m.
        speed: Present speed towards it, v, m/s.
        limit: Braking capacity along the way, L, m/s^2.
        step_s: dt, s.
        math_of: `SCALAR` or `ARRAY`.

    Returns:
        v', m/s; the smallest value of the formula if it is too late already.
    """
    half = 0.5 * step_s
    under_root = half * half + 2.0 * (distance - speed * half) / limit
    return limit * (math_of.sqrt(math_of.maximum(under_root, 0.0)) - half)


def stay_inside(
    position: Real,
    speed: Real,
    wanted: Real,
    bounds: Corridor,
    math_of: Arithmetic,
) -> Real:
    """Return the acceleration closest to ``wanted`` that can still stop before both walls.

    From a state that satisfies it, the condition can be satisfied for ever: the walls hold exactly
    at the sampling instants, whatever ``wanted`` does.

    Args:
        position: One coordinate, m.
        speed: Its rate, m/s.
        wanted: Desired acceleration, m/s^2.
        bounds: Walls, speed bound, acceleration bound and control step.
        math_of: `SCALAR` or `ARRAY`.
    """
    limit, step_s = bounds.acceleration, bounds.step_s
    highest = latest_safe_speed(bounds.half_width - position, speed, limit, step_s, math_of)
    lowest = -latest_safe_speed(bounds.half_width + position, -speed, limit, step_s, math_of)
    highest = math_of.minimum(highest, bounds.speed)
    lowest = math_of.maximum(lowest, -bounds.speed)
    target = math_of.minimum(math_of.maximum(speed + wanted * step_s, lowest), highest)
    acceleration = (target - speed) / step_s
    return math_of.minimum(math_of.maximum(acceleration, -limit), limit)


def arrive_and_stop(
    distance: Real, speed: Real, limit: Real, step_s: float, math_of: Arithmetic
) -> Real:
    """Return the time-optimal acceleration towards a point, braking at the last moment.

    Full acceleration, then full braking from the last sampling instant at which that suffices. The
    last two steps are dead-beat where the bound allows: a1 = (d - 1.5 v dt) / dt^2 and
    a2 = -v/dt - a1 bring way and speed to zero together.

    Args:
        distance: Way left, m, >= 0.
        speed: Present speed towards the point, m/s.
        limit: Capacity along the way, m/s^2.
        step_s: Control step, s.
        math_of: `SCALAR` or `ARRAY`.
    """
    target = latest_safe_speed(distance, speed, limit, step_s, math_of)
    far = math_of.minimum(math_of.maximum((target - speed) / step_s, -limit), limit)
    first = (distance - 1.5 * speed * step_s) / (step_s * step_s)
    second = -speed / step_s - first
    near = math_of.maximum(abs(first), abs(second)) <= limit
    return math_of.where(near, first, far)


def intercept_time(sight: Sight, limit: float, math_of: Arithmetic) -> Real:
    """Return the earliest time at which one constant acceleration can meet the ego.

    The ego keeps its velocity, so the gap drifts as r + w T and an acceleration with components
    <= L covers up to L T^2 / 2 of each: T is reachable where |r_i + w_i T| <= L T^2 / 2 for both.
    The reachable times of one component are [first, ...) less an interval in which the gap has
    swept past zero; so the earliest common time is one of the four starts of `_reach_times`.

    Args:
        sight: Own view.
        limit: Own acceleration bound, L, m/s^2.
        math_of: `SCALAR` or `ARRAY`.

    Returns:
        T, s, >= 0.
    """
    starts = (
        *_reach_times(sight.rx, sight.wx, limit, math_of),
        *_reach_times(sight.ry, sight.wy, limit, math_of),
    )
    # From the later of the two last starts on, every time is reachable.
    earliest = math_of.maximum(starts[1], starts[3])
    for time in starts:
        reach = 0.5 * limit * time * time * (1.0 + _TIME_SLACK) + _TIME_SLACK
        reachable = (abs(sight.rx + sight.wx * time) <= reach) & (
            abs(sight.ry + sight.wy * time) <= reach
        )
        earliest = math_of.where(reachable, math_of.minimum(time, earliest), earliest)
    return earliest


def _reach_times(offset: Real, rate: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return the first reachable time of one coordinate, and the start of the last interval."""
    away = math_of.where(offset < 0.0, -rate, rate)
    gap = 2.0 * limit * abs(offset)
    square = away * away
    first = (away + math_of.sqrt(square + gap)) / limit
    sweeps_past = (away < 0.0) & (square > gap)
    again = (math_of.sqrt(math_of.maximum(square - gap, 0.0)) - away) / limit
    return first, math_of.where(sweeps_past, again, first)

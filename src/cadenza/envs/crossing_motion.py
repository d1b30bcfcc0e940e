"""The crossing task's geometry: starts and goals, motion and contact of its discs.

Discs hold one acceleration per control step.

Motion:      p(t) = p + v t + a t^2 / 2,  v(t) = v + a t   (exact under zero-order hold)
Contact:     the distance between two centres falls below the sum of the radii during the step. It
             is evaluated at SUB_INSTANTS, at the end, and at the minimum that one Newton step on
             d/dt |p_ij|^2 = 0 finds from the best of these. Every instant evaluated lies on the
             trajectory, so a contact that is reported did happen.
Units:       m, m/s, m/s^2, s.
Axes:        x and y travel as separate floats or arrays of shape (N,).
Limits:      between 0.1 m and 1 m, at accelerations up to 3.6 m/s^2, the distance found exceeds
             the true minimum by less than 1e-6 m (property test); a shallower touch may go unseen.
Arithmetic:  the float and the array form use the same operations in the same order, so equal inputs
             give equal bytes.

Starts lie on a circle, everyone's goal opposite its start. Angles are measured in
turns (1 turn = 360 degrees). Robot k of n starts at k/n + rotation + jitter_k; its goal is the
antipode. Modulo half a turn, start and goal of a robot are one point, so all clearances hold at
once iff these n points keep MIN_GAP from each other:

* odd n:   the points k/n (mod 1/2) are spaced 1/(2n); each robot may move (1/(2n) - MIN_GAP) / 2.
* even n:  k and k + n/2 fall on one point; one half of the robots moves forward, the other half
  back, each by MIN_GAP/2 ... (1/n - MIN_GAP) / 2; a coin below 1/2 moves the first half forward.

Both are capped at MAX_JITTER. Nothing is rejected, so a layout costs n + 2 draws, always.
Arithmetic: only + - * floor select, so equal draws give equal bytes on every machine.
"""

from math import sqrt
from typing import Final, TypeVar

import numpy as np

from cadenza.core.arrays import FloatArray

#: Control step, s.
CONTROL_TIMESTEP: Final = 0.05
#: Instants of a step at which the distance is evaluated besides its end, s.
SUB_INSTANTS: Final = (0.0, 0.0125, 0.025, 0.0375)
#: Least curvature of |p_ij|^2 / 2 for a Newton step, m^2/s^2; below it the pair hardly moves.
MIN_CURVATURE: Final = 1e-9

_HALF_STEP_SQUARED: Final = 0.5 * CONTROL_TIMESTEP * CONTROL_TIMESTEP

#: A float or a numpy array.
T = TypeVar("T", float, FloatArray)


def moved(position: T, velocity: T, acceleration: T) -> T:
    """Return one coordinate after a control step."""
    return position + (velocity * CONTROL_TIMESTEP + acceleration * _HALF_STEP_SQUARED)


def accelerated(velocity: T, acceleration: T) -> T:
    """Return one velocity component after a control step."""
    return velocity + acceleration * CONTROL_TIMESTEP


def closest_approach(
    start: tuple[float, float],
    velocity: tuple[float, float],
    acceleration: tuple[float, float],
    end: tuple[float, float],
) -> float:
    """Return the smallest distance of two centres during a step, m.

    All arguments are relative, in m, m/s and m/s^2; the acceleration is held.
    """
    (px, py), (vx, vy), (ax, ay), (ex, ey) = start, velocity, acceleration, end
    best = ex * ex + ey * ey
    instant = CONTROL_TIMESTEP
    for t in SUB_INSTANTS:
        half = 0.5 * t
        x = px + t * (vx + half * ax)
        y = py + t * (vy + half * ay)
        square = x * x + y * y
        if square < best:
            best, instant = square, t
    half = 0.5 * instant
    x = px + instant * (vx + half * ax)
    y = py + instant * (vy + half * ay)
    ux = vx + instant * ax
    uy = vy + instant * ay
    curvature = (ux * ux + uy * uy) + (x * ax + y * ay)
    if curvature >= MIN_CURVATURE:
        slope = x * ux + y * uy
        instant = min(max(instant - slope / curvature, 0.0), CONTROL_TIMESTEP)
        half = 0.5 * instant
        x = px + instant * (vx + half * ax)
        y = py + instant * (vy + half * ay)
        best = min(best, x * x + y * y)
    return sqrt(best)


def batched_closest_approach(
    start: tuple[FloatArray, FloatArray],
    velocity: tuple[FloatArray, FloatArray],
    acceleration: tuple[FloatArray, FloatArray],
    end: tuple[FloatArray, FloatArray],
) -> FloatArray:
    """Return `closest_approach` for N pairs; every argument has shape (N,) per component."""
    (px, py), (vx, vy), (ax, ay), (ex, ey) = start, velocity, acceleration, end
    best = ex * ex + ey * ey
    instant = np.full_like(best, CONTROL_TIMESTEP)
    for t in SUB_INSTANTS:
        half = 0.5 * t
        x = px + t * (vx + half * ax)
        y = py + t * (vy + half * ay)
        square = x * x + y * y
        closer = square < best
        best = np.where(closer, square, best)
        instant = np.where(closer, t, instant)
    half = 0.5 * instant
    x = px + instant * (vx + half * ax)
    y = py + instant * (vy + half * ay)
    ux = vx + instant * ax
    uy = vy + instant * ay
    curvature = (ux * ux + uy * uy) + (x * ax + y * ay)
    curved = curvature >= MIN_CURVATURE
    slope = x * ux + y * uy
    refined = instant - slope / np.where(curved, curvature, 1.0)
    instant = np.minimum(np.maximum(refined, 0.0), CONTROL_TIMESTEP)
    half = 0.5 * instant
    x = px + instant * (vx + half * ax)
    y = py + instant * (vy + half * ay)
    refined_best = np.minimum(best, x * x + y * y)
    return np.sqrt(np.where(curved, refined_best, best))


#: Radius of the circle of starts, m.
CIRCLE_RADIUS: Final = 2.0
#: Least angle between two starts, and between a start and another robot's goal, turns. Its chord,
#: 2 * 2 m * sin(pi * 0.05) = 0.626 m, exceeds the 0.4 m at which two robots touch, so a robot that
#: never moves leaves the goals of the others free; eight robots leave room for up to 1/16 turn.
MIN_GAP: Final = 0.05
#: Largest angle between a robot and its slot, turns.
MAX_JITTER: Final = 0.06
#: Least distance between two starts or two goals, and between a goal and another's start, m.
MIN_CLEARANCE: Final = 0.6
#: Number of robots the circle has room for.
MIN_ROBOTS: Final = 2
MAX_ROBOTS: Final = 8

_HALF_PI: Final = 1.5707963267948966
# Taylor coefficients of sin(x)/x - 1 and cos(x) - 1 in powers of x^2. On |x| <= pi/4 the first term
# left out is below 2e-17, less than the rounding error of the sum.
_SIN: Final = tuple(
    (-1.0) ** k / float(_f)
    for k, _f in enumerate((6, 120, 5040, 362880, 39916800, 6227020800, 1307674368000), start=1)
)
_COS: Final = tuple(
    (-1.0) ** k / float(_f)
    for k, _f in enumerate(
        (2, 24, 720, 40320, 3628800, 479001600, 87178291200, 20922789888000), start=1
    )
)


def layout_draws(num_robots: int) -> int:
    """Return how many uniform draws one layout takes."""
    return num_robots + 2


def draw_layout(rng: np.random.Generator, num_robots: int) -> FloatArray:
    """Return random starts on the circle, shape (n, 2), m; the goals are their negatives."""
    return layout_from_uniforms(rng.random(layout_draws(num_robots)), num_robots)


def layout_from_uniforms(uniforms: FloatArray, num_robots: int) -> FloatArray:
    """Return starts on the circle, (..., n, 2), m, for draws in [0, 1), (..., n + 2).

    The draws are rotation, coin, then one jitter per robot; the goals are the starts' negatives.
    """
    rotation, coin, jitter = uniforms[..., :1], uniforms[..., 1:2], uniforms[..., 2:]
    slots = np.arange(num_robots) / num_robots
    if num_robots % 2:
        reach = min((0.5 / num_robots - MIN_GAP) / 2, MAX_JITTER)
        offsets = (jitter * 2.0 - 1.0) * reach
    else:
        near, far = MIN_GAP / 2, min((1.0 / num_robots - MIN_GAP) / 2, MAX_JITTER)
        half = np.where(np.arange(num_robots) < num_robots // 2, -1.0, 1.0)
        offsets = (near + jitter * (far - near)) * half * np.where(coin < 0.5, -1.0, 1.0)
    return CIRCLE_RADIUS * unit_circle(slots + rotation + offsets)


def unit_circle(turns: FloatArray) -> FloatArray:
    """Return cosine and sine, (..., 2), of angles in ``turns``, with error below 1e-15.

    Unlike the machine's own functions, which differ in the last bit between libraries and between
    array lengths, equal angles give equal bytes.
    """
    quarter = np.floor(turns * 4.0 + 0.5)
    angle = (turns * 4.0 - quarter) * _HALF_PI  # |angle| <= pi/4
    square = angle * angle
    sine = angle + angle * _polynomial(square, _SIN)
    cosine = 1.0 + _polynomial(square, _COS)
    quadrant = quarter - 4.0 * np.floor(quarter * 0.25)  # 0, 1, 2 or 3
    swap = (quadrant == 1.0) | (quadrant == 3.0)
    x = np.where(swap, sine, cosine)
    y = np.where(swap, cosine, sine)
    x = np.where((quadrant == 1.0) | (quadrant == 2.0), -x, x)
    y = np.where(quadrant >= 2.0, -y, y)
    return np.stack((x, y), axis=-1)


def _polynomial(square: FloatArray, coefficients: tuple[float, ...]) -> FloatArray:
    """Return c0 * s + c1 * s^2 + ... by Horner's rule."""
    total = np.full_like(square, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * square + coefficient
    return total * square

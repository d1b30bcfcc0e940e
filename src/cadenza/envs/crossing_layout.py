"""Where robots start in the crossing task: on a circle, everyone's goal opposite its start.

Angles are measured in turns (1 turn = 360 degrees). Robot k of n starts at k/n + rotation +
jitter_k; its goal is the antipode. Modulo half a turn, start and goal of a robot are one point, so
all clearances hold at once iff these n points keep MIN_GAP from each other:

* odd n:   the points k/n (mod 1/2) are spaced 1/(2n); each robot may move (1/(2n) - MIN_GAP) / 2.
* even n:  k and k + n/2 fall on one point; one half of the robots moves forward, the other half
  back, each by MIN_GAP/2 ... (1/n - MIN_GAP) / 2; a coin below 1/2 moves the first half forward.

Both are capped at MAX_JITTER. Nothing is rejected, so a layout costs n + 2 draws, always.
Arithmetic: only + - * floor select, so equal draws give equal bytes on every machine.
"""

from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray

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
    """Return random starts on the circle, shape (n, 2), m; the goals are their negatives.

    Args:
        rng: Source of randomness; exactly ``layout_draws(num_robots)`` doubles are taken.
        num_robots: n, 2 ... 8.
    """
    return layout_from_uniforms(rng.random(layout_draws(num_robots)), num_robots)


def layout_from_uniforms(uniforms: FloatArray, num_robots: int) -> FloatArray:
    """Return starts on the circle for each row of draws.

    Args:
        uniforms: Draws in [0, 1), shape (..., n + 2): rotation, coin, then one jitter per robot.
        num_robots: n, 2 ... 8.

    Returns:
        Starts, shape (..., n, 2), m; the goals are their negatives.
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
    """Return the points of the unit circle at ``turns``, with error below 1e-15.

    Args:
        turns: Angles in turns, any shape (...).

    Returns:
        Cosine and sine, shape (..., 2). Unlike the machine's own functions, which differ in the
        last bit between libraries and between array lengths, equal angles give equal bytes.
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

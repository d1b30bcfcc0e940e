"""Rules of co-carry: what is measured, when the bar counts as carried, and what a step is worth.

Tilt:      angle between the bar and the horizontal plane; turning about z is free.
Force:     1/2 (|p_e| + |p_p| - |p_e + p_p|), p the forces on the bar's ends along its axis: what
           the arms do against each other and not for the bar. Positive where they pull apart.
Success:   `DWELL` ticks in a row near the goal, after enough transport, with both arms at rest;
           and the episode's largest tilt and force so far below their limits.
Axes:      N = copies.
Units:     m, N, s, rad; tilt in degrees.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray

#: Success: distance of the bar's centre to the goal, m.
GOAL_RADIUS: Final = 0.03
#: Success: sideways way of the bar from its start, m.
TRANSPORT: Final = 0.25
#: Success: largest joint speed of both arms, rad/s.
REST_SPEED: Final = 0.2
#: Success: largest tilt of the episode, degrees.
TILT_LIMIT_DEG: Final = 10.0
#: Success: ticks in a row.
DWELL: Final = 10

#: Largest force of an episode, N, frozen with the reference controller.
MANIFEST: Final = Path(__file__).with_name("cocarry_manifest.json")
#: Training asks for this share of the force limit, so that the judged limit is met with a margin.
TRAINING_SHARE: Final = 0.8
#: Training ends an episode at this multiple of its own force limit.
VIOLATION_FACTOR: Final = 1.5

#: Task reward: per m of progress, per tick, on success, on violation.
PROGRESS_REWARD: Final = 4.0
TICK_REWARD: Final = -0.004
SUCCESS_REWARD: Final = 3.0
VIOLATION_REWARD: Final = -1.0
#: Task reward: largest cost of force and of tilt per tick.
SOFT_COST: Final = 0.02
#: Both costs begin at this share of the limit and bend at another quarter of it.
COST_ONSET: Final = 0.5
COST_SCALE: Final = 0.25


@cache
def force_limit() -> float:
    """Return f_max of the manifest: 1.25 times the 99th percentile of the reference's successes."""
    return float(json.loads(MANIFEST.read_text(encoding="utf-8"))["f_max_N"])


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: array == is ambiguous
class Measures:
    """One tick of N copies.

    Attributes:
        distance: Of the bar's centre to the goal, (N,), m.
        transport: Sideways way of the centre since the start, (N,), m.
        speed: Largest joint speed of both arms, (N,), rad/s.
        tilt: Of the bar, (N,), degrees.
        force: Signed internal force, mean of the tick, (N,), N.
        max_tilt: Largest tilt of the episode, (N,), degrees.
        max_force: Largest internal force of the episode, (N,), N.
    """

    distance: FloatArray
    transport: FloatArray
    speed: FloatArray
    tilt: FloatArray
    force: FloatArray
    max_tilt: FloatArray
    max_force: FloatArray

    def placed(self) -> NDArray[np.bool_]:
        """Return whether the bar rests at its goal, whatever happened on the way, (N,)."""
        return (
            (self.distance <= GOAL_RADIUS)
            & (self.transport >= TRANSPORT)
            & (self.speed <= REST_SPEED)
        )

    def within_limits(self, force_limit_n: float) -> NDArray[np.bool_]:
        """Return whether the episode kept both limits so far, (N,)."""
        return (self.max_tilt < TILT_LIMIT_DEG) & (self.max_force < force_limit_n)


def tilt_deg(quaternion: FloatArray) -> FloatArray:
    """Return the angle of the body's x axis to the horizontal plane, degrees.

    Args:
        quaternion: Of a body, (..., 4), wxyz.
    """
    w, x, y, z = (quaternion[..., k] for k in range(4))
    return np.degrees(np.arcsin(np.minimum(np.abs(2.0 * (x * z - w * y)), 1.0)))


def internal_force(ego: FloatArray, partner: FloatArray) -> FloatArray:
    """Return the signed internal force of a bar, N; positive where it is pulled apart.

    ``ego`` and ``partner`` are the axial forces on its ends at -x and +x, (...,), N.
    """
    against = 0.5 * (np.abs(ego) + np.abs(partner) - np.abs(ego + partner))
    return np.where(partner >= ego, against, -against)


def soft_cost(value: FloatArray, limit: float) -> FloatArray:
    """Return a cost in [0, 1) that grows from `COST_ONSET` of ``limit`` on."""
    return np.tanh(np.maximum(value - COST_ONSET * limit, 0.0) / (COST_SCALE * limit))


def task_reward(
    progress: FloatArray,
    now: Measures,
    success: NDArray[np.bool_],
    violation: NDArray[np.bool_],
    force_limit_n: float,
) -> FloatArray:
    """Return the reward of one tick, (N,): pays for carrying, not for staying.

    ``progress`` is what the distance to the goal shrank by, m; success and violation have just
    happened.
    """
    cost = soft_cost(np.abs(now.force), force_limit_n) + soft_cost(now.tilt, TILT_LIMIT_DEG)
    return (
        PROGRESS_REWARD * progress
        + TICK_REWARD
        - SOFT_COST * cost
        + SUCCESS_REWARD * success
        + VIOLATION_REWARD * violation
    )


def proximity_reward(
    now: Measures,
    success: NDArray[np.bool_],
    violation: NDArray[np.bool_],
    force_limit_n: float,
) -> FloatArray:
    """Return a reward of every tick near the goal, (N,), at most 1; it also pays for lingering.

    A success just reached is worth 1, a limit just broken `VIOLATION_REWARD`.
    """
    placed = now.distance <= GOAL_RADIUS
    shaped = (
        (1.0 - np.tanh(5.0 * now.distance))
        + (1.0 - np.tanh(5.0 * np.radians(now.tilt)))
        + placed * (1.0 - np.tanh(5.0 * now.speed))
        - soft_cost(np.abs(now.force), force_limit_n)
    )
    shaped = np.where(success, 5.0, shaped)
    return shaped / 5.0 + VIOLATION_REWARD * violation

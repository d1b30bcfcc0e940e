"""Where everyone is: at the start, exactly within each step, and as packets tell it.

Starts:   throughout the safe set, a third of them on its boundary. Drawn per pair: direction and
          free distance of the centres, relative velocity; the closing speed is then cut to what the
          safe set allows, or raised to it. With several partners every pair lies in its own safe
          set. An ego whose claim is about its own speed starts at rest.
Plants:   "zoh"            p(s) = p + v s + a s^2 / 2,  v(s) = v + a s        (0 <= s <= dt)
          "semi_implicit"  p(s) = p + v' s,             v' = v + a dt
Distance: of two balls, with relative position q, velocity u and acceleration b.
          zoh:            |q + u s + b s^2 / 2|^2 is a quartic in s. Half its derivative
                              g(s) = q.u + (u.u + q.b) s + 3/2 (u.b) s^2 + 1/2 (b.b) s^3
                          is a cubic whose turning points are known in closed form; between them
                          it is monotone, and bisection finds every change from falling to rising.
          semi_implicit:  a straight line, closed form.
Packets:  position and velocity at the time they were measured. Their age is 0, the declared bound,
          or wanders: packets are lost, late or fresh, but a measurement never replaces a later one,
          so an age grows by at most one control step per step.
Axes:     B episodes, N partners, M = B N pairs, d Cartesian dimensions.
Units:    m, m/s, m/s^2, s.
"""

import itertools
import math
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.cbf import Plant
from cadenza.safety.verifier.adversaries import IndexArray, Motion, dot, length, unit
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.config import STATIONARY_START_M, Scenario

#: Largest free distance at the start, m: a few stopping distances of the default agents.
MAX_START_EXCESS_M: Final = 1.5
#: Scale of the velocities at the start, m/s.
START_SPEED: Final = 1.5
#: Share of the pairs that start on the boundary of the safe set.
BOUNDARY_SHARE: Final = 1.0 / 3.0
#: How far beside the partner the ego drives past it at most, in the standing case, m.
_STATIONARY_ASIDE_M: Final = 0.3
#: Halvings of a bracket of one step. The distance is quadratic around its minimum, so a place
#: known to 2^-30 of a step fixes the distance to 2^-60 of its curvature: below rounding. (Where
#: the centres meet, to 2^-30 of the way.)
_BISECTIONS: Final = 30


def draw_starts(
    scenario: Scenario,
    condition: Condition,
    episodes: int,
    rng: np.random.Generator,
    lost: tuple[float, float] | None = None,
) -> Motion:
    """Return the starts of ``episodes`` adversarial episodes, in the safe set of ``condition``.

    ``lost`` are the largest differences, m and m/s, of what measurements show and what is true.
    """
    shape = (episodes, scenario.partners, scenario.dim)
    direction = unit(rng.normal(size=shape))
    excess = rng.uniform(0.0, MAX_START_EXCESS_M, size=shape[:2])
    relative = START_SPEED * rng.normal(size=shape)
    closing = -dot(relative, direction)
    limit = condition.safe_speed(excess)
    if lost is not None:  # what is measured must show that it is safe, whatever the errors
        position, velocity = lost
        excess = excess + position
        limit = limit - velocity - length(relative) * position / condition.contact_m
    on_boundary = rng.random(size=shape[:2]) < BOUNDARY_SHARE
    cut = np.where((closing > limit) | on_boundary, closing - limit, 0.0)
    relative += cut[..., None] * direction
    shared = rng.normal(size=(episodes, scenario.dim)) * (not scenario.passive)
    ego_position = rng.normal(size=(episodes, scenario.dim))
    distance = condition.contact_m + excess
    return Motion(
        ego_position=ego_position,
        ego_velocity=shared,
        positions=ego_position[:, None] - distance[..., None] * direction,
        velocities=shared[:, None] - relative,
    )


def standing_starts(scenario: Scenario, episodes: int, rng: np.random.Generator) -> Motion:
    """Return an ego at rest 8 m from a partner at rest; the first one drives along the x axis.

    The others start in a random direction, aiming a little beside the centre.
    """
    direction = unit(rng.normal(size=(episodes, scenario.dim)))
    direction[0] = np.eye(scenario.dim)[0]
    aside = rng.normal(size=(episodes, scenario.dim))
    aside = unit(aside - dot(aside, direction)[:, None] * direction)
    aside *= rng.uniform(0.0, _STATIONARY_ASIDE_M, size=(episodes, 1))
    aside[0] = 0.0
    still = np.zeros((episodes, scenario.dim))
    return Motion(
        ego_position=-STATIONARY_START_M * direction,
        ego_velocity=still,
        positions=aside[:, None],
        velocities=still[:, None].copy(),
    )


def standing_aim(motion: Motion) -> FloatArray:
    """Return the direction in which the ego of a standing start drives, shape (B, d).

    The line from the start misses the partner's centre by at most 0.3 m, less than the contact
    distance of the default agents.
    """
    return -motion.ego_position / length(motion.ego_position)[:, None]


def advance(
    position: FloatArray,
    velocity: FloatArray,
    accel: FloatArray,
    duration: FloatArray | float,
    plant: Plant,
) -> tuple[FloatArray, FloatArray]:
    """Return position and velocity after ``duration`` of constant acceleration, (..., d) each.

    ``duration`` broadcasts against them, s; it is one whole control step for "semi_implicit".
    """
    new_velocity = velocity + accel * duration
    if plant == "semi_implicit":
        return position + new_velocity * duration, new_velocity
    return position + (velocity + 0.5 * accel * duration) * duration, new_velocity


def smallest_distance(
    offset: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float, plant: Plant
) -> FloatArray:
    """Return the smallest distance of the centres during one step, shape (...), m.

    From relative position, velocity, both at its start, and acceleration, shape (..., d).
    """
    shape = offset.shape
    q, u, b = (vectors.reshape(-1, shape[-1]) for vectors in (offset, velocity, accel))
    if plant == "semi_implicit":
        nearest = _nearest_on_line(q, u + b * dt, dt)
    else:
        nearest = _nearest_on_parabola(q, u, b, dt)
    return nearest.reshape(shape[:-1])


def _nearest_on_line(offset: FloatArray, velocity: FloatArray, dt: float) -> FloatArray:
    """Return the smallest |offset + velocity s| for 0 <= s <= dt, shape (M,)."""
    speed_squared = dot(velocity, velocity)
    place = np.divide(
        -dot(offset, velocity),
        speed_squared,
        out=np.zeros_like(speed_squared),
        where=speed_squared > 0.0,
    )
    inside = np.clip(place, 0.0, dt)[:, None]
    ends = np.minimum(length(offset), length(offset + velocity * dt))
    return np.minimum(ends, length(offset + velocity * inside))


def _nearest_on_parabola(
    offset: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float
) -> FloatArray:
    """Return the smallest |offset + velocity s + accel s^2 / 2| for 0 <= s <= dt, shape (M,)."""

    def distance_at(rows: IndexArray, s: FloatArray) -> FloatArray:
        s = s[:, None]
        return length(offset[rows] + (velocity[rows] + 0.5 * accel[rows] * s) * s)

    everyone = np.arange(len(offset))
    nearest = np.minimum(length(offset), distance_at(everyone, np.full(len(offset), dt)))
    slopes = np.stack(
        (
            dot(offset, velocity),
            dot(velocity, velocity) + dot(offset, accel),
            1.5 * dot(velocity, accel),
            0.5 * dot(accel, accel),
        )
    )  # (4, M), rising powers of s
    edges = _monotone_edges(slopes, dt)  # (4, M)
    for low, high in itertools.pairwise(edges):
        falls_then_rises = (_cubic(slopes, low) < 0.0) & (_cubic(slopes, high) > 0.0)
        rows = np.flatnonzero(falls_then_rises)
        if rows.size:
            place = _bisect(slopes[:, rows], low[rows], high[rows])
            nearest[rows] = np.minimum(nearest[rows], distance_at(rows, place))
    return nearest


def _monotone_edges(slopes: FloatArray, dt: float) -> FloatArray:
    """Return 0, both turning points of the cubic clipped to the step, and dt; shape (4, M)."""
    _, linear, quadratic, cubic = slopes
    radicand = quadratic * quadratic - 3.0 * linear * cubic
    turns = (radicand > 0.0) & (cubic > 0.0)  # without acceleration the cubic is a line
    root = np.sqrt(np.where(turns, radicand, 0.0))
    divisor = np.where(turns, 3.0 * cubic, 1.0)
    edges = np.zeros((4, slopes.shape[1]))
    edges[1] = np.where(turns, np.clip((-quadratic - root) / divisor, 0.0, dt), 0.0)
    edges[2] = np.where(turns, np.clip((-quadratic + root) / divisor, 0.0, dt), 0.0)
    edges[3] = dt
    return edges


def _bisect(slopes: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return where the cubic, negative at ``low`` and positive at ``high``, vanishes."""
    low, high = low.copy(), high.copy()
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        falling = _cubic(slopes, middle) < 0.0
        np.copyto(low, middle, where=falling)
        np.copyto(high, middle, where=~falling)
    return 0.5 * (low + high)


def _cubic(slopes: FloatArray, s: FloatArray) -> FloatArray:
    return ((slopes[3] * s + slopes[2]) * s + slopes[1]) * s + slopes[0]


class PacketLink:
    """Remembers where partners were and hands out packets of a scenario's age.

    It starts at their positions and velocities now, (B, N, d); ``rng`` draws the ages and the
    motion before the episode began.
    """

    def __init__(
        self,
        scenario: Scenario,
        positions: FloatArray,
        velocities: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        self._delay = scenario.delay
        self._dt = scenario.dt
        self._plant: Plant = scenario.plant
        self._bound_s = scenario.max_age_s
        self._rng = rng
        self._length = 1 + math.ceil(self._bound_s / self._dt - 1e-9)
        oldest = self._bound_s
        if scenario.plant == "semi_implicit":  # it has no states between its steps
            oldest = math.floor(oldest / self._dt + 1e-9) * self._dt
        self._ages = np.full(positions.shape[:2], oldest)
        accel = scenario.partner_accel * unit(rng.normal(size=positions.shape))
        # Ring of (position, velocity, acceleration of the step that begins there), oldest first.
        self._ring = [(positions, velocities, accel)]
        for _ in range(self._length - 1):
            position, velocity, _ = self._ring[0]
            before = velocity - accel * self._dt
            mean = velocity if self._plant == "semi_implicit" else 0.5 * (velocity + before)
            self._ring.insert(0, (position - mean * self._dt, before, accel))

    def record(self, positions: FloatArray, velocities: FloatArray, accel: FloatArray) -> None:
        """Remember the partners' state now and the acceleration of the step that led here."""
        last = self._ring[-1]
        self._ring[-1] = (last[0], last[1], accel)
        self._ring.append((positions, velocities, accel))
        del self._ring[: -self._length]

    def packets(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return measured positions and velocities and the packets' ages, and let time pass."""
        ages = self._ages
        positions, velocities = self._state_at(ages)
        if self._delay == "varying":
            self._ages = self._next_ages(ages)
        return positions, velocities, ages

    def _next_ages(self, ages: FloatArray) -> FloatArray:
        """Return the ages one step later; every second packet is lost."""
        oldest = np.minimum(ages + self._dt, self._bound_s)
        drawn = oldest * self._rng.random(size=ages.shape)
        lost = self._rng.random(size=ages.shape) < 0.5
        ages = np.where(lost & (ages + self._dt <= self._bound_s), ages + self._dt, drawn)
        if self._plant == "semi_implicit":
            ages = np.floor(ages / self._dt + 1e-9) * self._dt
        return np.minimum(ages, self._bound_s)

    def _state_at(self, ages: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the states ``ages`` ago: from the step before, moved on by the rest."""
        if self._length == 1:
            return self._ring[0][:2]
        back = np.ceil(ages / self._dt - 1e-9)
        rest = np.maximum(back * self._dt - ages, 0.0)
        index = (len(self._ring) - 1 - back).astype(np.intp)
        stacked = [np.stack([entry[part] for entry in self._ring]) for part in range(3)]
        rows, columns = np.indices(index.shape)
        position, velocity, accel = (part[index, rows, columns] for part in stacked)
        moves = rest > 1e-12
        if not moves.any():
            return position, velocity
        # Only reached under zero-order hold: other plants are measured at whole steps.
        moved = advance(position, velocity, accel, rest[..., None], self._plant)
        return (
            np.where(moves[..., None], moved[0], position),
            np.where(moves[..., None], moved[1], velocity),
        )

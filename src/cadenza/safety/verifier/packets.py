"""What the filter gets to know about the partners: their state some time ago.

A packet carries position and velocity at the time it was measured. Its age is 0, the declared
bound, or wanders: packets are lost, late or fresh, but a measurement never replaces a later one,
so an age grows by at most one control step per step.

Axes:  B episodes, N partners, d Cartesian dimensions, K + 1 remembered steps.
Units: m, m/s, m/s^2, s.
"""

import math

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.rows.barrier import Plant
from cadenza.safety.verifier.motion import advance
from cadenza.safety.verifier.scenarios import Scenario
from cadenza.safety.verifier.views import unit


class PacketLink:
    """Remembers where partners were and hands out packets of a scenario's age.

    Args:
        scenario: Decides the ages.
        positions: Partners' centres now, shape (B, N, d), m.
        velocities: Their velocities now, shape (B, N, d), m/s.
        rng: Source of the ages and of the motion before the episode began.
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
            earlier = _before(*self._ring[0][:2], accel, self._dt, scenario.plant)
            self._ring.insert(0, (*earlier, accel))

    def record(self, positions: FloatArray, velocities: FloatArray, accel: FloatArray) -> None:
        """Remember the partners' state now and the acceleration of the step that led here."""
        last = self._ring[-1]
        self._ring[-1] = (last[0], last[1], accel)
        self._ring.append((positions, velocities, accel))
        del self._ring[: -self._length]

    def packets(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return positions, velocities and ages of the newest packets, and let time pass.

        Returns:
            Positions (B, N, d), velocities (B, N, d) as measured, and ages (B, N), s.
        """
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


def _before(
    position: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float, plant: Plant
) -> tuple[FloatArray, FloatArray]:
    """Return the state one step earlier."""
    earlier = velocity - accel * dt
    mean = velocity if plant == "semi_implicit" else 0.5 * (velocity + earlier)
    return position - mean * dt, earlier

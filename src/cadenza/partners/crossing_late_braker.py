"""A partner that races to its goal and brakes at the last possible moment.

Law:    along the way, full acceleration until the last sampling instant from which full braking
        still stops at the goal (time-optimal); across the way, the drift is cancelled in one step.
Limits: assumes the exact zero-order-hold plant; avoids nobody.
"""

from typing import ClassVar

from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import (
    CONTROL_STEP_S,
    MIN_LENGTH,
    Arithmetic,
    Real,
    Sight,
    arrive_and_stop,
    scale_into_box,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner


@register_partner("crossing_late_braker")
class CrossingLateBraker(CrossingPartner):
    """Races to its goal and brakes as late as its acceleration bound allows."""

    card: ClassVar[PartnerCard | None] = crossing_card(
        "Races to its goal and brakes as late as physically possible.", ()
    )

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the time-optimal command along the way, plus the drift correction."""
        way = math_of.sqrt(sight.gx * sight.gx + sight.gy * sight.gy)
        scale = 1.0 / math_of.maximum(way, MIN_LENGTH)
        nx, ny = sight.gx * scale, sight.gy * scale
        # On a slanted way the component bound allows more than `limit`, up to sqrt(2) times it; a
        # unit vector's largest component is >= sqrt(1/2), so 0.5 acts only when way is zero.
        steepest = math_of.maximum(math_of.maximum(abs(nx), abs(ny)), 0.5)
        capacity = self._limit / steepest
        speed = sight.vx * nx + sight.vy * ny
        along = arrive_and_stop(way, speed, capacity, CONTROL_STEP_S, math_of)
        ax = along * nx - (sight.vx - speed * nx) / CONTROL_STEP_S
        ay = along * ny - (sight.vy - speed * ny) / CONTROL_STEP_S
        return scale_into_box(ax, ay, self._limit, math_of)

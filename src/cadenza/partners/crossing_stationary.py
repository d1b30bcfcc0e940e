"""A partner that comes to rest and stays where it is.

Law:    a = -v / dt, shortened to the acceleration bound: full braking, then exactly zero speed.
"""

from typing import ClassVar

from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import (
    CONTROL_STEP_S,
    Arithmetic,
    Real,
    Sight,
    scale_into_box,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner


@register_partner("crossing_stationary")
class CrossingStationary(CrossingPartner):
    """Brakes to rest and stays: an obstacle."""

    card: ClassVar[PartnerCard | None] = crossing_card("Brakes to rest and stays there.", ())

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the braking command."""
        return scale_into_box(
            -sight.vx / CONTROL_STEP_S, -sight.vy / CONTROL_STEP_S, self._limit, math_of
        )

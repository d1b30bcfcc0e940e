"""A partner that hunts the ego: lead pursuit with full acceleration.

Law:    T = earliest time at which one constant acceleration within the bound meets the ego;
        aim = r + w T, where the ego will be relative to us if nobody accelerates;
        a = the longest vector along the aim that the acceleration bound allows.
Limits: assumes the ego keeps its velocity; never brakes for its own goal.
Source: adversarial partner within a declared acceleration bound, the worst case that the ego's
        safety filter promises to survive.
"""

from typing import ClassVar

from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import (
    Arithmetic,
    Real,
    Sight,
    intercept_time,
    stretch_to_box,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner


@register_partner("crossing_chaser")
class CrossingChaser(CrossingPartner):
    """Adversary: intercepts the ego with full acceleration."""

    card: ClassVar[PartnerCard | None] = crossing_card(
        "Adversary: intercepts the ego with full acceleration.", (), leaves_way=False
    )

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return full acceleration towards the predicted meeting point."""
        time_s = intercept_time(sight, self._limit, math_of)
        aim_x = sight.rx + sight.wx * time_s
        aim_y = sight.ry + sight.wy * time_s
        return stretch_to_box(aim_x, aim_y, self._limit, math_of)

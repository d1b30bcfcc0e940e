"""A partner that drives to its goal at moderate speed and stops there.

Law:    v* = g * min(k_p, v_max / |g|),  a = k_d (v* - v), shortened to the acceleration bound:
        a PD controller on the goal offset g whose speed is limited.
Limits: avoids nobody; the gains keep the braking demand k_p * v_max near the bound.
"""

from typing import ClassVar, Final

from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import MIN_LENGTH, Arithmetic, Real, Sight, scale_into_box
from cadenza.partners.interface import PartnerCard
from cadenza.partners.options import NumberOption
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

_MAX_SPEED: Final = NumberOption(
    key="max_speed", default=1.0, low=0.0, high=10.0, summary="cruising speed, m/s"
)
_POSITION_GAIN: Final = NumberOption(
    key="position_gain", default=0.6, low=0.0, high=10.0, summary="speed per metre of way, 1/s"
)
_VELOCITY_GAIN: Final = NumberOption(
    key="velocity_gain",
    default=2.5,
    low=0.0,
    high=20.0,
    summary="acceleration per speed error, 1/s",
)


@register_partner("crossing_goal_seeker")
class CrossingGoalSeeker(CrossingPartner):
    """Goes to its goal at about 1 m/s and stops there."""

    number_options: ClassVar[tuple[NumberOption, ...]] = (
        _MAX_SPEED,
        _POSITION_GAIN,
        _VELOCITY_GAIN,
    )
    card: ClassVar[PartnerCard | None] = crossing_card(
        "Drives to its goal at moderate speed and stops there.", number_options
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._max_speed = self._options[_MAX_SPEED.key]
        self._position_gain = self._options[_POSITION_GAIN.key]
        self._velocity_gain = self._options[_VELOCITY_GAIN.key]

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the speed-limited PD command."""
        way = math_of.maximum(math_of.sqrt(sight.gx * sight.gx + sight.gy * sight.gy), MIN_LENGTH)
        rate = math_of.minimum(self._max_speed / way, self._position_gain)
        ax = self._velocity_gain * (sight.gx * rate - sight.vx)
        ay = self._velocity_gain * (sight.gy * rate - sight.vy)
        return scale_into_box(ax, ay, self._limit, math_of)

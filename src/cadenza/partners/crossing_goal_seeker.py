"""A partner that drives to its goal at moderate speed and stops there.

Law:    v* = g * min(k_p, v_max / |g|),  a = k_d (v* - v), shortened to the acceleration bound:
        a PD controller on the goal offset g whose speed is limited.
Random: v_max is drawn anew for every episode, uniform within `speed_spread` of `max_speed`, from
        the partner's own stream; row i of a batch draws from its child i.
Limits: avoids nobody; the gains keep the braking demand k_p * v_max near the bound.
"""

from typing import ClassVar, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import Substream
from cadenza.partners.crossing import CrossingPartner, crossing_card
from cadenza.partners.crossing_motion import (
    MIN_LENGTH,
    SCALAR,
    Arithmetic,
    Real,
    Sight,
    scale_into_box,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.options import NumberOption
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

_MAX_SPEED: Final = NumberOption(
    key="max_speed", default=1.0, low=0.0, high=10.0, summary="cruising speed, m/s"
)
_SPEED_SPREAD: Final = NumberOption(
    key="speed_spread",
    default=0.0,
    low=0.0,
    high=1.0,
    low_excluded=False,
    summary="share by which the cruising speed varies from episode to episode",
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
    """Goes to its goal at a steady speed, about 1 m/s by default, and stops there."""

    number_options: ClassVar[tuple[NumberOption, ...]] = (
        _MAX_SPEED,
        _SPEED_SPREAD,
        _POSITION_GAIN,
        _VELOCITY_GAIN,
    )
    card: ClassVar[PartnerCard | None] = crossing_card(
        "Drives to its goal at moderate speed and stops there.", number_options
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._max_speed = self._options[_MAX_SPEED.key]
        self._spread = self._options[_SPEED_SPREAD.key]
        self._position_gain = self._options[_POSITION_GAIN.key]
        self._velocity_gain = self._options[_VELOCITY_GAIN.key]
        self._episode: Substream | None = None
        self._speeds: FloatArray = np.zeros(0)

    def reset(self, *, seed: int | None = None) -> None:
        """Draw the cruising speed of a new episode from the stream that ``seed`` selects."""
        self._episode = self.episode_stream(seed)
        self._speeds = np.zeros(0)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        self._cruising_speeds(row + 1)[row] = self._draw(self.episode_stream(seed))

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the speed-limited PD command."""
        way = math_of.maximum(math_of.sqrt(sight.gx * sight.gx + sight.gy * sight.gy), MIN_LENGTH)
        speed: Real
        if math_of is SCALAR:
            speed = float(self._cruising_speeds(1)[0])
        else:
            speed = self._cruising_speeds(len(sight.gx))
        rate = math_of.minimum(speed / way, self._position_gain)
        ax = self._velocity_gain * (sight.gx * rate - sight.vx)
        ay = self._velocity_gain * (sight.gy * rate - sight.vy)
        return scale_into_box(ax, ay, self._limit, math_of)

    def _cruising_speeds(self, rows: int) -> FloatArray:
        """Return the speeds of the first ``rows`` rows, drawing those of new rows."""
        if self._episode is None:  # acting before the first reset plays an automatic episode
            self._episode = self.episode_stream(None)
        for row in range(len(self._speeds), rows):
            stream = self._episode if row == 0 else self._episode.child(row)
            self._speeds = np.append(self._speeds, self._draw(stream))
        return self._speeds[:rows]

    def _draw(self, stream: Substream) -> float:
        """Return one cruising speed, m/s."""
        low, high = 1.0 - self._spread, 1.0 + self._spread
        return self._max_speed * float(stream.default_rng().uniform(low, high))

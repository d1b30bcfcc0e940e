"""A wheeled base that takes a speed and a rate of turn, such as a differential drive.

Response:   under a constant command the speed v goes to the commanded one at the rate ``accel``,
            and the rate of turn w at the rate ``yaw_accel``; infinite rates follow at once.
Motion:     the axle's center moves with v along the heading; the disc that bounds the robot is
            centered ``center_offset_m`` ahead of it.
Action:     (v, w), m/s and rad/s, w counter-clockwise.
Units:      m, rad, s.
Limits:     no slip. Where speeding up and braking differ, declare the smaller rate.
"""

import math
from dataclasses import dataclass

from cadenza.core.checks import is_real, require_kinds
from cadenza.core.errors import InputError, refuse
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND
from cadenza.safety.snapshot import MAX_MAGNITUDE, WheeledSnapshot


@dataclass(frozen=True, slots=True)
class UnicycleModel:
    """A base whose action is the speed and the rate of turn that it is to have.

    Attributes:
        uid: Agent id.
        max_speed: V: largest forward speed, m/s, > 0.
        max_reverse: Largest speed backward, m/s, >= 0.
        max_yaw_rate: W: largest rate of turn either way, rad/s, > 0.
        accel: a_v: rate of the speed, m/s^2, > 0; may be infinite.
        yaw_accel: a_w: rate of the rate of turn, rad/s^2, > 0; may be infinite.
        radius: Of the disc that covers the robot, m, > 0.
        center_offset_m: o: how far the disc's center is ahead of the axle, m; negative for behind.
        look_ahead_m: l: distance of a point ahead of the axle whose velocity the filter changes as
            little as it can, m, > 0. With a larger one the robot turns earlier and needs more
            room: it does not enter gaps narrower than two radii plus l.

    Raises:
        InputError: A value is of another kind or out of range.
    """

    uid: str
    max_speed: float
    max_reverse: float
    max_yaw_rate: float
    accel: float
    yaw_accel: float
    radius: float
    center_offset_m: float = 0.0
    look_ahead_m: float = 0.1

    def __post_init__(self) -> None:
        require_kinds("UnicycleModel", uid=(self.uid, str))
        name = f"UnicycleModel({self.uid!r})"
        for one in ("max_speed", "max_yaw_rate", "accel", "yaw_accel", "radius", "look_ahead_m"):
            value = getattr(self, one)
            rate = one in ("accel", "yaw_accel")
            if not (is_real(value) and value >= MIN_BOUND and (value <= MAX_BOUND or rate)):
                bounds = f"[{MIN_BOUND:g}, {MAX_BOUND:g}]{' or infinity' if rate else ''}"
                refuse(InputError, f"{name}.{one}", expected=f"a number in {bounds}", got=value)
        if not (is_real(self.max_reverse) and 0.0 <= self.max_reverse <= MAX_BOUND):
            expected = "a speed >= 0 m/s"
            refuse(InputError, f"{name}.max_reverse", expected=expected, got=self.max_reverse)
        if not (is_real(self.center_offset_m) and abs(self.center_offset_m) <= MAX_BOUND):
            expected = "a finite length"
            got = self.center_offset_m
            refuse(InputError, f"{name}.center_offset_m", expected=expected, got=got)

    @property
    def action_dim(self) -> int:
        """Number of action components, 2."""
        return 2

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the disc, 2."""
        return 2

    def action_box(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the least and the largest components of an action, m/s and rad/s."""
        return (-self.max_reverse, -self.max_yaw_rate), (self.max_speed, self.max_yaw_rate)

    @property
    def is_ideal(self) -> bool:
        """Whether the base follows its commands at once."""
        return self.accel == math.inf and self.yaw_accel == math.inf

    def escape_speed(self, dt: float) -> float:
        """Return the speed of the fastest partner that the base can keep away from, m/s.

        A base that follows at once flees with the point ahead of its axle: at v_f less what one
        step of ``dt`` loses to turning. Another one flees forward or backward along its heading.
        """
        along = min(self.max_speed, self.max_reverse)
        if not self.is_ideal:
            return along
        v_f = self.flight_speed(dt)
        return v_f - 0.5 * v_f * v_f * dt / self.look_ahead_m

    def flight_speed(self, dt: float) -> float:
        """Return v_f: the speed at which the point ahead flees, in any direction, m/s."""
        length = self.look_ahead_m
        along = min(self.max_speed, self.max_reverse)
        return min(along, length * self.max_yaw_rate, length / dt)

    def snapshot(
        self, x: float, y: float, heading: float, speed: float, yaw_rate: float
    ) -> WheeledSnapshot:
        """Return the robot's disc for the pose of its axle, m and rad, and its speeds.

        Raises:
            InputError: A number that is not finite, or too large.
        """
        given = {"x": x, "y": y, "heading": heading, "speed": speed, "yaw_rate": yaw_rate}
        for name, value in given.items():
            if not (is_real(value) and abs(value) <= MAX_MAGNITUDE):  # NaN fails too
                expected = f"a finite number up to {MAX_MAGNITUDE:.0e}"
                refuse(InputError, f"UnicycleModel.snapshot: {name}", expected=expected, got=value)
        cosine, sine, ahead = math.cos(heading), math.sin(heading), self.center_offset_m
        return WheeledSnapshot(
            [x + ahead * cosine, y + ahead * sine],
            [speed * cosine - ahead * yaw_rate * sine, speed * sine + ahead * yaw_rate * cosine],
            self.radius,
            heading=heading,
            yaw_rate=yaw_rate,
        )

"""A wheeled base that turns by driving its two sides at different speeds.

State:     axle centre c, heading theta, forward speed s, yaw rate w; e = (cos theta, sin theta) and
           f = (-sin theta, cos theta).
Ball:      centred at p = c + L e, a look-ahead point L > 0 in front of the axle. The axle itself
           cannot accelerate sideways, so no filter could guard a ball around it; p can:
               p'  = s e + L w f
               p'' = s' e + L w' f + (s w f - L w^2 e)
Map:       with (s', w') = B u, a = [e, L f] B u + beta, beta = s w f - L w^2 e. det [e, L f] = L.
           s and w follow from the ball's velocity: s = p' @ e, w = p' @ f / L.
Source:    dynamic feedback linearisation of the unicycle at a point off the axle, e.g. Siciliano
           et al., Robotics (2009), section 11.6.
Units:     m, rad, s.
Limits:    no slip; J and beta are held for the whole step. The radius must cover the whole robot
           as seen from p. Outside the declared speeds the ego's steps are uncertified.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args, runtime_checkable

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import is_real, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.snapshot import AgentSnapshot

#: Which acceleration the model declares. An ego needs what it has in every direction at every
#: admissible speed; a partner's bound must be what it never exceeds.
Credit: TypeAlias = Literal["largest", "guaranteed"]

_PLANE: Final = 2


@runtime_checkable
class DriveBase(Protocol):
    """What the action of a differential drive is, and how fast the base goes."""

    def body_map(self) -> FloatArray:
        """Return B, shape (2, 2), with (s', w') = B u in m/s^2 and rad/s^2."""
        ...

    def largest_bias(self, look_ahead_m: float) -> float:
        """Return the largest |beta| at an admissible speed, m/s^2."""
        ...


@dataclass(frozen=True, slots=True)
class BodyDrive:
    """The action is the acceleration of the body: forward and yaw.

    Attributes:
        max_speed: Bound on |s|, m/s, > 0.
        max_yaw_rate: Bound on |w|, rad/s, > 0.
        yaw_accel_per_unit: rad/s^2 that one unit of the second component means, > 0; the first
            means 1 m/s^2. Both components share the action box.

    Raises:
        InputError: A value is not a positive number.
    """

    max_speed: float
    max_yaw_rate: float
    yaw_accel_per_unit: float = 1.0

    def __post_init__(self) -> None:
        _require_positive("BodyDrive", "max_speed", self.max_speed)
        _require_positive("BodyDrive", "max_yaw_rate", self.max_yaw_rate)
        _require_positive("BodyDrive", "yaw_accel_per_unit", self.yaw_accel_per_unit)

    def body_map(self) -> FloatArray:
        """Return B = diag(1, yaw_accel_per_unit)."""
        return np.diag([1.0, self.yaw_accel_per_unit])

    def largest_bias(self, look_ahead_m: float) -> float:
        """Return the largest |beta|, m/s^2: |beta| = |w| hypot(s, L w) grows with both speeds."""
        rate = self.max_yaw_rate
        return rate * math.hypot(self.max_speed, look_ahead_m * rate)


@dataclass(frozen=True, slots=True)
class WheelDrive:
    """The action is the angular acceleration of the right and the left wheel, rad/s^2.

    Attributes:
        wheel_radius_m: > 0.
        track_m: Distance of the wheels, m, > 0.
        max_wheel_speed: Bound on each wheel's speed, rad/s, > 0.

    Raises:
        InputError: A value is not a positive number.
    """

    wheel_radius_m: float
    track_m: float
    max_wheel_speed: float

    def __post_init__(self) -> None:
        _require_positive("WheelDrive", "wheel_radius_m", self.wheel_radius_m)
        _require_positive("WheelDrive", "track_m", self.track_m)
        _require_positive("WheelDrive", "max_wheel_speed", self.max_wheel_speed)

    def body_map(self) -> FloatArray:
        """Return B: s' = r (u_right + u_left) / 2 and w' = r (u_right - u_left) / track."""
        half, turn = 0.5 * self.wheel_radius_m, self.wheel_radius_m / self.track_m
        return np.array([[half, half], [turn, -turn]])

    def largest_bias(self, look_ahead_m: float) -> float:
        """Return the largest |beta|, m/s^2.

        Wheels at their limit trade speed for turning: |s| + |w| track / 2 <= S, S = r times the
        wheel limit. On that line, with b the track,
            |beta|^2 = w^2 ((S - w b / 2)^2 + L^2 w^2)
        is a polynomial, largest at an end or where 2 S^2 - 3 S b w + (b^2 + 4 L^2) w^2 = 0.
        """
        limit, track = self.wheel_radius_m * self.max_wheel_speed, self.track_m
        fastest = 2.0 * limit / track
        curvature = track * track + 4.0 * look_ahead_m * look_ahead_m
        candidates = [fastest]
        radicand = 9.0 * track * track - 8.0 * curvature
        if radicand >= 0.0:
            candidates.append(limit * (3.0 * track - math.sqrt(radicand)) / (2.0 * curvature))
        return max(
            rate * math.hypot(limit - 0.5 * rate * track, look_ahead_m * rate)
            for rate in candidates
        )


@dataclass(frozen=True, slots=True)
class DifferentialDriveControlModel:
    """Control model of a differential-drive base, with the ball at a look-ahead point.

    Attributes:
        uid: Agent id.
        heading_fn: Returns theta for the agent's snapshot, rad, counter-clockwise from +x.
        look_ahead_m: L, m, > 0.
        drive: What the action is.
        credit: Which acceleration to declare: "largest", what the agent never exceeds, for
            partners; "guaranteed", what it has in every direction at every admissible speed, for
            the agent whose action is filtered.

    Raises:
        InputError: A value is out of range.
        ConfigurationError: One is of another kind.
    """

    uid: str
    heading_fn: Callable[[AgentSnapshot], float]
    look_ahead_m: float
    drive: DriveBase
    credit: Credit = "largest"

    def __post_init__(self) -> None:
        name = f"DifferentialDriveControlModel({self.uid!r})"
        _require_positive(name, "look_ahead_m", self.look_ahead_m)
        require_kinds(
            name,
            uid=(self.uid, str),
            heading_fn=(self.heading_fn, Callable),
            drive=(self.drive, DriveBase),
        )
        if not (isinstance(cast("object", self.credit), str) and self.credit in get_args(Credit)):
            raise InputError(
                f"{name}.credit: expected one of {get_args(Credit)}, got {self.credit!r}."
            )

    @property
    def action_dim(self) -> int:
        """Number of action components, 2."""
        return _PLANE

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball, 2."""
        return _PLANE

    def jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return [e, L f] B, shape (2, 2).

        Raises:
            InputError: The state is not planar, or the heading is not finite.
        """
        forward, left = self._axes(state)
        return np.stack((forward, self.look_ahead_m * left), axis=1) @ self.drive.body_map()

    def bias_accel(self, state: AgentSnapshot) -> FloatArray:
        """Return beta = s w f - L w^2 e, shape (2,), m/s^2.

        Raises:
            InputError: The state is not planar, or the heading is not finite.
        """
        forward, left = self._axes(state)
        speed = float(state.velocity @ forward)
        yaw_rate = float(state.velocity @ left) / self.look_ahead_m
        return yaw_rate * (speed * left - self.look_ahead_m * yaw_rate * forward)

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return the linear part of the acceleration, shape (2,), m/s^2; add `bias_accel` to it.

        Raises:
            InputError: Wrong shape, or see `jacobian`.
        """
        require_shape(f"action shape of {self.uid!r}", action, (_PLANE,))
        return self.jacobian(state) @ action

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return the one action, shape (2,), whose linear part is the acceleration.

        Raises:
            InputError: Wrong shape, or see `jacobian`.
        """
        require_shape(f"cartesian_accel shape of {self.uid!r}", cartesian_accel, (_PLANE,))
        action: FloatArray = np.linalg.inv(self.jacobian(state)) @ cartesian_accel
        return action

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return the declared acceleration, m/s^2; see ``credit``.

        In the frame of the base the map does not depend on the state: its columns are
        (B_0k, L B_1k). The bias adds to the largest and takes from the guaranteed acceleration.

        Raises:
            ConfigurationError: Nothing is guaranteed: at its top speed the base needs more than
                the action box to keep its ball from turning with it.
        """
        columns = np.diag([1.0, self.look_ahead_m]) @ self.drive.body_map()
        c = bounds.action_linf_component
        bias = self.drive.largest_bias(self.look_ahead_m)
        if self.credit == "largest":
            corners = c * columns @ np.array([[1.0, 1.0], [1.0, -1.0]])
            return float(np.linalg.norm(corners, axis=0).max()) + bias
        # A parallelogram with half edges c k_1, c k_2 has its faces at c |det| / |k| from the
        # centre; the farther ones belong to the shorter edge.
        area = abs(float(np.linalg.det(columns)))
        box = c * area / float(np.linalg.norm(columns, axis=0).max())
        if not box > bias:
            raise ConfigurationError(
                f"control model of {self.uid!r}: expected a box that outweighs the bias, got "
                f"{box:.4g} m/s^2 in the weakest direction against {bias:.4g} m/s^2 at top speed; "
                "lower the speeds, or move the look-ahead point."
            )
        return box - bias

    def _axes(self, state: AgentSnapshot) -> tuple[FloatArray, FloatArray]:
        """Return e and f, shape (2,)."""
        require_shape(f"state of {self.uid!r}: velocity", state.velocity, (_PLANE,))
        heading = float(self.heading_fn(state))
        if not math.isfinite(heading):
            raise InputError(f"heading_fn of {self.uid!r}: expected a finite angle, got {heading}.")
        cosine, sine = math.cos(heading), math.sin(heading)
        return np.array([cosine, sine]), np.array([-sine, cosine])


def _require_positive(owner: str, name: str, value: float) -> None:
    if not (is_real(value) and 0.0 < value < math.inf):
        raise InputError(f"{owner}.{name}: expected a finite number > 0, got {shown(value)}.")

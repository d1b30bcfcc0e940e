"""Control models: how an agent's action moves its ball, and how fast a partner is at most.

Acceleration-commanded: linear in the action, plus a bias where the embodiment has one,
    a = J u + bias. Each class satisfies `cadenza.safety.contracts.AgentControlModel`; a map that
    depends on the state also offers `jacobian` and `bias_accel` of `StateDependentControlModel`.

`DoubleIntegratorControlModel`: the action is the acceleration, J = I.

`JacobianControlModel`: with J(q) the Jacobian of the ball's velocity, v = J q', the ball's
acceleration over one control step dt is, by what the action u is:
    joint_acceleration      a = J u + beta                   beta = J' q'
    joint_velocity          a = J u / dt - v / dt + beta     the joints reach q' = u in the step
    joint_position_delta    a = J u / dt^2 - v / dt + beta   the joints move by u in the step
In each case a = (J / dt^k) u + bias.
Inverse:  damped least squares, u = dt^k J^T (J J^T + lambda^2 I)^-1 a; Nakamura and Hanafusa,
          doi:10.1115/1.3143764. Damping acts on J itself, whatever the action is.
Limits:   J and beta are held for the whole step; velocity and position targets are taken as
          reached within it, so declare the capacity of the real drives.

`DifferentialDriveControlModel`: a wheeled base whose two sides accelerate.
State:    axle centre c, heading theta, forward speed s, yaw rate w; e = (cos theta, sin theta) and
          f = (-sin theta, cos theta).
Ball:     centred at p = c + L e, a look-ahead point L > 0 in front of the axle. The axle itself
          cannot accelerate sideways, so no filter could guard a ball around it; p can:
              p'  = s e + L w f
              p'' = s' e + L w' f + (s w f - L w^2 e)
Map:      with (s', w') = B u, a = [e, L f] B u + beta, beta = s w f - L w^2 e. det [e, L f] = L.
          s and w follow from the ball's velocity: s = p' @ e, w = p' @ f / L.
Source:   dynamic feedback linearisation of the unicycle at a point off the axle, e.g. Siciliano
          et al., Robotics (2009), section 11.6.
Limits:   no slip; J and beta are held for the whole step. The radius must cover the whole robot
          as seen from p. Outside the declared speeds the ego's steps are uncertified.

Velocity-commanded: read by `cadenza.safety.backup`, as `PartnerBound` is.

`VelocityModel`: under a constant command r the base's velocity v goes to r
    limit="none"   at once;
    limit="norm"   straight, at the rate c;
    limit="axis"   each component for itself, at the rate c;
    lag_s=T        as r + (v - r) exp(-s / T), whatever ``limit`` says.
Delay:    a command acts ``delay_s`` after it was given, and until the next one does.
Limits:   slip, and limits that differ by direction, are not modelled: declare the smaller rate.

`UnicycleModel`: under a constant command the speed v goes to the commanded one at the rate
``accel``, and the rate of turn w at the rate ``yaw_accel``; infinite rates follow at once.
Motion:   the axle's center moves with v along the heading; the disc that bounds the robot is
          centered ``center_offset_m`` ahead of it.
Action:   (v, w), m/s and rad/s, w counter-clockwise.
Limits:   no slip. Where speeding up and braking differ, declare the smaller rate.

Units:    rad or m per joint; m, rad, s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, is_whole, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, refuse
from cadenza.safety.contracts import MAX_BOUND, MIN_BOUND, Bounds
from cadenza.safety.geometry import Vector
from cadenza.safety.snapshot import MAX_MAGNITUDE, POSITION_DIMS, AgentSnapshot, WheeledSnapshot


@dataclass(frozen=True, slots=True)
class DoubleIntegratorControlModel:
    """An agent whose action is the Cartesian acceleration of its ball.

    Attributes:
        uid: Agent id.
        action_dim: Number of action components; also the Cartesian dimension.
        capacity: Largest Euclidean norm of this agent's own acceleration, m/s^2, >= 0; zero
            describes an obstacle that keeps its velocity. None takes
            ``Bounds.cartesian_accel_capacity``, which all agents share.

    Raises:
        InputError: An id that is no text, ``action_dim`` other than 2 or 3, or a capacity that is
            negative or not finite.
    """

    uid: str
    action_dim: int
    capacity: float | None = None

    def __post_init__(self) -> None:
        _require_uid("DoubleIntegratorControlModel.uid", self.uid)
        if not (is_whole(self.action_dim) and self.action_dim in POSITION_DIMS):
            raise InputError(
                f"DoubleIntegratorControlModel({self.uid!r}).action_dim: expected 2 or 3, the "
                f"Cartesian dimension, got {self.action_dim!r}."
            )
        if self.capacity is not None and not (
            is_real(self.capacity) and 0.0 <= self.capacity <= MAX_BOUND
        ):
            raise InputError(
                f"DoubleIntegratorControlModel({self.uid!r}).capacity: expected a finite "
                f"acceleration >= 0 m/s^2, got {self.capacity!r}."
            )

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball."""
        return self.action_dim

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return ``action``: it already is the acceleration, shape (action_dim,), m/s^2.

        Raises:
            InputError: Wrong shape.
        """
        del state
        require_shape(f"action shape of {self.uid!r}", action, (self.action_dim,))
        return action

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return ``cartesian_accel``: it already is the action, shape (action_dim,).

        Raises:
            InputError: Wrong shape.
        """
        del state
        name = f"cartesian_accel shape of {self.uid!r}"
        require_shape(name, cartesian_accel, (self.action_dim,))
        return cartesian_accel

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return the largest acceleration this agent is credited with, m/s^2."""
        return bounds.cartesian_accel_capacity if self.capacity is None else self.capacity


#: Damping of the inverse, in the unit of J. Its relative error is (damping / sigma)^2 along a
#: direction of singular value sigma: 1e-6 where the arm is well conditioned (sigma = 1).
DEFAULT_DLS_DAMPING: Final = 1e-3

#: What the action of an arm is.
ActionKind: TypeAlias = Literal["joint_acceleration", "joint_velocity", "joint_position_delta"]

#: How often an action of each kind is divided by dt on its way to an acceleration.
_TIME_POWER: Final[dict[str, int]] = {
    "joint_acceleration": 0,
    "joint_velocity": 1,
    "joint_position_delta": 2,
}


class MissingJacobianError(NotReadyError, NotImplementedError):
    """A control model without kinematics was asked to map an action."""


@dataclass(slots=True)
class JacobianControlModel:
    """Control model of an agent whose kinematics are a Jacobian.

    Attributes:
        uid: Agent id.
        action_dim: Number of joints, n.
        position_dim: Cartesian dimension of the ball, d.
        jacobian_fn: Returns J, shape (d, n), for the agent's snapshot; called once per snapshot
            object, whoever asks. None leaves the model without kinematics: it only declares a
            capacity, which is all that is asked of a partner.
        damping: Of the inverse, >= 0, in the unit of J.
        max_cartesian_accel_value: Credited acceleration, m/s^2. For the agent that is filtered:
            what it reaches in every direction; for a partner: what it never exceeds.
        action_kind: What the action is.
        control_timestep_s: dt, s; for velocities and position steps, and for them only.
        bias_fn: Returns beta = J' q', shape (d,), m/s^2; None takes it as zero.

    Raises:
        InputError: A dimension, the damping, the action kind or dt is out of range.
        ConfigurationError: The id is no text, or a function none.
    """

    uid: str
    action_dim: int
    position_dim: int
    jacobian_fn: Callable[[AgentSnapshot], FloatArray] | None = None
    damping: float = DEFAULT_DLS_DAMPING
    max_cartesian_accel_value: float = math.nan
    action_kind: ActionKind = field(default="joint_acceleration", kw_only=True)
    control_timestep_s: float | None = field(default=None, kw_only=True)
    bias_fn: Callable[[AgentSnapshot], FloatArray] | None = field(default=None, kw_only=True)
    _last: tuple[AgentSnapshot, object, FloatArray] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name, lowest in (("action_dim", 1), ("position_dim", 2)):
            value = getattr(self, name)
            self._require(name, is_whole(value) and value >= lowest, f">= {lowest}", value)
        self._require("position_dim", self.position_dim <= 3, "2 or 3", self.position_dim)
        self._require(
            "damping",
            is_real(self.damping) and 0.0 <= self.damping < math.inf,
            "a number >= 0",
            self.damping,
        )
        require_kinds(
            f"JacobianControlModel({self.uid!r})",
            uid=(self.uid, str),
            jacobian_fn=(self.jacobian_fn, Callable | None),
            bias_fn=(self.bias_fn, Callable | None),
        )
        value = self.max_cartesian_accel_value
        self._require("max_cartesian_accel_value", is_real(value), "an acceleration, m/s^2", value)
        kinds, kind = get_args(ActionKind), cast("object", self.action_kind)
        fits = isinstance(kind, str) and kind in kinds
        self._require("action_kind", fits, f"one of {kinds}", kind)
        dt = self.control_timestep_s
        if self.action_kind == "joint_acceleration":
            self._require("control_timestep_s", dt is None, "None for accelerations", dt)
        else:
            self._require(
                "control_timestep_s",
                is_real(dt) and 0.0 < dt < math.inf,
                "a time > 0 s, which turns velocities and positions into accelerations",
                dt,
            )

    def jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J / dt^k, shape (d, n): the map from actions to accelerations.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: ``jacobian_fn`` returned a wrong shape or something not finite.
        """
        scale = self._action_scale()
        kinematic = self._kinematic_jacobian(state)
        return kinematic if scale == 1.0 else kinematic / scale

    def bias_accel(self, state: AgentSnapshot) -> FloatArray:
        """Return the acceleration under a zero action, shape (d,), m/s^2.

        Raises:
            InputError: The state has another dimension than the model, or ``bias_fn`` returned a
                wrong shape or something not finite.
        """
        require_shape(f"state of {self.uid!r}: velocity", state.velocity, (self.position_dim,))
        bias: FloatArray = np.zeros(self.position_dim)
        if self.bias_fn is not None:
            bias = np.asarray(self.bias_fn(state), dtype=np.float64)
            require_shape(f"bias_fn of {self.uid!r}", bias, (self.position_dim,))
            require_finite(f"bias_fn of {self.uid!r}", bias)
        if self.control_timestep_s is not None:
            bias = bias - state.velocity / self.control_timestep_s
        return bias

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return the linear part of the acceleration, shape (d,), m/s^2; add `bias_accel` to it.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: Wrong shape, or see `jacobian`.
        """
        require_shape(f"action shape of {self.uid!r}", action, (self.action_dim,))
        return self.jacobian(state) @ action

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return an action, shape (n,), whose linear part is the acceleration, if one exists.

        Near a singular posture the damping trades accuracy for a bounded action.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: Wrong shape, a singular posture without damping, or see `jacobian`.
        """
        name = f"cartesian_accel shape of {self.uid!r}"
        require_shape(name, cartesian_accel, (self.position_dim,))
        jacobian = self._kinematic_jacobian(state)
        gram = jacobian @ jacobian.T + self.damping**2 * np.eye(self.position_dim)
        try:
            weights = np.linalg.solve(gram, cartesian_accel)
        except np.linalg.LinAlgError as error:
            raise InputError(
                f"control model of {self.uid!r}: expected damping > 0 in a singular posture, got "
                f"{self.damping}; no action is the inverse there."
            ) from error
        return self._action_scale() * (jacobian.T @ weights)

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return ``max_cartesian_accel_value``, m/s^2; the shared bounds do not enter.

        Raises:
            InputError: The value was left at its placeholder, or is not finite.
        """
        del bounds
        value = self.max_cartesian_accel_value
        if is_real(value) and math.isnan(value):
            raise InputError(
                f"JacobianControlModel({self.uid!r}): expected max_cartesian_accel_value, which "
                "was not given; pass what this robot reaches in every direction if it is filtered, "
                "what it never exceeds if it is a partner, m/s^2."
            )
        finite = is_real(value) and math.isfinite(value)
        self._require("max_cartesian_accel_value", finite, "a finite number", value)
        return value

    def _kinematic_jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J; the answer for the last snapshot object is kept, snapshots never change."""
        if self.jacobian_fn is None:
            raise MissingJacobianError(
                f"control model of {self.uid!r}: expected a jacobian_fn that maps actions to "
                "accelerations, got None; pass the kinematics of the embodiment."
            )
        last = self._last
        if last is not None and last[0] is state and last[1] is self.jacobian_fn:
            return last[2]
        jacobian = np.array(self.jacobian_fn(state), dtype=np.float64)
        name = f"jacobian_fn of {self.uid!r}"
        require_shape(name, jacobian, (self.position_dim, self.action_dim))
        require_finite(name, jacobian)
        jacobian.flags.writeable = False
        self._last = (state, self.jacobian_fn, jacobian)
        return jacobian

    def _action_scale(self) -> float:
        """Return dt^k of the action kind."""
        dt = self.control_timestep_s
        return 1.0 if dt is None else dt ** _TIME_POWER[self.action_kind]

    def _require(self, name: str, holds: bool, expected: str, value: Any) -> None:
        if not holds:
            raise InputError(
                f"JacobianControlModel({self.uid!r}).{name}: expected {expected}, got {value!r}."
            )


#: Which acceleration the model declares. An ego needs what it has in every direction at every
#: admissible speed; a partner's bound must be what it never exceeds.
Credit: TypeAlias = Literal["largest", "guaranteed"]

_PLANE: Final = 2


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
        for name in ("max_speed", "max_yaw_rate", "yaw_accel_per_unit"):
            _require_above_zero(f"BodyDrive.{name}", getattr(self, name))

    def body_map(self) -> FloatArray:
        """Return B = diag(1, yaw_accel_per_unit): (s', w') = B u in m/s^2 and rad/s^2."""
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
        for name in ("wheel_radius_m", "track_m", "max_wheel_speed"):
            _require_above_zero(f"WheelDrive.{name}", getattr(self, name))

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
    drive: BodyDrive | WheelDrive
    credit: Credit = "largest"

    def __post_init__(self) -> None:
        name = f"DifferentialDriveControlModel({self.uid!r})"
        _require_above_zero(f"{name}.look_ahead_m", self.look_ahead_m)
        require_kinds(
            name,
            uid=(self.uid, str),
            heading_fn=(self.heading_fn, Callable),
            drive=(self.drive, BodyDrive | WheelDrive),
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


def _require_above_zero(name: str, value: object) -> None:
    if not (is_real(value) and 0.0 < value < math.inf):
        refuse(InputError, name, expected="a finite number > 0", got=shown(value))


#: How a base's velocity follows its command.
RateLimit: TypeAlias = Literal["norm", "axis", "none"]


@dataclass(frozen=True, slots=True)
class VelocityModel:
    """A base whose action is the velocity it is to have.

    Attributes:
        uid: Agent id.
        dim: Cartesian dimension, 2 or 3; also the number of action components.
        max_speed: V: largest Euclidean norm of a command, m/s, > 0.
        max_accel: c: rate at which the velocity follows, m/s^2, > 0; not for ``limit="none"``, nor
            with a lag.
        limit: How it follows.
        lag_s: T: time constant of a first-order base, s, > 0; None for a base with a rate.
        delay_s: Time from a command to its effect, s, >= 0.

    Raises:
        InputError: A value is of another kind or out of range.
    """

    uid: str
    dim: int
    max_speed: float
    max_accel: float = math.inf
    limit: RateLimit = "norm"
    lag_s: float | None = None
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        name = f"VelocityModel({self.uid!r})"
        _require_uid("VelocityModel.uid", self.uid)
        if not (is_whole(self.dim) and self.dim in POSITION_DIMS):
            refuse(InputError, f"{name}.dim", expected="2 or 3", got=self.dim)
        _require_positive(f"{name}.max_speed", self.max_speed, "m/s")
        if self.limit not in get_args(RateLimit):
            expected = f"one of {get_args(RateLimit)}"
            refuse(InputError, f"{name}.limit", expected=expected, got=self.limit)
        if self.lag_s is not None:
            _require_positive(f"{name}.lag_s", self.lag_s, "s")
        if self.has_rate:
            _require_positive(f"{name}.max_accel", self.max_accel, "m/s^2")
        elif self.max_accel != math.inf:
            expected = "none for a base that follows at once or with a lag"
            refuse(InputError, f"{name}.max_accel", expected=expected, got=self.max_accel)
        if not (is_real(self.delay_s) and 0.0 <= self.delay_s <= MAX_BOUND):
            refuse(InputError, f"{name}.delay_s", expected="a time >= 0 s", got=self.delay_s)

    @property
    def has_rate(self) -> bool:
        """Whether ``max_accel`` limits how the velocity follows."""
        return self.lag_s is None and self.limit != "none"

    @property
    def action_dim(self) -> int:
        """Number of action components."""
        return self.dim

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball."""
        return self.dim

    def escape_speed(self, dt: float) -> float:
        """Return the speed of the fastest partner that the base can keep away from, m/s."""
        del dt
        return self.max_speed

    def action_box(self) -> tuple[Vector, Vector]:
        """Return the least and the largest components of an action, m/s."""
        return (-self.max_speed,) * self.dim, (self.max_speed,) * self.dim

    def limited(self, actions: FloatArray) -> FloatArray:
        """Return what the base makes of commands, (..., dim): longer ones are shortened."""
        size = np.linalg.norm(actions, axis=-1, keepdims=True)
        return actions * (self.max_speed / np.maximum(size, self.max_speed))


@dataclass(frozen=True, slots=True)
class PartnerBound:
    """How a partner moves at most, whatever it wants.

    Attributes:
        uid: Agent id.
        max_speed: v_p, m/s, >= 0; zero describes an obstacle that stands still.
        max_accel: a_p, m/s^2, >= 0; infinite for a partner that changes its velocity at once.

    Raises:
        InputError: A value is of another kind or out of range.
    """

    uid: str
    max_speed: float
    max_accel: float = math.inf

    def __post_init__(self) -> None:
        name = f"PartnerBound({self.uid!r})"
        _require_uid("PartnerBound.uid", self.uid)
        if not (is_real(self.max_speed) and 0.0 <= self.max_speed <= MAX_BOUND):
            refuse(InputError, f"{name}.max_speed", expected="a speed >= 0 m/s", got=self.max_speed)
        if not (is_real(self.max_accel) and self.max_accel >= 0.0):
            expected = "an acceleration >= 0 m/s^2, or infinity"
            refuse(InputError, f"{name}.max_accel", expected=expected, got=self.max_accel)


def _require_uid(name: str, uid: object) -> None:
    if not isinstance(uid, str):
        refuse(InputError, name, expected="an agent id as text", got=uid)


def _require_positive(name: str, value: object, unit: str) -> None:
    if not (is_real(value) and MIN_BOUND <= value <= MAX_BOUND):
        expected = f"a number in [{MIN_BOUND:g}, {MAX_BOUND:g}] {unit}"
        refuse(InputError, name, expected=expected, got=value)


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

    def limited(self, actions: FloatArray) -> FloatArray:
        """Return what the base makes of commands, (..., 2): each is cut to its limits."""
        return np.clip(actions, *self.action_box())

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

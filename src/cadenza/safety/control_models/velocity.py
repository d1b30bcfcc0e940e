"""A holonomic base that takes velocity commands, and how fast a partner moves at most.

Response:   under a constant command r the base's velocity v goes to r
                limit="none"   at once;
                limit="norm"   straight, at the rate c;
                limit="axis"   each component for itself, at the rate c;
                lag_s=T        as r + (v - r) exp(-s / T), whatever ``limit`` says.
Delay:      a command acts ``delay_s`` after it was given, and until the next one does.
Units:      m/s, m/s^2, s.
Limits:     slip, and limits that differ by direction, are not modelled: declare the smaller rate.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import InputError, refuse
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND
from cadenza.safety.geometry import Vector
from cadenza.safety.snapshot import POSITION_DIMS

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

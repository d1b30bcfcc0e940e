"""What an arm must keep to, beside its joint limits.

Each rule says what is kept (`h >= 0`), how fast it may be approached and whether it may be relaxed.
Units:  m, m/s, rad, s.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import checked_flag, is_real, require_positive
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.geometry import Capsule, HalfSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """How a rule enters the programme.

    Attributes:
        hard: Hard rows are met exactly, or the command is flagged; soft ones are relaxed at the
            cost of ``weight`` s^2 / 2 for a slack s.
        weight: Cost of a squared slack; only soft rows have one.
        gain: Velocity level: h' >= -gain h. Torque level: h'' + (gain + second_gain) h' +
            gain second_gain h >= 0. 1/s, > 0, and at most 1 / dt.
        second_gain: Second rate of the torque level, 1/s; None repeats ``gain``.

    Raises:
        ConfigurationError: A number that is not finite and positive.
    """

    hard: bool = True
    weight: float = 100.0
    gain: float = 5.0
    second_gain: float | None = None

    def __post_init__(self) -> None:
        checked_flag("Priority.hard", self.hard)
        for name in ("weight", "gain", "second_gain"):
            if getattr(self, name) is not None:
                require_positive(f"Priority.{name}", getattr(self, name))

    @property
    def gains(self) -> tuple[float, float]:
        """Both rates of the torque level, 1/s."""
        return self.gain, self.gain if self.second_gain is None else self.second_gain


class Priorities(list[Priority]):
    """How each row enters, with the numbers of all rows as arrays, which are made once."""

    @cached_property
    def numbers(self) -> FloatArray:
        """Gain, sum and product of both gains, and weight of each row, shape (4, m)."""
        rows = [(p.gain, sum(p.gains), math.prod(p.gains), p.weight) for p in self]
        return np.array(rows).reshape(-1, 4).T

    @cached_property
    def hard(self) -> NDArray[np.bool_]:
        """Which rows are hard, shape (m,)."""
        return np.array([priority.hard for priority in self], dtype=bool)

    @staticmethod
    def of(priorities: list[Priority]) -> "Priorities":
        """Return priorities with their arrays."""
        return priorities if isinstance(priorities, Priorities) else Priorities(priorities)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCollisionRule:
    """Keeps the arm's links apart: h = gap between two of its collision spheres - margin.

    Attributes:
        margin_m: Smallest gap, m, >= 0.
        nearest: Number of sphere pairs that get a row, the nearest ones, >= 1.
        priority: How the rows enter.
    """

    margin_m: float = 0.0
    nearest: int = 5
    priority: Priority = field(default_factory=Priority)

    def __post_init__(self) -> None:
        _require_nearest(type(self).__name__, self.nearest)
        if not (is_real(self.margin_m) and 0.0 <= self.margin_m < math.inf):
            raise ConfigurationError(
                f"{type(self).__name__}.margin_m: expected a finite length >= 0 m, got "
                f"{self.margin_m}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObstacleRule(SelfCollisionRule):
    """Keeps the arm off the obstacles of each step: h = gap of sphere and obstacle - margin.

    ``nearest`` counts pairs of a sphere and an obstacle.
    """

    nearest: int = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HalfSpaceRule:
    """Keeps every sphere out of a half-space, e.g. a table: h = gap to its plane.

    Attributes:
        name: How the rows are called.
        solid: The forbidden half-space; its normal points into the allowed side.
        nearest: Number of spheres that get a row, those nearest to the plane, >= 1.
        priority: How the rows enter.
    """

    name: str
    solid: HalfSpace
    nearest: int = 4
    priority: Priority = field(default_factory=Priority)

    def __post_init__(self) -> None:
        _require_nearest(f"HalfSpaceRule {self.name!r}", self.nearest)
        require_shape(f"HalfSpaceRule {self.name!r}.solid.normal", self.solid.normal, (3,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingularityRule:
    """Keeps the arm away from singular configurations: h = manipulability - minimum.

    Attributes:
        minimum: Smallest product of the singular values of the end effector's Jacobian, > 0. The
            unit mixes m and rad; measure the value of good configurations of the arm first.
        priority: How the row enters.
    """

    minimum: float
    priority: Priority = field(default_factory=Priority)

    def __post_init__(self) -> None:
        require_positive("SingularityRule.minimum", self.minimum)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRule:
    """Limits the speed of the end effector's origin after the step.

    Attributes:
        limit: Largest Euclidean speed, m/s, > 0.
        priority: Hard or soft; the limit acts at once, without a rate.
    """

    limit: float
    priority: Priority = field(default_factory=Priority)

    def __post_init__(self) -> None:
        require_positive("SpeedRule.limit", self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmConstraints:
    """Everything one arm must keep to.

    Attributes:
        joint_gain: Rate at which a joint may approach its position limit, 1/s, > 0: q' <=
            joint_gain (q_max - q). Joint limits are always hard.
        braking_share: Part of the acceleration limit that the stopping distance of a joint counts
            on, in (0, 1]; the rest makes up for the difference between model and arm.
        self_collision: Between the links; None switches it off.
        obstacles: Against the obstacles passed with each step.
        half_spaces: Planes, each with its own priority.
        singularity: Margin to singular configurations; None switches it off.
        speed: Limit of the end effector; None switches it off.

    Raises:
        ConfigurationError: ``joint_gain`` or ``braking_share`` is out of range.
    """

    joint_gain: float = 20.0
    braking_share: float = 0.8
    self_collision: SelfCollisionRule | None = None
    obstacles: ObstacleRule = field(default_factory=ObstacleRule)
    half_spaces: tuple[HalfSpaceRule, ...] = ()
    singularity: SingularityRule | None = None
    speed: SpeedRule | None = None

    def __post_init__(self) -> None:
        require_positive("ArmConstraints.joint_gain", self.joint_gain)
        if not (is_real(self.braking_share) and 0.0 < self.braking_share <= 1.0):
            raise ConfigurationError(
                f"ArmConstraints.braking_share: expected in (0, 1], got {self.braking_share}."
            )

    def largest_gain(self) -> float:
        """Return the fastest rate of any rule, 1/s."""
        rules = [self.self_collision, self.obstacles, self.singularity, *self.half_spaces]
        return max(
            self.joint_gain, *(rate for rule in rules if rule for rate in rule.priority.gains)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Obstacle:
    """A capsule or ball the arm must not touch, as it is at this step.

    Attributes:
        name: How the rows are called.
        shape: Where it is; a ball is a capsule whose ends coincide.
        velocity: Velocity of the whole obstacle, shape (3,), m/s.
        acceleration_bound: Largest acceleration it may have, m/s^2, >= 0; only the torque level
            needs it.

    Raises:
        InputError: A velocity of the wrong shape or not finite, or a bound out of range.
    """

    name: str
    shape: Capsule
    velocity: FloatArray = field(default_factory=lambda: np.zeros(3))
    acceleration_bound: float = 0.0

    def __post_init__(self) -> None:
        require_shape(f"Obstacle {self.name!r}.shape.start", self.shape.start, (3,))
        velocity = np.asarray(self.velocity, dtype=np.float64)
        require_shape(f"Obstacle {self.name!r}.velocity", velocity, (3,))
        require_finite(f"Obstacle {self.name!r}.velocity", velocity)
        object.__setattr__(self, "velocity", velocity)
        if not (is_real(self.acceleration_bound) and 0.0 <= self.acceleration_bound < math.inf):
            raise InputError(
                f"Obstacle {self.name!r}.acceleration_bound: expected a finite number >= 0 m/s^2, "
                f"got {self.acceleration_bound}."
            )

    @classmethod
    def ball(
        cls,
        name: str,
        center: FloatArray,
        radius: float,
        *,
        velocity: FloatArray | None = None,
        acceleration_bound: float = 0.0,
    ) -> "Obstacle":
        """Return a ball around ``center``, shape (3,), m."""
        return cls(
            name=name,
            shape=Capsule(center, center, radius),
            velocity=np.zeros(3) if velocity is None else velocity,
            acceleration_bound=acceleration_bound,
        )


def _require_nearest(owner: str, nearest: int) -> None:
    if nearest < 1:
        raise ConfigurationError(f"{owner}.nearest: expected >= 1, got {nearest}.")

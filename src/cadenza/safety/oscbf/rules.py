"""What an arm must keep to beside its joint limits, and the rows that say so at one state.

Each rule says what is kept (h >= 0), how fast it may be approached and whether it may be relaxed.
It yields h, its gradient g over the joints, and what the joints do not control:
    h'  = g @ q'  + drift            drift: motion of the obstacle
    h'' = g @ q'' + bias             bias: curvature, J' q', the obstacle's acceleration at worst
Velocity level:  -g @ q'  <=  gain h + drift
Torque level:    -g @ q'' <=  bias + (gain + second_gain) h' + gain second_gain h
Distance bias:   n @ (J' q') + |u_t|^2 / distance - acceleration bound, with u_t the relative
                 velocity across the normal; beside a capsule without its part along the axis.
Source:          exponential barriers, Nguyen and Sreenath, doi:10.1109/ACC.2016.7524935.
Axes:            n joints, S spheres, O obstacles, m rows.
Units:           m, m/s, rad, s; the unit of h for the singularity margin.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import checked_flag, is_real, require_positive
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.lazy_names import Deferred
from cadenza.safety.arms.arm import ArmModel, ArmState
from cadenza.safety.cbf import COINCIDENT_DISTANCE
from cadenza.safety.geometry import Capsule, HalfSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """How a rule enters the program.

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
    def cost(self) -> float:
        """Cost of a squared slack; infinite for hard rows."""
        return math.inf if self.hard else self.weight

    @property
    def gains(self) -> tuple[float, float]:
        """Both rates of the torque level, 1/s."""
        return self.gain, self.gain if self.second_gain is None else self.second_gain


class Priorities(list[Priority]):
    """How each row enters, with the numbers of all rows as arrays, which are made once."""

    @cached_property
    def numbers(self) -> FloatArray:
        """Gain, sum and product of both gains, and cost of slack of each row, shape (4, m)."""
        rows = [(p.gain, sum(p.gains), math.prod(p.gains), p.cost) for p in self]
        return np.array(rows).reshape(-1, 4).T

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


@dataclass(slots=True, eq=False)
class BarrierRows(Deferred):
    """Barriers of one step, m of them."""

    gradient: FloatArray  # g, shape (m, n)
    h: FloatArray  # Barrier values, shape (m,)
    drift: FloatArray  # Part of h' that is not g @ q', shape (m,)
    bias: FloatArray  # Part of h'' that is not g @ q'', shape (m,)
    #: How each row enters, m of them
    priorities: list[Priority] = field(default_factory=list[Priority])
    names: list[str] = field(default_factory=list[str])  # What each row is about, m names

    @property
    def costs(self) -> FloatArray:
        """Cost of a squared slack of each row, shape (m,); infinite for hard rows."""
        return Priorities.of(self.priorities).numbers[3]

    def velocity_rows(self) -> tuple[FloatArray, FloatArray]:
        """Return A, shape (m, n), and b, shape (m,), of A q' <= b."""
        gain = Priorities.of(self.priorities).numbers[0]
        return -self.gradient, gain * self.h + self.drift

    def acceleration_rows(self, q_dot: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return A, shape (m, n), and b, shape (m,), of A q'' <= b."""
        _, total, product, _ = Priorities.of(self.priorities).numbers
        rate = self.gradient @ q_dot + self.drift
        return -self.gradient, self.bias + total * rate + product * self.h


class _Gaps(NamedTuple):
    """Gaps that one rule looks at: the nearest ones, m of them."""

    normal: FloatArray  # Unit vectors towards ``sphere``, shape (m, 3) or (3,)
    sphere: NDArray[np.intp]  # A sphere of the arm per gap, shape (m,)
    #: The other sphere, shape (m,); None if the arm does not carry it
    other: NDArray[np.intp] | None
    h: FloatArray  # Gaps less the margin, shape (m,), m
    drift: FloatArray | float  # As in `BarrierRows`
    bias: Callable[[], FloatArray]  # Computes the bias
    names: Callable[[], list[str]]  # Makes the names
    priority: Priority  # How the rows enter


class RowBuilder:
    """Builds the rows of one arm under fixed rules.

    Args:
        arm: The arm; its spheres that no joint moves are left to the caller's layout.
        constraints: The rules.
    """

    def __init__(self, arm: ArmModel, constraints: ArmConstraints) -> None:
        self._constraints = constraints
        self._links = arm.sphere_links
        self._radii = arm.sphere_radii
        self._movable = np.flatnonzero(arm.movable_spheres)
        self._movable_radii = self._radii[self._movable]
        self._pairs = np.ascontiguousarray(arm.self_collision_pairs.T)
        self._pair_radii = self._radii[self._pairs].sum(axis=0)
        self._priorities: dict[tuple[int, ...], Priorities] = {}

    def build(self, state: ArmState, obstacles: Sequence[Obstacle]) -> BarrierRows:
        """Return the rows at ``state``; the end effector's speed limit is no barrier.

        Their ``bias`` and ``names`` are made when they are read.
        """
        n, rules = state.q.shape[0], self._constraints
        gaps: list[_Gaps] = []
        if rules.self_collision is not None and self._pairs.size:
            gaps.append(self._self_collision(state))
        if obstacles:
            gaps.append(self._obstacles(state, obstacles))
        gaps.extend(self._half_space(state, plane) for plane in rules.half_spaces)
        singularity = rules.singularity
        priorities = self._priorities_of(gaps)
        total = len(priorities)
        m = total if singularity is None else total - 1
        gradient, normal = np.empty((total, n)), np.empty((m, 3))
        h, drift = np.empty((2, total))
        sphere, other = np.empty((2, m), np.intp)
        other[:] = -1
        start = 0
        for gap in gaps:
            part = slice(start, start := start + len(gap.h))
            normal[part], sphere[part], h[part], drift[part] = (
                gap.normal,
                gap.sphere,
                gap.h,
                gap.drift,
            )
            if gap.other is not None:
                other[part] = gap.other
        gradient[:m] = state.gap_gradients(normal, sphere, other)
        drift[m:] = 0.0
        if singularity is not None:
            if state.manipulability is None or state.manipulability_gradient is None:
                raise InputError(
                    "SingularityRule: expected a state with its manipulability, got none; call "
                    "arm.state(q, q_dot, with_manipulability=True)."
                )
            gradient[m], h[m] = state.manipulability_gradient, state.manipulability
            h[m] -= singularity.minimum

        def bias() -> dict[str, FloatArray]:
            last = [] if singularity is None else [[state.manipulability_curvature]]
            return {"bias": np.concatenate([np.zeros(0), *(gap.bias() for gap in gaps), *last])}

        def names() -> dict[str, list[str]]:
            found = [name for gap in gaps for name in gap.names()]
            return {"names": found if singularity is None else [*found, "singularity"]}

        return BarrierRows.deferred(
            {"bias": bias, "names": names},
            gradient=gradient,
            h=h,
            drift=drift,
            priorities=priorities,
        )

    def _priorities_of(self, gaps: list[_Gaps]) -> Priorities:
        """Return how the rows enter; the rules are fixed, so only their numbers of rows count."""
        counts = tuple([len(gap.h) for gap in gaps])
        if counts not in self._priorities:
            rule = self._constraints.singularity
            self._priorities[counts] = Priorities(
                [gap.priority for gap in gaps for _ in gap.h] + ([rule.priority] if rule else [])
            )
        return self._priorities[counts]

    def _self_collision(self, state: ArmState) -> _Gaps:
        rule = self._constraints.self_collision
        assert rule is not None  # noqa: S101 - only called with the rule
        centers = state.sphere_centers
        ends = centers.take(self._pairs, axis=0)
        offset = ends[0] - ends[1]
        distance = np.sqrt(np.vecdot(offset, offset))
        gap = distance - self._pair_radii
        chosen = smallest(gap, rule.nearest)
        (i, j), distance = self._pairs.take(chosen, axis=1), distance.take(chosen)
        normal = directions(offset.take(chosen, axis=0), distance)

        def bias() -> FloatArray:
            velocity = state.sphere_velocities[i] - state.sphere_velocities[j]
            pull = np.vecdot(normal, state.sphere_bias[i] - state.sphere_bias[j])
            return pull + turning(normal, velocity, distance)

        def names() -> list[str]:
            return [f"self:{self._links[a]}/{self._links[b]}" for a, b in zip(i, j, strict=True)]

        h = gap.take(chosen) - rule.margin_m
        return _Gaps(normal, i, j, h, 0.0, bias, names, rule.priority)

    def _obstacles(self, state: ArmState, obstacles: Sequence[Obstacle]) -> _Gaps:
        rule = self._constraints.obstacles
        start = np.array([obstacle.shape.start for obstacle in obstacles])
        axis = np.array([obstacle.shape.end for obstacle in obstacles]) - start
        radius = np.array([obstacle.shape.radius for obstacle in obstacles])
        points = state.sphere_centers.take(self._movable, axis=0)
        offset, inside = offsets_to_segments(points, start, axis)
        distance = np.sqrt(np.vecdot(offset, offset))
        gap = distance - self._movable_radii[:, None] - radius
        flat = smallest(gap.reshape(-1), rule.nearest)
        row, which = np.divmod(flat, len(obstacles))
        sphere, distance = self._movable.take(row), distance.take(flat)
        normal = directions(offset.reshape(-1, 3).take(flat, axis=0), distance)
        velocities = np.array([obstacle.velocity for obstacle in obstacles]).take(which, axis=0)

        def bias() -> FloatArray:
            velocity = state.sphere_velocities[sphere] - velocities
            # Sliding along the axis of a capsule does not turn the normal.
            length = np.sqrt(np.vecdot(axis, axis))
            unit = axis[which] / np.maximum(length, COINCIDENT_DISTANCE)[which][:, None]
            beside = inside.take(flat)[:, None] * unit
            across = velocity - np.vecdot(velocity, beside)[:, None] * beside
            bounds = np.array([obstacle.acceleration_bound for obstacle in obstacles])[which]
            pull = np.vecdot(normal, state.sphere_bias[sphere])
            return pull + turning(normal, across, distance) - bounds

        def names() -> list[str]:
            found = zip(which, sphere, strict=True)
            return [f"obstacle:{obstacles[int(o)].name}/{self._links[s]}" for o, s in found]

        h, drift = gap.take(flat) - rule.margin_m, -np.vecdot(normal, velocities)
        return _Gaps(normal, sphere, None, h, drift, bias, names, rule.priority)

    def _half_space(self, state: ArmState, plane: HalfSpaceRule) -> _Gaps:
        normal = plane.solid.normal
        gap = (state.sphere_centers @ normal - self._radii).take(self._movable) - plane.solid.offset
        nearest = smallest(gap, plane.nearest)
        sphere = self._movable.take(nearest)

        def names() -> list[str]:
            return [f"half_space:{plane.name}/{self._links[s]}" for s in sphere]

        def bias() -> FloatArray:
            return state.sphere_bias[sphere] @ normal

        return _Gaps(normal, sphere, None, gap.take(nearest), 0.0, bias, names, plane.priority)


def smallest(values: FloatArray, count: int) -> NDArray[np.intp]:
    """Return the indices of the ``count`` smallest values, in ascending order of index."""
    if values.shape[0] <= count:
        return np.arange(values.shape[0], dtype=np.intp)
    chosen = np.argpartition(values, count - 1)[:count]
    chosen.sort()
    return chosen


def directions(offset: FloatArray, distance: FloatArray) -> FloatArray:
    """Return unit vectors, shape (m, 3); +x where the distance is too small to tell."""
    if min(distance.tolist()) >= COINCIDENT_DISTANCE:
        return offset / distance[:, None]
    normal: FloatArray = offset / np.maximum(distance, COINCIDENT_DISTANCE)[:, None]
    normal[distance < COINCIDENT_DISTANCE] = (1.0, 0.0, 0.0)
    return normal


def turning(normal: FloatArray, velocity: FloatArray, distance: FloatArray) -> FloatArray:
    """Return |velocity across the normal|^2 / distance, shape (m,), m/s^2; always >= 0."""
    radial = np.vecdot(normal, velocity)
    across: FloatArray = np.vecdot(velocity, velocity) - radial * radial
    return np.maximum(across, 0.0) / np.maximum(distance, COINCIDENT_DISTANCE)


def offsets_to_segments(
    points: FloatArray, start: FloatArray, axis: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return vectors from the nearest points of segments, (S, O, 3), and which lie within these.

    Points (S, 3), first ends and second less first ends (O, 3), m; zero for a point.
    """
    offset = points[:, None, :] - start
    if not np.count_nonzero(axis):  # nothing but points
        return offset, np.zeros(offset.shape[:2], dtype=bool)
    length_squared = np.vecdot(axis, axis)
    place = np.vecdot(offset, axis)
    place /= np.maximum(length_squared, COINCIDENT_DISTANCE * COINCIDENT_DISTANCE)
    clipped = np.clip(place, 0.0, 1.0)
    inside = (place > 0.0) & (place < 1.0) & (length_squared > 0.0)
    return offset - clipped[:, :, None] * axis, inside

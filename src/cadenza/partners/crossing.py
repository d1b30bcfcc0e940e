"""Partners of the crossing task: motion laws of planar double integrators, and five partners.

Plant:   p' = p + v dt + a dt^2 / 2,  v' = v + a dt,  each component |a| <= L (zero-order hold).
State:   own position (2), own velocity (2), goal minus position (2), then for every other robot,
         ego first, relative position (2) and relative velocity (2): 6 + 4 (n - 1) numbers, float32.
Action:  acceleration (2), float32; each component within `ACCELERATION_LIMIT`.
Numbers: every law takes plain floats (one robot) or float64 arrays of shape (N,) and uses only
         + - * / sqrt min max, which IEEE 754 rounds alike in both, so row i of a batch is
         bit-identical to the scalar result. `SCALAR` and `ARRAY` carry the spelling of each.
Random:  row 0 of a batch draws from the stream of the episode, row i from its child i; after
         ``reset_row(i, seed=s)`` row i repeats what a scalar partner does after ``reset(seed=s)``.
Units:   m, m/s, m/s^2, s.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.interface import RowGenerators, read_state
from cadenza.partners.options import FamilyPartner, NumberOption
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

#: Control step of the crossing task, s; `cadenza.envs.crossing` uses the same number.
CONTROL_STEP_S: Final = 0.05
#: Declared bound on each acceleration component of a partner, m/s^2: what the ego's safety filter
#: counts on.
ACCELERATION_LIMIT: Final = 0.5
#: Lengths below this are divided by as if they were this: 1 nm is far below float32 positions (m).
MIN_LENGTH: Final = 1e-9
#: Slack of a reachability test, relative and in m: each start meets its own bound with equality, up
#: to a few roundings (1e-16).
_TIME_SLACK: Final = 1e-9

#: A float, or a float64 array of shape (N,).
Real: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The four operations that floats and arrays spell differently."""

    sqrt: Callable[[Real], Real]
    minimum: Callable[[Real, Real], Real]
    maximum: Callable[[Real, Real], Real]
    where: Callable[[Any, Real, Real], Real]


SCALAR: Final = Arithmetic(
    sqrt=math.sqrt,
    minimum=lambda a, b: a if a < b else b,
    maximum=lambda a, b: a if a > b else b,
    where=lambda condition, a, b: a if condition else b,
)
ARRAY: Final = Arithmetic(sqrt=np.sqrt, minimum=np.minimum, maximum=np.maximum, where=np.where)


class Sight(NamedTuple):
    """What a crossing partner sees, m and m/s.

    Own position p and velocity v, the goal g, the ego's position r and velocity w; g, r and w are
    relative to the partner.
    """

    px: Real
    py: Real
    vx: Real
    vy: Real
    gx: Real
    gy: Real
    rx: Real
    ry: Real
    wx: Real
    wy: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Corridor:
    """Limits of one coordinate, m, m/s, m/s^2, with walls at both half widths; step in s."""

    half_width: float
    speed: float
    acceleration: float
    step_s: float


def scale_into_box(ax: Real, ay: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return ``(ax, ay)``, shortened along its direction until each component is <= ``limit``."""
    largest = math_of.maximum(math_of.maximum(abs(ax), abs(ay)), limit)
    factor = limit / largest
    return ax * factor, ay * factor


def stretch_to_box(x: Real, y: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return the longest vector along ``(x, y)`` whose components are <= ``limit``."""
    factor = limit / math_of.maximum(math_of.maximum(abs(x), abs(y)), MIN_LENGTH)
    return x * factor, y * factor


def latest_safe_speed(
    distance: Real, speed: Real, limit: Real, step_s: float, math_of: Arithmetic
) -> Real:
    """Return the largest speed after this step from which full braking still stops in time.

    With v' the speed after the step, the step covers (v + v') dt / 2 and stopping from v' another
    v'^2 / (2 L). Setting their sum to the distance d and solving for v': v' = L (-dt/2 +
    sqrt(dt^2/4 + 2 (d - v dt/2) / L)); its smallest value if it is too late already.
    """
    half = 0.5 * step_s
    under_root = half * half + 2.0 * (distance - speed * half) / limit
    return limit * (math_of.sqrt(math_of.maximum(under_root, 0.0)) - half)


def stay_inside(
    position: Real,
    speed: Real,
    wanted: Real,
    bounds: Corridor,
    math_of: Arithmetic,
) -> Real:
    """Return the acceleration closest to ``wanted`` that can still stop before both walls.

    From a state that satisfies it, the condition can be satisfied for ever: the walls hold exactly
    at the sampling instants, whatever ``wanted`` does.
    """
    limit, step_s = bounds.acceleration, bounds.step_s
    highest = latest_safe_speed(bounds.half_width - position, speed, limit, step_s, math_of)
    lowest = -latest_safe_speed(bounds.half_width + position, -speed, limit, step_s, math_of)
    highest = math_of.minimum(highest, bounds.speed)
    lowest = math_of.maximum(lowest, -bounds.speed)
    target = math_of.minimum(math_of.maximum(speed + wanted * step_s, lowest), highest)
    acceleration = (target - speed) / step_s
    return math_of.minimum(math_of.maximum(acceleration, -limit), limit)


def arrive_and_stop(
    distance: Real, speed: Real, limit: Real, step_s: float, math_of: Arithmetic
) -> Real:
    """Return the time-optimal acceleration towards a point, braking at the last moment.

    Full acceleration, then full braking from the last sampling instant at which that suffices. The
    last two steps are dead-beat where the bound allows: a1 = (d - 1.5 v dt) / dt^2 and
    a2 = -v/dt - a1 bring way and speed to zero together.
    """
    target = latest_safe_speed(distance, speed, limit, step_s, math_of)
    far = math_of.minimum(math_of.maximum((target - speed) / step_s, -limit), limit)
    first = (distance - 1.5 * speed * step_s) / (step_s * step_s)
    second = -speed / step_s - first
    near = math_of.maximum(abs(first), abs(second)) <= limit
    return math_of.where(near, first, far)


def intercept_time(sight: Sight, limit: float, math_of: Arithmetic) -> Real:
    """Return the earliest time, s, at which one constant acceleration can meet the ego.

    The ego keeps its velocity, so the gap drifts as r + w T and an acceleration with components
    <= L covers up to L T^2 / 2 of each: T is reachable where |r_i + w_i T| <= L T^2 / 2 for both.
    The reachable times of one component are [first, ...) less an interval in which the gap has
    swept past zero; so the earliest common time is one of the four starts of `_reach_times`.
    """
    starts = (
        *_reach_times(sight.rx, sight.wx, limit, math_of),
        *_reach_times(sight.ry, sight.wy, limit, math_of),
    )
    # From the later of the two last starts on, every time is reachable.
    earliest = math_of.maximum(starts[1], starts[3])
    for time in starts:
        reach = 0.5 * limit * time * time * (1.0 + _TIME_SLACK) + _TIME_SLACK
        reachable = (abs(sight.rx + sight.wx * time) <= reach) & (
            abs(sight.ry + sight.wy * time) <= reach
        )
        earliest = math_of.where(reachable, math_of.minimum(time, earliest), earliest)
    return earliest


def _reach_times(offset: Real, rate: Real, limit: float, math_of: Arithmetic) -> tuple[Real, Real]:
    """Return the first reachable time of one coordinate, and the start of the last interval."""
    away = math_of.where(offset < 0.0, -rate, rate)
    gap = 2.0 * limit * abs(offset)
    square = away * away
    first = (away + math_of.sqrt(square + gap)) / limit
    sweeps_past = (away < 0.0) & (square > gap)
    again = (math_of.sqrt(math_of.maximum(square - gap, 0.0)) - away) / limit
    return first, math_of.where(sweeps_past, again, first)


#: Numbers in the state about the robot itself, and about each other robot.
_OWN_SIZE: Final = 6
_OTHER_SIZE: Final = 4
#: Numbers the partners read: themselves and the ego.
_SIGHT_SIZE: Final = _OWN_SIZE + _OTHER_SIZE

#: Option of every crossing partner.
MAX_ACCELERATION: Final = NumberOption(
    key="max_acceleration",
    default=ACCELERATION_LIMIT,
    low=0.0,
    high=ACCELERATION_LIMIT,
    summary="bound on each acceleration component, m/s^2",
)


class CrossingPartner(FamilyPartner):
    """Base of the crossing partners; a subclass adds its options and one acceleration law."""

    tasks: ClassVar[tuple[str, ...]] = ("crossing",)
    common_options: ClassVar[tuple[NumberOption, ...]] = (MAX_ACCELERATION,)

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._limit = self._options[MAX_ACCELERATION.key]

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the acceleration for the state that ``obs`` holds, m/s^2, (2,), or (N, 2).

        Raises:
            InputError: The state is missing, of another layout or not finite.
        """
        del deterministic
        state = read_state(obs, self._uid)
        others, rest = divmod(state.shape[-1] - _OWN_SIZE, _OTHER_SIZE)
        if others < 1 or rest:
            raise InputError(
                f"{type(self).__name__}: expected a state of 6 + 4 (n - 1) numbers for n >= 2 "
                f"robots, got shape {state.shape}; is {self._uid!r} a robot of the crossing task?"
            )
        if state.ndim == 1:
            numbers = state[:_SIGHT_SIZE].tolist()
            if not math.isfinite(sum(numbers)):
                require_finite(f"obs['agent'][{self._uid!r}]['state']", state)
            action = np.array(self.acceleration(Sight(*numbers), SCALAR), dtype=np.float32)
        else:
            require_finite(f"obs['agent'][{self._uid!r}]['state']", state)
            columns: FloatArray = state[:, :_SIGHT_SIZE].T.astype(np.float64)
            action = np.stack(self.acceleration(Sight(*columns), ARRAY), axis=1).astype(np.float32)
        return self.checked(action)

    @abstractmethod
    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the two acceleration components, floats or arrays (N,) as in ``sight``."""


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
    """Drives to its goal at moderate speed and stops there.

    Law:    v* = g * min(k_p, v_max / |g|),  a = k_d (v* - v), shortened to the acceleration bound:
            a PD controller on the goal offset g whose speed is limited.
    Random: v_max, anew for every episode, uniform within `speed_spread` of `max_speed`.
    Limits: avoids nobody; the gains keep the braking demand k_p * v_max near the bound.
    """

    number_options: ClassVar[tuple[NumberOption, ...]] = (
        _MAX_SPEED,
        _SPEED_SPREAD,
        _POSITION_GAIN,
        _VELOCITY_GAIN,
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._max_speed = self._options[_MAX_SPEED.key]
        self._spread = self._options[_SPEED_SPREAD.key]
        self._position_gain = self._options[_POSITION_GAIN.key]
        self._velocity_gain = self._options[_VELOCITY_GAIN.key]
        self._speeds: FloatArray = np.zeros(0)

    def reset(self, *, seed: int | None = None) -> None:
        """Draw the cruising speed of a new episode from the stream that ``seed`` selects."""
        super().reset(seed=seed)
        self._speeds = np.zeros(0)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        speeds = self._cruising_speeds(row + 1)
        super().reset_row(row, seed=seed)
        speeds[row] = self._draw(row)

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
        new = [self._draw(row) for row in range(len(self._speeds), rows)]
        self._speeds = np.append(self._speeds, new)
        return self._speeds[:rows]

    def _draw(self, row: int) -> float:
        """Return one cruising speed, m/s."""
        low, high = 1.0 - self._spread, 1.0 + self._spread
        return self._max_speed * float(self.generators[row].uniform(low, high))


@register_partner("crossing_stationary")
class CrossingStationary(CrossingPartner):
    """Brakes to rest and stays there.

    Law:    a = -v / dt, shortened to the acceleration bound: full braking, then exactly zero speed.
    """

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the braking command."""
        return scale_into_box(
            -sight.vx / CONTROL_STEP_S, -sight.vy / CONTROL_STEP_S, self._limit, math_of
        )


_ARENA: Final = NumberOption(
    key="arena_half_width", default=2.5, low=0.0, high=100.0, summary="walls of its square, m"
)
_WANDERING_SPEED: Final = NumberOption(
    key="max_speed", default=0.8, low=0.0, high=10.0, summary="bound on each speed component, m/s"
)
_KNOT_INTERVAL: Final = NumberOption(
    key="knot_interval", default=0.5, low=0.05, high=10.0, low_excluded=False,
    summary="time between two random accelerations, s",
)  # fmt: skip


class _Knots:
    """Random accelerations of the rows of a batch, growing with the batch.

    Attributes:
        start: Last knot, (N, 2); `end` the next one.
        phase: Steps since the last knot, (N,).
    """

    def __init__(self, generators: RowGenerators, limit: float, steps: int) -> None:
        self._generators = generators
        self._limit = limit
        self._steps = steps
        self.start: FloatArray = np.zeros((0, 2))
        self.end: FloatArray = np.zeros((0, 2))
        self.phase: FloatArray = np.zeros(0)

    def grow(self, rows: int) -> None:
        """Add rows until there are at least ``rows``."""
        for row in range(len(self.phase), rows):
            fresh = np.zeros((1, 2))
            self.start, self.end = np.vstack((self.start, fresh)), np.vstack((self.end, fresh))
            self.phase = np.append(self.phase, 0.0)
            self.begin(row)

    def begin(self, row: int) -> None:
        """Draw the first knots of an episode in ``row``."""
        self.start[row] = self._draw(row)
        self.end[row] = self._draw(row)
        self.phase[row] = 0.0

    def advance(self, rows: int) -> None:
        """Count one step in the first ``rows`` rows and draw the knots that are due."""
        phase = self.phase[:rows]
        phase += 1.0
        for row in np.flatnonzero(phase >= self._steps).tolist():
            self.start[row] = self.end[row]
            self.end[row] = self._draw(row)
            phase[row] = 0.0

    def _draw(self, row: int) -> FloatArray:
        return self._generators[row].uniform(-self._limit, self._limit, 2)


@register_partner("crossing_wanderer")
class CrossingWanderer(CrossingPartner):
    """Wanders about the arena with smooth random accelerations.

    Law:    each component of the wanted acceleration runs through knots drawn uniformly from
            [-L, L], one every `knot_interval` seconds, joined by the cubic 3 s^2 - 2 s^3; walls and
            speed bound then change it as little as needed (`stay_inside`).
    """

    number_options: ClassVar[tuple[NumberOption, ...]] = (_ARENA, _WANDERING_SPEED, _KNOT_INTERVAL)

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._corridor = Corridor(
            half_width=self._options[_ARENA.key],
            speed=self._options[_WANDERING_SPEED.key],
            acceleration=self._limit,
            step_s=CONTROL_STEP_S,
        )
        self._steps = max(1, round(self._options[_KNOT_INTERVAL.key] / CONTROL_STEP_S))
        self._knots: _Knots | None = None

    def reset(self, *, seed: int | None = None) -> None:
        """Draw a new episode's accelerations from the stream that ``seed`` selects."""
        super().reset(seed=seed)
        self._knots = None

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        knots = self._grown_knots(row + 1)
        super().reset_row(row, seed=seed)
        knots.begin(row)

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the next random acceleration, as far as walls and speed bound allow."""
        wanted_x, wanted_y = self._next_wanted(sight, math_of)
        return (
            stay_inside(sight.px, sight.vx, wanted_x, self._corridor, math_of),
            stay_inside(sight.py, sight.vy, wanted_y, self._corridor, math_of),
        )

    def _grown_knots(self, rows: int) -> _Knots:
        """Return the knots of at least ``rows`` rows."""
        if self._knots is None:
            self._knots = _Knots(self.generators, self._limit, self._steps)
        self._knots.grow(rows)
        return self._knots

    def _next_wanted(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the wanted acceleration of every row and move on by one step."""
        rows = 1 if math_of is SCALAR else len(sight.px)
        knots = self._grown_knots(rows)
        start_x: Real
        if math_of is SCALAR:
            (start_x, start_y), (end_x, end_y) = knots.start[0].tolist(), knots.end[0].tolist()
            share = float(knots.phase[0]) / self._steps
        else:
            start_x, start_y = knots.start[:rows].T.copy()
            end_x, end_y = knots.end[:rows].T.copy()
            share = knots.phase[:rows] / self._steps
        knots.advance(rows)
        blend = share * share * (3.0 - 2.0 * share)
        return start_x + (end_x - start_x) * blend, start_y + (end_y - start_y) * blend


@register_partner("crossing_late_braker")
class CrossingLateBraker(CrossingPartner):
    """Races to its goal and brakes as late as physically possible.

    Law:    along the way, full acceleration until the last sampling instant from which full braking
            still stops at the goal (time-optimal); across the way, the drift is cancelled in one
            step.
    Limits: assumes the exact zero-order-hold plant; avoids nobody.
    """

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the time-optimal command along the way, plus the drift correction."""
        way = math_of.sqrt(sight.gx * sight.gx + sight.gy * sight.gy)
        scale = 1.0 / math_of.maximum(way, MIN_LENGTH)
        nx, ny = sight.gx * scale, sight.gy * scale
        # On a slanted way the component bound allows more than `limit`, up to sqrt(2) times it; a
        # unit vector's largest component is >= sqrt(1/2), so 0.5 acts only when way is zero.
        steepest = math_of.maximum(math_of.maximum(abs(nx), abs(ny)), 0.5)
        capacity = self._limit / steepest
        speed = sight.vx * nx + sight.vy * ny
        along = arrive_and_stop(way, speed, capacity, CONTROL_STEP_S, math_of)
        ax = along * nx - (sight.vx - speed * nx) / CONTROL_STEP_S
        ay = along * ny - (sight.vy - speed * ny) / CONTROL_STEP_S
        return scale_into_box(ax, ay, self._limit, math_of)


@register_partner("crossing_chaser")
class CrossingChaser(CrossingPartner):
    """Adversary: intercepts the ego with full acceleration.

    Law:    T = earliest time at which one constant acceleration within the bound meets the ego;
            aim = r + w T, where the ego will be relative to us if nobody accelerates;
            a = the longest vector along the aim that the acceleration bound allows.
    Limits: assumes the ego keeps its velocity; never brakes for its own goal.
    Source: adversarial partner within a declared acceleration bound, the worst case that the ego's
            safety filter promises to survive.
    """

    leaves_way = False

    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return full acceleration towards the predicted meeting point."""
        time_s = intercept_time(sight, self._limit, math_of)
        aim_x = sight.rx + sight.wx * time_s
        aim_y = sight.ry + sight.wy * time_s
        return stretch_to_box(aim_x, aim_y, self._limit, math_of)

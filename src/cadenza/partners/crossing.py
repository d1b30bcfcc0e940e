"""Partners of the crossing task: reading the state, writing the action, and five laws.

State:   own position (2), own velocity (2), goal minus position (2), then for every other robot,
         ego first, relative position (2) and relative velocity (2): 6 + 4 (n - 1) numbers, float32.
Action:  acceleration (2), m/s^2, float32; each component within `ACCELERATION_LIMIT`.
Random:  row 0 of a batch draws from the stream of the episode, row i from its child i; after
         ``reset_row(i, seed=s)`` row i repeats what a scalar partner does after ``reset(seed=s)``.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.crossing_motion import (
    ACCELERATION_LIMIT,
    ARRAY,
    CONTROL_STEP_S,
    MIN_LENGTH,
    SCALAR,
    Arithmetic,
    Corridor,
    Real,
    Sight,
    arrive_and_stop,
    intercept_time,
    scale_into_box,
    stay_inside,
    stretch_to_box,
)
from cadenza.partners.interface import DrawingPartner, PartnerCard, RowGenerators
from cadenza.partners.observations import read_state
from cadenza.partners.options import NumberOption, family_card, refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

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


def crossing_card(
    summary: str, options: tuple[NumberOption, ...], *, leaves_way: bool = True
) -> PartnerCard:
    """Return the card of a crossing partner with ``options`` beyond the common ones."""
    known = (MAX_ACCELERATION, *options)
    return family_card(summary, "crossing", options=known, leaves_way=leaves_way)


class CrossingPartner(DrawingPartner):
    """Base of the crossing partners; a subclass adds its options and one acceleration law.

    Attributes:
        number_options: Options of the subclass beyond `MAX_ACCELERATION`.
        leaves_way: Whether the ego can always get past it.

    Raises:
        ConfigurationError: An option is unknown or out of range.
    """

    number_options: ClassVar[tuple[NumberOption, ...]] = ()
    leaves_way: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Write the card of a subclass that has none, with its docstring's first line."""
        super().__init_subclass__()
        if "card" not in vars(cls):
            options = cls.number_options
            cls.card = crossing_card(cls.__doc__ or "", options, leaves_way=cls.leaves_way)

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        known = (MAX_ACCELERATION, *self.number_options)
        refuse_unknown_options(owner, spec.extra, [option.key for option in known])
        self._uid = spec.extra.get("uid", "partner")
        self._options = {option.key: option.read(owner, spec.extra) for option in known}
        self._limit = self._options[MAX_ACCELERATION.key]

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the acceleration for the state that ``obs`` holds.

        Args:
            obs: Nested observation; only ``obs["agent"][uid]["state"]`` is read.
            deterministic: Without effect: what is random in a partner is drawn at ``reset``.

        Returns:
            Acceleration, m/s^2, shape (2,), or (N, 2) for a state of shape (N, D).

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

"""Robots whose motion within a step is known exactly, and partners that move second.

Robots:     a command is held for a step; `SAMPLES` positions within it are returned.
                acceleration   x + v s + u s^2 / 2
                velocity       the four responses of `VelocityModel`, in closed form, and its delay
                unicycle       speed and yaw rate go to the command at their rates; the heading is
                               in closed form, the position by Gauss's rule of three points between
                               samples (exact to rounding for turns of less than a radian there).
Partners:   choose after the robot, knowing its whole motion in the step, and again `CHOICES` times
            within it. Their velocity changes linearly between choices, so both of their bounds hold
            at every instant.
Source:     the formulas are the models' own, written again on purpose: a test of a filter must not
            share its mistakes.
Units:      m, m/s, m/s^2, rad, s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup.base import Vector, minus, moved
from cadenza.safety.control_models import PartnerBound, VelocityModel

#: Positions per step, the last at its end.
SAMPLES: Final = 32
#: Choices of a partner per step.
CHOICES: Final = 16
#: Times that are the same up to rounding, s.
_SAME_S: Final = 1e-12
#: Points and weights of Gauss's rule on [0, 1].
_GAUSS: Final = (
    (0.5 - math.sqrt(0.15), 5.0 / 18.0),
    (0.5, 8.0 / 18.0),
    (0.5 + math.sqrt(0.15), 5.0 / 18.0),
)


class Plant(Protocol):
    """A robot that is moved one step at a time."""

    position: Vector
    velocity: Vector

    def step(self, command: Sequence[float], dt: float) -> list[Vector]:
        """Return `SAMPLES` positions within the step, and be at its end."""
        ...


class AccelerationPlant:
    """A ball that the action accelerates."""

    def __init__(self, position: Vector, velocity: Vector) -> None:
        self.position: Vector = position
        self.velocity: Vector = velocity

    def step(self, command: Sequence[float], dt: float) -> list[Vector]:
        """Return the positions of one step under a constant acceleration."""
        x, v = self.position, self.velocity
        path = [
            tuple([x[k] + v[k] * s + 0.5 * command[k] * s * s for k in range(len(x))])
            for s in _times(dt)
        ]
        self.velocity = tuple([v[k] + command[k] * dt for k in range(len(v))])
        self.position = path[-1]
        return path


class VelocityPlant:
    """A base that follows commanded velocities as its model says."""

    def __init__(self, model: VelocityModel, position: Vector, velocity: Vector) -> None:
        self.position: Vector = position
        self.velocity: Vector = velocity
        self._model = model
        self._acting: Sequence[float] = (0.0,) * model.dim
        self._pending: list[tuple[float, Sequence[float]]] = []

    def step(self, command: Sequence[float], dt: float) -> list[Vector]:
        """Return the positions of one step in which ``command`` is given."""
        self._pending.append((self._model.delay_s, tuple(command)))
        times = np.array(_times(dt))
        path: list[Vector] = []
        now = 0.0
        while now < dt:
            if self._pending and self._pending[0][0] <= now + _SAME_S:
                self._acting = self._pending.pop(0)[1]
                continue
            until = min(self._pending[0][0], dt) if self._pending else dt
            inside = times[(times > now) & (times < until)]
            positions, velocities = _followed(
                self._model,
                self.position,
                self.velocity,
                self._acting,
                np.append(inside, until) - now,
            )
            path += positions[: len(inside)]
            self.position, self.velocity = positions[-1], velocities[-1]
            now = until
        self._pending = [(change_s - dt, later) for change_s, later in self._pending]
        return [*path, self.position]


def _followed(
    model: VelocityModel, x: Vector, v: Vector, u: Sequence[float], times: FloatArray
) -> tuple[list[Vector], list[Vector]]:
    """Return positions and velocities at some times under one command."""
    s = times[:, None]
    begin, goal = np.array(v), np.array(u)
    gap = goal - begin
    if model.lag_s is not None:
        kept = np.exp(-s / model.lag_s)
        way, after = goal * s - gap * model.lag_s * (1.0 - kept), goal - gap * kept
    elif model.limit == "none":
        way, after = goal * s, goal + 0.0 * s
    else:
        rates = np.full(len(v), model.max_accel)
        if model.limit == "norm":
            rates = rates * np.abs(gap) / max(float(np.linalg.norm(gap)), 1e-300)
        ramp_s = np.minimum(np.abs(gap) / np.maximum(rates, 1e-300), s)
        after = np.where(ramp_s < s, goal, begin + np.copysign(rates, gap) * ramp_s)
        way = 0.5 * (begin + after) * ramp_s + goal * (s - ramp_s)
    return list(map(tuple, (np.array(x) + way).tolist())), list(map(tuple, after.tolist()))


class UnicyclePlant:
    """A wheeled base; its disc is centered ``offset_m`` ahead of the axle.

    Args:
        position: Center of the disc, m.
        heading: rad.
        accel: Rate at which the speed follows, m/s^2; infinite for at once.
        yaw_accel: Rate at which the yaw rate follows, rad/s^2; infinite for at once.
        offset_m: m.
    """

    def __init__(
        self,
        position: Vector,
        heading: float,
        *,
        accel: float = math.inf,
        yaw_accel: float = math.inf,
        offset_m: float = 0.0,
    ) -> None:
        self.heading: float = heading
        self.speed: float = 0.0
        self.yaw_rate: float = 0.0
        self._accel, self._yaw_accel, self._offset = accel, yaw_accel, offset_m
        self._axle = (
            position[0] - offset_m * math.cos(heading),
            position[1] - offset_m * math.sin(heading),
        )

    @property
    def position(self) -> Vector:
        """Center of the disc, m."""
        along = (math.cos(self.heading), math.sin(self.heading))
        return (self._axle[0] + self._offset * along[0], self._axle[1] + self._offset * along[1])

    @property
    def velocity(self) -> Vector:
        """Velocity of the disc's center, m/s."""
        cosine, sine = math.cos(self.heading), math.sin(self.heading)
        side = self._offset * self.yaw_rate
        return (self.speed * cosine - side * sine, self.speed * sine + side * cosine)

    def step(self, command: Sequence[float], dt: float) -> list[Vector]:
        """Return the disc's positions of one step under (speed, yaw rate)."""
        speed, yaw = self.speed, self.yaw_rate
        heading, path = self.heading, list[Vector]()
        before = 0.0
        for s in _times(dt):
            span = s - before
            for share, weight in _GAUSS:
                at = before + share * span
                theta = heading + _ramp_way(yaw, command[1], self._yaw_accel, at)
                way = weight * span * _ramp(speed, command[0], self._accel, at)
                self._axle = (
                    self._axle[0] + way * math.cos(theta),
                    self._axle[1] + way * math.sin(theta),
                )
            self.heading = heading + _ramp_way(yaw, command[1], self._yaw_accel, s)
            path.append(self.position)
            before = s
        self.speed = _ramp(speed, command[0], self._accel, dt)
        self.yaw_rate = _ramp(yaw, command[1], self._yaw_accel, dt)
        return path


def _ramp(begin: float, goal: float, rate: float, time_s: float) -> float:
    """Return a quantity that goes from ``begin`` to ``goal`` at a rate, after some time."""
    if abs(goal - begin) <= rate * time_s or rate == math.inf:
        return goal
    return begin + math.copysign(rate * time_s, goal - begin)


def _ramp_way(begin: float, goal: float, rate: float, time_s: float) -> float:
    """Return the integral of `_ramp` over [0, time_s]."""
    ramp_s = min(abs(goal - begin) / rate, time_s)
    end = _ramp(begin, goal, rate, ramp_s) if ramp_s > 0.0 else begin
    if ramp_s < time_s:
        end = goal
    return 0.5 * (begin + end) * ramp_s + goal * (time_s - ramp_s)


def _times(dt: float) -> list[float]:
    return [dt * (k + 1) / SAMPLES for k in range(SAMPLES)]


class Chase(NamedTuple):
    """What a partner knows when it chooses.

    Attributes:
        to_robot: From the partner to the robot now, m.
        to_end: From the partner to where the robot is at the end of the step, m.
        robot_velocity: Mean velocity of the robot in the step, m/s.
        part: How much of the step has passed, in [0, 1).
        steps: Steps of the episode so far.
        taste: A unit vector that stays the same during an episode.
        angle: An angle that stays the same during an episode, in [0, 1) rad.
        draw: A fresh random vector, of no certain length.
        speed: The partner's largest speed, m/s.
    """

    to_robot: Vector
    to_end: Vector
    robot_velocity: Vector
    part: float
    steps: int
    taste: Vector
    angle: float
    draw: Vector
    speed: float


#: Returns where a partner wants to move, as a vector of any length; zero stops it.
Pursuit: TypeAlias = Callable[[Chase], Vector]


def _chase(view: Chase) -> Vector:
    """Go straight at the robot."""
    return view.to_robot


def _cut_off(view: Chase) -> Vector:
    """Go to where the robot will be soon if it goes on."""
    return moved(view.to_end, view.robot_velocity, 0.5)


def _intercept(view: Chase) -> Vector:
    """Go to where the partner meets the robot if that goes on."""
    time_s = math.hypot(*view.to_robot) / max(view.speed, 1e-9)
    return moved(view.to_robot, view.robot_velocity, time_s)


def _bang_bang(view: Chase) -> Vector:
    """Come from one side in the first half of the step and from the other in the second."""
    return _swung(view, 1.0 if view.part < 0.5 else -1.0)


def _turning(view: Chase) -> Vector:
    """Turn from one side to the other within the step."""
    return _swung(view, 1.0 - 2.0 * view.part)


def _random(view: Chase) -> Vector:
    """Go anywhere."""
    return view.draw


def _lure(view: Chase) -> Vector:
    """Give way for a while, so that the robot follows, and turn on it."""
    return _scaled(view.to_robot, -1.0) if view.steps % 20 < 8 else view.to_robot


def _walk(view: Chase) -> Vector:
    """Go the same way for a while, whatever the robot does."""
    return view.taste if view.steps % 30 < 15 else _scaled(view.taste, -1.0)


def _swung(view: Chase, share: float) -> Vector:
    length = math.hypot(*view.to_robot)
    return moved(view.to_robot, view.taste, length * share * math.tan(view.angle))


#: Every partner by name.
PURSUITS: Final[dict[str, Pursuit]] = {
    "chase": _chase,
    "cut_off": _cut_off,
    "intercept": _intercept,
    "bang_bang": _bang_bang,
    "turning": _turning,
    "random": _random,
    "lure": _lure,
    "walk": _walk,
}


@dataclass(slots=True, eq=False)
class Pursuer:
    """A partner that moves second, within its bounds at every instant.

    Attributes:
        bound: How fast it moves, and how fast that changes.
        pursuit: What it wants.
        position: m.
        velocity: m/s; at most the bound's speed.
        rng: Only source of randomness.
    """

    bound: PartnerBound
    pursuit: Pursuit
    position: Vector
    velocity: Vector
    rng: np.random.Generator
    taste: Vector = field(init=False)
    angle: float = field(init=False)
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.taste = _direction(self.rng, len(self.position))
        self.angle = float(self.rng.random()) ** 2

    def step(self, start: Vector, path: Sequence[Vector], dt: float) -> list[Vector]:
        """Return `SAMPLES` positions, given where the robot was and will be in the step."""
        mine: list[Vector] = []
        span, stride = dt / CHOICES, SAMPLES // CHOICES
        mean = tuple([(b - a) / dt for a, b in zip(start, path[-1], strict=True)])
        draws = self.rng.normal(size=(CHOICES, len(start))).tolist()
        for k in range(CHOICES):
            view = Chase(
                minus(start if k == 0 else path[k * stride - 1], self.position),
                minus(path[-1], self.position),
                mean,
                k / CHOICES,
                self.steps,
                self.taste,
                self.angle,
                tuple(draws[k]),
                self.bound.max_speed,
            )
            end = self._changed(self.pursuit(view), span)
            begin = end if self.bound.max_accel == math.inf else self.velocity
            here, change = self.position, minus(end, begin)
            for part in range(1, stride + 1):
                s = part / stride
                mine.append(moved(moved(here, begin, span * s), change, 0.5 * span * s * s))
            self.position, self.velocity = mine[-1], end
        self.steps += 1
        return mine

    def _changed(self, wish: Vector, span: float) -> Vector:
        """Return the velocity nearest to full speed along ``wish`` that a time allows."""
        length = math.hypot(*wish)
        speed = self.bound.max_speed
        wanted = _scaled(wish, speed / length) if length > 1e-12 else _scaled(wish, 0.0)
        change = minus(wanted, self.velocity)
        size, most = math.hypot(*change), self.bound.max_accel * span
        return wanted if size <= most else moved(self.velocity, change, most / size)


def _direction(rng: np.random.Generator, dim: int) -> Vector:
    vector: Any = rng.normal(size=dim)
    return tuple((vector / np.linalg.norm(vector)).tolist())


def _scaled(a: Vector, share: float) -> Vector:
    return tuple([share * x for x in a])

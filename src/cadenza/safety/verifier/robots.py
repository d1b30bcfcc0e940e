"""Robots that are attacked: drawn limits, exact motion, filters, and the worlds around them.

Robots:     a command is held for a step; `SAMPLES` positions within it are returned.
                acceleration   x + v s + u s (s + share dt) / 2: zero-order hold (share 0), the
                               semi-implicit plant (1), or that in 4 parts (1/4)
                velocity       the four responses of `VelocityModel`, in closed form, and its delay
                unicycle       speed and yaw rate go to the command at their rates; the heading is
                               in closed form, the position by Gauss's rule of three points between
                               samples (exact to rounding for turns of less than a radian there).
Schemes:    a response of a robot and a claim. Velocity bases follow with a rate of the norm, of
            each axis, at once, or with a lag; wheeled ones with rates, with the disc ahead of the
            axle ("offset"), or at once; of an acceleration-commanded robot each component is
            bounded.
Worlds:     free          nothing stands anywhere.
            corridor      two parallel walls with 0.3 to 2 m of play for the robot's ball.
            corner        two walls that meet at 40 to 150 degrees, turned anyhow.
            funnel        two walls that meet at 9 to 34 degrees, or two balls as large as walls:
                          braking rows conflict in it.
            room          walls on all sides, 3 to 6 m apart.
            boxes, clutter   a room with boxes, or with balls, capsules and a scan in it, in the
                          plane also a polygon.
Source:     the formulas are the models' own, written again on purpose: a test of a filter must not
            share its mistakes.
Axes:       any leading axes "...", for many robots at once; S samples; d Cartesian dimensions: 2 or
            3; in 3-D walls are planes and a corner is an edge.
Units:      m, m/s, m/s^2, rad, s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.shipped_configs import find_config
from cadenza.safety.backup import BackupFilter, BackupStep
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import (
    DoubleIntegratorControlModel,
    PartnerBound,
    UnicycleModel,
    VelocityModel,
)
from cadenza.safety.geometry import (
    Ball,
    Box,
    Capsule,
    HalfSpace,
    Obstacles,
    Points,
    Polygon,
    Shape,
)
from cadenza.safety.maps import load_map, map_extent
from cadenza.safety.runtime import SafetyOptions, SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.adversaries import length

#: Positions per step, the last at its end, as shares of the step.
SAMPLES: Final = 32
_SHARES: Final = np.arange(1, SAMPLES + 1) / SAMPLES
#: Shares of a step that are the same up to rounding.
_SAME: Final = 1e-12
#: Points and weights of Gauss's rule on [0, 1].
_GAUSS: Final = (
    (0.5 - math.sqrt(0.15), 5.0 / 18.0),
    (0.5, 8.0 / 18.0),
    (0.5 + math.sqrt(0.15), 5.0 / 18.0),
)
#: A rate at which everything is followed at once, as a finite number.
_AT_ONCE: Final = 1e300
#: Largest change of an acceleration between two steps, m/s^2: none is asked for.
_ANY_RATE: Final = 1e9
#: A number, or one of each robot, shape (...).
Numbers: TypeAlias = FloatArray | float


class AccelerationPlant:
    """Balls that the action accelerates; ``share`` says how their plant integrates."""

    def __init__(self, position: Any, velocity: Any, *, share: Numbers = 0.0) -> None:
        self.position: FloatArray = np.asarray(position, dtype=np.float64)
        self.velocity: FloatArray = np.asarray(velocity, dtype=np.float64)
        self._share = np.asarray(share)

    def step(self, command: Any, dt: Numbers) -> FloatArray:
        """Return the positions of one step under a constant acceleration, shape (S, ..., d)."""
        step_s, u = np.broadcast_to(dt, self.position.shape[:-1])[..., None], np.asarray(command)
        times = np.multiply.outer(_SHARES, step_s)
        drift = 0.5 * u * times * (times + self._share[..., None] * step_s)
        path = self.position + self.velocity * times + drift
        self.position, self.velocity = path[-1], self.velocity + u * step_s
        return path


class VelocityPlant:
    """Bases that follow commanded velocities as `VelocityModel` says; see there for arguments.

    ``delay_steps`` is the delay of commands in control steps, the same for all.
    """

    def __init__(
        self,
        position: Any,
        velocity: Any,
        *,
        limit: str = "norm",
        max_accel: Numbers = math.inf,
        lag_s: Numbers | None = None,
        delay_steps: float = 0.0,
    ) -> None:
        self.position: FloatArray = np.asarray(position, dtype=np.float64)
        self.velocity: FloatArray = np.asarray(velocity, dtype=np.float64)
        self._limit, self._rate = limit, np.asarray(max_accel)[..., None]
        self._lag_s = None if lag_s is None else np.asarray(lag_s)[..., None]
        self._delay_steps = delay_steps
        self._acting = np.zeros_like(self.position)
        self._pending: list[tuple[float, FloatArray]] = []

    def step(self, command: Any, dt: Numbers) -> FloatArray:
        """Return the positions of a step in which ``command`` is given, shape (S, ..., d)."""
        self._pending.append((self._delay_steps, np.asarray(command, dtype=np.float64)))
        step_s = np.broadcast_to(dt, self.position.shape[:-1])[..., None]
        path: list[FloatArray] = []
        now = 0.0
        while now < 1.0:
            if self._pending and self._pending[0][0] <= now + _SAME:
                self._acting = self._pending.pop(0)[1]
                continue
            until = min(self._pending[0][0], 1.0) if self._pending else 1.0
            inside = _SHARES[(now < _SHARES) & (until >= _SHARES)]
            times = np.multiply.outer(np.append(inside, until) - now, step_s)
            way, after = self._followed(times)
            path.append(self.position + way[:-1])
            self.position, self.velocity = self.position + way[-1], after[-1]
            now = until
        self._pending = [(change - 1.0, later) for change, later in self._pending]
        return np.concatenate(path)

    def _followed(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ways and velocities at some times under the acting command."""
        begin, goal = self.velocity, self._acting
        gap = goal - begin
        if self._lag_s is not None:
            kept = np.exp(-times / self._lag_s)
            return goal * times - gap * self._lag_s * (1.0 - kept), goal - gap * kept
        if self._limit == "none":
            return goal * times, goal + 0.0 * times
        rates = self._rate + 0.0 * gap
        if self._limit == "norm":
            rates = rates * np.abs(gap) / np.maximum(length(gap), 1e-300)[..., None]
        ramp_s = np.minimum(np.abs(gap) / np.maximum(rates, 1e-300), times)
        after = np.where(ramp_s < times, goal, begin + np.copysign(rates, gap) * ramp_s)
        return 0.5 * (begin + after) * ramp_s + goal * (times - ramp_s), after


class UnicyclePlant:
    """Wheeled bases; a disc is centered ``offset_m`` ahead of the axle.

    Args:
        position: Center of the disc, shape (..., 2), m.
        heading: rad.
        speed: m/s.
        yaw_rate: rad/s.
        accel: Rate at which the speed follows, m/s^2; infinite for at once.
        yaw_accel: Rate at which the yaw rate follows, rad/s^2; infinite for at once.
        offset_m: m.
    """

    def __init__(
        self,
        position: Any,
        heading: Numbers,
        *,
        speed: Numbers = 0.0,
        yaw_rate: Numbers = 0.0,
        accel: Numbers = math.inf,
        yaw_accel: Numbers = math.inf,
        offset_m: Numbers = 0.0,
    ) -> None:
        self.heading: FloatArray = np.asarray(heading, dtype=np.float64)
        self.speed: FloatArray = np.asarray(speed, dtype=np.float64)
        self.yaw_rate: FloatArray = np.asarray(yaw_rate, dtype=np.float64)
        self._accel, self._yaw_accel = np.minimum(accel, _AT_ONCE), np.minimum(yaw_accel, _AT_ONCE)
        self._offset = np.asarray(offset_m)[..., None]
        self._axle = np.asarray(position) - self._offset * _ahead(self.heading)

    @property
    def position(self) -> FloatArray:
        """Centers of the discs, shape (..., 2), m."""
        return self._axle + self._offset * _ahead(self.heading)

    @property
    def velocity(self) -> FloatArray:
        """Velocities of the discs' centers, shape (..., 2), m/s."""
        side = self._offset * self.yaw_rate[..., None] * _ahead(self.heading + 0.5 * math.pi)
        return self.speed[..., None] * _ahead(self.heading) + side

    def step(self, command: Any, dt: Numbers) -> FloatArray:
        """Return the discs' positions of one step under (speed, yaw rate), shape (S, ..., 2)."""
        goal, turn = np.moveaxis(np.asarray(command, dtype=np.float64), -1, 0)
        span = np.broadcast_to(dt, self.heading.shape) / SAMPLES
        begins = np.multiply.outer(np.arange(SAMPLES), span)
        heading, way = self.heading, np.zeros((SAMPLES, *self.position.shape))
        for share, weight in _GAUSS:
            at = begins + share * span
            theta = heading + _ramp_way(self.yaw_rate, turn, self._yaw_accel, at)
            speed = _ramp(self.speed, goal, self._accel, at)
            way += (weight * span * speed)[..., None] * _ahead(theta)
        axles = self._axle + np.cumsum(way, axis=0)
        headings = heading + _ramp_way(self.yaw_rate, turn, self._yaw_accel, begins + span)
        self._axle, self.heading = axles[-1], headings[-1]
        self.speed = _ramp(self.speed, goal, self._accel, dt)
        self.yaw_rate = _ramp(self.yaw_rate, turn, self._yaw_accel, dt)
        return axles + self._offset * _ahead(headings)


def _ahead(heading: FloatArray) -> FloatArray:
    """Return unit vectors along headings, shape (..., 2)."""
    return np.stack((np.cos(heading), np.sin(heading)), axis=-1)


def _ramp(begin: FloatArray, goal: FloatArray, rate: FloatArray, time_s: Numbers) -> FloatArray:
    """Return quantities that go from ``begin`` to ``goal`` at a rate, after some time."""
    most = rate * np.asarray(time_s)
    return begin + np.clip(goal - begin, -most, most)


def _ramp_way(begin: FloatArray, goal: FloatArray, rate: FloatArray, time_s: FloatArray) -> Any:
    """Return the integrals of `_ramp` over [0, time_s]."""
    ramp_s = np.minimum(np.abs(goal - begin) / rate, time_s)
    end = np.where(ramp_s < time_s, goal, _ramp(begin, goal, rate, ramp_s))
    return 0.5 * (begin + end) * ramp_s + goal * (time_s - ramp_s)


class Start(NamedTuple):
    """One robot when its episode begins."""

    model: Any  # What the filter is told
    position: FloatArray  # Shape (d,), m
    motion: FloatArray  # Velocity, shape (d,), m/s; of a wheeled robot speed and yaw rate
    heading: float = 0.0  # Of a wheeled robot, rad
    delay_steps: float = 0.0  # Of the commands of a velocity base, control steps
    share: float = 0.0  # Of an acceleration-commanded one; see `AccelerationPlant`


class Draw(NamedTuple):
    """What a robot is drawn from."""

    response: str  # How it follows its action
    position: FloatArray  # Shape (d,), m
    motion: FloatArray  # As a share of the fastest it can, shape (d,)
    radius: float  # m
    dt: float  # Control step, s
    delay_steps: float  # Of its commands
    claim: str  # What is claimed about partners
    rng: np.random.Generator


class VelocityRobots(VelocityPlant):
    """Bases of random limits that follow velocities as the response says."""

    @staticmethod
    def draw(draw: Draw) -> Start:
        """Return one when its episode begins."""
        speed, rng = float(draw.rng.uniform(0.5, 2.0)), draw.rng
        kind: dict[str, Any] = {"limit": "none"}
        if draw.response == "lag":
            kind = {"limit": "none", "lag_s": float(rng.uniform(0.05, 0.5))}
        elif draw.response != "ideal":
            kind = {"limit": draw.response, "max_accel": float(rng.uniform(0.5, 4.0))}
        kind["delay_s"] = draw.delay_steps * draw.dt
        model = VelocityModel("ego", len(draw.position), speed, **kind)
        motion = speed * draw.motion
        return Start(model, draw.position, motion, delay_steps=draw.delay_steps)

    def __init__(self, starts: Sequence[Start]) -> None:
        models = [start.model for start in starts]
        lags = None if models[0].lag_s is None else np.array([model.lag_s for model in models])
        super().__init__(
            np.stack([start.position for start in starts]),
            np.stack([start.motion for start in starts]),
            limit=models[0].limit,
            max_accel=np.array([model.max_accel for model in models]),
            lag_s=lags,
            delay_steps=starts[0].delay_steps,
        )

    def act(self, wish: FloatArray, dt: FloatArray) -> FloatArray:
        """Return the wishes themselves."""
        del dt
        return wish


class UnicycleRobots(UnicyclePlant):
    """Wheeled bases of random limits; "offset" has its disc ahead of the axle, or behind it."""

    @staticmethod
    def draw(draw: Draw) -> Start:
        """Return one when its episode begins."""
        rng, ideal = draw.rng, draw.response == "ideal"
        speed = float(rng.uniform(0.5, 2.0))
        model = UnicycleModel(
            "ego",
            max_speed=speed,
            max_reverse=speed * float(rng.uniform(0.5, 1.0)),
            max_yaw_rate=float(rng.uniform(0.5, 3.0)),
            accel=math.inf if ideal else float(rng.uniform(0.5, 4.0)),
            yaw_accel=math.inf if ideal else float(rng.uniform(1.0, 10.0)),
            radius=draw.radius,
            center_offset_m=float(rng.uniform(-0.1, 0.1)) if draw.response == "offset" else 0.0,
            look_ahead_m=float(rng.uniform(0.05, 0.3)),
        )
        limits = np.array((model.max_reverse, model.max_yaw_rate))
        heading = float(rng.uniform(-math.pi, math.pi))
        return Start(model, draw.position, limits * draw.motion, heading)

    def __init__(self, starts: Sequence[Start]) -> None:
        models: list[UnicycleModel] = [start.model for start in starts]
        speed, yaw_rate = np.stack([start.motion for start in starts], axis=1)
        super().__init__(
            np.stack([start.position for start in starts]),
            np.array([start.heading for start in starts]),
            speed=speed,
            yaw_rate=yaw_rate,
            accel=np.array([model.accel for model in models]),
            yaw_accel=np.array([model.yaw_accel for model in models]),
            offset_m=np.array([model.center_offset_m for model in models]),
        )
        self._low, self._high = np.array([model.action_box() for model in models]).swapaxes(0, 1)

    def act(self, wish: FloatArray, dt: FloatArray) -> FloatArray:
        """Return (speed, yaw rate): turn to the wish, and drive as far as it is ahead."""
        del dt
        ahead = _ahead(self.heading)
        side = ahead[:, 0] * wish[:, 1] - ahead[:, 1] * wish[:, 0]
        along = (ahead * wish).sum(axis=1)
        action = np.stack((along, 3.0 * np.arctan2(side, along)), axis=1)
        return np.clip(action, self._low, self._high)


class AccelerationModel(NamedTuple):
    """An acceleration-commanded robot: each component of its action is at most ``limit``, m/s^2."""

    uid: str
    dim: int
    max_speed: float  # That it is to move with, m/s; nothing limits it
    limit: float

    def escape_speed(self, dt: float) -> float:
        """Return the speed of the fastest hunters, of which nothing is told to the filter, m/s."""
        del dt
        return 4.0

    def action_box(self) -> tuple[float, float]:
        """Return the least and the largest component of an action, m/s^2."""
        return -self.limit, self.limit


class AccelerationRobots(AccelerationPlant):
    """Robots of a random limit on the components of their acceleration, on any of three plants."""

    @staticmethod
    def draw(draw: Draw) -> Start:
        """Return one when its episode begins."""
        rng = draw.rng
        speed, limit = float(rng.uniform(0.5, 2.0)), float(rng.uniform(1.0, 5.0))
        model = AccelerationModel("ego", len(draw.position), speed, limit)
        # Rest at a contact is promised under zero-order hold only.
        share = 0.0 if draw.claim == "passive" else float(rng.choice((0.0, 1.0, 0.25)))
        return Start(model, draw.position, model.max_speed * draw.motion, share=share)

    def __init__(self, starts: Sequence[Start]) -> None:
        self._limits = np.array([start.model.limit for start in starts])[:, None]
        super().__init__(
            np.stack([start.position for start in starts]),
            np.stack([start.motion for start in starts]),
            share=np.array([start.share for start in starts]),
        )

    def act(self, wish: FloatArray, dt: FloatArray) -> FloatArray:
        """Return accelerations that reach the wishes within a step, as far as the limits allow."""
        return np.clip((wish - self.velocity) / dt[:, None], -self._limits, self._limits)


class AccelerationGuard:
    """The runtime around an acceleration-commanded robot, from the arguments of `BackupFilter`."""

    def __init__(
        self,
        robot: AccelerationModel,
        partners: Sequence[PartnerBound],
        *,
        dt: float,
        obstacles: Obstacles,
        guarantee: str | None,
        margin_m: float,
        position_error_m: float,
        velocity_error: float,
        contact_speed: float,
    ) -> None:
        capacities = {robot.uid: robot.limit} | {one.uid: one.max_accel for one in partners}
        self._runtime = SafetyRuntime(
            ego_uid=robot.uid,
            control_models={
                uid: DoubleIntegratorControlModel(uid, robot.dim, capacity=accel)
                for uid, accel in capacities.items()
            },
            bounds=Bounds(robot.limit, robot.limit, _ANY_RATE, 0.0, 0.0),
            control_timestep=dt,
            options=SafetyOptions(
                margin_m=margin_m,
                position_error=position_error_m,
                velocity_error=velocity_error,
                guarantee="passive" if guarantee == "passive" else None,
                contact_speed=contact_speed,
                obstacles=tuple(obstacles.shapes),
            ),
        )

    def filter(self, nominal: FloatArray, agents: dict[str, AgentSnapshot]) -> BackupStep:
        """Return what to execute; see `BackupFilter.filter`."""
        step = self._runtime.step(nominal, agents)
        info = step.info
        return BackupStep(
            action=step.action,
            backup=info.get("backup", "none" if info["intervention"] == 0.0 else "rows"),
            uncertified=info["uncertified"],
            static_margin=tuple(info.get("static_margin", ())),
            static_uncertified=info.get("static_uncertified", False),
            margin={},
        )


#: What is claimed about partners: that there are none, or see `attacks`.
Claim: TypeAlias = Literal["walls", "escape", "passive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What is attacked: one response of one robot, and one claim.

    Attributes:
        claim: What is claimed about partners.
        response: How the robot follows its action.
        robots: Makes the robots of a batch, and draws them one by one.
        guard: Makes a robot's filter, from the arguments of `BackupFilter`.
        partners: Most partners of an episode; they take turns, beginning with one.
        speeds: Partners' largest speeds as shares of what the robot flees with.
        contact_speed: Own speed that is tolerated at a contact, m/s.
    """

    claim: Claim
    response: str
    robots: Any
    guard: Callable[..., Any]
    partners: int
    speeds: tuple[float, float]
    contact_speed: float


def _schemes(
    robots: Any, guard: Callable[..., Any], responses: tuple[str, ...], fastest: float = 1.0
) -> dict[str, Scheme]:
    """Return the schemes of a robot by name; escapes are from partners of up to ``fastest``."""
    others: dict[Claim, tuple[int, float]] = {
        "walls": (0, 1.0),
        "escape": (1, fastest),
        "passive": (3, 3.0),
    }
    return {
        f"{response}-{claim}": Scheme(
            claim=claim,
            response=response,
            robots=robots,
            guard=guard,
            partners=most,
            speeds=(0.5, max(1.0, share) if response == "ideal" else share),
            # A base with a lag never rests exactly.
            contact_speed=0.05 if (claim, response) == ("passive", "lag") else 0.0,
        )
        for claim, (most, share) in others.items()
        for response in responses
    }


#: Every scheme, by robot and name.
SCHEMES: Final[dict[str, dict[str, Scheme]]] = {
    "velocity": _schemes(VelocityRobots, BackupFilter, ("norm", "axis", "ideal", "lag")),
    # A wheeled base may flee at an angle, and then with less than its speed.
    "unicycle": _schemes(UnicycleRobots, BackupFilter, ("rates", "offset", "ideal"), 0.8),
    "acceleration": _schemes(AccelerationRobots, AccelerationGuard, ("box",)),
}
#: Dimensions that every robot moves in.
DIMS: Final[dict[str, tuple[int, ...]]] = {
    "velocity": (2, 3),
    "unicycle": (2,),
    "acceleration": (2, 3),
}


#: Half the width of the region in which robots start where no wall ends it, m.
_REGION_M: Final = 3.0
#: Radius of balls that are as large as walls, m.
_LARGE_M: Final = 100.0
#: How often a place is drawn before a world counts as full.
_TRIES: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What stands around the robots.

    Attributes:
        name: What it is called in reports.
        obstacles: Its shapes.
        low: Corner of the region in which robots start, shape (d,), m.
        high: The opposite corner, shape (d,), m.
    """

    name: str
    obstacles: Obstacles
    low: FloatArray
    high: FloatArray

    def gap(self, points: FloatArray) -> FloatArray:
        """Return the distances of ``points``, (N, d), to the nearest shape, (N,), m."""
        distances, _ = self.obstacles.gaps(points)
        return distances.min(axis=1, initial=math.inf)

    def nearest(self, point: FloatArray) -> FloatArray:
        """Return the unit vector from ``point``, (d,), to the nearest shape; zero without any."""
        distances, normals = self.obstacles.gaps(point)
        return -normals[distances.argmin()] if distances.size else np.zeros(len(point))

    def place(self, clearance_m: float, rng: np.random.Generator) -> FloatArray:
        """Return a point of the region that is ``clearance_m`` away from every shape, (d,).

        Raises:
            ConfigurationError: None was found.
        """
        for _ in range(_TRIES):
            point = rng.uniform(self.low, self.high)
            if self.gap(point[None])[0] >= clearance_m:
                return point
        raise ConfigurationError(
            f"world {self.name}: expected room for a ball of radius {clearance_m:g} m between "
            f"{self.low.tolist()} and {self.high.tolist()}, found none; is the map closed?"
        )


#: Kinds of worlds.
WORLDS: Final = ("free", "corridor", "corner", "funnel", "room", "boxes", "clutter")
#: Angles at which the walls of a corner and of a funnel meet, rad.
_ANGLES: Final = {"corner": (0.7, 2.6), "funnel": (0.16, 0.6)}


def draw_world(kind: str, dim: int, radius_m: float, rng: np.random.Generator) -> World:
    """Return a world of one of `WORLDS` in which a ball of ``radius_m`` finds room."""
    region = np.full(dim, _REGION_M)
    if kind == "free":
        return World(kind, Obstacles(()), -region, region)
    if kind == "corridor":
        half = radius_m + 0.5 * rng.uniform(0.3, 2.0)
        normal = _rotation(dim, rng)[0]
        walls = [HalfSpace(normal, -half), HalfSpace(-normal, -half)]
        return World(kind, Obstacles(walls), -region, region)
    if kind in _ANGLES:
        half = 0.5 * float(rng.uniform(*_ANGLES[kind]))
        along, across = _rotation(dim, rng)[:2]
        walls = [
            HalfSpace(math.sin(half) * along + side * math.cos(half) * across, 0.0)
            for side in (1.0, -1.0)
        ]
        if kind == "funnel" and rng.random() < 0.5:
            walls = [Ball(-_LARGE_M * wall.normal, _LARGE_M) for wall in walls]
        # The ball is as wide as the wedge at radius / sin(half) from the edge.
        middle = along * (1.5 + 2.0 * radius_m / math.sin(half))
        return World(kind, Obstacles(walls), middle - region, middle + region)
    size = rng.uniform(1.5 if kind == "room" else 1.8, 3.0, size=dim)
    walls = [
        HalfSpace(side * axis, -half)
        for axis, half in zip(np.eye(dim), size.tolist(), strict=True)
        for side in (1.0, -1.0)
    ]
    shapes = Obstacles([*walls, *_furniture(kind, size, rng)])
    return World(kind, shapes, -size, size)


def _furniture(kind: str, size: FloatArray, rng: np.random.Generator) -> list[Shape]:
    """Return what stands in a room of half widths ``size``."""
    dim = len(size)
    inside: list[Shape] = []
    for _ in range(int(rng.integers(2, 5)) if kind == "boxes" else 0):
        turn: dict[str, Any] = {"rotation": _rotation(3, rng)}
        if dim == 2:
            turn = {"angle": float(rng.uniform(-math.pi, math.pi))}
        inside.append(Box(rng.uniform(-size, size), rng.uniform(0.1, 0.5, size=dim), **turn))
    balls = int(rng.integers(2, 4)) if kind == "clutter" else 0
    inside += [Ball(rng.uniform(-size, size), float(rng.uniform(0.1, 0.5))) for _ in range(balls)]
    for _ in range(int(rng.integers(1, 3)) if kind == "clutter" else 0):
        start = rng.uniform(-size, size)
        end = start + rng.uniform(0.2, 1.2) * _rotation(dim, rng)[0]
        inside.append(Capsule(start, end, float(rng.uniform(0.05, 0.2))))
    if kind == "clutter":
        scan = rng.uniform(-size, size) + 0.2 * rng.normal(size=(20, dim))
        inside.append(Points(scan, 0.06))
        if dim == 2:
            angles = np.array((0.1, 1.5, 2.4, 4.0)) + rng.uniform(0.0, 6.0)
            corners = np.stack((np.cos(angles), np.sin(angles)), axis=1)
            inside.append(Polygon(rng.uniform(-size, size) + 0.3 * corners))
    return inside


def mapped(path: str, robot: str) -> World:
    """Return the world of a map, a file or a shipped one, in which robots start in the open.

    Raises:
        ConfigurationError: The file cannot be read, is no map, or not one that the robot moves in.
    """
    found = find_config(Path(path), "maps")
    obstacles = load_map(found)
    if obstacles.dim not in (None, *DIMS[robot]):
        expected = f"2-D shapes for a {robot} robot, which moves in the plane"
        refuse(ConfigurationError, f"{found}", expected=expected, got=f"{obstacles.dim}-D ones")
    low, high = map_extent(obstacles)
    return World(f"map {found.name}", obstacles, low, high)


def _rotation(dim: int, rng: np.random.Generator) -> FloatArray:
    """Return a random rotation, shape (d, d)."""
    axes, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    if np.linalg.det(axes) < 0.0:
        axes[:, 0] *= -1.0
    return axes

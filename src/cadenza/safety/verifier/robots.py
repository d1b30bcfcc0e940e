"""Robots that are attacked: models with drawn limits, exact motion, and the filter around them.

Schemes:  a response of a robot and a claim. Velocity bases follow with a rate of the norm, of each
          axis, at once, or with a lag; wheeled ones with rates, with the disc ahead of the axle
          ("offset"), or at once; of an acceleration-commanded robot each component is bounded.
Units:    m, m/s, m/s^2, rad, s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup import BackupFilter, BackupStep
from cadenza.safety.backup.acceleration import AccelerationBase
from cadenza.safety.backup.base import BaseSettings, Partner, Scene
from cadenza.safety.backup.filter import choose
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import Obstacles
from cadenza.safety.snapshot import AgentSnapshot, WheeledSnapshot
from cadenza.safety.verifier.plants import AccelerationPlant, UnicyclePlant, VelocityPlant

#: What is claimed about partners: that there are none, or see `attacks`.
Claim: TypeAlias = Literal["walls", "escape", "passive"]
#: Speed that hunters of an acceleration-commanded robot reach, which nothing is told about, m/s.
_FASTEST_HUNTER: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Robot:
    """One robot of an episode: its model, how it moves, and how a wish becomes its action.

    Attributes:
        model: What the filter is told.
        speed: Speed it is to move with, m/s.
        flight: Speed that it can flee with, m/s.
        pushes: Least and largest bound on the acceleration of its partners, m/s^2; 3 in 10 of
            those of a robot that does not care have none.
        plant: Exact motion.
        look: Returns its snapshot.
        act: Returns the action that pursues a wished velocity, shape (d,), m/s.
    """

    model: Any
    speed: float
    flight: float
    plant: Any
    look: Callable[[], AgentSnapshot]
    act: Callable[[FloatArray], FloatArray]
    pushes: tuple[float, float] | None = None


class Start(NamedTuple):
    """Where a robot starts, and what it is made with."""

    response: str  # How it follows its action
    position: FloatArray  # Shape (d,), m
    velocity: FloatArray  # As a share of its largest speed, shape (d,)
    radius: float  # m
    dt: float  # Control step, s
    rng: np.random.Generator  # Draws the numbers of its model


#: Makes the robot of an episode.
RobotMaker: TypeAlias = Callable[[Start], Robot]


def velocity_robot(start: Start) -> Robot:
    """Return a base of a random speed limit that follows velocities as the response says."""
    response, position, velocity, radius, _, rng = start
    speed = float(rng.uniform(0.5, 2.0))
    kind: dict[str, Any] = {"limit": "none"}
    if response == "lag":
        kind = {"limit": "none", "lag_s": float(rng.uniform(0.05, 0.5))}
    elif response != "ideal":
        kind = {"limit": response, "max_accel": float(rng.uniform(0.5, 4.0))}
    model = VelocityModel("ego", len(position), speed, **kind)
    plant = VelocityPlant(model, tuple(position.tolist()), tuple((speed * velocity).tolist()))
    return Robot(
        model=model,
        speed=speed,
        flight=speed,
        plant=plant,
        look=lambda: AgentSnapshot(plant.position, plant.velocity, radius),
        act=lambda wish: wish,
    )


def unicycle_robot(start: Start) -> Robot:
    """Return a wheeled base of random limits; "offset" has its disc ahead of the axle."""
    response, position, velocity, radius, dt, rng = start
    speed = float(rng.uniform(0.5, 2.0))
    rates = {"accel": float(rng.uniform(0.5, 4.0)), "yaw_accel": float(rng.uniform(2.0, 10.0))}
    if response == "ideal":
        rates = {"accel": math.inf, "yaw_accel": math.inf}
    offset = float(rng.uniform(-0.1, 0.1)) if response == "offset" else 0.0
    turn = float(rng.uniform(0.5, 3.0))
    model = UnicycleModel(
        "ego",
        max_speed=speed,
        max_reverse=speed * float(rng.uniform(0.5, 1.0)),
        max_yaw_rate=turn,
        radius=radius,
        center_offset_m=offset,
        **rates,
    )
    heading = float(rng.uniform(-math.pi, math.pi))
    plant = UnicyclePlant(tuple(position.tolist()), heading, offset_m=offset, **rates)
    plant.speed = model.max_reverse * float(velocity[0])
    plant.yaw_rate = turn * float(velocity[1])

    def act(wish: FloatArray) -> FloatArray:
        ahead = np.array((math.cos(plant.heading), math.sin(plant.heading)))
        side = float(ahead[0] * wish[1] - ahead[1] * wish[0])
        along = float(ahead @ wish)
        w = 3.0 * math.atan2(side, along) if side or along else 0.0
        return np.array((np.clip(along, -model.max_reverse, speed), np.clip(w, -turn, turn)))

    def look() -> AgentSnapshot:
        motion = {"heading": plant.heading, "yaw_rate": plant.yaw_rate}
        return WheeledSnapshot(plant.position, plant.velocity, radius, **motion)

    flight = model.escape_speed(dt)
    return Robot(model=model, speed=speed, flight=flight, plant=plant, look=look, act=act)


class AccelerationModel(NamedTuple):
    """An acceleration-commanded robot: each component of its action is at most ``limit``, m/s^2."""

    uid: str
    limit: float


class AccelerationGuard:
    """The filter around an acceleration-commanded robot, from the arguments of `BackupFilter`."""

    def __init__(
        self,
        robot: AccelerationModel,
        partners: Sequence[PartnerBound],
        *,
        dt: float,
        obstacles: Obstacles,
        guarantee: str | None,
        contact_speed: float,
        **_: float,
    ) -> None:
        passive = guarantee == "passive"
        settings = BaseSettings(dt=dt, passive=passive, contact_speed=contact_speed)
        self._base = AccelerationBase(robot.limit, robot.limit, settings)
        self._partners, self._obstacles = partners, obstacles if len(obstacles) else None

    def filter(self, nominal: FloatArray, agents: dict[str, AgentSnapshot]) -> BackupStep:
        """Return what to execute; see `BackupFilter.filter`."""
        ego, base = agents["ego"], self._base
        partners = tuple(
            Partner(
                agents[bound.uid].position_numbers,
                agents[bound.uid].velocity_numbers,
                ego.radius + agents[bound.uid].radius,
                math.inf,
                bound.max_accel,
                0.0,
            )
            for bound in self._partners
        )
        x, v = ego.position_numbers, ego.velocity_numbers
        base.look(Scene(x, v, 0.0, 0.0, partners, self._obstacles, ego.radius))
        action, source, plan, missed = choose(base, tuple(nominal.tolist()), None)
        return BackupStep(
            np.array(action), source, plan is None, base.static_margins(), missed, margin={}
        )


def acceleration_robot(start: Start) -> Robot:
    """Return a robot of a random limit on the components of its acceleration."""
    _, position, velocity, radius, dt, rng = start
    limit, speed = float(rng.uniform(1.0, 5.0)), float(rng.uniform(0.5, 2.0))
    plant = AccelerationPlant(tuple(position.tolist()), tuple((speed * velocity).tolist()))
    return Robot(
        model=AccelerationModel("ego", limit),
        speed=speed,
        flight=_FASTEST_HUNTER / 0.95,
        pushes=(0.1 * limit, 0.95 * limit),
        plant=plant,
        look=lambda: AgentSnapshot(plant.position, plant.velocity, radius),
        act=lambda wish: np.clip((wish - np.array(plant.velocity)) / dt, -limit, limit),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What is attacked: one response of one robot, and one claim.

    Attributes:
        claim: What is claimed about partners.
        response: How the robot follows its action.
        make: Makes the robot of an episode.
        guard: Makes its filter, from the arguments of `BackupFilter`.
        partners: Fewest and most partners.
        speeds: Partners' largest speeds as shares of what the robot flees with.
        contact_speed: Own speed that is tolerated at a contact, m/s.
    """

    claim: Claim
    response: str
    make: RobotMaker
    guard: Callable[..., Any] = BackupFilter
    partners: tuple[int, int] = (0, 0)
    speeds: tuple[float, float] = (0.0, 0.0)
    contact_speed: float = 0.0


def _schemes(
    make: RobotMaker,
    claims: dict[Claim, tuple[str, ...]],
    *,
    fastest: float,
    guard: Callable[..., Any] = BackupFilter,
) -> dict[str, Scheme]:
    """Return the schemes of a robot by name; escapes are from partners of up to ``fastest``."""
    others: dict[Claim, dict[str, Any]] = {
        "walls": {},
        "escape": {"partners": (1, 1), "speeds": (0.3, fastest)},
        "passive": {"partners": (1, 3), "speeds": (0.3, 3.0)},
    }
    return {
        f"{response}-{claim}": Scheme(
            claim=claim,
            response=response,
            make=make,
            guard=guard,
            # A base with a lag never rests exactly.
            contact_speed=0.05 if (claim, response) == ("passive", "lag") else 0.0,
            **others[claim],
        )
        for claim, responses in claims.items()
        for response in responses
    }


#: Every scheme, by robot and name.
SCHEMES: Final[dict[str, dict[str, Scheme]]] = {
    "velocity": _schemes(
        velocity_robot,
        dict.fromkeys(("walls", "escape", "passive"), ("norm", "axis", "ideal", "lag")),
        fastest=1.0,
    ),
    "unicycle": _schemes(
        unicycle_robot,
        {
            "walls": ("rates", "offset", "ideal"),
            "escape": ("rates", "ideal"),
            "passive": ("rates", "offset"),
        },
        # A wheeled base may flee at an angle, and then with less than its speed.
        fastest=0.8,
    ),
    "acceleration": _schemes(
        acceleration_robot,
        dict.fromkeys(("walls", "escape", "passive"), ("box",)),
        fastest=0.95,
        guard=AccelerationGuard,
    ),
}


#: Dimensions that every robot moves in.
DIMS: Final[dict[str, tuple[int, ...]]] = {
    "velocity": (2, 3),
    "unicycle": (2,),
    "acceleration": (2, 3),
}

"""Do filtered robots reach their goals? Without a filter, with rows only, with this filter.

Robots:    a holonomic base (1 m/s, followed at 2 m/s^2) and a wheeled one (1 m/s, 2 rad/s, followed
           at 2 m/s^2 and 6 rad/s^2), discs of 0.2 m, control step 0.1 s, exact motion.
Policy:    straight at the goal, whatever is in the way. It knows no detour, so in a furnished room
           a filter may stop it in front of a column for good.
Scenes:    free space; rooms of four walls and two columns; each alone, beside a walker, who strolls
           from place to place, through columns too, and beside a hunter, who runs at the robot.
           Both move at up to 0.8 m/s and turn at once. Behind a disc: the goal lies right behind a
           disc of 0.5 m; three ways to drive a wheeled robot there.
Filters:   none     the policy's command.
           rows     what a library of control barrier functions does: the motion x' = u, and of a
                    wheeled robot that of the point ahead of its axle in the metric diag(1, l^2);
                    one row per wall, column and person, the person at the present velocity; least
                    violation where not all can be met. This is `AffineCBFFilter`; its gain of 2/s
                    is what 1 m/s and 2 m/s^2 allow.
           escape, passive   `BackupFilter` with this guarantee; alone they are the same.
Episode:   ends at the goal (0.25 m near), at the first contact, or after 20 s. Gaps are taken 32
           times per step. All filters play the same starts and draws.
Own speed: of the robot at the contact, the largest of all episodes.

Usage:     python -m perf.usefulness [--episodes 20] [--gain 2] [--json FILE]
           python -m tools.records --usefulness FILE   writes the tables of docs/which-robot.md
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from cadenza.core.files import finite_or_none
from cadenza.core.seeding import derive_substream
from cadenza.safety import (
    AgentSnapshot,
    PartnerBound,
    UnicycleModel,
    VelocityModel,
    WheeledSnapshot,
)
from cadenza.safety.affine import (
    AffineCBFFilter,
    DoubleIntegrator,
    JointDynamics,
    KinematicUnicycle,
    half_plane,
    keep_out_ball,
    minimum_separation,
)
from cadenza.safety.backup import BackupFilter
from cadenza.safety.geometry import Ball, HalfSpace, Obstacles, Shape
from cadenza.safety.verifier.adversaries import PURSUITS, PartnerView, unit
from cadenza.safety.verifier.attacks import Pursuer
from cadenza.safety.verifier.robots import UnicyclePlant, VelocityPlant
from perf.record import measured_with

RADIUS, DT, TIME_S, GOAL_M = 0.2, 0.1, 20.0, 0.25
TOP, RATE, TURN, TURN_RATE, LOOK_AHEAD_M = 1.0, 2.0, 2.0, 6.0, 0.1
PERSON: Final = PartnerBound("person", 0.8 * TOP)
#: A gap below this is a contact, m.
CONTACT_M: Final = -1e-6
#: Fastest decay of a gap that a base of this speed and rate can follow, 1/s.
GAIN: Final = RATE / TOP
#: Rooms that the episodes take turns in, and the room left around columns, m.
ROOMS, PASSAGE_M = 10, 0.9
DISC: Final = Ball((1.5, 0.0), 0.5)
FILTERS: Final = ("none", "rows", "escape", "passive")
EPISODES: Final = 240
#: Behind the disc.
DISC_EPISODES: Final = 120


class Velocities:
    """x' = u, as `AffineCBFFilter` takes it."""

    state_dim, action_dim = 2, 2

    def drift(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    def input_map(self, x: torch.Tensor) -> torch.Tensor:
        return torch.eye(2, dtype=x.dtype, device=x.device)


class Holonomic:
    """A base that takes velocities."""

    name = "holonomic"
    model = VelocityModel("robot", 2, TOP, RATE)
    guarantees = ("escape", "passive")
    dynamics, point, reach_m = Velocities(), (0, 1), RADIUS
    box, weights = (-TOP, TOP), None

    def __init__(self, place: tuple[float, float], _heading: float) -> None:
        self.plant = VelocityPlant(place, (0.0, 0.0), max_accel=self.model.max_accel)

    def look(self) -> AgentSnapshot:
        return AgentSnapshot(self.plant.position, self.plant.velocity, RADIUS)

    def state(self) -> list[float]:
        return [*self.plant.position]

    def straight(self, way: np.ndarray) -> np.ndarray:
        """Return the command that drives a way, braking at its end."""
        distance = float(np.linalg.norm(way))
        return way * min(TOP, GAIN * distance) / max(distance, 1e-9)


class Wheeled:
    """A differential drive."""

    name = "wheeled"
    model = UnicycleModel(
        "robot", TOP, TOP, TURN, RATE, TURN_RATE, RADIUS, look_ahead_m=LOOK_AHEAD_M
    )
    guarantees = ("passive", "escape")
    dynamics = KinematicUnicycle(LOOK_AHEAD_M)
    point, reach_m = dynamics.point_ahead, RADIUS + LOOK_AHEAD_M
    box, weights = ([-TOP, -TURN], [TOP, TURN]), (1.0, LOOK_AHEAD_M**2)

    def __init__(self, place: tuple[float, float], heading: float) -> None:
        self.plant = UnicyclePlant(
            place, heading, accel=self.model.accel, yaw_accel=self.model.yaw_accel
        )

    def look(self) -> AgentSnapshot:
        plant = self.plant
        turning = {"heading": float(plant.heading), "yaw_rate": float(plant.yaw_rate)}
        return WheeledSnapshot(plant.position, plant.velocity, RADIUS, **turning)

    def state(self) -> list[float]:
        return [*self.plant.position, float(self.plant.heading)]

    def straight(self, way: np.ndarray) -> np.ndarray:
        """Return the command that turns to a way and drives it, slowly while it turns."""
        distance, error = self._polar(way)
        return self._limited(min(distance, TOP) * max(0.0, math.cos(error)), 2.0 * error)

    def turning(self, way: np.ndarray) -> np.ndarray:
        """Return the command that turns to a way while it drives."""
        distance, error = self._polar(way)
        return self._limited(min(distance, TOP), 2.0 * error)

    def pulling(self, way: np.ndarray) -> np.ndarray:
        """Return the command that pulls the point ahead along a way."""
        length = self.model.look_ahead_m
        cosine, sine = math.cos(self.plant.heading), math.sin(self.plant.heading)
        way = way - length * np.array((cosine, sine))
        way = way / max(1.0, float(np.linalg.norm(way)) / TOP)
        aside = cosine * way[1] - sine * way[0]
        return self._limited(cosine * way[0] + sine * way[1], aside / length)

    def _polar(self, way: np.ndarray) -> tuple[float, float]:
        error = math.atan2(way[1], way[0]) - self.plant.heading
        return float(np.linalg.norm(way)), math.atan2(math.sin(error), math.cos(error))

    def _limited(self, speed: float, turn: float) -> np.ndarray:
        return np.array((max(-TOP, min(speed, TOP)), max(-TURN, min(turn, TURN))))


@dataclass(frozen=True)
class Scene:
    """One line of the table: a robot, where it drives, beside whom, and how."""

    robot: type[Holonomic | Wheeled]
    world: str  # "free", "rooms" or "disc"
    person: str = ""  # "walker", "hunter" or nobody
    policy: str = "straight"

    @property
    def name(self) -> str:
        place = {"free": "free space", "rooms": "rooms", "disc": "goal behind a disc"}[self.world]
        way = f", {self.policy}" if self.world == "disc" else ""
        return f"{place}{way}{f', {self.person}' if self.person else ''}"

    def filters(self) -> list[str]:
        """Return the filters that differ here."""
        guarantees = self.robot.guarantees if self.person else self.robot.guarantees[:1]
        return ["none", "rows", *guarantees]


SCENES: Final = [
    *(
        Scene(robot, world, person)
        for robot in (Holonomic, Wheeled)
        for world in ("free", "rooms")
        for person in ("", "walker", "hunter")
    ),
    *(Scene(Wheeled, "disc", "", policy) for policy in ("straight", "turning", "pulling")),
]


@dataclass
class Counts:
    """What became of the episodes of one scene with one filter."""

    episodes: int = 0
    reached: int = 0
    person_contacts: int = 0
    wall_contacts: int = 0
    times: list[float] = field(default_factory=list[float], repr=False)
    own_speed: float = 0.0  # Largest at a contact with the person, m/s
    wall_speed: float = 0.0  # The same with an obstacle
    nearest_m: float = math.inf  # Smallest gap to anything
    steps: int = 0
    uncertified: int = 0  # Steps without a promise about the person
    static_uncertified: int = 0  # Steps without a promise about obstacles

    def figures(self) -> dict[str, Any]:
        """Return the figures, with the mean time to the goal, s."""
        mean = sum(self.times) / len(self.times) if self.times else None
        figures = {name: value for name, value in asdict(self).items() if name != "times"}
        figures["nearest_m"] = finite_or_none(self.nearest_m)
        return {**figures, "stuck": self.stuck, "mean_time_s": mean}

    @property
    def stuck(self) -> int:
        """Episodes that ended nowhere."""
        return self.episodes - self.reached - self.person_contacts - self.wall_contacts


@cache
def shapes_of(world: str, number: int) -> tuple[Shape, ...]:
    """Return what stands in the world; of rooms, in one of them."""
    if world != "rooms":
        return (DISC,) if world == "disc" else ()
    rng = derive_substream("perf.usefulness.rooms", root_seed=number).default_rng()
    half = rng.uniform(2.0, 3.0, size=2)
    shapes: list[Shape] = [
        HalfSpace(side * axis, -size)
        for axis, size in zip(np.eye(2), half.tolist(), strict=True)
        for side in (1.0, -1.0)
    ]
    while len(shapes) < 6:
        column = Ball(rng.uniform(-half, half), rng.uniform(0.15, 0.4))
        distances, _ = Obstacles(tuple(shapes)).gaps(column.center)
        if distances.min() > column.radius + PASSAGE_M:
            shapes.append(column)
    return tuple(shapes)


def place_in(obstacles: Obstacles, clearance_m: float, rng: np.random.Generator) -> np.ndarray:
    """Return a place that is far enough from every obstacle."""
    while True:
        place = rng.uniform(-2.5, 2.5, size=2)
        if obstacles.gaps(place)[0].min(initial=math.inf) > clearance_m:
            return place


class Strolling:
    """A walker's wish: to one random place after the other, whatever the robot does."""

    def __init__(self, start: np.ndarray, obstacles: Obstacles, rng: np.random.Generator) -> None:
        self._draw = lambda: place_in(obstacles, RADIUS, rng)
        self._goal = start
        self.walker: Any = None  # whose wish this is

    def __call__(self, view: PartnerView) -> np.ndarray:
        del view
        here = self.walker.position
        while np.linalg.norm(self._goal - here) < GOAL_M:
            self._goal = self._draw()
        return unit(self._goal - here)[None]


@cache
def rows_filter(
    robot: type[Any], world: str, number: int, beside: bool, gain: float
) -> AffineCBFFilter:
    """Return rows of all walls, columns and the person; see the module."""
    common: dict[str, Any] = {"position": robot.point, "gains": gain}
    barriers: list[Any] = []
    for k, shape in enumerate(shapes_of(world, number)):
        if isinstance(shape, HalfSpace):
            barriers.append(
                half_plane(shape.normal, shape.offset + robot.reach_m, name=f"wall {k}", **common)
            )
        else:
            radius = shape.radius + robot.reach_m
            barriers.append(keep_out_ball(shape.center, radius, name=f"column {k}", **common))
    dynamics: Any = robot.dynamics
    if beside:
        own = dynamics.state_dim
        dynamics = JointDynamics([dynamics, DoubleIntegrator(2)], [True, False])
        apart, where = robot.reach_m + RADIUS, (own, own + 1)
        barriers.append(minimum_separation(apart, first=robot.point, second=where, gains=gain))
    return AffineCBFFilter(dynamics, barriers, box=robot.box, action_weights=robot.weights)


class Episode:
    """One episode: a robot on its way to a goal, and whoever else is there."""

    def __init__(self, scene: Scene, kind: str, index: int, gain: float) -> None:
        self.scene, self.kind, self.number, self.gain = scene, kind, index % ROOMS, gain
        stream = derive_substream(f"perf.usefulness.{scene.name}", root_seed=0).child(index)
        starts, draws = (one.default_rng() for one in stream.spawn(2))
        shapes = shapes_of(scene.world, self.number)
        self.obstacles = Obstacles(shapes)
        if scene.world == "disc":
            place, self.goal = np.array((0.0, starts.uniform(-0.15, 0.15))), np.array((3.0, 0.0))
            heading = starts.uniform(-0.3, 0.3)
        else:
            place = self.goal = place_in(self.obstacles, 2.0 * RADIUS, starts)
            while np.linalg.norm(self.goal - place) < 2.5:
                self.goal = place_in(self.obstacles, 2.0 * RADIUS, starts)
            heading = starts.uniform(-math.pi, math.pi)
        self.robot = scene.robot(tuple(place.tolist()), heading)
        self.people: list[Pursuer] = []
        if scene.person:
            start = place
            while np.linalg.norm(start - place) < 1.2:
                start = place_in(self.obstacles, RADIUS, starts)
            strolls = Strolling(start, self.obstacles, starts)
            pursuit = strolls if scene.person == "walker" else PURSUITS["chase"]
            self.people.append(Pursuer(PERSON, pursuit, start, draws))
            strolls.walker = self.people[0]
        self.guard = BackupFilter(
            self.robot.model,
            [person.bound for person in self.people],
            dt=DT,
            obstacles=shapes,
            guarantee=kind if self.people and kind in ("escape", "passive") else None,
        )

    def play(self, counts: Counts) -> None:
        """Play until the goal, a contact or the end, and count it."""
        counts.episodes += 1
        policy: Callable[[np.ndarray], np.ndarray] = getattr(self.robot, self.scene.policy)
        for step in range(round(TIME_S / DT)):
            before = self.robot.plant.position
            command = self._filtered(policy(self.goal - before), counts)
            path = self.robot.plant.step(command, DT)
            people = [person.step(before, path, DT) for person in self.people]
            counts.steps += 1
            if self._touches(path, people, counts):
                return
            if math.dist(path[-1], self.goal) < GOAL_M:
                counts.reached += 1
                counts.times.append((step + 1) * DT)
                return

    def _filtered(self, nominal: np.ndarray, counts: Counts) -> np.ndarray:
        if self.kind == "none":
            return nominal
        if self.kind == "rows":
            if not self.people and not len(self.obstacles):
                return nominal
            world = self.scene.world, self.number, bool(self.people)
            guard = rows_filter(self.scene.robot, *world, self.gain)
            state = self.robot.state()
            for person in self.people:
                state += [*person.position, *person.velocity]
            action, _ = guard.filter(np.array(state), nominal)
            # The box contains more than the disc of speeds that a holonomic base has.
            fast = np.linalg.norm(action) / TOP if self.scene.robot is Holonomic else 1.0
            return action / max(1.0, float(fast))
        scene = {"robot": self.robot.look()}
        for person in self.people:
            scene["person"] = AgentSnapshot(person.position, person.velocity, RADIUS)
        decision = self.guard.filter(nominal, scene)
        counts.uncertified += decision.uncertified
        counts.static_uncertified += decision.static_uncertified
        return decision.action

    def _touches(self, path: np.ndarray, people: Sequence[Any], counts: Counts) -> bool:
        """Count the first contact of a step, if there is one, and the robot's speed at it."""
        walls = self.obstacles.gaps(path)[0].min(axis=1, initial=math.inf) - RADIUS
        persons = np.full(len(path), math.inf)
        for person in people:
            apart = np.linalg.norm(person - path, axis=1) - 2.0 * RADIUS
            persons = np.minimum(persons, apart)
        gaps = np.minimum(walls, persons)
        counts.nearest_m = min(counts.nearest_m, float(gaps.min()))
        touching = np.flatnonzero(gaps < CONTACT_M)
        if not touching.size:
            return False
        at = int(touching[0])
        speed = float(np.linalg.norm(self.robot.plant.velocity))
        if at + 1 < len(path):
            speed = float(np.linalg.norm(path[at + 1] - path[at])) * len(path) / DT
        if persons[at] < CONTACT_M:
            counts.person_contacts += 1
            counts.own_speed = max(counts.own_speed, speed)
        else:
            counts.wall_contacts += 1
            counts.wall_speed = max(counts.wall_speed, speed)
        return True


def measure(scene: Scene, kind: str, episodes: int, gain: float = GAIN) -> Counts:
    """Return what became of so many episodes; ``gain`` is that of the rows, 1/s."""
    counts = Counts()
    for index in range(episodes):
        Episode(scene, kind, index, gain).play(counts)
    return counts


def _contacts(counts: Counts) -> str:
    parts = [
        f"{number} {what} at {_speed(speed)}"
        for number, what, speed in (
            (counts.person_contacts, "person", counts.own_speed),
            (counts.wall_contacts, "wall", counts.wall_speed),
        )
        if number
    ]
    return "; ".join(parts) or "0"


def _speed(speed: float) -> str:
    return "rest" if speed < 1e-9 else f"{speed:.2f} m/s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.usefulness")
    parser.add_argument("--episodes", type=int, help="of every scene; fewer for a quick look")
    parser.add_argument("--gain", type=float, default=GAIN, help="of the rows, 1/s")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    results: dict[tuple[Scene, str], Counts] = {}
    for scene in SCENES:
        episodes = options.episodes or (DISC_EPISODES if scene.world == "disc" else EPISODES)
        for kind in scene.filters():
            counts = results[scene, kind] = measure(scene, kind, episodes, options.gain)
            time_s = counts.figures()["mean_time_s"]
            print(
                f"{scene.robot.name:9} {scene.name:28} {kind:8} reached {counts.reached:3} of "
                f"{counts.episodes}"
                + (f" in {time_s:4.1f} s" if time_s else "")
                + f", contacts: {_contacts(counts)}, stuck {counts.stuck}, "
                f"uncertified {counts.uncertified / counts.steps:.1%}",
                flush=True,
            )
    if options.json:
        rows = [
            {"robot": scene.robot.name, "scene": scene.name, "filter": kind, **counts.figures()}
            for (scene, kind), counts in results.items()
        ]
        document = json.dumps({**measured_with(), "rows": rows}, indent=2)
        options.json.write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

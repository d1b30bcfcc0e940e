"""Episodes in which partners and nominal actions try to make a robot touch something.

Plants are exact, partners move second, and gaps are taken 32 times per step.
"""

import math
from dataclasses import dataclass

import numpy as np

from cadenza.core.seeding import derive_substream
from cadenza.safety.backup import BackupFilter
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Box, HalfSpace, Obstacles, Sphere
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.plants import PURSUITS, Pursuer

RADIUS = 0.2
#: A gap below this is a contact, m, and a speed above this no rest, m/s.
CONTACT_M, REST = -1e-6, 1e-9
NOMINALS = ("goal", "random", "partner", "wall", "circle")


@dataclass
class Tally:
    """What happened in some episodes."""

    steps: int = 0
    episodes: int = 0
    uncertified: int = 0
    wall_contacts: int = 0
    contacts: int = 0
    certified_contacts: int = 0
    static_uncertified: int = 0
    worst_gap: float = math.inf
    worst_wall: float = math.inf
    contact_speed: float = 0.0


def room(rng, dim):
    """Return four or six walls and some furniture, or a funnel."""
    if rng.random() < 0.3:
        half = 0.5 * rng.uniform(0.16, 0.6)
        turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        sides = [math.sin(half) * turn[0] + s * math.cos(half) * turn[1] for s in (1.0, -1.0)]
        shift = 2.5 * RADIUS / math.sin(half) * turn[0]
        return [HalfSpace(n, -float(n @ shift)) for n in sides]
    size = rng.uniform(1.5, 3.0, size=dim)
    walls = [
        HalfSpace(s * axis, -half)
        for axis, half in zip(np.eye(dim), size, strict=True)
        for s in (1.0, -1.0)
    ]
    for _ in range(int(rng.integers(0, 3))):
        center = rng.uniform(-size, size)
        if rng.random() < 0.5 and dim == 2:
            walls.append(Box(center, rng.uniform(0.1, 0.4, 2), angle=rng.uniform(-3.0, 3.0)))
        else:
            walls.append(Sphere(center, rng.uniform(0.1, 0.4)))
    return walls


def nearest_wall(obstacles, x):
    distances, normals = obstacles.gaps(np.array(x))
    k = int(distances.argmin())
    return float(distances[k]), -normals[k]


def wish(kind, x, partners, obstacles, goal, step, rng, speed):
    """Return a nominal velocity."""
    dim = len(x)
    if kind == "random":
        way = rng.normal(size=dim)
    elif kind == "partner" and partners:
        way = np.array(partners[0].position) - x
    elif kind == "wall" and obstacles is not None and len(obstacles):
        way = nearest_wall(obstacles, x)[1]
    elif kind == "circle":
        way = np.zeros(dim)
        way[:2] = math.cos(0.15 * step), math.sin(0.15 * step)
    else:
        way = goal - x
    length = float(np.linalg.norm(way))
    return speed * way / length if length > 1e-9 else np.zeros(dim)


def attack(
    make_plant,
    model,
    *,
    steps,
    seed,
    dim=2,
    dts=(0.02, 0.05, 0.1),
    partners=1,
    speeds=(0.5, 1.0),
    accels=(math.inf, 4.0, 1.0),
    walls=False,
    error_m=0.0,
    error_speed=0.0,
    age_steps=0,
    counted=True,
    episode_steps=150,
    guard=None,
    **options,
):
    """Attack one model for a number of steps and return the tally.

    ``speeds`` is the range of partners' speeds as shares of the model's; errors are of full size,
    and filters know them if they are ``counted``. ``guard`` replaces the filter by a function.
    """
    rng = derive_substream(f"tests.attack.{seed}", root_seed=seed).default_rng()
    tally = Tally()
    while tally.steps < steps:
        tally.episodes += 1
        dt = float(rng.choice(dts))
        obstacles = Obstacles(room(rng, dim)) if walls else None
        for _ in range(1000):
            x = rng.uniform(-2.0, 2.0, size=dim)
            if obstacles is None or nearest_wall(obstacles, x)[0] > RADIUS + 2e-3 + error_m:
                break
        else:
            continue
        plant = make_plant(model, tuple(x.tolist()))
        others = []
        for k in range(partners):
            bound = PartnerBound(
                f"p{k}", float(rng.uniform(*speeds)) * model.max_speed, float(rng.choice(accels))
            )
            away = rng.normal(size=dim)
            away *= rng.uniform(4.5 * RADIUS + 4.0 * error_m, 2.0) / np.linalg.norm(away)
            name = str(rng.choice(list(PURSUITS)))
            start = tuple((x + away).tolist())
            others.append(Pursuer(bound, PURSUITS[name], start, (0.0,) * dim, rng))
        known = {}
        if counted and (error_m or error_speed):
            known = {"position_error_m": error_m, "velocity_error": error_speed}
        flter = BackupFilter(
            model,
            [one.bound for one in others],
            dt=dt,
            obstacles=obstacles or (),
            margin_m=0.0,
            **known,
            **options,
        )
        kind = str(rng.choice(NOMINALS))
        goal = rng.uniform(-2.0, 2.0, size=dim)
        packets = [[] for _ in others]
        touched = False
        for step in range(episode_steps):
            x = np.array(plant.position)
            scene = {"ego": AgentSnapshot(plant.position, plant.velocity, RADIUS)}
            for k, one in enumerate(others):
                packets[k].append((one.position, one.velocity))
                age = min(int(rng.integers(0, age_steps + 1)), len(packets[k]) - 1)
                p, v = (np.array(part) for part in packets[k][-1 - age])
                lie, faster = p - x, rng.normal(size=dim)
                p = p + error_m * lie / np.linalg.norm(lie)
                v = v + error_speed * faster / np.linalg.norm(faster)
                scene[one.bound.uid] = AgentSnapshot(p, v, RADIUS, age * dt if counted else 0.0)
            nominal = wish(kind, x, others, obstacles, goal, step, rng, 0.999 * model.max_speed)
            if np.linalg.norm(goal - x) < 0.1:
                goal = rng.uniform(-2.0, 2.0, size=dim)
            if guard is None:
                decision = flter.filter(nominal, scene)
                command, uncertified = decision.action, decision.uncertified
                tally.static_uncertified += decision.static_uncertified
            else:
                command, uncertified = guard(nominal, scene, dt, plant), False
            tally.uncertified += uncertified
            before = plant.position
            path = plant.step(command, dt)
            if obstacles is not None:
                distances, _ = obstacles.gaps(np.array(path))
                gap = float(distances.min()) - RADIUS
                tally.worst_wall = min(tally.worst_wall, gap)
                tally.wall_contacts += gap < CONTACT_M
            for one in others:
                theirs = one.step(before, path, dt)
                gaps = [math.dist(a, b) - 2.0 * RADIUS for a, b in zip(path, theirs, strict=True)]
                tally.worst_gap = min(tally.worst_gap, *gaps)
                if min(gaps) < CONTACT_M:
                    touched = True
                    tally.certified_contacts += not uncertified
                    for k in range(1, len(gaps)):
                        if max(gaps[k - 1 : k + 1]) < CONTACT_M:
                            speed = math.dist(path[k - 1], path[k]) * len(path) / dt
                            tally.contact_speed = max(tally.contact_speed, speed)
            tally.steps += 1
        tally.contacts += touched
    return tally

"""Episodes in which partners and nominal actions attack wheeled bases; partners move second."""

import math

import numpy as np

from cadenza.core.seeding import derive_substream
from cadenza.safety.backup import BackupFilter
from cadenza.safety.control_models import PartnerBound, UnicycleModel
from cadenza.safety.geometry import Obstacles
from cadenza.safety.snapshot import AgentSnapshot, WheeledSnapshot
from cadenza.safety.verifier.plants import PURSUITS, Pursuer, UnicyclePlant
from tests.unit.safety.backup.attacks import CONTACT_M, RADIUS, Tally, nearest_wall, room

NOMINALS = ("goal", "random", "partner", "wall", "circle")


def plant_of(model, position, heading):
    return UnicyclePlant(
        position,
        heading,
        accel=model.accel,
        yaw_accel=model.yaw_accel,
        offset_m=model.center_offset_m,
    )


def seen(plant, radius=RADIUS):
    return WheeledSnapshot(
        plant.position, plant.velocity, radius, heading=plant.heading, yaw_rate=plant.yaw_rate
    )


def wrapped(angle):
    return math.atan2(math.sin(angle), math.cos(angle))


def toward(model, plant, way, *, backward=False):
    """Return the command that turns to a way and drives, backward if that way is nearer."""
    error = wrapped(math.atan2(way[1], way[0]) - plant.heading)
    speed = model.max_speed
    if backward and abs(error) > 0.5 * math.pi:
        error, speed = wrapped(error + math.pi), -model.max_reverse
    return speed, max(-model.max_yaw_rate, min(model.max_yaw_rate, 4.0 * error))


def wish(kind, model, plant, others, obstacles, goal, rng):
    """Return a nominal command."""
    x = np.array(plant.position)
    if kind == "partner" and others:
        return toward(model, plant, np.array(others[0].position) - x, backward=True)
    if kind == "wall" and obstacles is not None:
        return toward(model, plant, nearest_wall(obstacles, x)[1], backward=True)
    if kind == "circle":
        return model.max_speed, 0.5 * model.max_yaw_rate
    if kind == "random":
        return (
            rng.uniform(-model.max_reverse, model.max_speed),
            rng.uniform(-model.max_yaw_rate, model.max_yaw_rate),
        )
    return toward(model, plant, goal - x)


def drawn_model(rng, *, ideal, offset_m, guarantee):
    top = rng.uniform(0.4, 1.5)
    return UnicycleModel(
        "ego",
        max_speed=top,
        max_reverse=top * (1.0 if guarantee == "escape" else rng.choice([1.0, 0.5])),
        max_yaw_rate=rng.uniform(0.8, 3.0),
        accel=math.inf if ideal else rng.uniform(0.5, 3.0),
        yaw_accel=math.inf if ideal else rng.uniform(1.0, 8.0),
        radius=RADIUS,
        center_offset_m=offset_m,
        look_ahead_m=float(rng.choice([0.05, 0.1, 0.2, 0.3])),
    )


def attack(
    *,
    steps,
    seed,
    guarantee=None,
    partners=0,
    ideal=False,
    offset_m=0.0,
    walls=True,
    guard=None,
    episode_steps=150,
):
    """Attack wheeled bases for a number of steps and return the tally.

    ``guard`` replaces the filter by a function of (nominal, model, plant, obstacles, dt). Robots
    that are to flee start where they can: facing a partner that is slow enough, or turned away.
    """
    rng = derive_substream(f"tests.wheels.{seed}", root_seed=seed).default_rng()
    tally = Tally()
    while tally.steps < steps:
        dt = float(rng.choice([0.02, 0.05, 0.1]))
        model = drawn_model(rng, ideal=ideal, offset_m=offset_m, guarantee=guarantee)
        flees = guarantee == "escape"
        if flees and model.escape_speed(dt) < 0.05:
            continue
        obstacles = Obstacles(room(rng, 2)) if walls else None
        x = rng.uniform(-2.0, 2.0, size=2)
        if obstacles is not None and nearest_wall(obstacles, x)[0] < RADIUS + 2e-3:
            continue
        plant = plant_of(model, tuple(x.tolist()), rng.uniform(-math.pi, math.pi))
        others = []
        for k in range(partners):
            top = model.escape_speed(dt) if flees else model.max_speed
            least, most = (0.5, 1.0 if ideal else 0.8) if flees else (0.5, 3.0)
            bound = PartnerBound(
                f"p{k}", top * rng.uniform(least, most), float(rng.choice([math.inf, 4.0, 1.0]))
            )
            angle = rng.uniform(-math.pi, math.pi)
            if flees and not ideal:
                angle = plant.heading + rng.choice([0.0, math.pi]) + rng.uniform(-0.3, 0.3)
            away = rng.uniform(2.0 * RADIUS + 0.45, 2.5)
            start = (x[0] + away * math.cos(angle), x[1] + away * math.sin(angle))
            chase = PURSUITS[str(rng.choice(list(PURSUITS)))]
            others.append(Pursuer(bound, chase, start, (0.0, 0.0), rng))
        flter = BackupFilter(
            model,
            [one.bound for one in others],
            dt=dt,
            obstacles=obstacles or (),
            margin_m=0.0,
            guarantee=guarantee,
        )
        tally.episodes += 1
        kind, goal = str(rng.choice(NOMINALS)), rng.uniform(-2.0, 2.0, size=2)
        touched = False
        for _ in range(episode_steps):
            nominal = np.array(wish(kind, model, plant, others, obstacles, goal, rng))
            if math.dist(goal, plant.position) < 0.2:
                goal = rng.uniform(-2.0, 2.0, size=2)
            if rng.random() < 0.02:
                kind = str(rng.choice(NOMINALS))
            if guard is None:
                scene = {"ego": seen(plant)}
                for one in others:
                    scene[one.bound.uid] = AgentSnapshot(one.position, one.velocity, RADIUS)
                decision = flter.filter(nominal, scene)
                command, uncertified = decision.action, decision.uncertified
                tally.static_uncertified += decision.static_uncertified
            else:
                command, uncertified = guard(nominal, model, plant, obstacles, dt), False
            tally.uncertified += uncertified
            before = plant.position
            path = plant.step(command.tolist(), dt)
            if obstacles is not None:
                gap = float(obstacles.gaps(np.array(path))[0].min()) - RADIUS
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
            if touched and guarantee == "escape":
                break
        tally.contacts += touched
    return tally

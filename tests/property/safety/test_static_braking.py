"""An acceleration-commanded robot beside obstacles: braking, paths, theorems under attack."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.seeding import derive_substream
from cadenza.safety.backup.acceleration import AccelerationBase, brake_distance
from cadenza.safety.backup.base import BaseSettings, Partner, Scene
from cadenza.safety.backup.filter import choose
from cadenza.safety.geometry import Ball, Box, Capsule, HalfSpace, Obstacles, Points, Polygon
from tests.campaigns import size
from tests.unit.safety.scenes import agent, box, call, ego_filter, slack

RADIUS = 0.2
#: A gap below this is a contact, m.
CONTACT_M = -1e-6
#: Sub-steps of a plant: exact zero-order hold, semi-implicit, and between.
PLANTS = {"exact": 0.0, "semi-implicit": 1.0, "4 sub-steps": 0.25}
speeds = st.floats(0.0, 3.0)


def braking(v, accel, dt):
    """beta(v)."""
    speed = np.linalg.norm(v)
    return -accel * v / speed if speed > accel * dt else -v / dt


def way(v, u, s, dt, share):
    """Where a plant is after a part of a step, from its start; ``share`` as in PLANTS."""
    return v * s + 0.5 * u * s * (s + (share * dt if s > 0.0 else 0.0))


def base_at(x, v, obstacles, *, c=2.0, dt=0.05, partners=(), clearance=RADIUS, passive=False):
    base = AccelerationBase(c, c, BaseSettings(dt=dt, passive=passive))
    position, velocity = tuple(map(float, x)), tuple(map(float, v))
    shapes = None if obstacles is None else Obstacles(obstacles)
    base.look(Scene(position, velocity, 0.0, 0.0, tuple(partners), shapes, clearance))
    return base


@given(speed=speeds, accel=st.floats(0.2, 5.0), dt=st.floats(0.01, 0.3))
def test_brake_distance_is_the_way_of_whole_steps(speed, accel, dt):
    v, covered = np.array([speed, 0.0]), 0.0
    while v[0] > 1e-12:
        u = braking(v, accel, dt)
        covered += way(v, u, dt, dt, 0.0)[0]
        v = v + u * dt
    assert brake_distance(speed, accel, dt) == pytest.approx(covered, abs=1e-9)


@given(
    v=st.tuples(*[st.floats(-2.0, 2.0)] * 2),
    u=st.tuples(*[st.floats(-2.0, 2.0)] * 2),
    angle=st.floats(-math.pi, math.pi),
    gap=st.floats(0.0, 1.5),
    round_=st.booleans(),
    dt=st.sampled_from([0.02, 0.1, 0.3]),
)
def test_clear_action_and_the_brake_after_it_keep_the_clearance_with_every_plant(
    v, u, angle, gap, round_, dt
):
    n = np.array([math.cos(angle), math.sin(angle)])
    wall = Ball(-(RADIUS + gap + 0.7) * n, 0.7) if round_ else HalfSpace(n, -RADIUS - gap)
    clear = base_at((0, 0), v, [wall], dt=dt).static_clear(u)
    lowest = math.inf
    for share in PLANTS.values():
        x, velocity, action = np.zeros(2), np.array(v), np.array(u)
        for _ in range(400):
            times = np.linspace(0.0, dt, 9)
            positions = np.array([x + way(velocity, action, s, dt, share) for s in times])
            lowest = min(lowest, float(wall.gaps(positions)[0].min()) - RADIUS)
            x, velocity = positions[-1], velocity + action * dt
            if np.linalg.norm(velocity) < 1e-12:
                break
            action = braking(velocity, 2.0, dt)
    if clear:
        assert lowest >= -2e-9
    elif not round_ and u == (0.0, 0.0):  # the brake path, and a half-space is judged exactly
        assert lowest < 0.0


def test_nominal_action_far_from_everything_comes_back_itself():
    base = base_at((0, 0), (1, 0), [HalfSpace((-1, 0), -5.0)])
    nominal = (0.1, 0.2)
    action, source, plan, static_uncertified = choose(base, nominal, None)
    assert action is nominal
    assert (source, static_uncertified) == ("none", False)
    assert plan is not None


def test_action_into_a_wall_is_bent_along_it():
    # 5 mm before a wall, sliding along it: the push into it goes, the push along it stays.
    base = base_at((0, 0), (0, 0.5), [HalfSpace((-1, 0), -RADIUS - 0.005)])
    action, source, _, _ = choose(base, (2.0, 1.0), None)
    assert source == "rows"
    assert action[0] < 0.5
    assert action[1] == pytest.approx(1.0)


def test_robot_measured_inside_the_clearance_may_leave_and_slide_but_come_no_nearer():
    wall = HalfSpace((-1, 0), -RADIUS + 0.01)  # measured 1 cm too near
    base = base_at((0, 0), (0, 0), [wall])
    assert base.too_close()
    assert base.static_clear((-1.0, 0.0))
    assert base.static_clear((0.0, 1.0))
    assert not base.static_clear((0.01, 0.0))
    action, _, _, static_uncertified = choose(base, (1.0, 1.0), None)
    assert action == pytest.approx((0.0, 1.0), abs=1e-6)
    assert static_uncertified


def test_start_that_is_too_fast_to_stop_brakes_and_says_so():
    base = base_at((0, 0), (2.0, 0), [HalfSpace((-1, 0), -RADIUS - 0.5)])  # 1.05 m to stop
    action, source, _, static_uncertified = choose(base, (1.0, 0.0), None)
    assert (action, source, static_uncertified) == ((-2.0, 0.0), "brake", True)


def test_robot_beside_walls_and_several_partners_stands_still_whenever_it_is_touched():
    rng = derive_substream("tests.passive_beside_walls").default_rng()
    walls = [HalfSpace(n, -1.0) for n in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    c, dt, touched, moved = 2.0, 0.05, 0, 0.0
    for _ in range(6):
        x, v = np.zeros(2), np.zeros(2)
        hunters = [(0.9 * s * np.array(at), np.zeros(2)) for s in (1.0, -1.0) for at in ((1, 0.2),)]
        goal = rng.uniform(-1.5, 1.5, 2)  # walls are in the way, too
        for _ in range(80):
            partners = [
                Partner(tuple(p.tolist()), tuple(w.tolist()), 0.4, math.inf, 3.0, 0.0)
                for p, w in hunters
            ]
            base = base_at(x, v, walls, c=c, dt=dt, partners=partners, passive=True)
            nominal = tuple((4.0 * (goal - x) - v).tolist())
            u, _, plan, static_uncertified = choose(base, nominal, None)
            assert plan is not None
            assert not static_uncertified
            for k in range(16):
                s = dt * (k + 1) / 16
                here, speed = x + way(v, np.array(u), s, dt, 0.0), v + np.array(u) * s
                assert float(Obstacles(walls).gaps(here)[0].min()) >= RADIUS - 1e-9
                for j, (p, w) in enumerate(hunters):
                    line = here - p
                    accel = 3.0 * line / np.linalg.norm(line)
                    p, w = p + w * dt / 16 + 0.5 * accel * (dt / 16) ** 2, w + accel * dt / 16
                    hunters[j] = p, w
                    if np.linalg.norm(here - p) < 0.4 - 1e-9:
                        touched += 1
                        moved = max(moved, float(np.linalg.norm(speed)))
            x, v = here, v + np.array(u) * dt
    assert touched > 0
    assert moved <= 1e-9


# 1. Walls as partners with rows, which cannot be met together in a funnel.

HALF = 0.1  # rad, half of the opening
CLEAR = 0.04  # m, to both walls at the start
SIDES = [np.array([-math.sin(HALF), sign * math.cos(HALF)]) for sign in (1.0, -1.0)]
FUNNEL = [Ball(-(100.0 + RADIUS + CLEAR) * side, 100.0) for side in SIDES]


def into_the_funnel(decide, dt=0.05):
    """Drive into it and return the least gap to the walls, m."""
    x, v, least = np.zeros(2), np.array([1.0, 0.0]), math.inf
    for _ in range(60):
        u = np.array(decide(x, v))
        inner = [x + way(v, u, s, dt, 0.0) for s in np.linspace(0.0, dt, 9)]
        x, v = inner[-1], v + u * dt
        least = min(least, float(Obstacles(FUNNEL).gaps(inner)[0].min()) - RADIUS)
    return least


def test_rows_of_walls_contradict_each_other_in_a_funnel_and_braking_does_not():
    first = []

    def by_rows(x, v):
        guard = ego_filter(0.0, partners=("a", "b"))
        walls = {
            uid: agent(ball.center, radius=100.0) for uid, ball in zip("ab", FUNNEL, strict=True)
        }
        state = slack(("a", "b"))
        u, info = call(
            guard, [2.0, 0.0], {"ego": agent(x, v)} | walls, bounds=box(2.0), state=state
        )
        first.append(info["uncertified"])
        return u

    def by_paths(x, v):
        action, _, _, static_uncertified = choose(base_at(x, v, FUNNEL), (2.0, 0.0), None)
        assert not static_uncertified
        return action

    assert into_the_funnel(by_rows) < -0.04  # 4.9 cm inside
    assert not first[0]  # and it set out certified
    assert into_the_funnel(by_paths) >= -1e-9


# Attacks: exact and sub-stepped plants, partners that choose 16 times within each step.


def world(kind, dim, rng):
    """Obstacles around the origin, with room for a robot there."""

    def facing(angle, far):
        n = np.zeros(dim)
        n[:2] = math.cos(angle), math.sin(angle)
        return HalfSpace(n, -far)

    turn = rng.uniform(0.0, 2.0 * math.pi)
    if kind == "corridor":
        half = RADIUS + rng.uniform(0.1, 0.8)
        return [facing(turn, half), facing(turn + math.pi, half), facing(turn + 1.5, 2.0)]
    if kind in ("corner", "funnel"):
        opening = rng.uniform(0.5, 2.5) if kind == "corner" else rng.uniform(0.15, 0.6)
        sides = [facing(turn + sign * (math.pi - opening) / 2.0, 0.6) for sign in (1.0, -1.0)]
        if kind == "funnel" and rng.random() < 0.5:  # walls as large balls
            return [Ball((side.offset - 100.0) * side.normal, 100.0) for side in sides]
        return sides
    axes = np.eye(dim)
    shapes = [HalfSpace(sign * axis, -2.0) for axis in axes for sign in (1.0, -1.0)]
    for _ in range(3):
        center = rng.normal(size=dim)
        center *= rng.uniform(1.0, 2.0) / np.linalg.norm(center)
        kind = str(rng.choice(["box", "ball", "capsule", "points", "polygon"]))
        if kind == "box":
            tilt = {"angle": rng.uniform(-3.0, 3.0)} if dim == 2 else {}
            shapes.append(Box(center, rng.uniform(0.05, 0.4, dim), **tilt))
        elif kind == "capsule":
            shapes.append(Capsule(center, center + rng.normal(size=dim), 0.1))
        elif kind == "points":
            shapes.append(Points(center + 0.2 * rng.normal(size=(20, dim)), 0.06))
        elif kind == "polygon" and dim == 2:
            around = [(math.cos(a), math.sin(a)) for a in (0.1, 1.5, 2.4, 4.0)]
            shapes.append(Polygon(center + 0.3 * np.array(around)))
        else:
            shapes.append(Ball(center, rng.uniform(0.1, 0.4)))
    return shapes


WORLDS = ("corridor", "corner", "funnel", "room")


def wanted(kind, x, v, c, goal, partner, obstacles, rng):
    """Return the nominal action."""
    if kind == "random":
        return rng.uniform(-2.0 * c, 2.0 * c, len(x))
    distances, normals = obstacles.gaps(x)
    nearest = normals[int(distances.argmin())]
    if kind == "wall":
        return -2.0 * c * nearest
    if kind == "along":
        side = np.zeros(len(x))
        side[:2] = -nearest[1], nearest[0]
        return c * side - 0.3 * c * nearest
    if kind == "partner" and partner is not None:
        return 3.0 * c * (partner[0] - x)
    return 3.0 * (goal - x) - 2.0 * v


def push(kind, x, v, partner, part, step, rng):
    """Return the direction of a partner's push."""
    p, v_p = partner
    line = x - p
    if kind == "cut off":
        return line + 0.5 * v
    if kind == "intercept":
        return line + v - v_p
    if kind == "bang-bang":
        return line if (part < 0.5) == (step % 2 == 0) else -line
    if kind == "turning":
        side = np.zeros(len(x))
        side[:2] = -line[1], line[0]
        return line + (1.2 * part - 0.6) * side
    return rng.normal(size=len(x)) if kind == "random" else line


def play(decide, steps, seed, *, lone_partner):
    """Play episodes and return what must not happen, and how often steps were uncertified."""
    rng = derive_substream("tests.static_braking", root_seed=seed).default_rng()
    tally = dict.fromkeys(("steps", "walls", "certified contacts", "exits", "broken", "open"), 0)
    while tally["steps"] < steps:
        dim, dt = int(rng.choice((2, 3))), float(rng.choice((0.02, 0.05, 0.1)))
        c, share = float(rng.choice((1.0, 2.0, 5.0))), float(rng.choice(list(PLANTS.values())))
        obstacles = Obstacles(world(str(rng.choice(WORLDS)), dim, rng))
        a_p = c * float(rng.choice((0.3, 0.7, 0.95)))
        x, v = 0.5 * rng.normal(size=dim), rng.normal(size=dim) * float(rng.choice((0.0, 1.0)))
        partner = None
        if lone_partner:
            partner = x + rng.normal(size=dim), 0.3 * rng.normal(size=dim)
        decision = decide(x, v, np.zeros(dim), c, dt, partner, a_p, obstacles)
        if not decision.safe_start:
            continue
        kind = str(rng.choice(("random", "wall", "along", "partner", "goal")))
        hunt = str(rng.choice(("chase", "cut off", "intercept", "bang-bang", "turning", "random")))
        goal = rng.uniform(-2.0, 2.0, dim)
        for step in range(150):
            nominal = wanted(kind, x, v, c, goal, partner, obstacles, rng)
            decision = decide(x, v, nominal, c, dt, partner, a_p, obstacles)
            u = np.array(decision.action)
            tally["steps"] += 1
            tally["broken"] += decision.static_uncertified or np.abs(u).max() > c + 1e-12
            tally["open"] += not decision.certified
            # The state of a certified step was in S, and so is the one it leads to.
            tally["exits"] += decision.certified and not decision.sound
            path = np.array([x + way(v, u, dt * (k + 1) / 16, dt, share) for k in range(16)])
            tally["walls"] += float(obstacles.gaps(path)[0].min()) - RADIUS < CONTACT_M
            if partner is not None:
                h, least = dt / 16, math.inf
                for k in range(16):
                    here = x if k == 0 else path[k - 1]
                    way_ = push(hunt, here, v + u * (k * h), partner, k / 16, step, rng)
                    accel = a_p * way_ / max(float(np.linalg.norm(way_)), 1e-12)
                    p, v_p = partner
                    partner = p + v_p * h + 0.5 * accel * h * h, v_p + accel * h
                    least = min(least, float(np.linalg.norm(path[k] - partner[0])))
                tally["certified contacts"] += decision.certified and least - 0.4 < CONTACT_M
                if least < 0.4:
                    break
            x, v = path[-1], v + u * dt
            if decision.certified and partner is not None:
                after = decide(x, v, nominal, c, dt, partner, a_p, obstacles)
                tally["exits"] += not after.sound
            if np.abs(x).max() > 20.0:
                break
    return tally


class Decision(NamedTuple):
    action: tuple
    certified: bool
    sound: bool  # the state is in S
    safe_start: bool
    static_uncertified: bool


def in_safe_set(x, v, partner, alpha, dt):
    """Return whether a pair in contact at 0.4 m is in S, but for rounding."""
    offset, velocity = x - partner[0], v - partner[1]
    distance = float(np.linalg.norm(offset))
    w = max(0.0, -float(offset @ velocity) / distance)
    return w * w / (2.0 * alpha) + 0.5 * w * dt <= distance - 0.4 + 1e-6


def by_base(x, v, nominal, c, dt, partner, a_p, obstacles):
    partners, sound = (), True
    if partner is not None:
        p, v_p = (tuple(part.tolist()) for part in partner)
        partners = (Partner(p, v_p, 0.4, math.inf, a_p, 0.0),)
        sound = in_safe_set(x, v, partner, c - a_p, dt)
    base = base_at(x, v, obstacles.shapes, c=c, dt=dt, partners=partners)
    action, _, plan, static_uncertified = choose(base, tuple(nominal.tolist()), None)
    safe = sound and not base.too_close() and base.static_clear(base.stop())
    return Decision(action, plan is not None, sound, safe, static_uncertified)


def test_no_wall_is_touched_whatever_is_wanted():
    tally = play(by_base, size(5_000, 1_000_000), seed=1, lone_partner=False)
    assert {name: tally[name] for name in ("walls", "broken", "open")} == {
        "walls": 0,
        "broken": 0,
        "open": 0,
    }


def test_no_wall_is_touched_beside_a_hunter_and_no_certified_step_is():
    tally = play(by_base, size(5_000, 1_000_000), seed=2, lone_partner=True)
    for name in ("walls", "broken", "certified contacts", "exits"):
        assert tally[name] == 0, tally
    assert tally["open"] < 0.2 * tally["steps"]  # most steps are certified


def test_robot_that_brakes_worse_than_declared_touches_walls():
    def boastful(x, v, nominal, c, dt, partner, a_p, obstacles):
        declared = by_base(x, v, nominal, 4.0 * c, dt, partner, a_p, obstacles)
        return declared._replace(action=np.clip(declared.action, -c, c))

    assert play(boastful, 1_000, seed=1, lone_partner=False)["walls"] > 0

"""An acceleration-commanded robot beside obstacles: braking, paths, theorems under attack."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.safety.backup.acceleration import AccelerationBase, brake_distance
from cadenza.safety.backup.base import BaseSettings, Scene
from cadenza.safety.backup.filter import choose
from cadenza.safety.geometry import Ball, Box, HalfSpace, Obstacles, Points
from cadenza.safety.verifier import AttackConfig, attack
from cadenza.safety.verifier.robots import WORLDS, AccelerationGuard
from tests.campaigns import size
from tests.unit.safety.scenes import agent, box, call, ego_filter, slack

RADIUS = 0.2
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


def base_at(x, v, obstacles, *, c=2.0, dt=0.05, clearance=RADIUS):
    base = AccelerationBase(c, c, BaseSettings(dt=dt, passive=False))
    position, velocity = tuple(map(float, x)), tuple(map(float, v))
    shapes = None if obstacles is None else Obstacles(obstacles)
    base.look(Scene(position, velocity, 0.0, 0.0, (), shapes, clearance))
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


@given(
    speed=st.floats(0.5, 3.0),
    c=st.floats(1.0, 5.0),
    dt=st.sampled_from([0.02, 0.05, 0.1]),
    where=st.floats(0.0, 1.0),
    gap=st.floats(1e-4, 0.05),
    turn=st.floats(-0.3, 0.3),
    scan=st.booleans(),
)
@example(speed=2.9, c=1.7, dt=0.1, where=0.08, gap=0.005, turn=0.0, scan=False)
@example(speed=2.4, c=1.6, dt=0.1, where=0.11, gap=0.004, turn=0.0, scan=True)
def test_brake_past_a_corner_is_clear_if_its_path_is(speed, c, dt, where, gap, turn, scan):
    length = brake_distance(speed, c, dt)
    corner = (where * length, -RADIUS - gap - 0.3)
    shape = Points([corner], 0.3) if scan else Box(corner, (0.2, 0.2), angle=math.pi / 4 + turn)
    path = np.stack((np.linspace(0.0, length, 400), np.zeros(400)), axis=1)
    if shape.gaps(path)[0].min() >= RADIUS + 1e-5:
        base = base_at((0, 0), (speed, 0), [shape], c=c, dt=dt)
        assert base.static_clear(base.stop())


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


def attacked(claim, steps, make_guard=None, **changes):
    """Return what happened to robots in furnished worlds."""
    settings = {"robot": "acceleration", "schemes": (f"box-{claim}",), "steps": steps}
    settings |= {"episode_steps": 150, "worlds": WORLDS[1:]}
    report = attack(AttackConfig(**settings | changes), make_guard=make_guard)
    if make_guard is None:
        assert report.failures == []
    return report.everything()


def test_no_wall_is_touched_whatever_is_wanted():
    tally = attacked("walls", size(5_000, 1_000_000), seed=1)
    assert (tally.wall_contacts, tally.static_uncertified, tally.excessive_steps) == (0, 0, 0)
    assert tally.uncertified == 0
    assert tally.min_wall_m < 1e-3  # and they come all the way


def test_no_wall_is_touched_beside_a_hunter_and_no_certified_step_is():
    tally = attacked("escape", size(5_000, 1_000_000), seed=2)
    assert (tally.wall_contacts, tally.static_uncertified, tally.excessive_steps) == (0, 0, 0)
    assert (tally.certified_contacts, tally.exited_steps) == (0, 0)
    assert tally.touched_episodes > 0  # hunters pin them
    assert tally.uncertified < 0.2 * tally.steps  # most steps are certified


def test_passive_robot_beside_walls_rests_whenever_one_or_several_hunters_touch_it():
    tally = attacked("passive", size(2_500, 1_000_000), seed=3)
    assert (tally.wall_contacts, tally.static_uncertified, tally.excessive_steps) == (0, 0, 0)
    assert tally.uncertified == 0
    assert tally.touched_episodes > 0
    assert tally.largest_contact_speed <= 1e-9


class Boastful:
    """Brakes worse than it declares."""

    def __init__(self, robot, partners, **options):
        self.limit = robot.limit
        self.guard = AccelerationGuard(robot._replace(limit=4.0 * robot.limit), partners, **options)

    def filter(self, nominal, agents):
        step = self.guard.filter(nominal, agents)
        return dataclasses.replace(step, action=np.clip(step.action, -self.limit, self.limit))


def test_robot_that_brakes_worse_than_declared_touches_walls():
    assert attacked("walls", 1_000, Boastful, seed=1).wall_contacts > 0

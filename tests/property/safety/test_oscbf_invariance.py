"""Closed loops at both levels: every rule holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.arms import JointLimits
from cadenza.safety.geometry import Capsule
from cadenza.safety.oscbf import (
    ArmConstraints,
    Obstacle,
    ObstacleRule,
    SelfCollisionRule,
    SingularityRule,
    SpeedRule,
)
from cadenza.safety.oscbf.program import acceleration_box, velocity_box
from tests.campaigns import size
from tests.unit.safety import arm_scenes as scenes
from tests.unit.safety.arm_scenes import CALM, accelerate_towards, run_torque, run_velocity, towards

MARGIN = 0.01
HEIGHT, TOP_SPEED, LEAST = 0.2, 0.3, 0.04
BALL_AT = np.array([0.55, 0.2, 0.45])
ROD = Obstacle(
    name="rod", shape=Capsule(np.array([0.5, -0.4, 0.4]), np.array([0.5, 0.6, 0.5]), 0.05)
)


def ball(t):
    """Return a ball that swings across the arm's way, at most 0.15 m/s and 0.23 m/s^2."""
    shift, speed = 0.1 * np.sin(1.5 * t), 0.15 * np.cos(1.5 * t)
    return Obstacle.ball(
        "ball",
        BALL_AT + np.array([0.0, shift, 0.0]),
        0.12,
        velocity=np.array([0.0, speed, 0.0]),
        acceleration_bound=0.23,
    )


def ball_gap(log):
    return min(
        scenes.obstacle_gap(state, ball(k * scenes.LOOP_DT)) for k, state in enumerate(log.states)
    )


#: Rule, where the nominal drives the end effector, what is measured, the obstacles. Each measure is
#: >= 0 while the rule holds.
SCENES = {
    "ball": (
        ArmConstraints(obstacles=ObstacleRule(priority=CALM, margin_m=MARGIN)),
        BALL_AT,
        ball_gap,
        lambda t: [ball(t)],
    ),
    "rod": (
        ArmConstraints(obstacles=ObstacleRule(priority=CALM, margin_m=MARGIN)),
        np.array([0.6, 0.1, 0.4]),
        lambda log: log.least(lambda s: scenes.obstacle_gap(s, ROD)),
        lambda t: [ROD],
    ),
    "self": (
        ArmConstraints(self_collision=SelfCollisionRule(priority=CALM, margin_m=MARGIN)),
        np.array([0.0, 0.0, 0.2]),
        lambda log: log.least(scenes.self_gap),
        lambda t: [],
    ),
    "half_space": (
        ArmConstraints(half_spaces=(scenes.table(HEIGHT + MARGIN),)),
        np.array([0.45, 0.1, 0.05]),
        lambda log: log.least(lambda s: scenes.table_gap(s, HEIGHT)),
        lambda t: [],
    ),
    "singularity": (
        ArmConstraints(singularity=SingularityRule(minimum=LEAST, priority=CALM)),
        np.array([1.2, 0.0, 0.9]),
        lambda log: log.least(lambda s: s.manipulability - LEAST),
        lambda t: [],
    ),
}
LEVELS = {"velocity": (run_velocity, towards), "torque": (run_torque, accelerate_towards)}


def closed_loop(level, name, seed):
    run, drive = LEVELS[level]
    rules, target, measure, obstacles = SCENES[name]
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.4, 0.5)
    return measure, run(
        rules,
        drive(target, speed),
        q=scenes.random_start(rng),
        steps=650 if name == "self" else 450,  # the way to the arm's own base is the longest
        obstacles=obstacles,
    )


@pytest.mark.parametrize("seed", range(size(1, 2)))
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("level", LEVELS)
def test_rule_holds_from_random_starts(level, name, seed):
    measure, log = closed_loop(level, name, seed)
    assert measure(log) >= 0.0
    assert log.statuses() <= {"inactive", "optimal"}
    assert "optimal" in log.statuses()
    assert all(result.certified for result in log.results)
    limits = scenes.arm().limits
    assert log.least(lambda s: (limits.upper - s.q).min()) >= -1e-5
    assert log.least(lambda s: (s.q - limits.lower).min()) >= -1e-5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(size(1, 2)))
def test_speed_limit_holds(level, seed):
    run, drive = LEVELS[level]
    log = run(
        ArmConstraints(speed=SpeedRule(limit=TOP_SPEED)),
        drive(np.array([0.5, 0.4, 0.7]), 2.0),
        q=scenes.random_start(np.random.default_rng(seed)),
        steps=200,
    )
    # The Jacobian turns while the step lasts: |J' q'| dt, a few tenths of a millimetre per second.
    assert log.least(lambda s: TOP_SPEED - scenes.speed(s)) >= -1e-3
    assert max(scenes.speed(s) for s in log.states) > 0.95 * TOP_SPEED
    assert all(result.certified for result in log.results)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(size(1, 3)))
def test_joint_limits_hold_under_full_push(level, seed):
    rng = np.random.default_rng(seed)
    push = rng.choice([-3.0, 3.0], 7)
    name, run = "q_dot_nom" if level == "velocity" else "q_ddot_nom", LEVELS[level][0]
    log = run(ArmConstraints(), lambda s: {name: push}, q=scenes.random_start(rng), steps=500)
    limits = scenes.arm().limits
    over = min(
        log.least(lambda s: (limits.upper - s.q).min()),
        log.least(lambda s: (s.q - limits.lower).min()),
    )
    # At torque level the inertia of the step's start is held for 4 ms: a few 1e-5 rad.
    assert over >= (-1e-12 if level == "velocity" else -1e-4)
    assert over < 0.05  # they are reached
    assert log.least(lambda s: (limits.velocity - np.abs(s.q_dot)).min()) >= -1e-3
    assert not any(result.conflicting_joints for result in log.results)


@settings(max_examples=size(15, 40), deadline=None)
@given(
    acceleration=st.floats(0.5, 50.0),
    gain=st.floats(0.1, 100.0),
    share=st.floats(0.1, 1.0),
    plant=st.sampled_from(["velocity", "zoh", "semi_implicit"]),
    seed=st.integers(0, 10_000),
)
def test_any_choice_in_the_box_keeps_a_joint_in_its_limits(acceleration, gain, share, plant, seed):
    """One joint, random or extreme choices within the interval, never a conflict, never beyond."""
    dt, rng = 0.01, np.random.default_rng(seed)
    limits = JointLimits(
        lower=np.array([-1.0]),
        upper=np.array([1.0]),
        velocity=np.array([3.0]),
        acceleration=np.array([acceleration]),
        torque=np.array([np.inf]),
    )
    options = {"dt": dt, "gain": gain, "braking_share": share}
    q, q_dot = rng.uniform(-1.0, 1.0, 1), np.zeros(1)
    for _ in range(200):
        make = velocity_box if plant == "velocity" else acceleration_box
        box = make(limits, q, q_dot, **options)
        assert box.conflicting == ()
        pick = rng.choice([0.0, 1.0, rng.uniform()])
        choice = box.lower + pick * (box.upper - box.lower)
        if plant == "velocity":
            q_dot = choice
            q = q + dt * q_dot
        elif plant == "semi_implicit":
            q_dot = q_dot + dt * choice
            q = q + dt * q_dot
        else:
            q = q + dt * q_dot + 0.5 * dt * dt * choice
            q_dot = q_dot + dt * choice
        assert np.abs(q[0]) <= 1.0 + 1e-9
        assert np.abs(q_dot[0]) <= 3.0 + 1e-9

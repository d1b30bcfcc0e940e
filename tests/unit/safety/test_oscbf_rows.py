"""Gradients, drifts and curvatures of every rule against differences along a motion."""

import dataclasses

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.geometry import Capsule, HalfSpace
from cadenza.safety.oscbf import (
    ArmConstraints,
    HalfSpaceRule,
    Obstacle,
    ObstacleRule,
    Priority,
    SelfCollisionRule,
    SingularityRule,
    SpeedRule,
    TaskCost,
)
from cadenza.safety.oscbf.rules import RowBuilder, smallest
from tests.unit.safety.arm_scenes import arm

EVERY = 10_000
RULES = {
    "self": ArmConstraints(self_collision=SelfCollisionRule(nearest=EVERY, margin_m=0.01)),
    "obstacle": ArmConstraints(obstacles=ObstacleRule(nearest=EVERY, margin_m=0.02)),
    "half_space": ArmConstraints(
        half_spaces=(
            HalfSpaceRule(
                name="wall", solid=HalfSpace(np.array([1.0, 2.0, 2.0]), -0.4), nearest=EVERY
            ),
        )
    ),
    "singularity": ArmConstraints(singularity=SingularityRule(minimum=0.01)),
}


def obstacles_at(t):
    """Return a ball and a capsule that have moved for t seconds."""
    ball_speed, rod_speed = np.array([0.3, -0.2, 0.1]), np.array([-0.1, 0.25, 0.2])
    start, end = np.array([0.2, 0.5, 0.1]), np.array([0.6, 0.4, 0.9])
    return [
        Obstacle.ball(
            "ball", np.array([0.5, -0.3, 0.6]) + t * ball_speed, 0.1, velocity=ball_speed
        ),
        Obstacle(
            name="rod",
            shape=Capsule(start + t * rod_speed, end + t * rod_speed, 0.05),
            velocity=rod_speed,
        ),
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(2))
def test_rates_of_h_are_derivatives_along_the_motion(rule, seed):
    rng = np.random.default_rng(seed)
    q, q_dot = arm().home() + rng.uniform(-0.4, 0.4, 7), rng.normal(size=7) * 0.5
    q_ddot = rng.normal(size=7)
    build = RowBuilder(arm(), RULES[rule]).build
    seen = obstacles_at if rule == "obstacle" else lambda t: []

    def rows(t):
        position = q + t * q_dot + 0.5 * t * t * q_ddot
        state = arm().state(position, q_dot + t * q_ddot, with_manipulability=True)
        return build(state, seen(t))

    now, step = rows(0.0), 1e-4
    ahead, behind = rows(step), rows(-step)
    assert len(now.h) > 0
    first = (ahead.h - behind.h) / (2 * step)
    assert now.gradient @ q_dot + now.drift == pytest.approx(first, abs=1e-6)
    second = (ahead.h - 2 * now.h + behind.h) / (step * step)
    assert now.gradient @ q_ddot + now.bias == pytest.approx(second, abs=1e-4)


def test_values_of_h_by_hand():
    state = arm().state(arm().home(), np.zeros(7))
    ball = Obstacle.ball("ball", state.ee_position + np.array([0.3, 0.0, 0.0]), 0.1)
    rows = RowBuilder(
        arm(), ArmConstraints(obstacles=ObstacleRule(nearest=3, margin_m=0.02))
    ).build(state, [ball])
    centers, radii = state.sphere_centers, arm().sphere_radii
    gaps = np.linalg.norm(centers - ball.shape.start, axis=1) - radii - 0.1
    assert sorted(rows.h) == pytest.approx(np.sort(gaps)[:3] - 0.02)
    assert rows.names == ["obstacle:ball/link7"] * 3
    table = RULES["half_space"].half_spaces[0].solid
    wall = RowBuilder(arm(), RULES["half_space"]).build(state, [])
    heights = centers @ np.array([1.0, 2.0, 2.0]) / 3.0 + 0.4 - radii
    assert table.offset == -0.4
    assert wall.h == pytest.approx(heights[arm().movable_spheres])
    assert wall.names[-1] == "half_space:wall/link7"


def test_levels_of_both_control_levels_by_hand():
    state = arm().state(arm().home(), np.full(7, 0.1))
    priority = Priority(gain=3.0, second_gain=7.0)
    rules = ArmConstraints(obstacles=ObstacleRule(nearest=2, priority=priority))
    rows = RowBuilder(arm(), rules).build(state, obstacles_at(0.0))
    normals, b = rows.velocity_rows()
    assert normals == pytest.approx(-rows.gradient)
    assert b == pytest.approx(3.0 * rows.h + rows.drift)
    normals, b = rows.acceleration_rows(state.q_dot)
    rate = rows.gradient @ state.q_dot + rows.drift
    assert normals == pytest.approx(-rows.gradient)
    assert b == pytest.approx(rows.bias + 10.0 * rate + 21.0 * rows.h)
    assert Priority(gain=3.0).gains == (3.0, 3.0)


def test_bounded_obstacle_acceleration_tightens_the_second_order_row():
    state = arm().state(arm().home(), np.zeros(7))
    build = RowBuilder(arm(), ArmConstraints()).build
    calm = build(state, obstacles_at(0.0))
    wild = build(state, [dataclasses.replace(o, acceleration_bound=1.5) for o in obstacles_at(0.0)])
    assert calm.bias - wild.bias == pytest.approx(np.full(8, 1.5))


def test_coincident_centres_push_along_a_fixed_direction():
    state = arm().state(arm().home(), np.zeros(7))
    ball = Obstacle.ball("ball", state.sphere_centers[-1], 0.05)
    rows = RowBuilder(arm(), ArmConstraints(obstacles=ObstacleRule(nearest=1))).build(state, [ball])
    assert rows.h == pytest.approx([-arm().sphere_radii[-1] - 0.05])
    assert rows.gradient[0] == pytest.approx(state.sphere_jacobians[-1][0])
    assert np.isfinite(rows.bias).all()


def test_nearest_pairs_are_those_with_the_smallest_gap():
    state = arm().state(arm().home(), np.zeros(7))
    few = ArmConstraints(self_collision=SelfCollisionRule(nearest=4, margin_m=0.01))
    every = RowBuilder(arm(), RULES["self"]).build(state, []).h
    assert sorted(RowBuilder(arm(), few).build(state, []).h) == pytest.approx(sorted(every)[:4])
    assert smallest(np.array([3.0, 1.0, 2.0]), 2).tolist() == [1, 2]
    assert smallest(np.array([3.0]), 2).tolist() == [0]


def test_singularity_rule_needs_the_manipulability():
    state = arm().state(arm().home(), np.zeros(7))
    with pytest.raises(InputError, match="with_manipulability=True"):
        RowBuilder(arm(), RULES["singularity"]).build(state, [])


def ball(**changes):
    return Obstacle.ball("ball", np.zeros(3), 0.1, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Priority(weight=0.0), "Priority.weight: expected a finite number > 0"),
        (lambda: SelfCollisionRule(nearest=0), "SelfCollisionRule.nearest: expected >= 1"),
        (lambda: ObstacleRule(margin_m=np.inf), "ObstacleRule.margin_m"),
        (
            lambda: HalfSpaceRule(name="t", solid=HalfSpace(np.eye(3)[2], 0.0), nearest=0),
            "HalfSpaceRule 't'.nearest",
        ),
        (lambda: SingularityRule(minimum=0.0), "SingularityRule.minimum"),
        (lambda: SpeedRule(limit=np.inf), "SpeedRule.limit"),
        (lambda: ArmConstraints(joint_gain=0.0), "ArmConstraints.joint_gain"),
        (lambda: ArmConstraints(braking_share=1.5), "ArmConstraints.braking_share"),
        (lambda: TaskCost(inverse="exact"), "TaskCost.inverse: expected one of"),
        (lambda: ball(velocity=np.zeros(2)), "velocity: expected shape"),
        (lambda: ball(acceleration_bound=-1.0), "acceleration_bound: expected a finite number"),
    ],
)
def test_rules_and_obstacles_without_meaning_are_refused(make, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        make()

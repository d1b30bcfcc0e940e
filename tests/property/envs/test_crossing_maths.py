import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.envs.crossing import CONTACT_DISTANCE, CrossingEnv
from cadenza.envs.crossing_motion import (
    CIRCLE_RADIUS,
    CONTROL_TIMESTEP,
    MAX_JITTER,
    MIN_CLEARANCE,
    accelerated,
    batched_closest_approach,
    closest_approach,
    layout_draws,
    layout_from_uniforms,
    moved,
    unit_circle,
)

units = st.floats(0.0, 1.0, exclude_max=True)
robots = st.integers(2, 8)


@st.composite
def layouts(draw):
    """Return the number of robots and one layout of theirs, extreme draws included."""
    count = draw(robots)
    uniforms = draw(arrays(np.float64, layout_draws(count), elements=units))
    return count, layout_from_uniforms(uniforms, count)


def distances(x, y):
    """Return all distances between different robots, shape (n, n - 1)."""
    gaps = np.linalg.norm(x[:, None] - y[None], axis=-1)
    return gaps[~np.eye(len(x), dtype=bool)]


@given(layout=layouts())
def test_layout_always_keeps_every_clearance(layout):
    _, starts = layout
    goals = -starts
    assert distances(starts, starts).min() >= MIN_CLEARANCE
    assert distances(goals, goals).min() >= MIN_CLEARANCE
    assert distances(goals, starts).min() >= MIN_CLEARANCE  # a robot that stays leaves a way


@given(layout=layouts())
def test_layout_always_swaps_places_across_the_circle(layout):
    count, starts = layout
    np.testing.assert_allclose(np.linalg.norm(starts, axis=-1), CIRCLE_RADIUS, rtol=1e-14)
    if count % 2 == 0:
        # The goal of robot k lies near the start of the robot it faces: two jitters apart at most.
        faced = np.roll(starts, -count // 2, axis=0)
        reach = 2 * CIRCLE_RADIUS * math.sin(math.pi * 2 * MAX_JITTER) + 1e-9
        assert np.linalg.norm(-starts - faced, axis=-1).max() <= reach


@given(turn=st.floats(-4, 4))
def test_unit_circle_is_on_the_circle_and_opposite_after_half_a_turn(turn):
    x, y = unit_circle(np.float64(turn))
    assert abs(x * x + y * y - 1.0) < 1e-15 * 4
    np.testing.assert_allclose(unit_circle(np.float64(turn + 0.5)), [-x, -y], atol=1e-14)


@given(p=st.floats(-3, 3), v=st.floats(-5, 5), a=st.floats(-2, 2), steps=st.integers(1, 200))
def test_holding_one_acceleration_for_k_steps_is_the_closed_form(p, v, a, steps):
    x, speed = p, v
    for _ in range(steps):
        x, speed = moved(x, speed, a), accelerated(speed, a)
    t = steps * CONTROL_TIMESTEP
    assert abs(x - (p + v * t + 0.5 * a * t * t)) < 1e-10
    assert abs(speed - (v + a * t)) < 1e-11


#: Instants of a dense sampling, s.
DENSE = np.linspace(0.0, CONTROL_TIMESTEP, 2001)


@st.composite
def encounters(draw):
    """Return relative position, velocity and acceleration of a pair near contact."""
    gap = draw(st.floats(0.1, 1.0))
    direction = draw(st.floats(0, 2 * math.pi))
    speed = draw(st.floats(0.0, 12.0))
    heading = draw(st.floats(0, 2 * math.pi))
    ax, ay = draw(st.floats(-2.5, 2.5)), draw(st.floats(-2.5, 2.5))
    position = (gap * math.cos(direction), gap * math.sin(direction))
    velocity = (speed * math.cos(heading), speed * math.sin(heading))
    return position, velocity, (ax, ay)


def dense_minimum(position, velocity, acceleration):
    x, y = (
        p + v * DENSE + 0.5 * a * DENSE**2
        for p, v, a in zip(position, velocity, acceleration, strict=True)
    )
    return float(np.sqrt(x * x + y * y).min())


@settings(max_examples=400)
@given(encounter=encounters())
def test_closest_approach_agrees_with_dense_sampling(encounter):
    position, velocity, acceleration = encounter
    end = tuple(moved(p, v, a) for p, v, a in zip(*encounter, strict=True))
    found = closest_approach(position, velocity, acceleration, end)
    dense = dense_minimum(*encounter)
    # Never further than sampling; nearer by at most the way between two samples.
    fastest = math.hypot(*velocity) + math.hypot(*acceleration) * CONTROL_TIMESTEP
    slack = fastest * CONTROL_TIMESTEP / 2000
    if dense > 0.1:  # deep overlaps count as contact anyway
        assert found <= dense + 1e-6
    assert found >= dense - slack - 1e-12


@given(rows=st.lists(encounters(), min_size=1, max_size=20))
def test_batched_closest_approach_has_the_bytes_of_the_scalar_form(rows):
    ends = [tuple(moved(p, v, a) for p, v, a in zip(*row, strict=True)) for row in rows]
    single = [closest_approach(*row, end) for row, end in zip(rows, ends, strict=True)]
    columns = [
        tuple(np.array(values) for values in zip(*(row[k] for row in rows), strict=True))
        for k in range(3)
    ]
    columns.append(tuple(np.array(values) for values in zip(*ends, strict=True)))
    assert batched_closest_approach(*columns).tobytes() == np.array(single).tobytes()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 5), root=st.integers(0, 2**40))
def test_info_of_an_episode_agrees_with_positions_sampled_from_the_outside(seed, count, root):
    env = CrossingEnv(num_robots=count, root_seed=root, episode_length=60)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    over = False
    while not over:
        before = env.build_agent_snapshots()
        goals = env.goal_positions()
        action = {
            uid: np.clip(3 * (goals[uid] - before[uid].position) + rng.normal(size=2), -2, 2)
            for uid in env.agent_uids
        }
        _, _, terminated, truncated, info = env.step(action)
        held = {
            uid: np.clip(action[uid], -lim, lim) for uid, lim in env.acceleration_limits.items()
        }
        paths = {
            uid: s.position + s.velocity * DENSE[:, None] + 0.5 * held[uid] * DENSE[:, None] ** 2
            for uid, s in before.items()
        }
        gaps = [
            np.linalg.norm(paths["ego"] - paths[uid], axis=1).min() for uid in env.agent_uids[1:]
        ]
        assert abs(min(gaps) - info["min_distance"]) < 2e-4
        assert info["contact"] == (info["min_distance"] < CONTACT_DISTANCE)
        after = env.robot_positions()["ego"]
        np.testing.assert_allclose(after, paths["ego"][-1], atol=1e-12)
        assert abs(np.linalg.norm(goals["ego"] - after) - info["goal_distance"]) < 1e-12
        assert not (terminated and truncated)
        assert terminated == (info["success"] or info["contact"])
        over = terminated or truncated

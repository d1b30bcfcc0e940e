"""Distances to convex shapes: against sampled points, and the inequality that proofs rest on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.safety.geometry import Ball, Box, Capsule, HalfSpace, Obstacles, Points, Polygon

coordinates = st.floats(-4.0, 4.0, allow_subnormal=False)
lengths = st.floats(0.05, 2.0)


def vectors(dim):
    return st.tuples(*[coordinates] * dim)


def rotations():
    """Rotations from random unit quaternions."""
    entries = st.floats(-1.0, 1.0, allow_subnormal=False)
    numbers = st.tuples(*[entries] * 4).filter(lambda q: sum(x * x for x in q) > 0.01)
    return numbers.map(rotation)


def rotation(q):
    w, x, y, z = np.array(q) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@st.composite
def polygons(draw):
    """Corners on an ellipse are a convex polygon."""
    angles = sorted(draw(st.lists(st.integers(0, 71), min_size=3, max_size=9, unique=True)))
    wide, high = draw(lengths), draw(lengths)
    corners = [
        (wide * math.cos(k * math.pi / 36), high * math.sin(k * math.pi / 36)) for k in angles
    ]
    if draw(st.booleans()):
        corners.reverse()
    return Polygon(np.array(corners) + draw(vectors(2)))


def shapes(dim):
    normals = vectors(dim).filter(lambda n: sum(x * x for x in n) > 0.01)
    turn = {"angle": st.floats(-4, 4)} if dim == 2 else {"rotation": st.none() | rotations()}
    known = [
        st.builds(HalfSpace, normals, coordinates),
        st.builds(Ball, vectors(dim), lengths),
        st.builds(Capsule, vectors(dim), vectors(dim), lengths),
        st.builds(Box, vectors(dim), st.tuples(*[lengths] * dim), **turn),
    ]
    return st.one_of(*known, polygons()) if dim == 2 else st.one_of(*known)


def surface(shape, rng):
    """Points of the solid: random convex combinations of what spans it, with its radius on top."""
    if isinstance(shape, HalfSpace):
        free = rng.normal(size=(4000, shape.dim)) * 6.0
        depth = free @ shape.normal - shape.offset
        return free - np.maximum(depth, 0.0)[:, None] * shape.normal
    if isinstance(shape, Box):
        local = rng.uniform(-1.0, 1.0, (4000, shape.dim))
        local[:2000, 0] = np.sign(local[:2000, 0])
        return shape.center + (local * shape.half_sizes) @ shape.axes.T
    if isinstance(shape, Polygon):
        weights = rng.dirichlet(np.full(len(shape.vertices), 0.3), 4000)
        return weights @ shape.vertices
    share = rng.uniform(0.0, 1.0, (4000, 1))
    axis = (shape.start, shape.end) if isinstance(shape, Capsule) else (shape.center, shape.center)
    ball = rng.normal(size=(4000, shape.dim))
    ball *= shape.radius / np.linalg.norm(ball, axis=1, keepdims=True)
    return axis[0] + share * (axis[1] - axis[0]) + ball


dims = st.sampled_from([2, 3])
scenes = dims.flatmap(lambda d: st.tuples(shapes(d), vectors(d), vectors(d)))


@given(scene=scenes, seed=st.integers(0, 1000))
def test_gap_is_the_distance_to_the_solid(scene, seed):
    shape, y, _ = scene
    distance, normal = shape.gap_function()(y)
    closest = np.array(y) - distance * np.array(normal)
    assert np.linalg.norm(normal) == pytest.approx(1.0)
    assert shape.gap_function()(tuple(closest))[0] == pytest.approx(0.0, abs=1e-9)
    inside = surface(shape, np.random.default_rng(seed))
    # The plane through the closest point supports the solid, so nothing of it is nearer.
    assert (inside @ np.array(normal)).max() <= closest @ np.array(normal) + 1e-9
    if distance > 0.0:
        assert np.linalg.norm(inside - np.array(y), axis=1).min() >= distance - 1e-9
        assert max(shape.gap_function()(tuple(point))[0] for point in inside[:200]) <= 1e-9


@given(scene=scenes)
def test_distance_is_convex_with_the_normal_as_its_slope(scene):
    shape, y, z = scene
    gap = shape.gap_function()
    distance, normal = gap(y)
    assert gap(z)[0] >= distance + np.dot(normal, np.subtract(z, y)) - 1e-9


@given(
    scene=dims.flatmap(
        lambda d: st.tuples(
            st.lists(shapes(d), min_size=1, max_size=4),
            st.lists(vectors(d), min_size=1, max_size=5),
            st.lists(vectors(d), max_size=5),
        )
    ),
    radius=lengths,
)
def test_many_points_at_once_are_measured_like_one_at_a_time(scene, radius):
    solids, points, returns = scene
    scan = Points(np.reshape(returns, (-1, len(points[0]))), radius)
    obstacles = Obstacles([scan, *solids])
    distances, normals = obstacles.gaps(points)
    assert distances.shape == (len(points), len(obstacles))
    for i, point in enumerate(points):
        balls = [Ball(center, radius).gap_function()(point) for center in returns]
        single = [gap(point) for gap in obstacles.solids] + balls
        for k, (distance, normal) in enumerate(single):
            assert distances[i, k] == pytest.approx(distance, abs=1e-12)
            # At ties several normals are right: equal ones, or both support the solid there.
            if not np.allclose(normals[i, k], normal, atol=1e-6):
                assert abs(distance) < 1e-6 or distance < 0.0
        nearest = scan.gap_function()(point)[0]
        assert nearest == pytest.approx(min([b[0] for b in balls], default=math.inf), abs=1e-12)

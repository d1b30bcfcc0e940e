import math
from pathlib import Path

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.geometry import (
    Ball,
    Box,
    Capsule,
    HalfSpace,
    Obstacles,
    Points,
    Polygon,
    Sphere,
    SphereCloud,
    covering_radius,
    decompose_capsule,
    min_pair_distance,
    pair_distance,
    pair_distance_with_gradient,
    transform_cloud,
)


def sphere(center, radius=0.1):
    return Sphere(np.array(center, float), radius)


def cloud(centers, radius=0.1):
    centers = np.array(centers, float).reshape(-1, 3)
    return SphereCloud(centers, np.full(len(centers), radius))


def scattered(seed, n):
    rng = np.random.default_rng(seed)
    return SphereCloud(rng.normal(size=(n, 3)), rng.uniform(0.05, 0.3, n))


def test_pair_distance_by_hand_is_symmetric_and_negative_on_overlap():
    # 3-4-5 triangle: 5 - 0.1 - 0.4.
    a, b = sphere([0, 0, 0]), sphere([3, 4, 0], 0.4)
    assert pair_distance(a, b) == pair_distance(b, a) == pytest.approx(4.5)
    assert pair_distance(a, sphere([0.15, 0, 0])) == pytest.approx(-0.05)


def test_pair_gradient_points_from_the_second_to_the_first():
    distance, gradient = pair_distance_with_gradient(sphere([3, 4, 0]), sphere([0, 0, 0]))
    assert distance == pytest.approx(4.8)
    assert gradient == pytest.approx([0.6, 0.8, 0.0])
    distance, gradient = pair_distance_with_gradient(sphere([1, 1, 1], 0.3), sphere([1, 1, 1]))
    assert distance == pytest.approx(-0.4)
    assert gradient.tolist() == [1.0, 0.0, 0.0]


def test_min_pair_distance_is_the_first_minimum_of_the_table():
    a, b = scattered(0, 6), scattered(1, 9)
    table = [
        [pair_distance(sphere(c, r), sphere(d, s)) for d, s in zip(b.centers, b.radii, strict=True)]
        for c, r in zip(a.centers, a.radii, strict=True)
    ]
    distance, i, j = min_pair_distance(a, b)
    assert distance == pytest.approx(np.min(table), abs=1e-15)
    assert table[i][j] == pytest.approx(distance, abs=1e-15)
    row = cloud([[0, 0, 0], [1, 0, 0]])
    assert min_pair_distance(row, row) == (-0.2, 0, 0)  # nothing is excluded


def test_capsule_decomposition_is_uniform():
    balls = decompose_capsule(np.zeros(3), np.array([0.0, 0.0, 2.0]), 0.3, 5)
    assert balls.centers[:, 2].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert balls.radii.tolist() == [0.3] * 5
    one = decompose_capsule(np.ones(3), np.zeros(3), 0.3, 1)
    assert one.centers.tolist() == [[1.0, 1.0, 1.0]]


def test_capsule_coverage_is_the_spacing_rule():
    # Spacing 0.6 of two balls R = 0.5 around r = 0.4: 2 sqrt(0.25 - 0.16) = 0.6, just enough.
    assert covering_radius(0.6, 0.4, 2) == pytest.approx(0.5)
    assert covering_radius(0.6, 0.4, 3) == pytest.approx(math.sqrt(0.16 + 0.0225))
    assert covering_radius(0.6, 0.4, 1) == 1.0  # one ball at the start


def test_transform_moves_the_centres_and_shares_the_radii():
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    body = cloud([[1, 0, 0], [0, 2, 0]])
    moved = transform_cloud(body, quarter, np.array([0.0, 0.0, 5.0]))
    assert moved.centers.tolist() == [[0.0, 1.0, 5.0], [-2.0, 0.0, 5.0]]
    assert moved.radii is body.radii


def test_half_space_has_a_unit_normal():
    assert HalfSpace(np.array([0.0, 0.0, 2.0]), 0.5).normal.tolist() == [0.0, 0.0, 1.0]


ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("shape", "point", "distance", "normal"),
    [
        (HalfSpace((0, 2), 1.0), (5, 3), 2.0, (0, 1)),
        (HalfSpace((1, 0, 0), -2.0), (-3, 0, 9), -1.0, (1, 0, 0)),
        (Ball((1, 1), 0.5), (4, 5), 4.5, (0.6, 0.8)),
        (Ball((1, 1), 0.5), (1, 1.2), -0.3, (0, 1)),
        (Capsule((0, 0), (2, 0), 0.25), (1, -1), 0.75, (0, -1)),
        (Capsule((0, 0), (2, 0), 0.25), (5, 4), 4.75, (0.6, 0.8)),
        (Capsule((0, 0), (2, 0), 0.25), (1, 0), -0.25, (0, 1)),  # on the axis: across it
        (Capsule((0, 0, 1), (0, 0, 1), 0.25), (0, 0, 3), 1.75, (0, 0, 1)),
        (Box((1, 0), (2, 1)), (4, 0.5), 1.0, (1, 0)),
        (Box((1, 0), (2, 1)), (-4, -5), 5.0, (-0.6, -0.8)),
        (Box((1, 0), (2, 1)), (1.5, -0.8), -0.2, (0, -1)),
        (Box((0, 0), (1, 1), angle=math.pi / 4), (2, 0), 2 - math.sqrt(2), (1, 0)),
        (Box((0, 0), (3, 1), angle=math.pi / 2), (-2, 1), 1.0, (-1, 0)),
        (Box((0, 0, 0), (1, 2, 3)), (4, 6, 3), 5.0, (0.6, 0.8, 0)),
        (Box((0, 0, 0), (1, 2, 3)), (0.1, 1.9, 0), -0.1, (0, 1, 0)),
        (Polygon([(0, 0), (2, 0), (0, 2)]), (2, 2), math.sqrt(2), (ROOT, ROOT)),
        (Polygon([(0, 2), (2, 0), (0, 0)]), (5, -4), 5.0, (0.6, -0.8)),  # clockwise corners
        (Polygon([(0, 0), (2, 0), (0, 2)]), (0.1, 1), -0.1, (-1, 0)),
        (Points([(0, 0), (4, 0)], 0.5), (3, 0), 0.5, (-1, 0)),
    ],
)
def test_gap_by_hand(shape, point, distance, normal):
    measured, direction = shape.gap_function()(point)
    assert measured == pytest.approx(distance, abs=1e-12)
    assert direction == pytest.approx(normal, abs=1e-12)


def test_obstacles_count_the_balls_of_a_scan_each():
    scan = Points([(0, 3), (0, 4), (0, 6)], 0.5)
    obstacles = Obstacles([HalfSpace((1, 0), -2.0), scan, Ball((5, 0), 1.0)])
    distances, normals = obstacles.gaps((0, 0))
    assert len(obstacles) == 5
    assert distances.tolist() == [2.0, 4.0, 2.5, 3.5, 5.5]
    assert normals.tolist() == [[1, 0], [-1, 0], [0, -1], [0, -1], [0, -1]]
    assert obstacles.gaps([(0, 0), (3, 0)])[0][:, 0].tolist() == [2.0, 5.0]
    assert Obstacles([]).gaps((1, 2))[0].shape == (0,)
    nothing = Points(np.zeros((0, 2)), 0.1)
    assert len(Obstacles([nothing])) == 0
    assert nothing.gap_function()((0, 0))[0] == math.inf


def test_shapes_are_read_only_copies():
    center = np.zeros(3)
    ball = Sphere(center, 0.1)
    center[0] = 7.0
    assert ball.center.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        ball.center[0] = 1.0


ONE, EMPTY = cloud([[0, 0, 0]]), SphereCloud(np.zeros((0, 3)), np.zeros(0))


STAR = [(math.sin(k * 0.8 * math.pi), math.cos(k * 0.8 * math.pi)) for k in range(5)]


def rod(start=(0, 0, 0), end=(1, 1, 1), radius=0.1, n_spheres=2):
    return decompose_capsule(np.array(start, float), np.array(end, float), radius, n_spheres)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sphere([0]), r"Ball.center: expected shape \(2,\) or \(3,\), got \(1,\)"),
        (lambda: sphere([0, np.nan, 0]), "Ball.center: expected finite"),
        (lambda: sphere([0, 0, 0], -1.0), "Ball.radius: expected a finite length > 0"),
        (lambda: cloud([[0, 0, 0]], 0.0), "SphereCloud.radii: expected > 0 m, got 0.0"),
        (lambda: SphereCloud(np.zeros((2, 3)), np.ones(1)), "SphereCloud.centers: expected shape"),
        (lambda: Capsule(np.full(3, np.nan), np.zeros(3), 1.0), "Capsule.start: expected finite"),
        (lambda: Capsule(np.zeros(3), np.zeros(3), math.inf), "Capsule.radius: expected a finite"),
        (lambda: HalfSpace(np.zeros(3), 0.0), "HalfSpace.normal: expected a direction"),
        (lambda: HalfSpace(np.ones(3), math.nan), "HalfSpace.offset: expected a finite"),
        (lambda: min_pair_distance(EMPTY, ONE), "expected at least one ball each, got 0 and 1"),
        (lambda: rod(n_spheres=0), "n_spheres >= 1, got 0"),
        (lambda: rod(radius=0.0), "radius: expected a finite length > 0 m, got 0.0"),
        (lambda: rod(start=(0, 0)), r"start: expected shape \(3,\)"),
        (lambda: covering_radius(1.0, 0.1, 0), "n_spheres >= 1"),
        (lambda: covering_radius(-1.0, 0.1, 2), "length >= 0 m, got -1.0"),
        (lambda: covering_radius(1.0, 0.0, 2), "radius: expected a finite length > 0"),
        (lambda: transform_cloud(ONE, 2.0 * np.eye(3), np.zeros(3)), "expected an orthonormal mat"),
        (lambda: Capsule((0, 0), (1, 1, 1), 0.1), r"Capsule.end: expected shape \(2,\)"),
        (lambda: HalfSpace((1, 0), "1"), "HalfSpace.offset: expected a finite length, got '1'"),
        (lambda: Box((0, 0), (1, 0)), r"Box.half_sizes: expected > 0 m, got \[1.0, 0.0\]"),
        (lambda: Box((0, 0), (1, 1), angle=math.nan), "Box.angle: expected a finite angle in rad"),
        (lambda: Box((0, 0, 0), (1, 1, 1), angle=0.3), "Box.angle: expected 0 in 3-D"),
        (lambda: Box((0, 0), (1, 1), rotation=np.eye(3)), "Box.rotation: expected None in 2-D"),
        (lambda: Box((0, 0, 0), (1, 1, 1), rotation=2 * np.eye(3)), "expected an orthonormal mat"),
        (lambda: Polygon([(0, 0), (1, 0)]), "expected at least three corners, none repeated"),
        (lambda: Polygon([(0, 0), (1, 0), (1, 0), (0, 1)]), "three corners, none repeated"),
        (lambda: Polygon([(0, 0), (2, 0), (1, 0.2), (1, 2)]), "corners of a convex polygon in ord"),
        (lambda: Polygon([(0, 0), (1, 0), (2, 0)]), "corners of a convex polygon in order"),
        (lambda: Polygon(STAR), "corners of a convex polygon in order"),
        (lambda: Points(np.zeros(3), 0.1), r"Points.centers: expected shape \(N, 2 or 3\)"),
        (lambda: Points(np.zeros((4, 2)), 0.0), "Points.radius: expected a finite length > 0"),
        (lambda: Obstacles([sphere([0, 0]), sphere([0, 0, 0])]), r"shapes\[1\]: expected 2-D as"),
        (
            lambda: Obstacles(Ball((0, 0), 1.0)),
            "expected a sequence of shapes, got Ball; put it in a list",
        ),
        (
            lambda: Obstacles("flat.yaml"),
            r"got 'flat.yaml'; use cadenza.safety.maps.load_map\(",
        ),
        (lambda: Obstacles(Path("flat.yaml")), r"got 'flat.yaml'; use cadenza.*load_map\(path\)"),
        (lambda: Ball((1e200, 0), 1.0), r"Ball.center: expected at most 1e\+12 m, got a larger"),
        (lambda: Ball((0, 0), np.eye(3)), "Ball.radius: expected a finite length > 0 m, got nda"),
        (lambda: Obstacles(["wall"]), r"shapes\[0\]: expected one of HalfSpace, Ball, Capsule,"),
        (lambda: Obstacles([sphere([0, 0])]).gaps((0, 0, 0)), r"expected shape \(2,\) or \(N, 2\)"),
        (lambda: Obstacles([sphere([0, 0])]).gaps((0, math.nan)), "gaps: points: expected finite"),
        (lambda: transform_cloud(ONE, np.eye(2), np.zeros(3)), r"rotation: expected shape \(3, 3"),
    ],
)
def test_malformed_shapes_and_calls_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()

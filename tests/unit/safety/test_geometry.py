import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.geometry import (
    Capsule,
    HalfSpace,
    Sphere,
    SphereCloud,
    capsule_coverage_ok,
    covering_radius,
    decompose_capsule,
    k_nearest_pairs,
    min_pair_distance,
    pair_distance,
    pair_distance_with_gradient,
    self_collision_exclusion,
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


def test_k_nearest_pairs_match_a_full_sort():
    a, b = scattered(2, 5), scattered(3, 7)
    expected = sorted(
        (pair_distance(sphere(a.centers[i], a.radii[i]), sphere(b.centers[j], b.radii[j])), i, j)
        for i in range(5)
        for j in range(7)
    )
    pairs = k_nearest_pairs(a, b, 4)
    assert pairs.distance == pytest.approx([row[0] for row in expected[:4]], abs=1e-15)
    assert list(zip(pairs.first, pairs.second, strict=True)) == [row[1:] for row in expected[:4]]
    for k in range(4):
        i, j = pairs.first[k], pairs.second[k]
        offset = a.centers[i] - b.centers[j]
        assert pairs.gradient[k] == pytest.approx(offset / np.linalg.norm(offset))
    assert len(k_nearest_pairs(a, b, 99).distance) == 35


def test_k_nearest_pairs_break_ties_in_row_major_order():
    square = cloud([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    exclude = self_collision_exclusion([0, 1, 2, 3])
    pairs = k_nearest_pairs(square, square, 3, exclude=exclude)
    # Four sides of the same length: (0,1), (0,3), (1,2), (2,3); the first three win.
    assert list(zip(pairs.first, pairs.second, strict=True)) == [(0, 1), (0, 3), (1, 2)]
    assert pairs.distance == pytest.approx([0.8, 0.8, 0.8])


def test_k_nearest_pairs_return_what_exclusions_leave():
    body = cloud([[0, 0, 0], [0.1, 0, 0], [0.5, 0, 0], [2.0, 0, 0]])
    links = [0, 0, 1, 2]
    exclude = self_collision_exclusion(links, allowed=[(1, 0)])
    assert exclude.sum() == 16 - 3
    pairs = k_nearest_pairs(body, body, 10, exclude=exclude)
    assert list(zip(pairs.first, pairs.second, strict=True)) == [(2, 3), (1, 3), (0, 3)]
    none = k_nearest_pairs(body, body, 2, exclude=np.ones((4, 4), bool))
    assert none.distance.shape == (0,)
    assert none.gradient.shape == (0, 3)


def test_capsule_decomposition_is_uniform():
    balls = decompose_capsule(np.zeros(3), np.array([0.0, 0.0, 2.0]), 0.3, 5)
    assert balls.centers[:, 2].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert balls.radii.tolist() == [0.3] * 5
    one = decompose_capsule(np.ones(3), np.zeros(3), 0.3, 1)
    assert one.centers.tolist() == [[1.0, 1.0, 1.0]]


def test_capsule_coverage_is_the_spacing_rule():
    # Spacing 0.6 of two balls R = 0.5 around r = 0.4: 2 sqrt(0.25 - 0.16) = 0.6, just enough.
    capsule = Capsule(np.zeros(3), np.array([0.6, 0.0, 0.0]), 0.4)
    assert covering_radius(0.6, 0.4, 2) == pytest.approx(0.5)
    assert capsule_coverage_ok(capsule, sphere_radius=0.5, n_spheres=2)
    assert not capsule_coverage_ok(capsule, sphere_radius=0.499, n_spheres=2)
    assert capsule_coverage_ok(capsule, sphere_radius=0.45, n_spheres=3)  # sqrt(0.16 + 0.0225)
    assert capsule_coverage_ok(capsule, sphere_radius=1.0, n_spheres=1)  # one ball at the start
    assert not capsule_coverage_ok(capsule, sphere_radius=0.9, n_spheres=1)


def test_transform_moves_the_centres_and_shares_the_radii():
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    body = cloud([[1, 0, 0], [0, 2, 0]])
    moved = transform_cloud(body, quarter, np.array([0.0, 0.0, 5.0]))
    assert moved.centers.tolist() == [[0.0, 1.0, 5.0], [-2.0, 0.0, 5.0]]
    assert moved.radii is body.radii


@pytest.mark.parametrize(
    ("point", "distance", "gradient"),
    [
        ([1.0, 0.5, 0.0], 0.4, [0, 1, 0]),  # beside the axis
        ([5.0, 4.0, 0.0], 4.9, [0.6, 0.8, 0]),  # past the end (2, 0, 0)
        ([-0.05, 0.0, 0.0], -0.05, [-1, 0, 0]),  # inside the cap
    ],
)
def test_capsule_distance_by_hand(point, distance, gradient):
    capsule = Capsule(np.zeros(3), np.array([2.0, 0.0, 0.0]), 0.1)
    distances, gradients = capsule.signed_distance(np.array([point]))
    assert distances == pytest.approx([distance])
    assert gradients[0] == pytest.approx(gradient)


def test_capsule_on_its_axis_has_a_perpendicular_gradient():
    capsule = Capsule(np.zeros(3), np.array([2.0, 1.0, 0.0]), 0.1)
    distances, gradients = capsule.signed_distance(np.array([[1.0, 0.5, 0.0]]))
    assert distances == pytest.approx([-0.1])
    assert gradients[0] @ [2.0, 1.0, 0.0] == pytest.approx(0.0, abs=1e-12)
    assert np.linalg.norm(gradients[0]) == pytest.approx(1.0)
    ball = Capsule(np.ones(3), np.ones(3), 0.1)
    assert ball.signed_distance(np.ones((1, 3)))[1].tolist() == [[1.0, 0.0, 0.0]]
    assert ball.signed_distance(np.array([[1.0, 1.0, 3.0]]))[0] == pytest.approx([1.9])


@pytest.mark.parametrize("seed", range(2))
def test_solid_gradients_match_finite_differences(seed):
    rng = np.random.default_rng(seed)
    solids = [
        Capsule(rng.normal(size=3), rng.normal(size=3), 0.2),
        HalfSpace(rng.normal(size=3), 0.3),
    ]
    point, step = rng.normal(size=3) * 2.0, 1e-6
    for solid in solids:
        _, gradient = solid.signed_distance(point[None])
        moved = np.vstack([point + step * np.eye(3), point - step * np.eye(3)])
        values, _ = solid.signed_distance(moved)
        assert gradient[0] == pytest.approx((values[:3] - values[3:]) / (2 * step), abs=1e-6)


def test_half_space_is_the_solid_below_its_plane():
    table = HalfSpace(np.array([0.0, 0.0, 2.0]), 0.5)
    assert table.normal.tolist() == [0.0, 0.0, 1.0]
    distances, gradients = table.signed_distance(np.array([[3.0, 4.0, 0.7], [0.0, 0.0, 0.1]]))
    assert distances == pytest.approx([0.2, -0.4])
    assert gradients.tolist() == [[0.0, 0.0, 1.0]] * 2


def test_shapes_are_read_only_copies():
    center = np.zeros(3)
    ball = Sphere(center, 0.1)
    center[0] = 7.0
    assert ball.center.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        ball.center[0] = 1.0


ONE, EMPTY = cloud([[0, 0, 0]]), SphereCloud(np.zeros((0, 3)), np.zeros(0))


def rod(start=(0, 0, 0), end=(1, 1, 1), radius=0.1, n_spheres=2):
    return decompose_capsule(np.array(start, float), np.array(end, float), radius, n_spheres)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sphere([0, 0]), r"Sphere.center: expected shape \(3,\), got \(2,\)"),
        (lambda: sphere([0, np.nan, 0]), "Sphere.center: expected finite"),
        (lambda: sphere([0, 0, 0], -1.0), "Sphere.radius: expected a finite length > 0"),
        (lambda: cloud([[0, 0, 0]], 0.0), "SphereCloud.radii: expected > 0 m, got 0.0"),
        (lambda: SphereCloud(np.zeros((2, 3)), np.ones(1)), "SphereCloud.centers: expected shape"),
        (lambda: Capsule(np.full(3, np.nan), np.zeros(3), 1.0), "Capsule.start: expected finite"),
        (lambda: Capsule(np.zeros(3), np.zeros(3), math.inf), "Capsule.radius: expected a finite"),
        (lambda: HalfSpace(np.zeros(3), 0.0), "HalfSpace.normal: expected a direction"),
        (lambda: HalfSpace(np.ones(3), math.nan), "HalfSpace.offset: expected a finite"),
        (lambda: min_pair_distance(EMPTY, ONE), "expected at least one ball each, got 0 and 1"),
        (lambda: k_nearest_pairs(ONE, EMPTY, 1), "expected at least one ball each, got 1 and 0"),
        (lambda: k_nearest_pairs(ONE, ONE, 0), "expected k >= 1, got 0"),
        (lambda: k_nearest_pairs(ONE, ONE, 1, exclude=np.eye(2, dtype=bool)), r"exclude: expected"),
        (lambda: rod(n_spheres=0), "n_spheres >= 1, got 0"),
        (lambda: rod(radius=0.0), "radius: expected a finite length > 0 m, got 0.0"),
        (lambda: rod(start=(0, 0)), r"start: expected shape \(3,\)"),
        (lambda: covering_radius(1.0, 0.1, 0), "n_spheres >= 1"),
        (lambda: covering_radius(-1.0, 0.1, 2), "length >= 0 m, got -1.0"),
        (lambda: covering_radius(1.0, 0.0, 2), "radius: expected a finite length > 0"),
        (lambda: transform_cloud(ONE, 2.0 * np.eye(3), np.zeros(3)), "expected an orthonormal mat"),
        (lambda: transform_cloud(ONE, np.eye(2), np.zeros(3)), r"rotation: expected shape \(3, 3"),
    ],
)
def test_malformed_shapes_and_calls_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()

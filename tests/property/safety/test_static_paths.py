"""Paths beside obstacles: what is called clear is clear, and clear straight ones are so called."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cadenza.safety.backup.statics import StaticScene
from cadenza.safety.geometry import Ball, Obstacles, Points
from tests.property.safety.test_shapes import shapes, vectors

clearances = st.floats(0.05, 0.6)


def length_of(pieces):
    first = np.array(pieces[0][0])
    return max(float(np.linalg.norm(np.array(z) - first)) for piece in pieces for z in piece)


def depth(shape, points, clearance):
    """Smallest distance to the solid less the clearance over sampled points."""
    return float(shape.gaps(points)[0].min()) - clearance


@st.composite
def scenes(draw):
    dim = draw(st.sampled_from([2, 3]))
    counts = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    pieces, last = [], draw(vectors(dim))
    for count in counts:
        ways = [np.array(draw(vectors(dim))) * 0.25 for _ in range(count - 1)]
        pieces.append((last, *(tuple(np.array(last) + way) for way in ways)))
        last = pieces[-1][-1]
    return draw(shapes(dim)), tuple(pieces), draw(clearances)


@given(scene=scenes(), seed=st.integers(0, 100))
def test_nothing_of_a_clear_path_is_nearer_than_the_clearance(scene, seed):
    shape, pieces, clearance = scene
    view = StaticScene(Obstacles([shape]), pieces[0][0], clearance)
    if view.is_clear(pieces, length_of(pieces)):
        rng = np.random.default_rng(seed)
        here = min(0.0, view.margins[0])  # from a place that is too near: no nearer
        for piece in pieces:
            hull = rng.dirichlet(np.full(len(piece), 0.5), 300) @ np.array(piece)
            assert depth(shape, hull, clearance) >= here - 2e-9


@given(scene=scenes())
def test_straight_paths_that_keep_the_clearance_are_clear(scene):
    shape, pieces, clearance = scene
    straight = tuple((piece[0], piece[-1]) for piece in pieces)
    straight = tuple(
        (straight[k - 1][1] if k else piece[0], piece[1]) for k, piece in enumerate(straight)
    )
    share = np.linspace(0.0, 1.0, 1001)[:, None]
    lowest = min(
        depth(shape, np.array(a) + share * (np.array(b) - np.array(a)), clearance)
        for a, b in straight
    )
    if lowest >= 1e-6:
        view = StaticScene(Obstacles([shape]), straight[0][0], clearance)
        assert view.is_clear(straight, length_of(straight))


@given(
    scene=scenes(),
    centers=st.lists(st.tuples(*[st.floats(-4, 4)] * 3), max_size=8),
    radius=st.floats(0.05, 1.0),
)
def test_a_scan_is_judged_like_its_balls(scene, centers, radius):
    shape, pieces, clearance = scene
    centers = [center[: shape.dim] for center in centers]
    scan = Obstacles([shape, Points(np.reshape(centers, (-1, shape.dim)), radius)])
    balls = Obstacles([shape, *(Ball(center, radius) for center in centers)])
    seen = StaticScene(scan, pieces[0][0], clearance)
    single = StaticScene(balls, pieces[0][0], clearance)
    np.testing.assert_allclose(seen.margins, single.margins, atol=1e-12)
    assert seen.excess.tolist() == list(seen.margins)
    assert seen.too_close == single.too_close
    near, alone = seen.near(1.0), single.near(1.0)
    assert sorted(e for e, _ in near) == [float(x) for x in sorted(e for e, _ in near)]
    np.testing.assert_allclose(sorted(e for e, _ in near), sorted(e for e, _ in alone), atol=1e-12)
    # A straight piece is exact either way, up to rounding and the search's tolerance.
    straight = tuple((piece[0], piece[-1]) for piece in pieces)
    length = length_of(pieces)
    if seen.is_clear(straight, length) != single.is_clear(straight, length):
        assert not single.is_clear(straight, length, -1e-6) or seen.is_clear(straight, length, 1e-6)
    if single.is_clear(pieces, length, -1e-6):
        assert seen.is_clear(pieces, length)

"""The credited authority is what the action box reaches, checked against sampling and corners."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from cadenza.safety.authority import measure_authority, weakest_support
from tests.campaigns import size
from tests.unit.safety.scenes import agent, box
from tests.unit.safety.test_authority import Affine


def corners(n, c):
    return np.array(list(itertools.product((-c, c), repeat=n)))


@settings(max_examples=size(40, 100), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from([(2, 2), (2, 5), (3, 3), (3, 7)]))
def test_weakest_support_is_the_distance_to_the_nearest_facet_of_the_reachable_set(seed, shape):
    rng = np.random.default_rng(seed)
    d, n = shape
    jacobian, bias = rng.normal(size=shape), 0.3 * rng.normal(size=d)
    weakest = weakest_support(jacobian, bias, 2.0)
    # Qhull's facets satisfy normal @ x + offset <= 0 inside.
    hull = ConvexHull(corners(n, 2.0) @ jacobian.T + bias)
    nearest = -float(hull.equations[:, -1].max())
    assert weakest == pytest.approx(nearest, abs=1e-7) if nearest > 0.0 else weakest <= 1e-9
    # And no direction is weaker.
    normals = rng.normal(size=(2000, d))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    reached = 2.0 * np.abs(normals @ jacobian).sum(axis=1) + normals @ bias
    assert weakest <= 0.0 or reached.min() >= weakest - 1e-9


@settings(max_examples=size(30, 60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), d=st.sampled_from([2, 3]), n=st.integers(1, 7))
def test_reach_is_the_farthest_corner_of_the_box(seed, d, n):
    rng = np.random.default_rng(seed)
    model = Affine(rng.normal(size=(d, n)), bias=rng.normal(size=d))
    accelerations = corners(n, 2.0) @ model.J.T + model.beta
    reach = measure_authority(model, agent(np.zeros(d)), box(2.0)).reach
    assert reach == pytest.approx(np.linalg.norm(accelerations, axis=1).max(), rel=1e-12)

"""The credited authority is what the action box reaches, checked against sampling and corners."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.authority import measure_authority, weakest_support
from tests.unit.safety.scenes import agent, box
from tests.unit.safety.test_authority import Affine


def unit_vectors(rng, count, d):
    vectors = rng.normal(size=(count, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def support(jacobian, bias, c, normals):
    return c * np.abs(normals @ jacobian).sum(axis=1) + normals @ bias


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), d=st.sampled_from([2, 3]), n=st.integers(2, 7))
def test_weakest_support_is_the_minimum_over_directions(seed, d, n):
    rng = np.random.default_rng(seed)
    jacobian, bias = rng.normal(size=(d, n)), 0.1 * rng.normal(size=d)
    weakest = weakest_support(jacobian, bias, 2.0)
    sampled = support(jacobian, bias, 2.0, unit_vectors(rng, 4000, d))
    if weakest >= 0.0:
        assert sampled.min() >= weakest - 1e-9
        # Reached: refine around the best sample by descent on the sphere.
        best = unit_vectors(rng, 4000, d)
        for scale in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
            values = support(jacobian, bias, 2.0, best)
            centre = best[int(values.argmin())]
            best = np.vstack([centre, centre + scale * rng.normal(size=(2000, d))])
            best /= np.linalg.norm(best, axis=1, keepdims=True)
        assert support(jacobian, bias, 2.0, best).min() <= weakest + 0.02 * (1.0 + weakest)
    elif n >= d:
        # The origin lies outside what the box reaches: some direction has no push at all.
        assert weakest <= 0.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), d=st.sampled_from([2, 3]), n=st.integers(1, 7))
def test_reach_is_the_farthest_corner_of_the_box(seed, d, n):
    rng = np.random.default_rng(seed)
    model = Affine(rng.normal(size=(d, n)), bias=rng.normal(size=d))
    corners = np.array(list(itertools.product((-2.0, 2.0), repeat=n)))
    accelerations = corners @ model.J.T + model.beta
    reach = measure_authority(model, agent(np.zeros(d)), box(2.0)).reach
    assert reach == pytest.approx(np.linalg.norm(accelerations, axis=1).max(), rel=1e-12)


def test_smallest_singular_value_would_understate_the_weakest_direction():
    jacobian = np.array([[2.0, 0.0, 0.0], [0.0, 1.5, 0.5]])
    exact = weakest_support(jacobian, np.zeros(2), 1.0)
    assert exact == pytest.approx(2.0)
    assert np.linalg.svd(jacobian, compute_uv=False)[-1] < exact - 0.4

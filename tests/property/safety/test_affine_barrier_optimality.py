"""The control-affine filter returns the nearest admissible action, whatever the scene."""

from functools import cache

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.affine import (
    AffineCBFFilter,
    DoubleIntegrator,
    half_plane,
    keep_out_ball,
    state_box,
)
from cadenza.safety.solvers import SolveStatus, make_solver
from tests.campaigns import size

BARRIERS = [
    keep_out_ball([0.0, 0.0], 0.5, gains=(2.0, 3.0), name="first"),
    keep_out_ball([1.5, 0.5], 0.4, gains=2.0, name="second"),
    half_plane([1.0, 1.0], -1.5, gains=2.0, name="plane"),
    *state_box([-9, -9, -1, -1], [9, 9, 1, 1], gains=4.0),
]
numbers = st.floats(-2.0, 2.0)


@cache  # not at import: tracing the barriers takes a second
def guard(step=1):
    """Return the filter of every ``step``-th barrier."""
    return AffineCBFFilter(DoubleIntegrator(2), BARRIERS[::step], box=(-3.0, 3.0))


@settings(max_examples=size(50, 150), deadline=None)
@given(
    x=st.lists(numbers, min_size=4, max_size=4),
    u=st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=2),
)
def test_action_is_that_of_an_independent_solver_on_the_unscaled_rows(x, u):
    state, nominal = np.array(x), np.array(u)
    action, info = guard().filter(state, nominal)
    rows = [barrier.row(torch.from_numpy(state)) for barrier in guard().lifted]
    A = -np.stack([row.gain.numpy() for row in rows])
    b = np.array([float(row.level) for row in rows])
    assert (np.abs(action) <= 3.0).all()
    three = np.full(2, 3.0)
    reference = make_solver("quadprog").run(np.ones(2), -nominal, A, b, -three, three)
    np.testing.assert_allclose(info.slack, np.maximum(A @ action - b, 0.0), atol=1e-9)
    if info.status in ("inactive", "optimal"):
        assert info.slack.max() <= 1e-6
        assert reference.status is SolveStatus.OPTIMAL
        np.testing.assert_allclose(action, reference.x, atol=1e-5)
    else:
        assert reference.status is not SolveStatus.OPTIMAL
        assert info.slack.max() > 0.0

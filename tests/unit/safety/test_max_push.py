import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.emergency_jacobian import max_push_action


def smallest_push(rows, offsets, action):
    return float((rows @ action + offsets).min())


def test_max_push_without_any_effect_returns_the_start():
    start = np.array([0.1, 0.2])
    assert max_push_action(np.zeros((2, 2)), np.ones(2), 1.0, start).tolist() == start.tolist()


def test_max_push_between_two_walls_stays_and_leaves_the_free_axis_alone():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    action = max_push_action(rows, np.zeros(2), 1.0, np.array([0.4, 0.3]))
    assert action == pytest.approx([0.0, 0.3], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 5), n=st.integers(1, 7))
def test_max_push_equals_an_untied_linear_programme(seed, m, n):
    rng = np.random.default_rng(seed)
    rows, offsets, c = rng.normal(size=(m, n)), rng.normal(size=m), float(rng.uniform(0.1, 3))
    action = max_push_action(rows, offsets, c, np.zeros(n))
    assert np.abs(action).max() <= c
    plain = scipy.optimize.linprog(
        [0.0] * n + [-1.0],
        A_ub=np.hstack([-rows, np.ones((m, 1))]),
        b_ub=offsets,
        bounds=[(-c, c)] * n + [(None, None)],
    )
    scale = c * np.abs(rows).max()
    assert smallest_push(rows, offsets, action) >= -plain.fun - 2e-5 * n * scale


def test_max_push_without_a_solution_saves_the_neediest_pair(monkeypatch):
    class Failed:
        x = None

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: Failed)
    rows = np.array([[1.0, 2.0], [-1.0, 0.0]])
    # At the start the pushes are 0.3 + 0.2 and -0.3: the second needs it most.
    action = max_push_action(rows, np.array([0.2, 0.0]), 2.0, np.array([0.3, 0.0]))
    assert action.tolist() == [-2.0, 0.0]

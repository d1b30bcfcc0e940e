import math

import numpy as np
import pytest
import quadprog
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.filters.projection import PairRows, project
from cadenza.safety.solvers import DaqpSolver, SolveStatus
from tests.campaigns import size

C = 2.0
numbers = st.floats(-5.0, 5.0).map(lambda x: 0.0 if abs(x) < 1e-3 else x)


@st.composite
def problems(draw, min_rows=1, max_rows=4):
    n = draw(st.integers(1, 4))
    m = draw(st.integers(min_rows, max_rows))
    vector = st.lists(numbers, min_size=n, max_size=n)
    return (
        draw(vector),
        draw(st.lists(vector, min_size=m, max_size=m)),
        draw(st.lists(numbers, min_size=m, max_size=m)),
    )


def quadprog_projection(u, A, b):
    """Independent solution, or None if infeasible: min |x - u|^2, A x <= b, |x_k| <= C."""
    n = len(u)
    rows = np.vstack([-np.array(A).reshape(-1, n), np.eye(n), -np.eye(n)])
    levels = np.concatenate([-np.array(b), np.full(2 * n, -C)])
    try:
        return quadprog.solve_qp(np.eye(n), np.array(u), rows.T, levels)[0]
    except ValueError:
        return None


def projected(u, A, b, h=None):
    """Return the projection of ``u`` and its status; ``h`` says which row is the most urgent."""
    m, n = len(b), len(u)
    h = [0.0] * m if h is None else h
    rows = PairRows([list(a) for a in A], list(b), h, [1.0] * m, [1.0] * m)
    solution = project(u, rows, None, ([-C] * n, [C] * n), DaqpSolver())
    return solution.x, solution.status


def daqp(u, A, b):
    n = len(u)
    return DaqpSolver().run(
        np.ones(n), -np.array(u), np.array(A), np.array(b), np.full(n, -C), np.full(n, C)
    )


@settings(max_examples=size(100, 300), deadline=None)
@given(problem=problems(min_rows=2))
def test_projection_equals_quadprog_and_meets_the_optimality_conditions(problem):
    u, A, b = problem
    x, status = projected(u, A, b)
    assert all(-C <= x_k <= C for x_k in x)
    expected = quadprog_projection(u, A, b)
    if status is not SolveStatus.OPTIMAL:
        assert expected is None or _nearly_infeasible(A, b)
        return
    residual = np.array(A) @ np.array(x) - np.array(b)
    assert residual.max() <= 1e-9 * (1.0 + np.abs(b).max())
    assert expected is not None or _nearly_infeasible(A, b)
    if expected is not None:
        # x is feasible, so at the optimal distance it is the optimum: the projection is unique.
        # Rows that nearly coincide let feasible points differ by the square root of rounding.
        assert math.dist(x, u) == pytest.approx(math.dist(expected, u), abs=1e-8)
        if not _nearly_infeasible(A, b):
            assert x == pytest.approx(expected, abs=1e-7)


def _nearly_infeasible(A, b):
    """Whether levels lower by 1e-7 have no solution any more."""
    return quadprog_projection([0.0] * len(A[0]), A, np.array(b) - 1e-7) is None


def test_projection_equals_daqp_and_quadprog_to_1e_10_on_typical_rows():
    # Unit normals and levels as the filter builds them, up to five rows.
    rng = np.random.default_rng(11)
    compared = 0
    for _ in range(600):
        n, m = int(rng.integers(2, 4)), int(rng.integers(1, 6))
        A = rng.normal(size=(m, n))
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        b, u = rng.uniform(-0.5, 1.5, size=m), rng.uniform(-3, 3, size=n)
        expected = quadprog_projection(u, A, b)
        x, status = projected(u.tolist(), A.tolist(), b.tolist())
        solution = daqp(u, A, b)
        if expected is None or status is not SolveStatus.OPTIMAL:
            assert expected is None
            assert status is SolveStatus.INFEASIBLE
            continue
        compared += 1
        assert x == pytest.approx(expected, abs=1e-10)
        assert solution.x == pytest.approx(expected, abs=1e-10)
    assert compared > 400


@settings(max_examples=size(100, 300), deadline=None)
@given(problem=problems(min_rows=2))
def test_infeasible_rows_leave_the_most_urgent_one_as_good_as_the_box_allows(problem):
    u, A, b = problem
    h = [0.0] + [1.0] * (len(b) - 1)
    x, status = projected(u, A, b, h)
    if status is SolveStatus.OPTIMAL:
        return
    best = max(b[0], -C * sum(abs(a_k) for a_k in A[0]))
    achieved = sum(a_k * x_k for a_k, x_k in zip(A[0], x, strict=True))
    assert achieved <= best + 1e-6
    assert all(abs(x_k) <= C for x_k in x)

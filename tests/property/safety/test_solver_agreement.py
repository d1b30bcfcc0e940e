"""All methods on the same random problems, and against models written independently."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls

from cadenza.safety.solvers import SolveStatus, make_solver
from tests.campaigns import size

#: Halves: small enough to keep rows from being almost, but not quite, parallel.
numbers = st.integers(-8, 8).map(lambda k: k / 2.0)
weights = st.integers(1, 12).map(lambda k: k / 4.0)
FREE = 1e30


@st.composite
def problems(draw, rows, sizes=(1, 4)):
    n = draw(st.integers(*sizes))
    m = draw(st.integers(*rows))
    vector = st.lists(numbers, min_size=n, max_size=n)
    return (
        np.array(draw(st.lists(weights, min_size=n, max_size=n))),
        np.array(draw(vector)),
        np.array(draw(st.lists(vector, min_size=m, max_size=m))).reshape(m, n),
        np.array(draw(st.lists(numbers, min_size=m, max_size=m))),
    )


def stacked(A, b, limit):
    n = A.shape[1]
    if limit >= FREE:
        return A, b
    return np.vstack([A, np.eye(n), -np.eye(n)]), np.concatenate([b, np.full(2 * n, limit)])


def is_empty(A, b, limit):
    """Whether no point meets the rows, by linear programming; None if it is a matter of rounding.

    Finds the smallest common violation s of rows scaled to unit length.
    """
    G, h = stacked(A, b, limit)
    if not len(h):
        return False
    length = np.maximum(np.linalg.norm(G, axis=1), 1e-9)
    n = G.shape[1]
    answer = linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=np.c_[G / length[:, None], -np.ones(len(h))],
        b_ub=h / length,
        bounds=[(None, None)] * n + [(-1.0, None)],
    )
    return None if abs(answer.fun) < 1e-7 else bool(answer.fun > 0.0)


def kkt_error(P, q, G, h, x):
    """Distance of -(P x + q) from the cone of the rows active at x, relative to its length."""
    gradient = (P * x if P.ndim == 1 else P @ x) + q
    active = G[G @ x > h - 1e-8 * (1.0 + np.abs(h))]
    if not len(active):
        return float(np.linalg.norm(gradient))
    return nnls(active.T, -gradient)[1] / (1.0 + float(np.linalg.norm(gradient)))


def check_all(names, problem, limit, tolerance=1e-10):
    """Solve by every method; all agree, and the answer is the optimum."""
    P, q, A, b = problem
    bound = np.full(len(q), limit)
    empty = is_empty(A, b, limit)
    if empty is None:
        return
    answers = {name: make_solver(name).run(P, q, A, b, -bound, bound) for name in names}
    for name, answer in answers.items():
        if empty:
            assert answer.status in (SolveStatus.INFEASIBLE, SolveStatus.MAX_ITER), name
            assert answer.status is SolveStatus.INFEASIBLE or name == "piqp"
            continue
        assert answer.status is SolveStatus.OPTIMAL, name
        assert answer.x == pytest.approx(answers[names[0]].x, abs=tolerance), name
        G, h = stacked(A, b, limit)
        assert (G @ answer.x <= h + 1e-9 * (1.0 + np.abs(h))).all()
        assert kkt_error(P, q, G, h, answer.x) <= 1e-9


@settings(max_examples=size(70, 200), deadline=None)
@given(problem=problems(rows=(0, 1)), limit=st.sampled_from([1.5, 4.0, FREE]))
def test_one_row_closed_form_equals_daqp_and_quadprog_in_any_metric(problem, limit):
    check_all(["closed_form", "daqp", "quadprog", "auto"], problem, limit)


@settings(max_examples=size(70, 200), deadline=None)
@given(problem=problems(rows=(2, 2)))
def test_two_rows_closed_form_equals_daqp_and_quadprog_in_any_metric(problem):
    check_all(["closed_form", "daqp", "quadprog", "auto"], problem, FREE)


@settings(max_examples=size(30, 60), deadline=None)
@given(problem=problems(rows=(0, 5)), limit=st.sampled_from([1.5, 4.0, FREE]))
def test_every_method_finds_the_same_optimum(problem, limit):
    check_all(["quadprog", "daqp", "auto", "clarabel", "osqp", "piqp"], problem, limit)


@settings(max_examples=size(30, 60), deadline=None)
@given(
    problem=problems(rows=(1, 5), sizes=(2, 4)),
    seed=st.integers(0, 1000),
    limit=st.sampled_from([1.5, 4.0]),
)
def test_every_method_finds_the_same_optimum_of_a_full_cost(problem, seed, limit):
    n = len(problem[0])
    M = np.random.default_rng(seed).normal(size=(n, n))
    check_all(
        ["quadprog", "daqp", "auto", "clarabel", "osqp", "piqp"],
        (M @ M.T + 0.3 * np.eye(n), *problem[1:]),
        limit,
        tolerance=1e-9,
    )

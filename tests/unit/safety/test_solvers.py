import numpy as np
import pytest

from cadenza.safety.solvers import (
    DaqpSolver,
    QPSolution,
    SolveStatus,
    largest_residual,
    project_one_row,
)


def test_one_row_inactive_returns_the_clipped_point():
    assert project_one_row([0.5, -3.0], [1.0, 0.0], 1.0, [-2.0] * 2, [2.0] * 2) == (
        [0.5, -2.0],
        True,
    )


def test_one_row_active_is_the_orthogonal_projection():
    # a = (3, 4) / 5, u = (3, 4) / 5 * 2, b = 1: remove one unit along a.
    x, feasible = project_one_row([1.2, 1.6], [0.6, 0.8], 1.0, [-2.0] * 2, [2.0] * 2)
    assert feasible
    assert x == pytest.approx([0.6, 0.8], abs=1e-15)


def test_one_row_with_a_saturated_component_by_hand():
    # min (x-2)^2 + (y-0)^2, x + y <= -1, box 1: x = 2 - mu, y = -mu, y hits -1 at mu = 1 (x = 1),
    # then x alone: x = 0 at mu = 2.
    x, feasible = project_one_row([2.0, 0.0], [1.0, 1.0], -1.0, [-1.0] * 2, [1.0] * 2)
    assert feasible
    assert x == pytest.approx([0.0, -1.0], abs=1e-15)


def test_one_row_starting_outside_the_box_waits_for_the_component_to_enter():
    # u = (5, 0), box 1, x + y <= 0: x stays 1 until mu = 4 while y = -mu stops at -1: (1, -1).
    x, feasible = project_one_row([5.0, 0.0], [1.0, 1.0], 0.0, [-1.0] * 2, [1.0] * 2)
    assert feasible
    assert x == pytest.approx([1.0, -1.0], abs=1e-15)


def test_one_row_out_of_reach_returns_the_least_violation():
    # The row ignores y, which keeps its clipped value.
    assert project_one_row([0.3, 7.0], [1.0, 0.0], -5.0, [-2.0] * 2, [2.0] * 2) == (
        [-2.0, 2.0],
        False,
    )
    assert project_one_row([0.3, 0.1], [-0.6, 0.8], -5.0, [-2.0] * 2, [2.0] * 2) == (
        [2.0, -2.0],
        False,
    )


def test_one_row_met_only_at_a_corner_is_feasible():
    x, feasible = project_one_row([0.0, 0.0], [0.6, 0.8], -2.8, [-2.0] * 2, [2.0] * 2)
    assert feasible
    assert x == pytest.approx([-2.0, -2.0], abs=1e-12)


def test_one_row_of_zeros_is_feasible_only_for_a_level_above_zero():
    assert project_one_row([1.0, 1.0], [0.0, 0.0], 0.0, [-2.0] * 2, [2.0] * 2) == ([1.0, 1.0], True)
    assert project_one_row([1.0, 1.0], [0.0, 0.0], -1.0, [-2.0] * 2, [2.0] * 2) == (
        [1.0, 1.0],
        False,
    )


def solve(q, A, b, lower=-1.0, upper=1.0, solver=None):
    n = len(q)
    return (solver or DaqpSolver()).run(
        np.ones(n),
        np.array(q, float),
        np.array(A, float),
        np.array(b, float),
        np.full(n, lower),
        np.full(n, upper),
    )


def test_daqp_solves_two_active_rows_by_hand():
    # Project (1, 1) on x <= 0.25 and y <= -0.5.
    solution = solve([-1.0, -1.0], [[1, 0], [0, 1]], [0.25, -0.5])
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.x == pytest.approx([0.25, -0.5], abs=1e-14)
    assert solution.iterations > 0


def test_daqp_uses_the_diagonal_of_the_cost():
    # min 1/2 (4 x^2 + y^2), x + y <= -1: x = -mu / 4, y = -mu, mu = 0.8.
    solution = DaqpSolver().run(
        np.array([4.0, 1.0]),
        np.zeros(2),
        np.ones((1, 2)),
        np.array([-1.0]),
        np.full(2, -1.0),
        np.full(2, 1.0),
    )
    assert solution.x == pytest.approx([-0.2, -0.8], abs=1e-13)


def test_daqp_zero_row_is_judged_by_its_level_and_leaves_no_trace():
    shared = DaqpSolver()
    A, b = [[1.0, 0.0], [0.0, 0.0]], [0.25, -1.0]
    assert solve([-1.0, -1.0], A, b, solver=shared).status is SolveStatus.INFEASIBLE
    after = solve([-1.0, -1.0], A, [0.25, 1.0], solver=shared)
    assert after.status is SolveStatus.OPTIMAL
    assert after.x == pytest.approx([0.25, 1.0], abs=1e-14)
    # A failure right after a success must not repeat the success.
    assert solve([-1.0, -1.0], A, b, solver=shared).status is SolveStatus.INFEASIBLE


def test_daqp_empty_box_is_infeasible():
    assert solve([0.0], [[1.0]], [0.0], lower=1.0, upper=-1.0).status is SolveStatus.INFEASIBLE


def test_daqp_reports_infeasible_rows():
    assert solve([0.0], [[1.0], [-1.0]], [-0.5, -0.5]).status is SolveStatus.INFEASIBLE
    assert solve([0.0], [[1.0], [1.0]], [-2.0, 0.0]).status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize("where", ["q", "A", "b"])
def test_daqp_reports_bad_input_instead_of_nan(where):
    data = {"q": [0.5, 0.5], "A": [[1.0, 0.0], [0.0, 1.0]], "b": [0.1, 0.1]}
    broken = np.array(data[where])
    broken.flat[0] = np.nan
    assert solve(**(data | {where: broken})).status is SolveStatus.BAD_INPUT


def test_daqp_answers_do_not_depend_on_what_was_solved_before():
    rng = np.random.default_rng(3)
    problems = [
        (rng.normal(size=2) * 3, rng.normal(size=(4, 2)), rng.normal(size=4)) for _ in range(80)
    ]
    fresh = [solve(*problem) for problem in problems]
    shared = DaqpSolver()
    again = {int(k): solve(*problems[k], solver=shared) for k in rng.permutation(80)}
    for k, solution in enumerate(fresh):
        assert again[k].status is solution.status
        assert again[k].x.tobytes() == solution.x.tobytes()
    assert {s.status for s in fresh} == {SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE}


def test_daqp_answer_that_misses_a_row_is_not_accepted(monkeypatch):
    monkeypatch.setattr("cadenza.safety.solvers.interface.largest_residual", lambda A, b, x: 1e-6)
    assert solve([-1.0, 0.0], [[1, 0], [0, 1]], [0.5, 0.5]).status is SolveStatus.NUMERICAL


@pytest.mark.parametrize(
    ("flag", "status"), [(-4, SolveStatus.MAX_ITER), (-2, SolveStatus.NUMERICAL)]
)
def test_daqp_exit_flags_keep_their_meaning(monkeypatch, flag, status):
    class Stopped:
        def update(self, *arrays):
            return 0

        def solve(self):
            return np.zeros(2), 0.0, flag, {"iterations": 9}

    monkeypatch.setattr("cadenza.safety.solvers.daqp_solver._new_model", lambda *arrays: Stopped())
    solution = solve([-1.0, 0.0], [[1, 0], [0, 1]], [0.5, 0.5])
    assert (solution.status, solution.iterations) == (status, 9)


def test_largest_residual_is_relative_to_the_level():
    A, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 99.0])
    assert largest_residual(A, b, np.array([3.0, 100.0])) == 1.0
    assert largest_residual(A[:0], b[:0], np.zeros(2)) == -np.inf


def test_solution_is_a_plain_record():
    assert QPSolution(np.zeros(1), SolveStatus.OPTIMAL, 3).iterations == 3

import numpy as np
import pytest

from cadenza.safety.solvers import DaqpSolver, SolveStatus, largest_residual, project_one_row


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

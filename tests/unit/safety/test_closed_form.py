import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.solvers import ClosedFormSolver, SolveStatus
from cadenza.safety.solvers.closed_form import project_two_rows

FREE = 1e30


def run(P, q, A, b, lower=-FREE, upper=FREE):
    n = len(q)
    return ClosedFormSolver().run(
        np.array(P, float),
        np.array(q, float),
        np.array(A, float).reshape(len(b), n),
        np.array(b, float),
        np.full(n, lower),
        np.full(n, upper),
    )


def test_two_parallel_rows_keep_the_tighter_one():
    x, feasible = project_two_rows([3.0, 1.0], [[2, 0], [1, 0]], [2.0, -1.0])
    assert (x, feasible) == ([-1.0, 1.0], True)


def test_two_opposite_rows_are_feasible_only_with_room_between():
    assert project_two_rows([3.0], [[1], [-1]], [1.0, -1.0]) == ([1.0], True)
    assert project_two_rows([3.0], [[1], [-1]], [1.0, -1.5]) == ([3.0], False)


def test_two_rows_with_zeros_are_judged_by_their_level():
    assert project_two_rows([3.0, 0.0], [[0, 0], [1, 0]], [0.0, 1.0]) == ([1.0, 0.0], True)
    assert project_two_rows([3.0, 0.0], [[0, 0], [1, 0]], [-1.0, 1.0]) == ([3.0, 0.0], False)


def test_solver_accepts_a_diagonal_matrix_and_no_rows():
    solution = run(np.diag([2.0, 1.0]), [-1.0, -9.0], [], [], -4.0, 4.0)
    assert solution.x == pytest.approx([0.5, 4.0])
    assert solution.residual == -np.inf


def test_solver_reports_infeasible_problems():
    assert run([1.0], [0.0], [[1]], [-2.0], -1.0, 1.0).status is SolveStatus.INFEASIBLE
    assert run([1.0], [0.0], [[1]], [0.0], 1.0, -1.0).status is SolveStatus.INFEASIBLE
    assert run([1.0], [0.0], [[1], [-1]], [-1.0, -1.0]).status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize(("P", "q"), [([0.0], [1.0]), ([-1.0], [1.0]), ([np.nan], [1.0])])
def test_solver_reports_a_cost_that_is_not_positive(P, q):
    assert run(P, q, [[1]], [0.0]).status is SolveStatus.BAD_INPUT


def test_solver_refuses_problems_without_a_closed_form():
    with pytest.raises(InputError, match=r"two rows without, got 2 rows with bounds"):
        run([1.0], [0.0], [[1], [-1]], [1.0, 1.0], -1.0, 1.0)
    with pytest.raises(InputError, match=r"got 3 rows without bounds; use make_solver\('auto'\)"):
        run([1.0], [0.0], [[1], [-1], [1]], [1.0, 1.0, 1.0])
    with pytest.raises(InputError, match="expected a diagonal cost"):
        run([[2.0, 1.0], [1.0, 2.0]], [0.0, 0.0], [[1, 1]], [1.0])

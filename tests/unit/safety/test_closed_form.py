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


def test_two_rows_both_met_returns_the_point_itself():
    assert project_two_rows([0.5, -3.0], [[1, 0], [0, 1]], [1.0, 0.0]) == ([0.5, -3.0], True)


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        ([0.0, 9.0], [0.0, 2.0]),  # only x <= 0 is active
        ([9.0, 0.0], [1.0, 0.0]),  # only y <= 0 is active
        ([-1.0, -1.0], [-1.0, -1.0]),  # both: the corner
    ],
)
def test_two_rows_of_the_axes_by_hand(b, expected):
    assert project_two_rows([1.0, 2.0], [[1, 0], [0, 1]], b) == (expected, True)


def test_two_oblique_rows_meet_in_the_corner():
    # x <= 0 and x + y <= -1 from (1, 0): x = 0 alone misses the second row, (0, -1) is both; the
    # second alone gives (0, -1) too: multipliers (0, 1) prove it.
    x, feasible = project_two_rows([1.0, 0.0], [[1, 0], [1, 1]], [0.0, -1.0])
    assert feasible
    assert x == pytest.approx([0.0, -1.0], abs=1e-15)


def test_two_rows_scaled_by_any_factor_give_the_same_point():
    # Rows 3 x <= 0 and 10 (x + 2 y) <= -10 from (2, 1): the corner (0, -0.5), with multipliers
    # 0.5 of x and 1.5 of x + 2 y, since (2, 1.5) = 1.25 (1, 0) + 0.75 (1, 2).
    x, feasible = project_two_rows([2.0, 1.0], [[3, 0], [10, 20]], [0.0, -10.0])
    assert feasible
    assert x == pytest.approx([0.0, -0.5], abs=1e-14)


def test_two_parallel_rows_keep_the_tighter_one():
    x, feasible = project_two_rows([3.0, 1.0], [[2, 0], [1, 0]], [2.0, -1.0])
    assert (x, feasible) == ([-1.0, 1.0], True)


def test_two_opposite_rows_are_feasible_only_with_room_between():
    assert project_two_rows([3.0], [[1], [-1]], [1.0, -1.0]) == ([1.0], True)
    assert project_two_rows([3.0], [[1], [-1]], [1.0, -1.5]) == ([3.0], False)


def test_two_rows_with_zeros_are_judged_by_their_level():
    assert project_two_rows([3.0, 0.0], [[0, 0], [1, 0]], [0.0, 1.0]) == ([1.0, 0.0], True)
    assert project_two_rows([3.0, 0.0], [[0, 0], [1, 0]], [-1.0, 1.0]) == ([3.0, 0.0], False)


def test_two_rows_with_a_flipped_multiplier_would_be_caught():
    u, A, b = np.array([2.0, 1.0]), np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([0.0, -1.0])
    x, _ = project_two_rows(u.tolist(), A.tolist(), b.tolist())
    assert (A @ np.array(x) <= b + 1e-12).all()
    mutant = u + (u - np.array(x))
    assert (A @ mutant > b).any()


def test_solver_one_row_uses_the_metric():
    # min 1/2 (4 x^2 + y^2), x + y <= -1: x = -mu / 4, y = -mu, mu = 0.8.
    solution = run([4.0, 1.0], [0.0, 0.0], [[1, 1]], [-1.0], -1.0, 1.0)
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.x == pytest.approx([-0.2, -0.8], abs=1e-15)
    assert solution.residual <= 1e-15


def test_solver_metric_with_a_saturated_component():
    # As above with y >= -0.5: x = -0.5 carries the rest.
    solution = run([4.0, 1.0], [0.0, 0.0], [[1, 1]], [-1.0], -0.5, 0.5)
    assert solution.x == pytest.approx([-0.5, -0.5], abs=1e-15)


def test_solver_two_rows_use_the_metric():
    # min 1/2 (4 x^2 + y^2) - 4 x - y (unconstrained (1, 1)), x + y <= 0 and y <= 9:
    # x = 1 - mu / 4, y = 1 - mu, mu = 1.6.
    solution = run([4.0, 1.0], [-4.0, -1.0], [[1, 1], [0, 1]], [0.0, 9.0])
    assert solution.x == pytest.approx([0.6, -0.6], abs=1e-15)


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

import numpy as np
import pytest

from cadenza.safety.solvers.approximate import ApproximateSolver, Guess
from cadenza.safety.solvers.dense_problem import dense_problem
from cadenza.safety.solvers.interface import SolveStatus
from cadenza.safety.solvers.refine import refine

#: Project (1, 1) in the metric (4, 1) on x + y <= 0 (active) and y <= 2 (idle): (0.6, -0.6).
PROBLEM = dense_problem(
    *(np.array([4.0, 1.0]), np.array([-4.0, -1.0])),
    *(np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([0.0, 2.0])),
    *(np.full(2, -1e30), np.full(2, 1e30)),
)
ANSWER = [0.6, -0.6]


@pytest.mark.parametrize(
    "multipliers",
    [[1.6, 1e-9], [0.0, 0.0], [0.0, 5.0], [3.0, 5.0]],
    ids=["right set", "empty set", "wrong set", "too many"],
)
def test_refine_reaches_the_optimum_from_any_active_set(multipliers):
    x = refine(PROBLEM, np.array([0.61, -0.59]), np.array(multipliers))
    assert x == pytest.approx(ANSWER, abs=1e-14)


def test_refine_of_contradicting_rows_proves_nothing():
    contradiction = dense_problem(
        *(np.ones(1), np.zeros(1), np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0])),
        *(np.full(1, -1e30), np.full(1, 1e30)),
    )
    assert refine(contradiction, np.zeros(1), np.ones(2)) is None
    assert refine(contradiction, np.zeros(1), np.zeros(2)) is None


def test_dense_problem_stacks_the_bounds_that_exist():
    problem = dense_problem(
        *(np.ones(2), np.zeros(2), np.array([[3.0, 4.0]]), np.array([5.0])),
        *(np.array([-1.0, -1e30]), np.array([1e30, 2.0])),
    )
    assert problem is not None
    assert problem.G.tolist() == [[3.0, 4.0], [0.0, 1.0], [-1.0, 0.0]]
    assert problem.h.tolist() == [5.0, 2.0, 1.0]


class Claims(ApproximateSolver):
    """Claims to have solved; the base class finds out."""

    name = "claims"

    def __init__(self, x):
        self._x = np.array(x, float)

    def guess(self, problem, *, warm_start):
        return Guess(self._x, np.ones(problem.h.shape[0]), SolveStatus.OPTIMAL, 4)


@pytest.mark.parametrize("x", [[np.nan], [0.0]], ids=["no number", "nothing to find"])
def test_a_false_claim_is_reported_as_numerical(x):
    A, b = np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0])  # empty
    free = np.full(1, 1e30)
    solution = Claims(x).run(np.ones(1), np.zeros(1), A, b, -free, free)
    assert (solution.status, solution.iterations) == (SolveStatus.NUMERICAL, 4)

import numpy as np
import pytest

from cadenza.safety.solvers import approximate
from cadenza.safety.solvers.approximate import ApproximateSolver, Guess, dense_problem, refine
from cadenza.safety.solvers.interface import SolveStatus

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


def test_refine_lets_rows_leave_that_entered_too_early():
    # min 1/8 (x^2 + y^2) + 2.5 y; x + y >= 0, 3 x + 2.5 y <= -0.5 and 2 x + y <= 0 in the plane.
    # On x + y = 0 the second row reads x <= -1, the third x <= 0: the optimum is (-1, 1).
    problem = dense_problem(
        *(np.full(2, 0.25), np.array([0.0, 2.5])),
        *(np.array([[-1.0, -1.0], [3.0, 2.5], [2.0, 1.0]]), np.array([0.0, -0.5, 0.0])),
        *(np.full(2, -1e30), np.full(2, 1e30)),
    )
    for multipliers in (np.zeros(3), np.ones(3), np.array([0.0, 0.0, 9.0])):
        x = refine(problem, np.array([-1.01, 1.0]), multipliers)
        assert x == pytest.approx([-1.0, 1.0], abs=1e-13)


def test_refine_of_contradicting_rows_proves_nothing():
    contradiction = dense_problem(
        *(np.ones(1), np.zeros(1), np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0])),
        *(np.full(1, -1e30), np.full(1, 1e30)),
    )
    assert refine(contradiction, np.zeros(1), np.ones(2)) is None
    assert refine(contradiction, np.zeros(1), np.zeros(2)) is None


def test_refine_gives_up_when_rows_keep_entering(monkeypatch):
    monkeypatch.setattr(approximate, "_SPARE_ENTRIES", 1 - len(PROBLEM.h))
    assert refine(PROBLEM, np.array(ANSWER), np.array([1.6, 0.0])) is not None  # no entry needed
    assert refine(PROBLEM, np.array(ANSWER), np.zeros(2)) is None


class Claims(ApproximateSolver):
    """Says what it is told to; the base class finds out what is true."""

    name = "claims"

    def __init__(self, x, status=SolveStatus.OPTIMAL):
        self._x, self._status = np.array(x, float), status

    def guess(self, problem, *, warm_start):
        return Guess(self._x, np.ones(problem.h.shape[0]), self._status, 4)


def run(solver, b):
    free = np.full(1, 1e30)
    return solver.run(np.ones(1), np.zeros(1), np.array([[1.0], [-1.0]]), np.array(b), -free, free)


@pytest.mark.parametrize("x", [[np.nan], [0.0]], ids=["no number", "nothing to find"])
def test_a_false_claim_is_reported_as_numerical(x):
    solution = run(Claims(x), [-1.0, -1.0])  # no x is <= -1 and >= 1
    assert (solution.status, solution.iterations) == (SolveStatus.NUMERICAL, 4)


def test_a_guess_that_ran_out_of_iterations_counts_if_it_leads_to_the_optimum():
    solution = run(Claims([5.0], SolveStatus.MAX_ITER), [4.0, -1.0])  # 1 <= x <= 4
    assert (solution.status, solution.x.tolist()) == (SolveStatus.OPTIMAL, [1.0])
    assert run(Claims([5.0], SolveStatus.MAX_ITER), [-1.0, -1.0]).status is SolveStatus.MAX_ITER

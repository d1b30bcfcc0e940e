import math

import numpy as np
import pytest

from cadenza.safety.filters.projection import RowSet, project
from cadenza.safety.solvers import DaqpSolver, QPSolution, SolveStatus

#: The box of these tests.
LOW, HIGH = [-2.0, -2.0], [2.0, 2.0]


class CountingSolver:
    """DAQP that counts its calls, or fails on purpose."""

    def __init__(self, failure=None):
        self.calls = 0
        self.failure = failure
        self._daqp = DaqpSolver()

    def run(self, P_diagonal, q, A, b, lower, upper):
        self.calls += 1
        if self.failure is not None:
            return QPSolution(np.full(q.shape, 77.0), self.failure, 1)
        return self._daqp.run(P_diagonal, q, A, b, lower, upper)


def rows(a, b, h=None, time_left=None):
    m = len(b)
    return RowSet(
        [list(map(float, row)) for row in a],
        list(map(float, b)),
        list(h) if h is not None else [0.0] * m,
        list(time_left) if time_left is not None else [math.inf] * m,
    )


def test_project_without_active_row_calls_no_solver():
    solver = CountingSolver()
    assert project([0.5, 0.5], rows([[1, 0], [0, 1]], [1, 1]), LOW, HIGH, solver) == (
        [0.5, 0.5],
        SolveStatus.OPTIMAL,
    )
    assert solver.calls == 0


def test_project_uses_one_row_when_it_settles_the_others():
    solver = CountingSolver()
    # x <= 0.5 cuts u = (1, 0); x <= 0.9 is then met as well.
    x, status = project([1.0, 0.0], rows([[1, 0], [1, 0]], [0.5, 0.9]), LOW, HIGH, solver)
    assert (x, status, solver.calls) == ([0.5, 0.0], SolveStatus.OPTIMAL, 0)


@pytest.mark.parametrize("failure", [SolveStatus.NUMERICAL, SolveStatus.MAX_ITER])
def test_project_with_a_failing_solver_serves_the_most_urgent_row(failure):
    solver = CountingSolver(failure)
    x, status = project(
        [1.0, 1.0], rows([[1, 0], [0, 1]], [0.5, 0.2], h=[0.3, 0.1]), LOW, HIGH, solver
    )
    assert status is failure
    assert x == pytest.approx(
        [1.0, 0.2], abs=1e-15
    )  # the second row is the urgent one; never the solver's 77
    assert solver.calls == 2

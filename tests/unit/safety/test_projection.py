import math

import numpy as np
import pytest

from cadenza.safety.filters.projection import RowSet, project
from cadenza.safety.solvers import QPSolution, SolveStatus

#: The box of these tests.
LOW, HIGH = [-2.0, -2.0], [2.0, 2.0]


class FailingSolver:
    """Fails on purpose and counts how often."""

    def __init__(self, failure):
        self.calls = 0
        self.failure = failure

    def run(self, P_diagonal, q, A, b, lower, upper):
        self.calls += 1
        return QPSolution(np.full(q.shape, 77.0), self.failure, 1)


def rows(a, b, h=None, time_left=None):
    m = len(b)
    return RowSet(
        [list(map(float, row)) for row in a],
        list(map(float, b)),
        list(h) if h is not None else [0.0] * m,
        list(time_left) if time_left is not None else [math.inf] * m,
    )


@pytest.mark.parametrize("failure", [SolveStatus.NUMERICAL, SolveStatus.MAX_ITER])
def test_project_with_a_failing_solver_serves_the_most_urgent_row(failure):
    solver = FailingSolver(failure)
    x, status = project(
        [1.0, 1.0], rows([[1, 0], [0, 1]], [0.5, 0.2], h=[0.3, 0.1]), LOW, HIGH, solver
    )
    assert status is failure
    assert x == pytest.approx(
        [1.0, 0.2], abs=1e-15
    )  # the second row is the urgent one; never the solver's 77
    assert solver.calls == 2

import numpy as np
import pytest

from cadenza.safety.filters.projection import PairRows, project
from cadenza.safety.solvers import QPSolution, SolveStatus

#: The box of these tests.
BOX = [-2.0, -2.0], [2.0, 2.0]


class FailingSolver:
    """Fails on purpose and counts how often."""

    def __init__(self, failure):
        self.calls = 0
        self.failure = failure

    def run(self, P_diagonal, q, A, b, lower, upper):
        self.calls += 1
        return QPSolution(np.full(q.shape, 77.0), self.failure, 1)


@pytest.mark.parametrize("failure", [SolveStatus.NUMERICAL, SolveStatus.MAX_ITER])
def test_project_with_a_failing_solver_serves_the_most_urgent_row(failure):
    solver = FailingSolver(failure)
    level, h, margin, closing = [0.5, 0.2], [0.3, 0.1], [1.0, 1.0], [0.0, 0.0]
    rows = PairRows([[1.0, 0.0], [0.0, 1.0]], level, h, margin, closing)
    solution = project([1.0, 1.0], rows, None, BOX, solver)
    assert solution.status is failure
    # The second row is the urgent one; never the solver's 77.
    assert solution.x == pytest.approx([1.0, 0.2], abs=1e-15)
    assert solver.calls == 2

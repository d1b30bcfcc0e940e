import numpy as np
import pytest

from cadenza.core.errors import MissingExtraError
from cadenza.safety.solvers import AutoSolver, QPSolution, SolveStatus, registry

#: Project (1, 1) on x <= 0.25 and y <= -0.5.
TWO_ROWS = (
    *(np.ones(2), -np.ones(2), np.eye(2), np.array([0.25, -0.5])),
    *(np.full(2, -2.0), np.full(2, 2.0)),
)
ONE_ROW = (*TWO_ROWS[:2], np.array([[1.0, 0.0]]), np.array([0.25]), *TWO_ROWS[4:])


class Fake:
    """Answers with one status and counts."""

    def __init__(self, status, x=(7.0, 7.0)):
        self.answer = QPSolution(np.array(x), status, 1)
        self.calls = []

    def run(self, *problem, warm_start=False):
        self.calls.append(warm_start)
        return self.answer


def test_auto_takes_the_closed_form_for_one_row():
    auto = AutoSolver()
    auto._chain = [Fake(SolveStatus.OPTIMAL)]
    solution = auto.run(*ONE_ROW)
    assert solution.x.tolist() == [0.25, 1.0]
    assert auto._chain[0].calls == []


def test_auto_takes_daqp_for_one_row_of_a_full_cost_and_for_more_rows():
    for problem in ((np.array([[2.0, 1.0], [1.0, 2.0]]), *ONE_ROW[1:]), TWO_ROWS):
        auto = AutoSolver()
        auto._chain = [Fake(SolveStatus.OPTIMAL)]
        assert auto.run(*problem, warm_start=True).x.tolist() == [7.0, 7.0]
        assert auto._chain[0].calls == [True]


@pytest.mark.parametrize("status", [SolveStatus.INFEASIBLE, SolveStatus.BAD_INPUT])
def test_auto_believes_an_answer_that_no_method_can_better(status):
    auto = AutoSolver()
    auto._chain = [Fake(status)]
    assert auto.run(*TWO_ROWS).status is status
    assert len(auto._chain) == 1


@pytest.mark.parametrize("status", [SolveStatus.NUMERICAL, SolveStatus.MAX_ITER])
def test_auto_asks_quadprog_when_daqp_fails(monkeypatch, status):
    monkeypatch.setattr(registry, "ClarabelSolver", lambda: Fake(SolveStatus.OPTIMAL))
    auto = AutoSolver()
    auto._chain = [Fake(status)]
    for _ in range(2):  # the fallbacks are built once
        solution = auto.run(*TWO_ROWS)
        assert solution.status is SolveStatus.OPTIMAL
        assert solution.x == pytest.approx([0.25, -0.5], abs=1e-14)
    assert len(auto._chain) == 3


def test_auto_asks_clarabel_without_quadprog(monkeypatch):
    def missing():
        raise MissingExtraError("no quadprog")

    monkeypatch.setattr(registry, "QuadprogSolver", missing)
    auto = AutoSolver()
    auto._chain = [Fake(SolveStatus.NUMERICAL)]
    solution = auto.run(*TWO_ROWS)
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.x == pytest.approx([0.25, -0.5], abs=1e-12)


def test_auto_reports_the_first_failure_when_all_fail(monkeypatch):
    monkeypatch.setattr(registry, "QuadprogSolver", lambda: Fake(SolveStatus.NUMERICAL))
    monkeypatch.setattr(registry, "ClarabelSolver", lambda: Fake(SolveStatus.NUMERICAL))
    auto = AutoSolver()
    auto._chain = [Fake(SolveStatus.MAX_ITER)]
    assert auto.run(*TWO_ROWS).status is SolveStatus.MAX_ITER


def test_auto_asks_daqp_when_the_closed_form_is_refused():
    auto = AutoSolver()
    auto._closed_form = Fake(SolveStatus.NUMERICAL)
    assert auto.run(*ONE_ROW).x == pytest.approx([0.25, 1.0], abs=1e-14)

import numpy as np
import pytest

from cadenza.core.errors import MissingExtraError
from cadenza.safety.solvers import QPSolution, SolveStatus, make_solver, registry

#: Project (1, 1) on x <= 0.25 and y <= -0.5.
TWO_ROWS = (
    *(np.ones(2), -np.ones(2), np.eye(2), np.array([0.25, -0.5])),
    *(np.full(2, -2.0), np.full(2, 2.0)),
)
ONE_ROW = (*TWO_ROWS[:2], np.array([[1.0, 0.0]]), np.array([0.25]), *TWO_ROWS[4:])


class Fake:
    """Answers with one status and counts."""

    def __init__(self, status):
        self.answer = QPSolution(np.full(2, 7.0), status, 1)
        self.calls = []

    def run(self, *problem, warm_start=False):
        self.calls.append(warm_start)
        return self.answer


@pytest.fixture
def auto(monkeypatch):
    """Build an auto solver whose methods, by class name, answer with the given statuses."""

    def build(**statuses):
        fakes = {name: Fake(status) for name, status in statuses.items()}
        for name, fake in fakes.items():
            monkeypatch.setattr(registry, name, lambda fake=fake: fake)
        return make_solver("auto"), *fakes.values()

    return build


def test_auto_takes_the_closed_form_for_one_row(auto):
    solver, daqp = auto(DaqpSolver=SolveStatus.OPTIMAL)
    assert solver.run(*ONE_ROW).x.tolist() == [0.25, 1.0]
    assert daqp.calls == []


def test_auto_takes_daqp_for_one_row_of_a_full_cost_and_for_more_rows(auto):
    solver, daqp = auto(DaqpSolver=SolveStatus.OPTIMAL)
    for problem in ((np.array([[2.0, 1.0], [1.0, 2.0]]), *ONE_ROW[1:]), TWO_ROWS):
        assert solver.run(*problem, warm_start=True).x.tolist() == [7.0, 7.0]
    assert daqp.calls == [True, True]


@pytest.mark.parametrize("status", [SolveStatus.INFEASIBLE, SolveStatus.BAD_INPUT])
def test_auto_believes_an_answer_that_no_method_can_better(auto, status):
    solver, _, other = auto(DaqpSolver=status, QuadprogSolver=SolveStatus.OPTIMAL)
    assert solver.run(*TWO_ROWS).status is status
    assert other.calls == []


@pytest.mark.parametrize("status", [SolveStatus.NUMERICAL, SolveStatus.MAX_ITER])
def test_auto_asks_quadprog_when_daqp_fails(auto, status):
    solver, _, clarabel = auto(DaqpSolver=status, ClarabelSolver=SolveStatus.OPTIMAL)
    for _ in range(2):
        solution = solver.run(*TWO_ROWS)
        assert solution.status is SolveStatus.OPTIMAL
        assert solution.x == pytest.approx([0.25, -0.5], abs=1e-14)
    assert clarabel.calls == []


def test_auto_asks_clarabel_without_quadprog(auto, monkeypatch):
    def missing():
        raise MissingExtraError("no quadprog")

    monkeypatch.setattr(registry, "QuadprogSolver", missing)
    solution = auto(DaqpSolver=SolveStatus.NUMERICAL)[0].run(*TWO_ROWS)
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.x == pytest.approx([0.25, -0.5], abs=1e-12)


def test_auto_reports_the_first_failure_when_all_fail(auto):
    others = dict.fromkeys(("QuadprogSolver", "ClarabelSolver"), SolveStatus.NUMERICAL)
    solver, *_ = auto(DaqpSolver=SolveStatus.MAX_ITER, **others)
    assert solver.run(*TWO_ROWS).status is SolveStatus.MAX_ITER


def test_auto_asks_daqp_when_the_closed_form_is_refused(auto):
    solver, _ = auto(ClosedFormSolver=SolveStatus.NUMERICAL)
    assert solver.run(*ONE_ROW).x == pytest.approx([0.25, 1.0], abs=1e-14)

import numpy as np
import pytest

from cadenza.core.errors import MissingExtraError
from cadenza.safety.solvers import (
    DaqpSolver,
    QPSolution,
    SolveStatus,
    largest_residual,
    make_solver,
    registry,
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
        def setup(self, *arrays):
            return 0

        update = setup

        def solve(self):
            return np.zeros(2), 0.0, flag, {"iterations": 9}

    monkeypatch.setattr("daqp.Model", Stopped)
    solution = solve([-1.0, 0.0], [[1, 0], [0, 1]], [0.5, 0.5])
    assert (solution.status, solution.iterations) == (status, 9)


def test_largest_residual_is_relative_to_the_level():
    A, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 99.0])
    assert largest_residual(A, b, np.array([3.0, 100.0])) == 1.0
    assert largest_residual(A[:0], b[:0], np.zeros(2)) == -np.inf


# Which method `auto` takes.


#: Project (1, 1) on x <= 0.25 and y <= -0.5.
TWO_ROWS = (
    *(np.ones(2), -np.ones(2), np.eye(2), np.array([0.25, -0.5])),
    *(np.full(2, -2.0), np.full(2, 2.0)),
)


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
    assert solution.x == pytest.approx([0.25, -0.5], abs=1e-8)


def test_auto_reports_the_first_failure_when_all_fail(auto):
    others = dict.fromkeys(("QuadprogSolver", "ClarabelSolver"), SolveStatus.NUMERICAL)
    solver, *_ = auto(DaqpSolver=SolveStatus.MAX_ITER, **others)
    assert solver.run(*TWO_ROWS).status is SolveStatus.MAX_ITER

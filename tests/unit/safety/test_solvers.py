from types import SimpleNamespace

import numpy as np
import pytest

from cadenza.core.errors import InputError, MissingExtraError
from cadenza.safety import solvers
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers import (
    ClosedFormSolver,
    DaqpSolver,
    QPSolution,
    SolveStatus,
    as_solver,
    largest_residual,
    make_solver,
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
    monkeypatch.setattr("cadenza.safety.solvers.largest_residual", lambda A, b, x: 1e-6)
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


# The closed form.


FREE = 1e30


def closed_form(P, q, A, b, lower=-FREE, upper=FREE):
    n = len(q)
    return ClosedFormSolver().run(
        np.array(P, float),
        np.array(q, float),
        np.array(A, float).reshape(len(b), n),
        np.array(b, float),
        np.full(n, lower),
        np.full(n, upper),
    )


def test_solver_accepts_a_diagonal_matrix_and_no_rows():
    solution = closed_form(np.diag([2.0, 1.0]), [-1.0, -9.0], [], [], -4.0, 4.0)
    assert solution.x == pytest.approx([0.5, 4.0])
    assert solution.residual == -np.inf


@pytest.mark.parametrize(("P", "q"), [([0.0], [1.0]), ([-1.0], [1.0]), ([np.nan], [1.0])])
def test_solver_reports_a_cost_that_is_not_positive(P, q):
    assert closed_form(P, q, [[1]], [0.0]).status is SolveStatus.BAD_INPUT


def test_solver_refuses_problems_without_a_closed_form():
    with pytest.raises(InputError, match=r"two rows without, got 2 rows with bounds"):
        closed_form([1.0], [0.0], [[1], [-1]], [1.0, 1.0], -1.0, 1.0)
    with pytest.raises(InputError, match=r"got 3 rows without bounds; use make_solver\('auto'\)"):
        closed_form([1.0], [0.0], [[1], [-1], [1]], [1.0, 1.0, 1.0])
    with pytest.raises(InputError, match="expected a diagonal cost"):
        closed_form([[2.0, 1.0], [1.0, 2.0]], [0.0, 0.0], [[1, 1]], [1.0])


# Methods of other packages.


@pytest.mark.parametrize(
    ("name", "extras", "status"),
    [
        ("clarabel", {"status": "MaxIterations"}, "max_iter"),
        ("clarabel", {"status": "NumericalError"}, "numerical"),
        ("clarabel", {"status": "AlmostPrimalInfeasible"}, "infeasible"),
        ("osqp", {"info": SimpleNamespace(status="solved inaccurate", iter=9)}, "numerical"),
        ("osqp", {"info": SimpleNamespace(status="maximum iterations", iter=9)}, "max_iter"),
        ("piqp", {"info": SimpleNamespace(status="Status.PIQP_NUMERICS", iter=9)}, "numerical"),
    ],
)
def test_words_of_another_package_keep_their_meaning(monkeypatch, name, extras, status):
    answer = SimpleNamespace(found=False, x=np.zeros(2), extras=extras)
    monkeypatch.setattr("qpsolvers.solve_problem", lambda *problem, **options: answer)
    solution = solve([-1.0, 0.0], [[1, 0], [0, 1]], [0.5, 0.5], solver=make_solver(name))
    assert solution.status is SolveStatus(status)
    assert solution.iterations == (9 if "info" in extras else 0)
    assert np.isnan(solution.x).all()


class SolveOnly:
    """A solver of somebody else, who says what he is told to."""

    def __init__(self, x):
        self.x, self.rows = x, None

    def solve(self, P, q, A, b, *, warm_start=True):
        self.rows = A.tolist(), b.tolist()
        if self.x is None:
            raise ConcertoSafetyInfeasible("none")
        return np.array(self.x), 0.1


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        ([0.4 + 1e-8, -0.3], SolveStatus.OPTIMAL),  # close enough to tell which row is tight
        ([-1.0, -1.0], SolveStatus.NUMERICAL),  # no row is tight, and (1, 0.9) misses this one
        ([np.nan, 0.0], SolveStatus.NUMERICAL),
        (None, SolveStatus.INFEASIBLE),
    ],
)
def test_foreign_answer_is_made_exact_and_judged(claim, status):
    # Project (1, 0.9) on x + 2 y <= -0.2: less 0.6 (1, 2).
    foreign = SolveOnly(claim)
    solution = solve([-1.0, -0.9], [[1.0, 2.0]], [-0.2], solver=as_solver(foreign))
    assert solution.status is status
    if status is SolveStatus.OPTIMAL:
        assert solution.x == pytest.approx([0.4, -0.3], abs=1e-14)
    bounds = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    assert foreign.rows == ([[1.0, 2.0], *bounds], [-0.2, 1.0, 1.0, 1.0, 1.0])


# Which method `auto` takes.


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
            monkeypatch.setattr(solvers, name, lambda fake=fake: fake)
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

    monkeypatch.setattr(solvers, "QuadprogSolver", missing)
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

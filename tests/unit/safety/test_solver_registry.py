"""The contract of every registered solver, and of the registry."""

import sys

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers import SUPPORTED_SOLVERS, SolveStatus, make_solver

GENERAL = [name for name in SUPPORTED_SOLVERS if name != "closed_form"]
#: x_0 <= -1 and x_0 >= 1.
CONTRADICTION = (
    np.eye(2),
    np.zeros(2),
    np.array([[1.0, 0.0], [-1.0, 0.0]]),
    np.array([-1.0, -1.0]),
)


def run(solver, P, q, A, b, lower=-2.0, upper=2.0, **options):
    n = len(q)
    return solver.run(
        np.array(P, float),
        np.array(q, float),
        np.array(A, float).reshape(len(b), n),
        np.array(b, float),
        np.full(n, lower),
        np.full(n, upper),
        **options,
    )


def test_registry_names_its_solvers():
    assert set(SUPPORTED_SOLVERS) == {
        *("auto", "closed_form", "daqp", "quadprog", "piqp", "clarabel", "osqp")
    }
    for name in SUPPORTED_SOLVERS:
        assert make_solver(name).name == name
        assert make_solver(name) is not make_solver(name)


def test_registry_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"Unknown solver 'cvxopt': expected one of auto"):
        make_solver("cvxopt")


@pytest.mark.parametrize("name", ["quadprog", "piqp", "osqp"])
@pytest.mark.parametrize("missing", [None, "qpsolvers"])
def test_registry_missing_library_names_the_extra(monkeypatch, name, missing):
    monkeypatch.setitem(sys.modules, missing or name, None)
    with pytest.raises(MissingExtraError, match=r"cadenza\[solvers\]"):
        make_solver(name)


@pytest.mark.parametrize("name", SUPPORTED_SOLVERS)
@pytest.mark.parametrize(
    "broken", [{"A": np.eye(3)}, {"b": np.ones(3)}, {"q": np.zeros(3)}, {"P": np.eye(3)}]
)
def test_solve_shapes_that_do_not_fit_are_refused(name, broken):
    problem = {"P": np.eye(2), "q": np.zeros(2), "A": np.eye(2), "b": np.ones(2)} | broken
    with pytest.raises(InputError, match="solve: expected P"):
        make_solver(name).solve(**problem)


@pytest.mark.parametrize("name", ["daqp", "quadprog", "clarabel", "auto"])
@pytest.mark.parametrize("which", range(1, 6))
def test_run_shapes_that_do_not_fit_are_refused(name, which):
    problem = [np.ones(2), np.zeros(2), np.eye(2), np.ones(2), -np.ones(2), np.ones(2)]
    problem[which] = np.ones((3, 3) if which == 2 else 3)
    with pytest.raises(InputError, match="to fit"):
        make_solver(name).run(*problem)


@pytest.mark.parametrize("name", GENERAL)
def test_run_bad_numbers_are_named_so(name):
    solver = make_solver(name)
    for broken in (
        {"q": [np.nan, 0.0]},
        {"A": [[np.inf, 0.0], [0.0, 1.0]]},
        {"b": [np.nan, 1.0]},
        {"upper": np.inf},
        {"P": [np.nan, 1.0]},
    ):
        problem = {"P": [1, 1], "q": [0, 0], "A": np.eye(2), "b": [1, 1]} | broken
        solution = run(solver, **problem)
        assert solution.status is SolveStatus.BAD_INPUT
        assert np.isnan(solution.x).all()
    concave = run(solver, [[1.0, 0.0], [0.0, -1.0]], [0, 0], np.eye(2), [1, 1])
    assert concave.status is SolveStatus.BAD_INPUT


@pytest.mark.parametrize("name", GENERAL)
def test_run_cold_answers_do_not_depend_on_the_past(name):
    rng = np.random.default_rng(2)
    problems = [
        (np.ones(2), rng.normal(size=2) * 3, rng.normal(size=(3, 2)), rng.normal(size=3))
        for _ in range(40)
    ]
    fresh = [run(make_solver(name), *problem) for problem in problems]
    assert {solution.status for solution in fresh} > {SolveStatus.OPTIMAL}
    shared = make_solver(name)
    for k in rng.permutation(40):
        again = run(shared, *problems[k])
        assert again.status is fresh[k].status
        assert again.x.tobytes() == fresh[k].x.tobytes()
        assert again.iterations == fresh[k].iterations


@pytest.mark.parametrize("name", GENERAL)
def test_run_warm_start_changes_no_answer_and_survives_another_dimension(name):
    rng = np.random.default_rng(7)
    warm = make_solver(name)
    for case in range(60):
        n, m = 2 + case % 3, 1 + case % 4
        problem = (np.ones(n), rng.normal(size=n) * 3, rng.normal(size=(m, n)), rng.normal(size=m))
        ours = run(warm, *problem, warm_start=True)
        cold = run(make_solver(name), *problem)
        assert ours.status is cold.status
        if ours.status is SolveStatus.OPTIMAL:
            assert ours.x == pytest.approx(cold.x, abs=1e-9)


@pytest.mark.parametrize("name", SUPPORTED_SOLVERS)
def test_solve_raises_on_a_contradiction_and_writes_nothing_to_the_terminal(name, capfd):
    solver = make_solver(name)
    solver.solve(np.eye(2), np.array([1.0, -3.0]), np.array([[0.0, 1.0]]), np.array([1.0]))
    with pytest.raises(ConcertoSafetyInfeasible, match=rf"{name}: .*braking fallback.*infeasible"):
        solver.solve(*CONTRADICTION)
    assert capfd.readouterr() == ("", "")  # of the process, not of Python alone

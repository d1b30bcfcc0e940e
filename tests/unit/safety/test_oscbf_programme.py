"""The optimisation behind a command, on problems small enough for pencil and paper."""

import numpy as np
import pytest

from cadenza.safety.oscbf import Priority, programme
from cadenza.safety.oscbf.box import JointBox
from cadenza.safety.oscbf.programme import Cone, Programme, ProgrammeSolver
from cadenza.safety.solvers import DaqpSolver


def problem(nominal, *, P=None, brake=None, rows=(), most=10.0, limit=None):
    n = len(nominal)
    cone = None if limit is None else Cone(np.eye(3), np.zeros(3), limit, Priority())
    return Programme(
        P=np.eye(n) if P is None else np.asarray(P, float),
        nominal=np.asarray(nominal, float),
        brake=np.zeros(n) if brake is None else np.asarray(brake, float),
        A=np.array([a for a, _, _ in rows], float).reshape(-1, n),
        b=np.array([b for _, b, _ in rows], float),
        priorities=[priority for _, _, priority in rows],
        box=JointBox(np.full(n, -most), np.full(n, most), ()),
        cone=cone,
    )


def solve(*args, **options):
    return ProgrammeSolver(DaqpSolver()).solve(problem(*args, **options))


def test_speed_is_cut_until_it_is_within_the_cone():
    # The nominal (3, 3, 0) has to fall to length 1. Moving the second component is cheap, so the
    # first cut alone, along (1, 1, 0), would leave (1.34, 0.08): too fast.
    answer = solve([3.0, 3.0, 0.0], P=np.diag([9.0, 4.0, 1.0]), limit=1.0)
    assert answer.status == "optimal"
    assert 0.998 <= np.linalg.norm(answer.u) <= 1.0
    # Optimum on the circle (cos t, sin t): d/dt [9 (cos t - 3)^2 + 4 (sin t - 3)^2] = 0.
    angles = np.linspace(0.0, np.pi / 2, 100_001)
    costs = 9 * (np.cos(angles) - 3) ** 2 + 4 * (np.sin(angles) - 3) ** 2
    best = angles[costs.argmin()]
    assert np.arctan2(answer.u[1], answer.u[0]) == pytest.approx(best, abs=0.06)


def test_speed_that_needs_more_cuts_than_allowed_brakes(monkeypatch):
    monkeypatch.setattr(programme, "_MAX_CUTS", 1)
    answer = solve([3.0, 3.0, 0.0], P=np.diag([9.0, 4.0, 1.0]), limit=1.0)
    assert answer.status == "max_iter"
    assert answer.u == pytest.approx(np.zeros(3), abs=1e-9)


def test_braking_itself_slows_down_when_it_is_too_fast():
    # Rows contradict each other in the third component; the braking command is 4 m/s, 1 is allowed.
    e = np.array([0.0, 0.0, 1.0])
    rows = ((e, -1.0, Priority()), (-e, -1.0, Priority()))
    answer = solve([0.0, 0.0, 0.0], brake=[4.0, 0.0, 0.0], rows=rows, limit=1.0)
    assert answer.status == "infeasible"
    assert answer.u[0] == pytest.approx(1.0, abs=2e-3)
    assert answer.slack[:2] == pytest.approx([1.0, 1.0], abs=1e-5)


def test_slack_and_binding_rows_by_hand():
    x, y = np.eye(3)[0], np.eye(3)[1]
    rows = ((x, 1.0, Priority()), (y, 1.0, Priority(hard=False, weight=4.0)), (-x, 5.0, Priority()))
    answer = solve([2.0, 2.0, 0.5], rows=rows)
    # Second component: (u - 2) + 4 (u - 1) = 0, u = 1.2.
    assert answer.u == pytest.approx([1.0, 1.2, 0.5])
    assert answer.slack == pytest.approx([0.0, 0.2, 0.0])
    assert answer.binding == (0, 1)
    assert answer.solve_ms > 0.0


def test_admissible_nominal_is_returned_as_it_is():
    given = problem([0.1, 0.2, 0.3], rows=((np.ones(3), 1.0, Priority()),), limit=1.0)
    answer = ProgrammeSolver(DaqpSolver()).solve(given)
    assert answer.u is given.nominal
    assert (answer.status, answer.solve_ms) == ("inactive", 0.0)
    assert answer.slack.tolist() == [0.0, 0.0]  # the row and the cone

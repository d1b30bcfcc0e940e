"""Every action of the ego-only filter is the best there is: KKT conditions, or least violation.

Rows come from the filter's own builder, the conditions from SciPy's non-negative least squares and
from quadprog.
"""

import numpy as np
import pytest
import quadprog
from scipy.optimize import nnls

from cadenza.safety.filters.projection import SLACK_WEIGHT
from tests.unit.safety.scenes import agent, box, call, ego_filter, slack

C = 2.0


def crowd(rng, dim, partners):
    """An ego among partners close enough to matter."""
    agents = {"ego": agent(np.zeros(dim), rng.normal(size=dim) * 0.8)}
    for k in range(partners):
        direction = rng.normal(size=dim)
        spot = rng.uniform(0.42, 1.2) * direction / np.linalg.norm(direction)
        agents[f"p{k}"] = agent(spot, rng.normal(size=dim) * 0.5)
    return agents


def rows_of(guard, agents):
    """Return A, b, h and the times left of the rows behind one call at lambda = 0."""
    pairs = guard._pairs_of("ego", agents)
    rows = guard._rows(agents, agents, pairs, box(C), 0.05)
    return np.array(rows.a), np.array(rows.level), np.array(rows.h), np.array(rows.time_left)


def scenes(count, *, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        dim, partners = int(rng.integers(2, 4)), int(rng.integers(1, 6))
        agents = crowd(rng, dim, partners)
        uids = tuple(uid for uid in agents if uid != "ego")
        guard = ego_filter(0.5, dim, uids)
        u = rng.uniform(-3.0, 3.0, size=dim)
        action, info = call(guard, u, agents, state=slack(uids))
        yield u, action, info, *rows_of(guard, agents)


def test_every_met_step_satisfies_the_kkt_conditions():
    checked = 0
    for u, x, info, A, b, _, _ in scenes(2000, seed=8):
        if info["status"] == "infeasible":
            continue
        assert (A @ x - b).max() <= 1e-9 * (1.0 + np.abs(b).max())
        # u - x is a combination, with weights >= 0, of active rows and active bounds.
        touching = A[A @ x - b >= -1e-8]
        bounds = np.diag(np.sign(x))[np.abs(x) >= C - 1e-9]
        normals = np.vstack([touching, bounds]).T
        if normals.size == 0:
            assert x.tobytes() == u.tobytes()
            continue
        _, residual = nnls(normals, u - x)
        assert residual <= 1e-8
        checked += bool(touching.size)
    assert checked > 100


def least_violation(u, A, b, h, time_left):
    """Solve the documented problem with quadprog; returns the action.

    The most urgent row is met, or fixes every component that it sees if no action meets it; the
    others cost 1/2 SLACK_WEIGHT (1 + 1 s / time left) per squared violation.
    """
    n, m = len(u), len(b)
    first = min(range(m), key=lambda j: (h[j], time_left[j], j))
    others = [j for j in range(m) if j != first]
    weights = [SLACK_WEIGHT * (1.0 + 1.0 / max(time_left[j], 1e-3)) for j in others]
    unit = np.eye(n + m - 1)
    fixed = []
    if -C * np.abs(A[first]).sum() > b[first]:
        fixed = [k for k in range(n) if abs(A[first, k]) > 1e-9 * np.abs(A[first]).max()]
    rows = [unit[k] for k in fixed]
    levels = [-C * np.sign(A[first, k]) for k in fixed]
    if not fixed:
        rows.append(np.concatenate([-A[first], np.zeros(m - 1)]))
        levels.append(-b[first] - 1e-9 * (1.0 + abs(b[first])))
    for slot, j in enumerate(others):
        rows.append(np.concatenate([-A[j], np.eye(m - 1)[slot]]))
        levels.append(-b[j])
    for k in set(range(n)) - set(fixed):
        rows += [unit[k], -unit[k]]
        levels += [-C, -C]
    a = np.concatenate([u, np.zeros(m - 1)])
    G = np.diag([1.0] * n + weights)
    return quadprog.solve_qp(G, a, np.array(rows).T, np.array(levels), len(fixed))[0][:n]


def served(x, u, A, b, h, time_left):
    """Return the violation of the most urgent row, and the cost of the others and of the change."""
    first = min(range(len(b)), key=lambda j: (h[j], time_left[j], j))
    violation = np.maximum(A @ x - b, 0.0)
    weights = SLACK_WEIGHT * (1.0 + 1.0 / np.maximum(time_left, 1e-3))
    weights[first] = 0.0
    return violation[first], 0.5 * (x - u) @ (x - u) + 0.5 * weights @ violation**2


def test_every_unmet_step_is_the_least_violation():
    compared = exact = 0
    for u, x, info, A, b, h, time_left in scenes(2500, seed=9):
        if info["status"] != "infeasible":
            continue
        assert np.abs(x).max() <= C
        assert info["slack"] == pytest.approx(np.maximum(A @ x - b, 0.0), abs=1e-12)
        assert info["uncertified"]
        if len(b) == 1:
            assert A[0] @ x == pytest.approx(-C * np.abs(A[0]).sum(), abs=1e-12)
            continue
        expected = least_violation(u, A, b, h, time_left)
        # Rows nearly parallel to an axis leave a component free within rounding of the first row.
        first, cost = served(x, u, A, b, h, time_left)
        best_first, best_cost = served(expected, u, A, b, h, time_left)
        assert first <= best_first + 1e-8
        assert cost <= best_cost * (1.0 + 2e-4) + 1e-9
        exact += bool(np.abs(x - expected).max() < 1e-6)
        compared += 1
    assert compared > 500
    assert exact >= compared - 2


def test_a_row_served_with_the_wrong_sign_would_be_caught():
    for u, x, info, A, b, _, _ in scenes(600, seed=10):
        if info["status"] == "optimal" and len(b) == 1 and (A @ x >= b - 1e-9).all():
            mutant = 2.0 * u - x  # stepped away from the row's side
            assert (A @ mutant - b).max() > 1e-6
            return
    pytest.fail("no scene with one active row")

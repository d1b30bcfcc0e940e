"""Every returned action is the optimum of the problem stated in the docs, in all three modes.

The problem is written down here once more, for the semi-implicit plant, from positions and
velocities: independent of the modules that build and solve it.
"""

import math

import numpy as np
import pytest
import qpsolvers
import scipy.sparse as sp
from scipy.optimize import nnls

from cadenza.safety.cbf import DEFAULT_CBF_GAMMA
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import SafetyState, make_lambda_dict
from cadenza.safety.control_models import DoubleIntegratorControlModel
from tests.unit.safety.scenes import agent, box

DT, C, PUSH, SHARE, RADIUS = 0.3, 1.0, 0.4, 0.25, 0.2
UIDS = ["ego", "p1", "p2", "p3"]


def scene(rng, uids, tight):
    """Agents around the origin that drift towards it; ``tight`` ones leave no way out."""
    reach = 0.5 if tight else 0.6
    agents = {}
    for k, uid in enumerate(uids):
        angle = 2.0 * math.pi * (k + rng.uniform(0.0, 0.5)) / len(uids)
        place = reach * rng.uniform(0.85, 1.3) * np.array([math.cos(angle), math.sin(angle)])
        speed = rng.uniform(0.6, 1.4) if tight else rng.uniform(0.1, 0.6)
        agents[uid] = agent(place, -speed * place / np.linalg.norm(place) + rng.normal(size=2) / 10)
    return agents


def level_of(one, other, alpha):
    """n, right-hand side, h and time left of the sampled row of a pair."""
    offset = one.position - other.position
    distance = np.linalg.norm(offset)
    normal = offset / distance
    closing = -normal @ (one.velocity - other.velocity)
    excess = distance - 2.0 * RADIUS
    if excess < 0.0:
        limit, h = 5.0 * excess, 5.0 * excess - closing
    else:
        limit = 0.5 * (
            -3.0 * alpha * DT + math.sqrt(9.0 * (alpha * DT) ** 2 + 8.0 * alpha * excess)
        )
        h = 0.5 * (-alpha * DT + math.sqrt((alpha * DT) ** 2 + 8.0 * alpha * excess)) - closing
    left = 0.0 if excess <= 0.0 else excess / closing if closing > 0.0 else math.inf
    return normal, (limit - closing) / DT, h, left


class Problem:
    """min |x - u|^2, A x <= b, lower <= x <= upper, with h and time left of each row."""

    def __init__(self, u, rows, lower, upper):
        self.u, self.lower, self.upper = u, lower, upper
        self.A = np.array([row[0] for row in rows])
        self.b, self.h, self.left = (np.array([row[k] for row in rows]) for k in (1, 2, 3))


def ego_problem(agents, u):
    rows = []
    for uid in UIDS[1:]:
        normal, level, h, left = level_of(agents["ego"], agents[uid], C - PUSH)
        rows.append((-normal, level - PUSH, h, left))
    return Problem(u, rows, np.full(2, -C), np.full(2, C))


def joint_problem(agents, u, share=math.inf):
    rows = []
    for i, first in enumerate(UIDS):
        for j in range(i + 1, len(UIDS)):
            normal, level, h, left = level_of(agents[first], agents[UIDS[j]], 2.0 * C)
            row = np.zeros(2 * len(UIDS))
            row[2 * i : 2 * i + 2], row[2 * j : 2 * j + 2] = -normal, normal
            rows.append((row, level, h, left))
    reach = np.full(len(u), share)
    reach[:2] = math.inf  # the ego's own box
    return Problem(u, rows, np.maximum(-C, u - reach), np.minimum(C, u + reach))


def joint_call(guard, agents, u, **extra):
    proposed = {uid: u[2 * k : 2 * k + 2] for k, uid in enumerate(UIDS)}
    actions, info = guard.filter(
        proposed, {"agent_states": agents}, SafetyState(make_lambda_dict(UIDS)), box(C), **extra
    )
    return np.concatenate([actions[uid] for uid in UIDS]), info


def solved(mode, agents, rng, solver=None):
    """Return the problem, the filter's answer and its record."""
    options = {"plant": "semi_implicit", "solver": solver}
    if mode == "ego_only":
        models = {uid: DoubleIntegratorControlModel(uid, 2, PUSH) for uid in UIDS}
        models["ego"] = DoubleIntegratorControlModel("ego", 2)
        u = rng.uniform(-C, C, size=2)
        action, info = ExpCBFQP.ego_only(control_models=models, **options).filter(
            u,
            {"agent_states": agents},
            SafetyState({("ego", uid): 0.0 for uid in UIDS[1:]}),
            box(C),
            ego_uid="ego",
            partner_predicted_states=agents,
            dt=DT,
        )
        return ego_problem(agents, u), action, info
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in UIDS}
    u = rng.uniform(-C, C, size=2 * len(UIDS))
    if mode == "centralized":
        guard = ExpCBFQP.centralized(control_models=models, dt=DT, **options)
        return joint_problem(agents, u), *joint_call(guard, agents, u)
    guard = ExpCBFQP.shared_control(control_models=models, dt=DT, **options)
    share = {"ego_uid": "ego", "partner_action_bound": SHARE}
    return joint_problem(agents, u, SHARE), *joint_call(guard, agents, u, **share)


def kkt_error(problem, x):
    """How far u - x is from the cone of active rows and bounds; infinite if x is not allowed."""
    n = len(x)
    G = np.vstack([problem.A, np.eye(n), -np.eye(n)])
    h = np.concatenate([problem.b, problem.upper, -problem.lower])
    if (G @ x > h + 1e-8 * (1.0 + np.abs(h))).any():
        return math.inf
    active = G[G @ x > h - 1e-8 * (1.0 + np.abs(h))]
    if not len(active):
        return float(np.linalg.norm(problem.u - x))
    return nnls(active.T, problem.u - x)[1]


MODES = ("ego_only", "centralized", "shared_control")


@pytest.mark.parametrize("mode", MODES)
def test_every_action_meets_the_optimality_conditions(mode):
    rng, active = np.random.default_rng(1), 0
    for _ in range(150):
        problem, x, info = solved(mode, scene(rng, UIDS, tight=False), rng)
        overlap = np.maximum(0.0, -info["margin"])
        violation = np.maximum(DEFAULT_CBF_GAMMA * overlap, -problem.h)
        assert info["constraint_violation"] == pytest.approx(np.maximum(0.0, violation), abs=1e-12)
        if info["status"] == "infeasible":
            continue
        assert kkt_error(problem, x) <= 1e-8
        if info["status"] == "optimal":
            active += 1
            mutant = problem.u + (problem.u - x)  # away from the rows instead of onto them
            assert kkt_error(problem, mutant) > 1e-6
        else:
            assert x.tobytes() == problem.u.tobytes()
    assert active > 30


def least_violation(problem):
    """The answer to conflicting rows: the most urgent row first, the others by weighted slack.

    Modelled with every slack s >= 0 as a variable and solved by Clarabel.
    """
    n, m = len(problem.u), len(problem.b)
    first = int(np.lexsort((problem.left, problem.h))[0])
    row = problem.A[first]
    lowest = float(np.where(row > 0.0, problem.lower, problem.upper) @ row)
    hard = max(problem.b[first], lowest)
    weight = 1e3 * (1.0 + 1.0 / np.maximum(problem.left, 1e-3))
    others = [j for j in range(m) if j != first]
    P = np.diag(np.concatenate([np.ones(n), weight[others]]))
    rows = np.zeros((m, n + m - 1))
    rows[0, :n] = row
    rows[1:, :n] = problem.A[others]
    rows[1:, n:] = -np.eye(m - 1)
    answer = qpsolvers.solve_qp(
        sp.csc_matrix(P),
        np.concatenate([-problem.u, np.zeros(m - 1)]),
        sp.csc_matrix(rows),
        np.concatenate([[hard + 1e-9 * (1.0 + abs(hard))], problem.b[others]]),
        lb=np.concatenate([problem.lower, np.zeros(m - 1)]),
        ub=np.concatenate([problem.upper, np.full(m - 1, 1e6)]),
        solver="clarabel",
        tol_gap_abs=1e-9,
        tol_gap_rel=1e-9,
    )
    assert answer is not None
    return answer[:n], first, hard


@pytest.mark.parametrize("mode", MODES)
def test_an_infeasible_step_is_answered_with_the_least_violation(mode):
    rng, compared = np.random.default_rng(3), 0
    for _ in range(60):
        problem, x, info = solved(mode, scene(rng, UIDS, tight=True), rng)
        assert (x >= problem.lower).all()
        assert (x <= problem.upper).all()
        shortfall = np.maximum(0.0, problem.A @ x - problem.b)
        if info["status"] != "infeasible":
            assert shortfall.max() <= 1e-8 * (1.0 + np.abs(problem.b).max())
            continue
        assert info["slack"] == pytest.approx(shortfall, abs=1e-9)
        assert shortfall.max() > 0.0
        model, first, hard = least_violation(problem)
        assert problem.A[first] @ x <= hard + 1e-8 * (1.0 + abs(hard))
        assert x == pytest.approx(model, abs=1e-4)
        compared += 1
    assert compared > 20

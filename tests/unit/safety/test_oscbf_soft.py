"""`OSCBF`: ready rows, all soft; the optimum is compared with closed forms and another solver."""

import numpy as np
import pytest
import qpsolvers

from cadenza.core.errors import InputError
from cadenza.safety.oscbf import (
    OSCBF,
    OSCBFConstraints,
    collision_constraint_row,
    joint_limit_constraint_row,
)
from cadenza.safety.solvers import QPSolution, SolveStatus


def rows(*pairs, n=7):
    if not pairs:
        return OSCBFConstraints(np.zeros((0, n)), np.zeros(0))
    return OSCBFConstraints(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))


def velocity_limits(limit, n=7):
    both = [
        joint_limit_constraint_row(n_joints=n, joint_index=k, **{side: sign * limit})
        for k in range(n)
        for side, sign in (("upper", 1.0), ("lower", -1.0))
    ]
    return rows(*both, n=n)


def solve(q_dot, constraints, jacobian=None, nu=None, **options):
    n = len(q_dot)
    jacobian = np.zeros((6, n)) if jacobian is None else jacobian
    nu = jacobian @ np.asarray(q_dot) if nu is None else nu
    return OSCBF(n_joints=n, **options).solve(
        q_dot_nom=np.asarray(q_dot, float), nu_nom=nu, jacobian=jacobian, constraints=constraints
    )


def test_inactive_rows_leave_the_nominal():
    nominal = np.linspace(-0.3, 0.3, 7)
    jacobian = np.random.default_rng(0).normal(size=(6, 7))
    result = solve(nominal, velocity_limits(1.0), jacobian)
    assert result.q_dot == pytest.approx(nominal, abs=1e-9)
    assert result.slack.shape == (14,)
    assert result.max_slack < 1e-4
    assert result.active_rows == ()
    assert result.solver_status == "optimal"
    assert result.solve_ms > 0.0


def test_rows_that_contradict_each_other_share_the_slack():
    # q' >= 1 and q' <= -1: by symmetry q' = 0, and each row lacks 1.
    e = np.eye(7)[0]
    result = solve(np.zeros(7), rows((-e, -1.0), (e, -1.0)))
    assert result.q_dot == pytest.approx(np.zeros(7), abs=1e-9)
    assert result.slack == pytest.approx([1.0, 1.0])
    assert result.active_rows == (0, 1)
    assert result.max_slack == pytest.approx(1.0)
    assert result.slack_l2 == pytest.approx(np.sqrt(2.0))


def test_weights_enter_squared_and_the_penalty_does_not():
    # One joint, nominal 2, row q' <= 1, cost W^2 (q - 2)^2 + rho s^2, s = q - 1:
    # W^2 (q - 2) + rho (q - 1) = 0, so q = (2 W^2 + rho) / (W^2 + rho).
    result = solve([2.0], rows(([1.0], 1.0), n=1), weight_joint=3.0, slack_penalty=5.0)
    assert result.q_dot[0] == pytest.approx((2 * 9 + 5) / (9 + 5))
    assert result.slack[0] == pytest.approx((2 * 9 + 5) / (9 + 5) - 1.0)
    # Joint wants 0, task wants 1: W_o^2 (q - 1) + W_j^2 q = 0.
    both = solve(
        [0.0], rows(n=1), np.ones((1, 1)), np.ones(1), weight_joint=1.0, weight_operational=2.0
    )
    assert both.q_dot[0] == pytest.approx(4.0 / 5.0)


@pytest.mark.parametrize("seed", range(3))
def test_optimum_is_that_of_the_programme_with_slack_rows(seed):
    rng = np.random.default_rng(seed)
    n, m, k = 7, 10, 6
    J, nu, nominal = rng.normal(size=(k, n)), rng.normal(size=k), rng.normal(size=n)
    A, b = rng.normal(size=(m, n)), rng.normal(size=m)
    P = np.zeros((n + m, n + m))
    P[:n, :n] = 2 * (np.eye(n) + J.T @ J)
    P[n:, n:] = 200 * np.eye(m)
    q = np.concatenate([-2 * (nominal + J.T @ nu), np.zeros(m)])
    G = np.block([[A, -np.eye(m)], [np.zeros((m, n)), -np.eye(m)]])
    x = qpsolvers.solve_qp(P, q, G, np.concatenate([b, np.zeros(m)]), solver="quadprog")
    result = OSCBF(n_joints=n).solve(
        q_dot_nom=nominal, nu_nom=nu, jacobian=J, constraints=OSCBFConstraints(A, b)
    )
    assert result.q_dot == pytest.approx(x[:n], abs=1e-7)
    assert result.slack == pytest.approx(x[n:], abs=1e-7)
    assert (A @ result.q_dot - result.slack <= b + 1e-9).all()


def test_joint_limit_rows_by_hand():
    row, level = joint_limit_constraint_row(n_joints=3, joint_index=1, upper=2.0)
    assert (row.tolist(), level) == ([0.0, 1.0, 0.0], 2.0)
    row, level = joint_limit_constraint_row(n_joints=3, joint_index=2, lower=-0.5)
    assert (row.tolist(), level) == ([0.0, 0.0, -1.0], 0.5)


def collision(**changes):
    values = {
        "n_joints": 2,
        "sphere_a_center": np.array([1.0, 0.0, 0.0]),
        "sphere_b_center": np.zeros(3),
        "sphere_a_radius": 0.2,
        "sphere_b_radius": 0.3,
        "sphere_a_jacobian": np.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]),
    }
    return collision_constraint_row(**(values | changes))


def test_collision_row_by_hand():
    # n = +x, h = 1 - 0.5; approaching means x falls, so the row is -x' <= alpha h.
    row, level = collision()
    assert row.tolist() == [-1.0, -2.0]
    assert level == pytest.approx(5.0 * 0.5)
    row, level = collision(cbf_alpha=2.0, lambda_ij=0.25)
    assert level == pytest.approx(2.0 * 0.5 + 0.25)
    assert collision(sphere_b_velocity=np.array([0.4, 0.0, 0.0]))[1] == pytest.approx(2.5 - 0.4)
    other = np.array([[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert collision(sphere_b_jacobian=other)[0].tolist() == [-0.5, -2.0]


def test_coincident_spheres_ask_for_slack():
    row, level = collision(sphere_a_center=np.zeros(3), lambda_ij=0.25)
    assert (row.tolist(), level) == ([0.0, 0.0], -0.75)
    result = solve([0.1, 0.1], rows((row, level), n=2))
    assert result.slack == pytest.approx([0.75])


class Answering:
    """A solver that answers with fixed numbers."""

    name = "fixed"

    def __init__(self, x, status=SolveStatus.OPTIMAL):
        self.x, self.status = np.asarray(x, float), status

    def run(self, *_args, **_options):
        return QPSolution(self.x, self.status, 1)


@pytest.mark.parametrize("status", [SolveStatus.MAX_ITER, SolveStatus.NUMERICAL])
def test_failed_solver_stops_the_joints(status):
    failed = Answering([9.0, 9.0], status)
    result = solve([0.5], rows(([1.0], -0.25), n=1), solver=failed)
    assert result.q_dot.tolist() == [0.0]
    assert result.slack.tolist() == [0.25]
    assert result.solver_status == status.value
    assert result.braking
    assert not result.certified


def test_negative_raw_slack_warns_and_reads_as_zero():
    with pytest.warns(UserWarning, match="raw slack went below"):
        result = solve([0.5], rows(([1.0], 1.0), n=1), solver=Answering([0.5, -1e-3]))
    assert result.slack.tolist() == [0.0]


def solved(**changes):
    good = {"q_dot_nom": np.zeros(7), "nu_nom": np.zeros(6), "jacobian": np.zeros((6, 7))}
    return OSCBF(n_joints=7).solve(**(good | {"constraints": rows()} | changes))


def limit(joint_index, **limits):
    return joint_limit_constraint_row(n_joints=3, joint_index=joint_index, **limits)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OSCBF(n_joints=0), "n_joints: expected a whole number"),
        (lambda: OSCBF(n_joints=np.inf), "n_joints: expected a whole number in .* got inf"),
        (lambda: OSCBF(n_joints=2, weight_joint=0.0), "weight_joint: expected a finite number > 0"),
        (lambda: OSCBF(n_joints=2, weight_operational=-1.0), "weight_operational: expected a fin"),
        (lambda: solved(q_dot_nom=np.zeros(6)), r"q_dot_nom: expected shape \(7,\)"),
        (lambda: solved(nu_nom=np.zeros(5)), r"nu_nom: expected shape \(6,\)"),
        (lambda: solved(jacobian=np.zeros((6, 6))), r"jacobian: expected shape \(k, 7\)"),
        (lambda: solved(constraints=rows(([1.0], 1.0), n=1)), r"a: expected shape \(1, 7\)"),
        (lambda: solved(q_dot_nom=np.full(7, np.nan)), "q_dot_nom: expected finite"),
        (lambda: OSCBFConstraints(np.zeros(3), np.zeros(1)), "a: expected 2-D"),
        (lambda: OSCBFConstraints(np.zeros((1, 3)), np.zeros((1, 1))), "b: expected 1-D"),
        (lambda: OSCBFConstraints(np.zeros((2, 3)), np.zeros(1)), "as many rows"),
        (lambda: OSCBFConstraints(np.full((1, 3), np.nan), np.zeros(1)), "a: expected finite"),
        (lambda: limit(3, upper=1.0), r"joint_index in \[0, 3\)"),
        (lambda: limit(0, upper=1.0, lower=0.0), "exactly one"),
        (lambda: limit(0, lower=np.nan), "finite limit"),
        (lambda: collision(sphere_a_center=np.zeros(2)), "sphere_a_center: expected shape"),
        (lambda: collision(sphere_b_jacobian=np.zeros((2, 2))), "sphere_b_jacobian: expected sh"),
        (lambda: collision(sphere_b_velocity=np.full(3, np.nan)), "sphere_b_velocity: expected fi"),
        (lambda: collision(sphere_a_radius=0.0), "radii > 0"),
        (lambda: collision(cbf_alpha=-1.0), "cbf_alpha >= 0"),
        (lambda: collision(lambda_ij=np.nan), "finite lambda_ij"),
    ],
)
def test_malformed_numbers_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()

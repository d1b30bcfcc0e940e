"""The guarantee holds for an ego whose action reaches its ball through a Jacobian and a bias."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.rows.authority import weakest_support
from tests.unit.safety.scenes import CONTACT, agent, box, call

C, PARTNER = 2.0, 0.4


def drive(seed, *, d, n, credit=1.0, hide_bias=False, steps=150, dt=0.05):
    """Return the smallest distance to a chaser, and how many steps were infeasible, uncertified."""
    rng = np.random.default_rng(seed)
    while True:
        jacobian, bias = rng.normal(size=(d, n)), 0.5 * rng.normal(size=d)
        weakest = weakest_support(jacobian, bias, C)
        if weakest > 1.0:
            break
    model = JacobianControlModel(
        "ego",
        n,
        d,
        lambda _: jacobian,
        max_cartesian_accel_value=credit * weakest,
        bias_fn=None if hide_bias else lambda _: bias,
    )
    guard = ExpCBFQP.ego_only(
        control_models={"ego": model, "p": DoubleIntegratorControlModel("p", d, capacity=PARTNER)}
    )
    p, v = np.zeros((2, d)), np.zeros((2, d))
    p[1, 0] = 1.5
    nearest, failed, uncovered, changed = math.inf, 0, 0, 0
    for _ in range(steps):
        agents = {"ego": agent(p[0], v[0]), "p": agent(p[1], v[1])}
        toward = (p[1] - p[0]) / np.linalg.norm(p[1] - p[0])
        nominal = C * np.sign(toward @ jacobian)
        action, info = call(guard, nominal, agents, bounds=box(C), dt=dt)
        failed += info["status"] == "infeasible"
        changed += info["status"] == "optimal"
        uncovered += info["uncertified"]
        accel = np.stack([jacobian @ action + bias, -PARTNER * toward])
        p, v = p + v * dt + 0.5 * dt * dt * accel, v + dt * accel
        nearest = min(nearest, float(np.linalg.norm(p[0] - p[1])))
    assert changed > 0  # the filter had something to do
    return nearest, failed, uncovered


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(2, 2), (2, 3), (3, 4), (3, 7)]),
    credit=st.sampled_from([0.6, 1.0]),
)
def test_affine_ego_is_never_caught(seed, shape, credit):
    nearest, failed, uncovered = drive(seed, d=shape[0], n=shape[1], credit=credit)
    assert nearest >= CONTACT - 1e-9
    assert (failed, uncovered) == (0, 0)


def test_affine_ego_without_its_bias_would_be_caught():
    assert min(drive(seed, d=2, n=3, hide_bias=True)[0] for seed in range(8)) < CONTACT - 1e-4


class PlanarArm:
    """Three links of 0.4 m; the tip carries the ball. Integrates joints exactly."""

    lengths = np.array([0.4, 0.4, 0.4])

    def __init__(self, q, dq=(0.0, 0.0, 0.0)):
        self.q, self.dq = np.array(q, float), np.array(dq, float)

    def tip(self):
        angles = np.cumsum(self.q)
        return np.array([self.lengths @ np.cos(angles), self.lengths @ np.sin(angles)])

    def jacobian(self):
        angles = np.cumsum(self.q)
        x, y = self.lengths * np.cos(angles), self.lengths * np.sin(angles)
        return np.array([[-y[k:].sum() for k in range(3)], [x[k:].sum() for k in range(3)]])

    def bias(self):
        angles, rates = np.cumsum(self.q), np.cumsum(self.dq)
        scale = -self.lengths * rates * rates
        return np.array([scale @ np.cos(angles), scale @ np.sin(angles)])

    def advance(self, action, dt):
        self.q += self.dq * dt + 0.5 * dt * dt * action
        self.dq += dt * action


def test_arm_bias_is_the_second_derivative_of_the_tip():
    h, arm = 1e-4, PlanarArm([0.3, 0.8, -0.4], [0.5, -1.0, 2.0])
    ahead, behind = PlanarArm(arm.q, arm.dq), PlanarArm(arm.q, arm.dq)
    ahead.advance(np.zeros(3), h)
    behind.advance(np.zeros(3), -h)
    second = (ahead.tip() - 2 * arm.tip() + behind.tip()) / (h * h)
    assert arm.bias() == pytest.approx(second, abs=1e-5)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_arm_that_reaches_for_an_obstacle_stays_clear_of_it(side):
    dt, obstacle = 0.01, np.array([0.2, side * 0.75])
    arm = PlanarArm([side * -0.6, side * 0.7, side * 0.6])
    model = JacobianControlModel(
        "ego",
        3,
        2,
        lambda _: arm.jacobian(),
        max_cartesian_accel_value=0.5,
        bias_fn=lambda _: arm.bias(),
    )
    guard = ExpCBFQP.ego_only(
        control_models={"ego": model, "p": DoubleIntegratorControlModel("p", 2, capacity=0.0)},
        margin_m=1e-3,
    )
    nearest, failed = math.inf, 0
    for _ in range(600):
        tip, jacobian = arm.tip(), arm.jacobian()
        agents = {"ego": agent(tip, jacobian @ arm.dq), "p": agent(obstacle)}
        pull = 4.0 * (obstacle - tip) - 2.0 * (jacobian @ arm.dq)
        nominal = np.clip(np.linalg.pinv(jacobian) @ (pull - arm.bias()) - 0.5 * arm.dq, -4, 4)
        action, info = call(guard, nominal, agents, bounds=box(4.0), dt=dt)
        failed += info["status"] == "infeasible"
        arm.advance(action, dt)
        nearest = min(nearest, float(np.linalg.norm(arm.tip() - obstacle)))
    assert failed == 0
    assert CONTACT <= nearest <= CONTACT + 0.02

"""The guarantee holds for an ego whose action reaches its ball through a Jacobian and a bias."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.authority import weakest_support
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from tests.unit.safety.scenes import CONTACT, agent, box, call

C, PARTNER = 2.0, 0.4


def drive(seed, *, d, n, credit=1.0, steps=150, dt=0.05):
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
        bias_fn=lambda _: bias,
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

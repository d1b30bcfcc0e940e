"""Lie derivatives and relative degree against hand formulas, other rows and the motion itself."""

import math

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine import (
    AcceleratedUnicycle,
    Barrier,
    Disturbance,
    DoubleIntegrator,
    DubinsCar,
    JointDynamics,
    KinematicUnicycle,
    PlanarQuadrotor,
    half_plane,
    keep_out_ball,
    lift,
    minimum_separation,
    speed_limit,
    turning_circle_clearance,
)
from tests.unit.safety.affine.affine_checks import measured_rate, random_states, tensor

POINT = DoubleIntegrator(2)
BALL = keep_out_ball([2.5, 2.5], 0.5, gains=(1.5, 2.5))
PAIR = JointDynamics([DoubleIntegrator(2), DoubleIntegrator(2)])
CASES = [
    ("ball of a double integrator", POINT, BALL, 2),
    ("speed of a double integrator", POINT, speed_limit(3.0, velocity=(2, 3)), 1),
    ("plane of a damped one", DoubleIntegrator(2, damping=0.5), half_plane([1, 1], -4.0), 2),
    ("ball of an accelerated unicycle", AcceleratedUnicycle(), BALL, 2),
    ("speed of an accelerated unicycle", AcceleratedUnicycle(), speed_limit(3, velocity=[3]), 1),
    ("ball of a kinematic unicycle", KinematicUnicycle(), keep_out_ball([3, 3], 0.5), 1),
    ("ball of a Dubins car", DubinsCar(), BALL, 2),
    (
        "circle of a Dubins car",
        DubinsCar(),
        turning_circle_clearance([3, 3], 0.5, turning_radius_m=1.0),
        1,
    ),
    ("floor of a quadrotor", PlanarQuadrotor(), half_plane([0, 1], -4.0, gains=(1.0, 2.0)), 2),
    ("tilt of a quadrotor", PlanarQuadrotor(), Barrier("tilt", lambda x: 4.0 - x[2] ** 2), 2),
    ("separation", PAIR, minimum_separation(0.1, first=(0, 1), second=(4, 5), gains=2.0), 2),
]
ids = [case[0] for case in CASES]


def last_gain(barrier):
    return barrier.gains[-1] if isinstance(barrier.gains, tuple) else barrier.gains


@pytest.mark.parametrize(("name", "model", "barrier", "degree"), CASES, ids=ids)
def test_stages_and_row_are_rates_along_the_motion(name, model, barrier, degree):
    lifted = lift(barrier, model)
    assert lifted.degree == degree
    zero = torch.zeros(model.action_dim, dtype=torch.float64)
    rng = np.random.default_rng(2)
    for x in random_states(3, 6, model.state_dim):
        u = torch.from_numpy(rng.normal(size=model.action_dim))
        row = lifted.row(x)
        last = float(lifted.stages(x)[-1])
        rate = float(measured_rate(lambda s: lifted.stages(s)[-1], model, x, u))
        value = float(row.gain @ u + row.level)
        assert value == pytest.approx(rate + last_gain(barrier) * last, rel=1e-6, abs=1e-5)
        stages = lifted.stages(x)
        assert float(stages[0]) == pytest.approx(float(barrier.function(x)))
        for k in range(1, degree):
            alpha = barrier.gain(k)
            rate = float(measured_rate(lambda s, k=k: lifted.stages(s)[k - 1], model, x, zero))
            assert float(stages[k]) == pytest.approx(rate + alpha * float(stages[k - 1]), abs=1e-5)


def test_row_of_a_ball_is_the_hand_formula():
    # h = |e|^2 - R^2, psi_1 = 2 e v + a1 h, row 2 e u + 2 |v|^2 + a1 2 e v + a2 psi_1
    for x in random_states(5, 20, 4):
        e, v = x[:2] - tensor(2.5, 2.5), x[2:]
        h = e @ e - 0.25
        psi = 2 * e @ v + 1.5 * h
        row = lift(BALL, POINT).row(x)
        assert torch.allclose(row.gain, 2 * e, rtol=0, atol=1e-12)
        level = 2 * v @ v + 1.5 * (2 * e @ v) + 2.5 * psi
        assert float(row.level) == pytest.approx(float(level), abs=1e-11)
        assert float(row.h) == pytest.approx(float(h))
        assert float(row.lowest) == pytest.approx(float(min(h, psi)))
        # |grad psi|^2 |g|^2 with grad psi = (2 v + 2 a1 e, 2 e) and |g|^2 = 2
        gradient = torch.cat([2 * v + 3 * e, 2 * e])
        share = torch.linalg.norm(2 * e) / (torch.linalg.norm(gradient) * math.sqrt(2))
        assert float(row.authority) == pytest.approx(float(share))


def test_no_disturbance_of_the_bound_takes_more_than_the_cost():
    push = Disturbance.through([[1.0, 0.2], [0.0, 0.5], [0.3, 0.0], [1.0, 1.0]], 0.8)
    lifted = lift(BALL, POINT, disturbances=[push])
    plain = lift(BALL, POINT)
    rng = np.random.default_rng(7)
    x, u = tensor(1.0, 0.3, -0.2, 0.4), tensor(0.1, 0.2)
    promised = float(lifted.row(x).gain @ u + lifted.row(x).level)
    psi = float(lifted.stages(x)[-1])
    smallest = math.inf
    for _ in range(200):
        w = rng.normal(size=2)
        w *= 0.8 / np.linalg.norm(w)
        motion = push.matrix(x) @ torch.from_numpy(w)
        rate = measured_rate(lambda s: lifted.stages(s)[-1], POINT, x, u, motion)
        smallest = min(smallest, float(rate) + 2.5 * psi)
    assert promised - 1e-5 <= smallest <= promised + 1e-2
    row = plain.row(x)  # without the cost more is promised than the disturbance leaves
    assert float(row.gain @ u + row.level) > smallest + 0.1


def test_deeper_chains_are_found_up_to_the_degree_asked_for():
    class Chain:
        state_dim, action_dim = 4, 1

        def drift(self, x):
            return torch.cat([x[1:], torch.zeros_like(x[:1])])

        def input_map(self, x):
            return torch.eye(4, dtype=x.dtype)[:, 3:]

    line = Barrier("line", lambda x: x[0], 1.0)
    lifted = lift(line, Chain())
    assert lifted.degree == 4
    # gains 1: (d/dt + 1)^4 x = u + 4 x''' + 6 x'' + 4 x' + x
    row = lifted.row(tensor(1.0, 10.0, 100.0, 1000.0))
    assert (row.gain.tolist(), float(row.level)) == ([1.0], 1 + 40 + 600 + 4000)
    with pytest.raises(ConfigurationError, match="one of its first 3 derivatives"):
        lift(line, Chain(), 3)


def branching(x):
    return x[0] if x[0] > 0 else -x[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lift(Barrier("b", branching), POINT), "expected a branch-free torch function"),
        (lambda: lift(Barrier("b", lambda x: x), POINT), "one float64 number per state"),
        (lambda: lift(Barrier("b", lambda x: torch.sqrt(x[0])), POINT), "expected finite derivat"),
        (lambda: lift(Barrier("b", lambda x: x[0], (1.0,)), POINT), "got 1 and the input does not"),
        (lambda: lift(Barrier("b", lambda x: x[0], (1.0,) * 3), POINT), "expected 2 gains for rel"),
        (lambda: lift(BALL, POINT, max_degree=0), "max_degree: expected >= 1"),
        (lambda: lift(BALL, POINT, samples=torch.zeros(3, 3)), "samples: expected finite float64"),
        (lambda: Barrier("", branching), "expected a name"),
        (lambda: Barrier("b", branching, ()), "gains: expected at least one"),
        (lambda: Barrier("b", branching, -1.0), "expected finite rates > 0"),
        (lambda: Barrier("b", branching, (lambda s: s**2,)), "strictly increasing function"),
        (lambda: Barrier("b", branching, (lambda s: s + 1,)), "value 0 at 0"),
        (lambda: Barrier("b", branching, weight=0.0), "weight: expected a finite number > 0"),
        (lambda: Disturbance(-1.0, branching), "bound: expected a finite number >= 0"),
        (lambda: Disturbance.through([1.0], 1.0), "expected a matrix of finite numbers"),
    ],
)
def test_malformed_parts_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()

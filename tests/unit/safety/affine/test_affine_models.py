"""Robots of the control-affine zoo against closed forms and an independent integrator."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine import (
    AcceleratedUnicycle,
    AffineCBFFilter,
    BrakingDynamics,
    ControlAffineDynamics,
    DoubleIntegrator,
    DubinsCar,
    JointDynamics,
    KinematicUnicycle,
    PlanarQuadrotor,
    half_plane,
    keep_out_ball,
)
from cadenza.safety.affine.dynamics import generic_states, require_dynamics
from tests.unit.safety.affine.affine_checks import random_states, rk4_step, tensor

MODELS = [
    DoubleIntegrator(1),
    DoubleIntegrator(3, damping=0.4),
    AcceleratedUnicycle(),
    KinematicUnicycle(),
    DubinsCar(0.7),
    PlanarQuadrotor(),
    JointDynamics([DoubleIntegrator(2), DubinsCar()], [True, False]),
]
#: The same equations of motion written out for scipy, without f and g.
EQUATIONS = {
    "DoubleIntegrator": lambda s, u: [s[3], s[4], s[5], *(u - 0.4 * s[3:])],
    "AcceleratedUnicycle": lambda s, u: [s[3] * math.cos(s[2]), s[3] * math.sin(s[2]), u[1], u[0]],
    "KinematicUnicycle": lambda s, u: [u[0] * math.cos(s[2]), u[0] * math.sin(s[2]), u[1]],
    "DubinsCar": lambda s, u: [0.7 * math.cos(s[2]), 0.7 * math.sin(s[2]), u[0]],
    "PlanarQuadrotor": lambda s, u: [
        s[3],
        s[4],
        s[5],
        -(u[0] + u[1]) * math.sin(s[2]) / 0.486,
        (u[0] + u[1]) * math.cos(s[2]) / 0.486 - 9.81,
        0.25 * (u[0] - u[1]) / 0.00383,
    ],
}


def name_of(model):
    return type(model).__name__


def drive(model, x, u, seconds, steps):
    for _ in range(steps):
        x = rk4_step(model, x, u, seconds / steps)
    return x


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_dynamics_have_the_shapes_they_promise_and_can_be_batched(model):
    states = random_states(0, 5, model.state_dim)
    require_dynamics(model, states[0])
    assert isinstance(model, ControlAffineDynamics)
    f, g = torch.func.vmap(model.drift)(states), torch.func.vmap(model.input_map)(states)
    for i, x in enumerate(states):
        assert torch.equal(f[i], model.drift(x))
        assert torch.equal(g[i], model.input_map(x))


@pytest.mark.parametrize("model", MODELS[1:6], ids=name_of)
def test_motion_agrees_with_an_independent_integrator(model):
    rng = np.random.default_rng(1)
    for _ in range(3):
        x, u = rng.uniform(-1, 1, model.state_dim), 0.3 * rng.uniform(-1, 1, model.action_dim)
        ours = drive(model, torch.from_numpy(x), torch.from_numpy(u), 0.5, 100)
        theirs = solve_ivp(
            lambda _, s, u=u: EQUATIONS[name_of(model)](s, u), (0, 0.5), x, rtol=1e-11, atol=1e-12
        )
        np.testing.assert_allclose(ours.numpy(), theirs.y[:, -1], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("model", "start", "speeds"),
    [
        (DoubleIntegrator(2, damping=0.2), (0.0, 0.0, 1.0, -0.5), slice(2, 4)),
        (AcceleratedUnicycle(), (0.0, 0.0, 0.4, 1.0), slice(3, 4)),
        (KinematicUnicycle(), (0.0, 0.0, 0.4), slice(0, 0)),
        (PlanarQuadrotor(), (0.0, 2.0, 0.3, 1.0, -1.0, 0.5), slice(3, 6)),
    ],
    ids=lambda value: name_of(value) if hasattr(value, "brake") else "",
)
def test_brake_brings_the_robot_to_rest(model, start, speeds):
    assert isinstance(model, BrakingDynamics)
    x = tensor(*start)
    for _ in range(1600):
        x = rk4_step(model, x, model.brake(x), 0.005)
    assert x[speeds].abs().sum() < 0.01
    assert model.brake(x).shape == (model.action_dim,)


def test_brake_with_damping_has_exactly_the_stop_time():
    # v' = u - c v = -v / T
    model, x = DoubleIntegrator(1, damping=0.7, stop_time_s=0.25), tensor(0.0, 2.0)
    rate = model.drift(x) + model.input_map(x) @ model.brake(x)
    assert rate.tolist() == pytest.approx([2.0, -8.0])


def test_joint_dynamics_stack_their_agents_and_leave_out_who_is_not_controlled():
    joint = JointDynamics([DubinsCar(2.0), DoubleIntegrator(1)], [False, True])
    x = tensor(0.0, 0.0, 0.0, 5.0, 6.0)
    assert (joint.state_dim, joint.action_dim) == (5, 1)
    assert joint.drift(x).tolist() == [2.0, 0.0, 0.0, 6.0, 0.0]
    assert joint.input_map(x).tolist() == [[0.0], [0.0], [0.0], [0.0], [1.0]]
    assert joint.others(0.5).matrix(x).tolist() == [[0.0], [0.0], [1.0], [0.0], [0.0]]
    both = JointDynamics([DubinsCar(2.0), DoubleIntegrator(1)])
    assert both.input_map(x).tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]]


def test_joint_dynamics_brake_where_all_that_they_command_can():
    # v' = -v / 0.5 of the commanded integrators; the car drives on, whoever it is.
    joint = JointDynamics(
        [DubinsCar(2.0), DoubleIntegrator(1), DoubleIntegrator(2)], [False, True, True]
    )
    x = tensor(0.0, 0.0, 0.0, 5.0, 6.0, 1.0, 2.0, 3.0, -4.0)
    assert isinstance(joint, BrakingDynamics)
    assert joint.brake(x).tolist() == [-12.0, -6.0, 8.0]
    wall = keep_out_ball([9.0, 9.0], 1.0, position=(5, 6))
    AffineCBFFilter(joint, [wall], fallback="brake")
    all_commanded = JointDynamics([DubinsCar(2.0), DoubleIntegrator(1)])
    assert not isinstance(all_commanded, BrakingDynamics)
    with pytest.raises(ConfigurationError, match="expected dynamics with a brake method"):
        AffineCBFFilter(all_commanded, [half_plane([1.0], 0.0, position=(3,))], fallback="brake")


def test_generic_states_are_the_same_points_every_time_and_fill_the_cube():
    points = generic_states(3, 100, reach=2.0)
    assert torch.equal(points, generic_states(3, 100, reach=2.0))
    # first point: 2 (2 frac(sqrt p) - 1) for p = 2, 3, 5
    expected = [2 * (2 * (math.sqrt(p) % 1) - 1) for p in (2, 3, 5)]
    assert points[0].tolist() == pytest.approx(expected)
    assert points.amin() < -1.9
    assert points.amax() > 1.9


class Crooked:
    """Dynamics that break their promises on demand."""

    def __init__(self, n=2, k=1, f=2, g=(2, 1), dtype=torch.float64):
        self.state_dim, self.action_dim = n, k
        self._f, self._g = torch.zeros(f, dtype=dtype), torch.ones(g, dtype=torch.float64)

    def drift(self, x):
        return self._f

    def input_map(self, x):
        return self._g


def required(**changes):
    require_dynamics(Crooked(**changes), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DoubleIntegrator(0), "dim: expected >= 1"),
        (lambda: DoubleIntegrator(damping=-1.0), "damping: expected a finite number >= 0"),
        (lambda: DoubleIntegrator(stop_time_s=0.0), "stop_time_s: expected a finite number > 0"),
        (lambda: KinematicUnicycle(look_ahead_m=0.0), "look_ahead_m: expected"),
        (lambda: DubinsCar(math.inf), "DubinsCar.speed: expected"),
        (lambda: PlanarQuadrotor(inertia=0.0), "PlanarQuadrotor.inertia: expected"),
        (lambda: JointDynamics([DubinsCar()], [False]), "at least one controlled agent"),
        (lambda: JointDynamics([DubinsCar()], [True, True]), "one flag per agent"),
        (lambda: JointDynamics([DubinsCar()]).others(1.0), "an agent that is not controlled"),
        (lambda: required(k=0), "state_dim and action_dim >= 1"),
        (lambda: required(f=3), r"drift: expected float64 \(2,\)"),
        (lambda: required(dtype=torch.float32), "drift: expected float64"),
        (lambda: required(g=(1, 2)), r"input_map: expected float64 \(2, 1\)"),
    ],
)
def test_robots_refuse_malformed_numbers_and_dynamics_that_break_their_promise(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()

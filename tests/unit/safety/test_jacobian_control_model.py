import math

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError, InputError
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import JacobianControlModel, MissingJacobianError
from tests.unit.safety.scenes import agent

BOUNDS = Bounds(5.0, 5.0, 0.5, 1.0, 20.0)
J23 = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])


def arm(jacobian=J23, **options):
    jacobian = np.array(jacobian, float)
    return JacobianControlModel(
        "arm", jacobian.shape[1], jacobian.shape[0], lambda _: jacobian, **options
    )


def test_jacobian_forward_is_the_matrix_product():
    u = np.array([1.0, -1.0, 2.0])
    assert arm().action_to_cartesian_accel(agent([0, 0]), u).tolist() == [-1.0, -3.0]


def test_jacobian_inverse_is_the_damped_least_squares_solution():
    # One joint of gain 2 and damping 1: u = 2 / (4 + 1) a; the dead row gives nothing.
    model = arm([[2.0], [0.0]], damping=1.0)
    action = model.cartesian_accel_to_action(agent([0, 0]), np.array([5.0, 3.0]))
    assert action == pytest.approx([2.0])
    # Against the minimiser of |J u - a|^2 + lambda^2 |u|^2, as an ordinary least-squares problem.
    damping, a = 0.3, np.array([1.0, -2.0])
    stacked = np.vstack([J23, damping * np.eye(3)])
    expected = np.linalg.lstsq(stacked, np.concatenate([a, np.zeros(3)]), rcond=None)[0]
    found = arm(damping=damping).cartesian_accel_to_action(agent([0, 0]), a)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", ["action_to_cartesian_accel", "cartesian_accel_to_action"])
def test_jacobian_model_without_kinematics_says_so(method):
    model = JacobianControlModel("arm", 2, 2)
    with pytest.raises(NotImplementedError, match="'arm': expected a jacobian_fn"):
        getattr(model, method)(agent([0, 0]), np.zeros(2))
    assert issubclass(MissingJacobianError, CadenzaError)


def test_jacobian_model_without_a_capacity_names_the_field():
    with pytest.raises(
        ValueError, match="max_cartesian_accel_value, which was not given"
    ) as raised:
        JacobianControlModel("arm", 7, 3).max_cartesian_accel(BOUNDS)
    assert "nan" not in str(raised.value)
    model = JacobianControlModel("arm", 7, 3, max_cartesian_accel_value=math.inf)
    with pytest.raises(ValueError, match="max_cartesian_accel_value: expected a finite number"):
        model.max_cartesian_accel(BOUNDS)


def test_jacobian_velocity_target_reaches_its_velocity_in_one_step():
    dt, u, v = 0.02, np.array([0.5, -0.2, 0.1]), np.array([0.3, -0.1])
    model = arm(action_kind="joint_velocity", control_timestep_s=dt)
    state = agent([0, 0], v)
    accel = model.action_to_cartesian_accel(state, u) + model.bias_accel(state)
    assert v + dt * accel == pytest.approx(J23 @ u, abs=1e-12)
    assert model.jacobian(state) == pytest.approx(J23 / dt)


def test_jacobian_position_delta_moves_by_its_step_and_is_off_by_dt_squared_without():
    dt, u, v = 0.02, np.array([0.01, -0.02, 0.03]), np.array([0.3, -0.1])
    model = arm(action_kind="joint_position_delta", control_timestep_s=dt)
    state = agent([0, 0], v)
    accel = model.action_to_cartesian_accel(state, u) + model.bias_accel(state)
    # The mean velocity over the step is J u / dt.
    assert dt * (v + dt * accel) == pytest.approx(J23 @ u, abs=1e-12)
    ratio = np.linalg.norm(model.jacobian(state)) / np.linalg.norm(arm().jacobian(state))
    assert ratio == pytest.approx(2500.0)


def test_jacobian_bias_function_is_added():
    model = arm(bias_fn=lambda state: np.array([0.1, float(state.velocity[0])]))
    assert model.bias_accel(agent([0, 0], [3.0, 0.0])).tolist() == [0.1, 3.0]
    assert arm().bias_accel(agent([0, 0], [3.0, 0.0])).tolist() == [0.0, 0.0]
    moving = arm(
        action_kind="joint_velocity", control_timestep_s=0.5, bias_fn=lambda _: np.array([1.0, 0])
    )
    assert moving.bias_accel(agent([0, 0], [3.0, 1.0])).tolist() == [-5.0, -2.0]


def counting_arm(**options):
    calls = []

    def jacobian_fn(state):
        calls.append(state)
        return np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.2]])

    model = JacobianControlModel("ego", 3, 2, jacobian_fn, max_cartesian_accel_value=1.0, **options)
    return model, calls


def test_jacobian_is_evaluated_anew_for_another_state_or_function():
    model, calls = counting_arm()
    first, second = agent([0, 0]), agent([0, 0])
    model.jacobian(first)
    model.jacobian(second)
    assert calls == [first, second]
    model.jacobian_fn = lambda _: np.ones((2, 3))
    assert model.jacobian(second).tolist() == [[1.0] * 3] * 2


def test_jacobian_singular_posture_stays_finite_by_damping_and_is_refused_without():
    flat = [[1.0, 2.0], [0.0, 0.0]]
    action = arm(flat).cartesian_accel_to_action(agent([0, 0]), np.array([1.0, 1.0]))
    assert np.isfinite(action).all()
    with pytest.raises(InputError, match="expected damping > 0 in a singular posture"):
        arm(flat, damping=0.0).cartesian_accel_to_action(agent([0, 0]), np.ones(2))


def made(**fields):
    return JacobianControlModel(**({"uid": "arm", "action_dim": 3, "position_dim": 2} | fields))


REST = agent([0, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: made(action_dim=0), r"JacobianControlModel\('arm'\).action_dim: expected >= 1"),
        (lambda: made(action_dim=2.5), "action_dim: expected >= 1, got 2.5"),
        (lambda: made(position_dim=4), "position_dim: expected 2 or 3, got 4"),
        (lambda: made(damping=math.nan), "damping: expected a number >= 0, got nan"),
        (lambda: made(action_kind="torque"), "action_kind: expected one of .*got 'torque'"),
        (lambda: made(action_kind="joint_velocity"), "control_timestep_s: expected a time > 0 s"),
        (lambda: made(control_timestep_s=0.1), "control_timestep_s: expected None for accelerat"),
        (lambda: arm().action_to_cartesian_accel(REST, np.zeros(2)), "action shape of 'arm'"),
        (lambda: arm().cartesian_accel_to_action(REST, np.zeros(3)), "cartesian_accel shape"),
        (lambda: arm().bias_accel(agent([0, 0, 0])), "state of 'arm': velocity: expected shape"),
        (lambda: made(jacobian_fn=lambda _: np.zeros((3, 3))).jacobian(REST), r"jacobian_fn of 'a"),
        (lambda: made(jacobian_fn=lambda _: np.nan * J23).jacobian(REST), "expected finite"),
        (lambda: arm(bias_fn=lambda _: np.zeros(3)).bias_accel(REST), "bias_fn of 'arm': expected"),
    ],
)
def test_malformed_model_or_call_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()

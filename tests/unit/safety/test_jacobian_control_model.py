import math

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import (
    DEFAULT_DLS_DAMPING,
    DoubleIntegratorControlModel,
    JacobianControlModel,
    MissingJacobianError,
)
from cadenza.safety.protocols import AgentControlModel, StateDependentControlModel
from tests.unit.safety.scenes import agent, box, call, slack

BOUNDS = Bounds(5.0, 5.0, 0.5, 1.0, 20.0)
J23 = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])


def arm(jacobian=J23, **options):
    jacobian = np.array(jacobian, float)
    return JacobianControlModel(
        "arm", jacobian.shape[1], jacobian.shape[0], lambda _: jacobian, **options
    )


def test_jacobian_model_has_the_promised_fields():
    model = JacobianControlModel("arm", 7, 3)
    assert DEFAULT_DLS_DAMPING == 1e-3
    assert (model.uid, model.action_dim, model.position_dim) == ("arm", 7, 3)
    assert (model.jacobian_fn, model.damping) == (None, 1e-3)
    assert math.isnan(model.max_cartesian_accel_value)
    assert isinstance(model, AgentControlModel)
    assert isinstance(model, StateDependentControlModel)
    model.max_cartesian_accel_value = 10.0  # mutable
    assert model.max_cartesian_accel(BOUNDS) == 10.0


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_jacobian_model_without_a_capacity_names_the_field(value):
    model = JacobianControlModel("arm", 7, 3, max_cartesian_accel_value=value)
    with pytest.raises(ValueError, match="max_cartesian_accel_value: expected a finite number"):
        model.max_cartesian_accel(BOUNDS)


def test_jacobian_capacity_ignores_the_shared_bounds():
    model = JacobianControlModel("arm", 7, 3, max_cartesian_accel_value=10.0)
    assert model.max_cartesian_accel(Bounds(1, 2, 3, 4, 5)) == 10.0


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


@pytest.mark.parametrize("kind", ["joint_velocity", "joint_position_delta"])
def test_jacobian_forward_map_is_linear_and_inverted_for_every_kind(kind):
    model = arm(action_kind=kind, control_timestep_s=0.05)
    state = agent([0, 0], [1.0, 2.0])
    assert model.action_to_cartesian_accel(state, np.zeros(3)).tolist() == [0.0, 0.0]
    a = np.array([0.7, -0.4])
    action = model.cartesian_accel_to_action(state, a)
    assert model.action_to_cartesian_accel(state, action) == pytest.approx(a, abs=3e-6)


def test_jacobian_bias_function_is_added():
    model = arm(bias_fn=lambda state: np.array([0.1, float(state.velocity[0])]))
    assert model.bias_accel(agent([0, 0], [3.0, 0.0])).tolist() == [0.1, 3.0]
    assert arm().bias_accel(agent([0, 0], [3.0, 0.0])).tolist() == [0.0, 0.0]
    moving = arm(
        action_kind="joint_velocity", control_timestep_s=0.5, bias_fn=lambda _: np.array([1.0, 0])
    )
    assert moving.bias_accel(agent([0, 0], [3.0, 1.0])).tolist() == [-5.0, -2.0]


def test_jacobian_bias_is_the_drift_of_a_pendulum():
    # Tip of a unit link at angle q turning at rate w: p'' = J u - w^2 (cos q, sin q).
    q, w, u, h = 0.4, 1.5, 0.8, 1e-4

    def tip(t):
        angle = q + w * t + 0.5 * u * t * t
        return np.array([math.cos(angle), math.sin(angle)])

    model = JacobianControlModel(
        "arm",
        1,
        2,
        lambda _: np.array([[-math.sin(q)], [math.cos(q)]]),
        bias_fn=lambda _: -w * w * tip(0.0),
    )
    state = agent(tip(0.0), w * np.array([-math.sin(q), math.cos(q)]))
    accel = model.action_to_cartesian_accel(state, np.array([u])) + model.bias_accel(state)
    assert accel == pytest.approx((tip(h) - 2 * tip(0.0) + tip(-h)) / (h * h), abs=1e-6)


def counting_arm(**options):
    calls = []

    def jacobian_fn(state):
        calls.append(state)
        return np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.2]])

    model = JacobianControlModel("ego", 3, 2, jacobian_fn, max_cartesian_accel_value=1.0, **options)
    return model, calls


@pytest.mark.parametrize("partners", [1, 2, 5])
def test_jacobian_is_evaluated_once_per_step_however_many_partners(partners):
    model, calls = counting_arm()
    uids = tuple(f"p{i}" for i in range(partners))
    guard = ExpCBFQP.ego_only(
        control_models={"ego": model}
        | {uid: DoubleIntegratorControlModel(uid, 2, capacity=0.1) for uid in uids}
    )
    for step in range(3):
        agents = {"ego": agent([0.01 * step, 0])} | {
            uid: agent([2.0 * math.cos(i), 2.0 * math.sin(i)]) for i, uid in enumerate(uids)
        }
        call(guard, [0.1, 0.0, 0.2], agents, state=slack(uids), bounds=box(2.0))
        model.cartesian_accel_to_action(agents["ego"], np.zeros(2))
        model.bias_accel(agents["ego"])
        assert len(calls) == step + 1


def test_jacobian_is_evaluated_anew_for_another_state_or_function():
    model, calls = counting_arm()
    first, second = agent([0, 0]), agent([0, 0])
    model.jacobian(first)
    model.jacobian(second)
    assert calls == [first, second]
    model.jacobian_fn = lambda _: np.ones((2, 3))
    assert model.jacobian(second).tolist() == [[1.0] * 3] * 2


def test_jacobian_filter_keeps_a_turning_arm_clear_with_its_bias():
    # The bias pushes the ego towards the partner; the row must make room for it.
    def closest(bias_fn):
        model = JacobianControlModel(
            "ego", 2, 2, lambda _: np.eye(2), max_cartesian_accel_value=1.0, bias_fn=bias_fn
        )
        guard = ExpCBFQP.ego_only(
            control_models={"ego": model, "p": DoubleIntegratorControlModel("p", 2, capacity=0.1)}
        )
        x, v, dt, nearest = -1.0, 0.0, 0.05, math.inf
        for _ in range(200):
            agents = {"ego": agent([x, 0], [v, 0]), "p": agent([0, 0])}
            action, _ = call(guard, [2.0, 0.0], agents, bounds=box(2.0), dt=dt)
            accel = action[0] + 0.6  # the plant has the bias, whatever the model knows
            x, v = x + v * dt + 0.5 * accel * dt * dt, v + accel * dt
            nearest = min(nearest, -x)
        return nearest

    assert closest(lambda _: np.array([0.6, 0.0])) >= 0.4 - 1e-9
    assert closest(None) < 0.396


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_dim": 0}, "action_dim: expected >= 1, got 0"),
        ({"position_dim": 1}, "position_dim: expected >= 2, got 1"),
        ({"position_dim": 4}, "position_dim: expected 2 or 3, got 4"),
        ({"damping": -1.0}, "damping: expected a number >= 0"),
        ({"damping": math.nan}, "damping: expected a number >= 0, got nan"),
        ({"action_kind": "torque"}, "action_kind: expected one of .*joint_velocity.*got 'torque'"),
        ({"action_kind": "joint_velocity"}, "control_timestep_s: expected a time > 0 s"),
        (
            {"action_kind": "joint_velocity", "control_timestep_s": 0.0},
            "control_timestep_s: expected a time > 0 s",
        ),
        ({"control_timestep_s": 0.1}, "control_timestep_s: expected None for accelerations"),
    ],
)
def test_jacobian_model_malformed_is_refused(change, message):
    fields = {"uid": "arm", "action_dim": 7, "position_dim": 3} | change
    with pytest.raises(InputError, match=rf"JacobianControlModel\('arm'\).{message}"):
        JacobianControlModel(**fields)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, s: m.action_to_cartesian_accel(s, np.zeros(2)), "action shape of 'arm'"),
        (lambda m, s: m.cartesian_accel_to_action(s, np.zeros(3)), "cartesian_accel shape"),
        (lambda m, _: m.bias_accel(agent([0, 0, 0])), "state of 'arm': velocity: expected shape"),
    ],
)
def test_jacobian_model_wrong_shapes_are_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(arm(), agent([0, 0]))


@pytest.mark.parametrize(
    ("matrix", "bias", "message"),
    [
        (np.zeros((3, 3)), np.zeros(2), r"jacobian_fn of 'arm': expected shape \(2, 3\)"),
        (np.full((2, 3), np.nan), np.zeros(2), "jacobian_fn of 'arm': expected finite"),
        (J23, np.zeros(3), r"bias_fn of 'arm': expected shape \(2,\)"),
        (J23, np.array([0.0, np.inf]), "bias_fn of 'arm': expected finite"),
    ],
)
def test_jacobian_model_names_the_function_that_answers_nonsense(matrix, bias, message):
    model = JacobianControlModel("arm", 3, 2, lambda _: matrix, bias_fn=lambda _: bias)
    with pytest.raises(InputError, match=message):
        model.jacobian(agent([0, 0])) + model.bias_accel(agent([0, 0]))[:, None]


def test_jacobian_singular_posture_stays_finite_by_damping_and_is_refused_without():
    flat = [[1.0, 2.0], [0.0, 0.0]]
    action = arm(flat).cartesian_accel_to_action(agent([0, 0]), np.array([1.0, 1.0]))
    assert np.isfinite(action).all()
    with pytest.raises(InputError, match="expected damping > 0 in a singular posture"):
        arm(flat, damping=0.0).cartesian_accel_to_action(agent([0, 0]), np.ones(2))

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.emergency import CartesianAccelEmergencyController
from cadenza.safety.emergency_jacobian import (
    JacobianEmergencyController,
    MaxPushEmergencyController,
    default_emergency_controllers,
)
from cadenza.safety.protocols import EmergencyController
from tests.unit.safety.scenes import agent, box

X, Y, Z = np.eye(3)
REST = agent([0, 0, 0])
KINDS = (JacobianEmergencyController, MaxPushEmergencyController)


def jacobian(seed=0):
    return np.random.default_rng(seed).normal(size=(3, 7))


def arm(matrix, **options):
    return JacobianControlModel(
        "arm", matrix.shape[1], matrix.shape[0], lambda _: matrix, **options
    )


def limits(c, capacity=5.0):
    return Bounds(c, capacity, 1.0, 0.0, 0.0)


def override(model, vectors, c=100.0, state=REST, kind=JacobianEmergencyController, **options):
    controller = kind(control_model=model, **options)
    assert isinstance(controller, EmergencyController)
    return controller.compute_override(state, vectors, limits(c))


def test_jacobian_emergency_image_is_the_target_while_the_box_is_idle():
    matrix = jacobian()
    vectors = [X, Y]
    target = 5.0 * np.array([1.0, 1.0, 0.0]) / math.sqrt(2.0)
    action = override(arm(matrix), vectors)
    assert matrix @ action == pytest.approx(target, abs=1e-4)
    # The least-norm action, as the damped inverse gives it.
    assert action == pytest.approx(np.linalg.pinv(matrix) @ target, abs=1e-4)


def test_jacobian_emergency_takes_the_bias_into_account():
    matrix, bias = jacobian(), np.array([1.0, -2.0, 0.5])
    action = override(arm(matrix, bias_fn=lambda _: bias), [X])
    assert matrix @ action + bias == pytest.approx([5.0, 0.0, 0.0], abs=1e-4)
    assert np.abs(matrix @ action - [5.0, 0.0, 0.0]).max() > 1.0


@pytest.mark.parametrize("c", [0.05, 0.3, 1.0])
def test_jacobian_emergency_reaches_the_support_when_the_box_is_too_small(c):
    matrix = jacobian()
    action = override(arm(matrix), [X], c)
    support = c * np.abs(X @ matrix).sum()
    assert support < 5.0
    assert X @ matrix @ action == pytest.approx(support, rel=1e-12)
    assert np.abs(action).max() <= c
    # Clipping each joint of the inverse, or scaling alone, pushes less.
    wanted = np.linalg.pinv(matrix) @ (5.0 * X)
    for weaker in (np.clip(wanted, -c, c), wanted * c / np.abs(wanted).max()):
        assert X @ matrix @ weaker < support - 0.05 * c


def test_jacobian_emergency_of_several_pairs_finds_the_best_worst_push():
    matrix, c = jacobian(), 0.3
    vectors = [X, Y, np.array([-0.6, 0.0, 0.8])]
    action = override(arm(matrix), vectors, c)
    rows = np.stack(vectors) @ matrix
    worst = (rows @ action).min()
    rng = np.random.default_rng(0)
    samples = np.vstack([c * rng.uniform(-1, 1, (4000, 7)), c * rng.choice([-1.0, 1.0], (4000, 7))])
    assert (samples @ rows.T).min(axis=1).max() <= worst + 1e-6
    # Where the linear programme says so, no pair is left for another's sake.
    assert (rows @ action) == pytest.approx([worst] * 3, abs=1e-4)


def test_jacobian_emergency_of_cancelled_vectors_brakes_along_the_velocity():
    matrix = jacobian()
    moving = agent([0, 0, 0], [0.3, 0.0, -0.1])
    action = override(arm(matrix), [X, -X], state=moving)
    assert matrix @ action == pytest.approx([-3.0, 0.0, 1.0], abs=1e-4)
    slower = override(arm(matrix), [], state=moving, stop_time_s=1.0)
    assert matrix @ slower == pytest.approx([-0.3, 0.0, 0.1], abs=1e-4)
    # In a small box it still decelerates as hard as the box can.
    c = 0.1
    direction = np.array([-3.0, 0.0, 1.0]) / math.sqrt(10.0)
    weak = override(arm(matrix), [X, -X], c, state=moving)
    assert direction @ matrix @ weak == pytest.approx(c * np.abs(direction @ matrix).sum())


@pytest.mark.parametrize("vectors", [[], [X, -X]])
@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_emergency_at_rest_and_cancelled_is_zero(kind, vectors):
    action = override(arm(jacobian()), vectors, kind=kind)
    assert action == pytest.approx(np.zeros(7), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_emergency_near_a_singular_posture_is_finite_and_inside_the_box(kind):
    matrix = np.diag([1.0, 1.0, 1e-9])
    action = override(arm(matrix), [Z], c=2.0, kind=kind)
    assert np.isfinite(action).all()
    assert action[2] == pytest.approx(2.0)  # damping alone would give next to nothing


def test_jacobian_emergency_of_a_velocity_driven_arm_stops_it():
    # The action is a joint velocity: away at capacity means v + a dt, here 0.2 - 5 * 0.02 = 0.1.
    model = arm(np.eye(2), action_kind="joint_velocity", control_timestep_s=0.02)
    state = agent([0, 0], [0.2, 0.0])
    action = override(model, [np.array([-1.0, 0.0])], c=1.0, state=state)
    assert action == pytest.approx([0.1, 0.0], abs=1e-6)


def test_max_push_of_one_pair_is_the_sign_pattern():
    matrix = jacobian()
    action = override(arm(matrix), [X], 0.3, kind=MaxPushEmergencyController)
    assert action == pytest.approx(0.3 * np.sign(X @ matrix))
    # It does not stop at the capacity, as the summed push does.
    assert X @ matrix @ override(arm(matrix), [X], 9.0, kind=MaxPushEmergencyController) > 5.0


def test_max_push_never_flees_from_two_into_a_third():
    # Two partners on the left, one on the right: the sum points right.
    model, state = DoubleIntegratorControlModel("a", 2), agent([0, 0])
    vectors = [np.array([0.8, 0.6]), np.array([0.8, -0.6]), np.array([-1.0, 0.0])]
    summed = CartesianAccelEmergencyController().compute_override(state, vectors, box(2.0))
    best = MaxPushEmergencyController(control_model=model).compute_override(
        state, vectors, box(2.0)
    )
    assert min(v @ summed for v in vectors) < -1.0
    assert min(v @ best for v in vectors) == pytest.approx(0.0, abs=1e-4)


def test_max_push_leaves_useless_components_to_braking():
    model = DoubleIntegratorControlModel("a", 2)
    state = agent([0, 0], [0.0, 0.1])
    action = MaxPushEmergencyController(control_model=model).compute_override(
        state, [np.array([1.0, 0.0])], box(2.0)
    )
    assert action == pytest.approx([2.0, -1.0])
    slow = MaxPushEmergencyController(control_model=model, stop_time_s=1.0).compute_override(
        state, [np.array([1.0, 0.0])], box(2.0)
    )
    assert slow == pytest.approx([2.0, -0.1])


def test_default_controllers_follow_the_embodiment():
    models = {"a": DoubleIntegratorControlModel("a", 2), "b": arm(jacobian())}
    controllers = default_emergency_controllers(models)
    assert isinstance(controllers["a"], CartesianAccelEmergencyController)
    assert isinstance(controllers["b"], JacobianEmergencyController)
    assert controllers["b"].compute_override(REST, [X], box(1.0)).shape == (7,)


@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_emergency_malformed_is_refused(kind):
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}: expected stop_time_s > 0"):
        kind(control_model=arm(jacobian()), stop_time_s=math.nan)
    with pytest.raises(InputError, match=r"repulsion vector: expected shape \(3,\), got \(2,\)"):
        override(arm(jacobian()), [np.zeros(2)], kind=kind)

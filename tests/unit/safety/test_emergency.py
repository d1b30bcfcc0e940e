import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InputError
from cadenza.safety.contracts import Bounds, EmergencyController
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.emergency import (
    CartesianAccelEmergencyController,
    JacobianEmergencyController,
    max_push_action,
)
from cadenza.safety.runtime.memory import LastKnownState, stop_action
from cadenza.safety.runtime.options import RuntimeSetup, SafetyOptions
from tests.unit.safety.scenes import agent, box

X, Y = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def override(vectors, velocity=(0.0, 0.0), bounds=None):
    controller = CartesianAccelEmergencyController()
    assert isinstance(controller, EmergencyController)
    return controller.compute_override(agent([0, 0], velocity), vectors, bounds or box(5.0))


WIDE = box(2.0, capacity=2.0 * math.sqrt(2.0))


@pytest.mark.parametrize(
    ("vectors", "options", "expected"),
    [
        ([-X], {}, [-5.0, 0.0]),  # the capacity
        ([X, Y], {}, [5.0 / math.sqrt(2.0)] * 2),  # along the normalised sum
        # Cancelled: brakes 0.3 m/s over the stop time of 0.1 s; fast motion is cut at the capacity,
        # also in a wide box.
        ([X, -X], {"velocity": (0.3, 0.0)}, [-3.0, 0.0]),
        ([X, -X], {"velocity": (0.0, -4.0)}, [0.0, 5.0]),
        ([X, -X], {"velocity": (3.0, -4.0), "bounds": box(100.0, capacity=5.0)}, [-3.0, 4.0]),
        # Capacity sqrt(2) * 2 along x leaves the box of 2; along the diagonal it fits.
        ([X], {"bounds": WIDE}, [2.0, 0.0]),
        ([X, Y], {"bounds": WIDE}, [2.0, 2.0]),
        ([np.array([0.8, 0.6])], {"bounds": WIDE}, [2.0, 1.5]),
    ],
)
def test_emergency_push_by_hand(vectors, options, expected):
    assert override(vectors, **options) == pytest.approx(expected, abs=1e-10)


# Agents that act through a Jacobian.


RIGHT, FORWARD, UP = np.eye(3)
REST_3D = agent([0, 0, 0])


def jacobian(seed=0):
    return np.random.default_rng(seed).normal(size=(3, 7))


def arm(matrix, **options):
    return JacobianControlModel(
        "arm", matrix.shape[1], matrix.shape[0], lambda _: matrix, **options
    )


def limits(c, capacity=5.0):
    return Bounds(c, capacity, 1.0, 0.0, 0.0)


def push_of(model, vectors, c=100.0, state=REST_3D):
    controller = JacobianEmergencyController(control_model=model)
    assert isinstance(controller, EmergencyController)
    return controller.compute_override(state, vectors, limits(c))


def test_jacobian_emergency_image_is_the_target_while_the_box_is_idle():
    matrix = jacobian()
    vectors = [RIGHT, FORWARD]
    target = 5.0 * np.array([1.0, 1.0, 0.0]) / math.sqrt(2.0)
    action = push_of(arm(matrix), vectors)
    assert matrix @ action == pytest.approx(target, abs=1e-4)
    # The least-norm action, as the damped inverse gives it.
    assert action == pytest.approx(np.linalg.pinv(matrix) @ target, abs=1e-4)


def test_jacobian_emergency_takes_the_bias_into_account():
    matrix, bias = jacobian(), np.array([1.0, -2.0, 0.5])
    action = push_of(arm(matrix, bias_fn=lambda _: bias), [RIGHT])
    assert matrix @ action + bias == pytest.approx([5.0, 0.0, 0.0], abs=1e-4)
    assert np.abs(matrix @ action - [5.0, 0.0, 0.0]).max() > 1.0


@pytest.mark.parametrize(("c", "bias"), [(0.05, 0.0), (0.3, -5.0), (1.0, 0.0)])
def test_jacobian_emergency_reaches_the_support_when_the_box_is_too_small(c, bias):
    matrix = jacobian()
    action = push_of(arm(matrix, bias_fn=lambda _: bias * RIGHT), [RIGHT], c)
    support = c * np.abs(RIGHT @ matrix).sum()
    assert support < 5.0
    assert RIGHT @ matrix @ action == pytest.approx(support, rel=1e-12)
    assert np.abs(action).max() <= c
    # Clipping each joint of the inverse, or scaling alone, pushes less.
    wanted = np.linalg.pinv(matrix) @ (5.0 * RIGHT)
    for weaker in (np.clip(wanted, -c, c), wanted * c / np.abs(wanted).max()):
        assert RIGHT @ matrix @ weaker < support - 0.05 * c


def test_jacobian_emergency_of_cancelled_vectors_brakes_along_the_velocity():
    matrix = jacobian()
    moving = agent([0, 0, 0], [0.3, 0.0, -0.1])
    action = push_of(arm(matrix), [RIGHT, -RIGHT], state=moving)
    assert matrix @ action == pytest.approx([-3.0, 0.0, 1.0], abs=1e-4)
    # In a small box it still decelerates as hard as the box can.
    c = 0.1
    direction = np.array([-3.0, 0.0, 1.0]) / math.sqrt(10.0)
    weak = push_of(arm(matrix), [RIGHT, -RIGHT], c, state=moving)
    assert direction @ matrix @ weak == pytest.approx(c * np.abs(direction @ matrix).sum())


@pytest.mark.parametrize("vectors", [[], [RIGHT, -RIGHT]])
def test_jacobian_emergency_at_rest_and_cancelled_is_zero(vectors):
    action = push_of(arm(jacobian()), vectors)
    assert action == pytest.approx(np.zeros(7), abs=1e-6)


def test_jacobian_emergency_near_a_singular_posture_is_finite_and_inside_the_box():
    matrix = np.diag([1.0, 1.0, 1e-9])
    action = push_of(arm(matrix), [UP], c=2.0)
    assert np.isfinite(action).all()
    assert action[2] == pytest.approx(2.0)  # damping alone would give next to nothing


def test_jacobian_emergency_of_a_velocity_driven_arm_stops_it():
    # The action is a joint velocity: away at capacity means v + a dt, here 0.2 - 5 * 0.02 = 0.1.
    model = arm(np.eye(2), action_kind="joint_velocity", control_timestep_s=0.02)
    state = agent([0, 0], [0.2, 0.0])
    action = push_of(model, [np.array([-1.0, 0.0])], c=1.0, state=state)
    assert action == pytest.approx([0.1, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "model", "dim"),
    [
        (CartesianAccelEmergencyController, {}, 2),
        (JacobianEmergencyController, {"control_model": arm(jacobian())}, 3),
    ],
)
def test_emergency_malformed_is_refused(kind, model, dim):
    told = rf"repulsion vector: expected shape \({dim},\), got \({5 - dim},\)"
    with pytest.raises(InputError, match=told):
        kind(**model).compute_override(agent(np.zeros(dim)), [np.zeros(5 - dim)], limits(5.0))


# The largest smallest push.


def smallest_push(rows, offsets, action):
    return float((rows @ action + offsets).min())


def test_max_push_without_any_effect_returns_the_start():
    start = np.array([0.1, 0.2])
    assert max_push_action(np.zeros((2, 2)), np.ones(2), 1.0, start).tolist() == start.tolist()


def test_max_push_between_two_walls_stays_and_leaves_the_free_axis_alone():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    action = max_push_action(rows, np.zeros(2), 1.0, np.array([0.4, 0.3]))
    assert action == pytest.approx([0.0, 0.3], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 5), n=st.integers(1, 7))
def test_max_push_equals_an_untied_linear_programme(seed, m, n):
    rng = np.random.default_rng(seed)
    rows, offsets, c = rng.normal(size=(m, n)), rng.normal(size=m), float(rng.uniform(0.1, 3))
    action = max_push_action(rows, offsets, c, np.zeros(n))
    assert np.abs(action).max() <= c
    plain = scipy.optimize.linprog(
        [0.0] * n + [-1.0],
        A_ub=np.hstack([-rows, np.ones((m, 1))]),
        b_ub=offsets,
        bounds=[(-c, c)] * n + [(None, None)],
    )
    scale = c * np.abs(rows).max()
    assert smallest_push(rows, offsets, action) >= -plain.fun - 2e-5 * n * scale


def test_max_push_without_a_solution_saves_the_neediest_pair(monkeypatch):
    class Failed:
        x = None

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: Failed)
    rows = np.array([[1.0, 2.0], [-1.0, 0.0]])
    # At the start the pushes are 0.3 + 0.2 and -0.3: the second needs it most.
    action = max_push_action(rows, np.array([0.2, 0.0]), 2.0, np.array([0.3, 0.0]))
    assert action.tolist() == [-2.0, 0.0]


# The fallback without a scene.


def test_stop_action_is_scaled_into_the_box_and_cut_at_the_capacity():
    model = DoubleIntegratorControlModel("ego", 2)
    fast = agent([0, 0], [3.0, 4.0])
    assert stop_action(model, fast, box(9.0, capacity=5.0)) == pytest.approx([-3.0, -4.0])
    assert stop_action(model, fast, box(2.0, capacity=5.0)) == pytest.approx([-1.5, -2.0])
    assert stop_action(model, agent([0, 0]), box(2.0)).tolist() == [0.0, 0.0]


class DampedModel:
    """Acceleration = action + bias; its inverse, as in a singular posture, gives half of it."""

    uid = "ego"
    position_dim = 2
    action_dim = 2
    bias = np.array([0.2, 0.0])

    def max_cartesian_accel(self, bounds):
        return bounds.cartesian_accel_capacity

    def action_to_cartesian_accel(self, state, action):
        return action + self.bias

    def cartesian_accel_to_action(self, state, accel):
        return 0.5 * accel

    def jacobian(self, state):
        return np.eye(2)

    def bias_accel(self, state):
        return self.bias


def test_damped_inverse_is_made_up_for_until_the_push_is_what_was_wanted():
    """The inverse gives 0.4 and a push of 0.6; 0.8 pushes with the 1.0 that were wanted."""
    controller = JacobianEmergencyController(control_model=DampedModel())
    pushed = controller.compute_override(agent([0, 0]), [X], box(1.0))
    assert pushed[0] == pytest.approx(0.8, abs=1e-6)


def test_unseen_ego_is_taken_to_move_as_its_action_says():
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in ("ego", "other")}
    known = LastKnownState(RuntimeSetup("ego", models, box(1.0), 0.1, SafetyOptions()))
    known.see({"ego": agent([1, 2], [0.5, -1.0]), "other": agent([5, 5], [1.0, 0.0])})
    known.carry_on(np.array([2.0, -4.0]))
    assert known.agents["ego"].position == pytest.approx([1.06, 1.88])
    assert known.agents["ego"].velocity == pytest.approx([0.7, -1.4])
    assert (known.agents["other"].age_s, *known.agents["other"].position) == (0.1, 5.0, 5.0)

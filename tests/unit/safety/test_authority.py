import itertools
import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import (
    check_authority,
    largest_reach,
    measure_authority,
    pair_parameters,
    read_action_map,
)
from cadenza.safety.contracts import MIN_BOUND, Bounds, StateDependentControlModel
from cadenza.safety.control_models import DoubleIntegratorControlModel
from tests.unit.safety.scenes import agent, box

STATE = agent([0, 0])


class Affine:
    """a = J u + beta."""

    uid = "ego"

    def __init__(self, jacobian, bias=(0.0, 0.0), capacity=1.0):
        self.J = np.array(jacobian, float)
        self.beta = np.array(bias, float)
        self.capacity = capacity
        self.position_dim, self.action_dim = self.J.shape
        self.calls = 0

    def jacobian(self, state):
        self.calls += 1
        return self.J

    def bias_accel(self, state):
        return self.beta

    def action_to_cartesian_accel(self, state, action):
        return self.J @ action

    def cartesian_accel_to_action(self, state, cartesian_accel):
        return np.linalg.pinv(self.J) @ cartesian_accel

    def max_cartesian_accel(self, bounds):
        return self.capacity


def partner(capacity):
    return DoubleIntegratorControlModel("p", 2, capacity=capacity)


def parameters(authority, capacity=0.5):
    return pair_parameters(authority, partner(capacity), box(), dt=0.05, gamma=5.0, plant="zoh")


def test_authority_of_a_double_integrator_is_its_box():
    authority = measure_authority(
        DoubleIntegratorControlModel("ego", 2), STATE, Bounds(2.0, 2.5, 1.0, 0.0, 0.0)
    )
    assert (authority.jacobian, authority.bias) == (None, None)
    assert authority.every_direction == 2.0
    assert authority.reach == pytest.approx(2.0 * math.sqrt(2.0))
    assert authority.certified  # constant, though below the declared 2.5


def test_authority_is_asked_for_once_and_carries_the_bias():
    model = Affine([[2.0, 0.0], [0.0, 1.0]], bias=(0.0, -0.25), capacity=5.0)
    assert isinstance(model, StateDependentControlModel)
    authority = measure_authority(model, STATE, box(2.0))
    assert model.calls == 1
    assert authority.bias == (0.0, -0.25)
    assert authority.every_direction == pytest.approx(1.75)  # y: 2 - 0.25
    assert authority.reach == pytest.approx(math.hypot(4.0, 2.25))  # the corner (2, -2)
    assert not authority.certified  # 1.75 of the declared 5
    assert measure_authority(Affine(np.eye(2)), STATE, box(2.0)).bias is None
    assert measure_authority(Affine(np.eye(2)), STATE, box(2.0)).certified


def test_authority_reach_of_many_components_is_a_bound():
    jacobian = np.random.default_rng(0).normal(size=(3, 9))
    corners = np.array(list(itertools.product((-2.0, 2.0), repeat=9))) @ jacobian.T + 0.1
    exact = float(np.linalg.norm(corners, axis=1).max())
    assert exact <= largest_reach(jacobian, np.full(3, 0.1), 2.0) <= 2.0 * exact


def test_authority_map_of_a_plainly_linear_model_is_read_column_by_column():
    class Linear:
        uid, action_dim, position_dim = "ego", 3, 2
        J = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

        def action_to_cartesian_accel(self, state, action):
            return self.J @ action

    jacobian, bias = read_action_map(Linear(), STATE)
    assert jacobian.tolist() == Linear.J.tolist()
    assert bias.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("J", np.zeros((2, 3)), r"'ego': Jacobian: expected shape \(2, 2\), got \(2, 3\)"),
        ("J", np.full((2, 2), np.inf), "'ego': Jacobian: expected finite"),
        ("beta", np.zeros(3), r"'ego': bias acceleration: expected shape \(2,\)"),
        ("beta", np.array([0.0, np.nan]), "'ego': bias acceleration: expected finite"),
    ],
)
def test_authority_of_a_malformed_map_is_refused(attribute, value, message):
    model = Affine(np.eye(2))
    setattr(model, attribute, value)
    with pytest.raises(InputError, match=message):
        measure_authority(model, STATE, box(2.0))


def test_authority_pair_credits_the_weakest_direction_less_the_partner():
    model = Affine([[2.0, 0.0], [0.0, 1.0]], bias=(0.0, -0.25), capacity=5.0)
    authority = measure_authority(model, STATE, box(2.0))
    pair = parameters(authority)
    assert pair.alpha == pytest.approx(1.25)
    assert pair.relative_accel == pytest.approx(authority.reach + 0.5)


def test_authority_pair_survives_a_singular_posture_uncertified():
    authority = measure_authority(Affine(np.diag([1.0, 0.0])), STATE, box(2.0))
    assert authority.every_direction == 0.0
    assert parameters(authority).alpha == MIN_BOUND
    assert not authority.certified


@pytest.mark.parametrize(
    ("model", "capacity"),
    [
        (DoubleIntegratorControlModel("ego", 2), 2.0),
        (Affine(np.eye(2), capacity=0.4), 0.5),  # too weak in every posture
        (Affine([[1.0], [0.0]]), 0.5),  # one component cannot move a plane
    ],
)
def test_authority_pair_without_authority_in_any_state_is_refused(model, capacity):
    authority = measure_authority(model, STATE, box(2.0))
    with pytest.raises(ConfigurationError, match="expected an ego authority above every partner"):
        parameters(authority, capacity)


def test_authority_check_without_a_state_reads_no_jacobian():
    arm = Affine(np.eye(2), capacity=1e6)
    assert check_authority(arm, box(1.0)) is None
    assert arm.calls == 0


def test_authority_check_refuses_an_agent_without_any():
    with pytest.raises(ConfigurationError, match="without authority cannot be guarded"):
        check_authority(DoubleIntegratorControlModel("ego", 2, capacity=0.0), box(2.0))
    bad, settings = Affine(np.eye(2), capacity=-1.0), {"dt": 0.1, "gamma": 5.0, "plant": "zoh"}
    authority = measure_authority(DoubleIntegratorControlModel("ego", 2), STATE, box(2.0))
    with pytest.raises(ConfigurationError, match="'ego': expected max_cartesian_accel >= 0"):
        pair_parameters(authority, bad, box(2.0), **settings)


def test_authority_outside_what_the_box_reaches_is_zero_not_negative():
    authority = measure_authority(Affine(np.eye(2), bias=(3.0, 0.0)), STATE, box(2.0))
    assert authority.every_direction == 0.0
    assert not authority.certified

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.protocols import AgentControlModel
from tests.unit.safety.scenes import agent

FIELDS = [
    "action_linf_component",
    "cartesian_accel_capacity",
    "action_rate",
    "comm_latency_ms",
    "force_limit",
]


def test_bounds_take_five_positional_numbers_and_freeze():
    bounds = Bounds(5, 5, 0.5, 1.0, 20.0)
    assert [getattr(bounds, name) for name in FIELDS] == [5.0, 5.0, 0.5, 1.0, 20.0]
    with pytest.raises(FrozenInstanceError):
        bounds.action_rate = 1.0


def test_bounds_allow_zero_latency_and_force_only():
    assert Bounds(1, 1, 1, 0.0, 0.0).comm_latency_ms == 0.0
    for name in FIELDS[:3]:
        values = dict.fromkeys(FIELDS, 1.0) | {name: 0.0}
        with pytest.raises(InputError, match=rf"Bounds.{name}: .* got 0.0"):
            Bounds(**values)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, 1e300])
def test_bounds_refuse_negative_and_non_finite_numbers(name, value):
    with pytest.raises(InputError, match=rf"Bounds.{name}: expected a number in"):
        Bounds(**(dict.fromkeys(FIELDS, 1.0) | {name: value}))


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", ["5", None, True, [1.0], 1j, 10**400])
def test_bounds_refuse_what_is_no_number(name, value):
    with pytest.raises(InputError, match=rf"Bounds.{name}: expected a number in .*, got "):
        Bounds(**(dict.fromkeys(FIELDS, 1.0) | {name: value}))


def test_bounds_take_numbers_of_other_libraries_as_floats():
    bounds = Bounds(np.float32(0.5), np.int64(2), 1, 0, 0)
    assert (bounds.action_linf_component, bounds.cartesian_accel_capacity) == (0.5, 2.0)
    assert all(type(getattr(bounds, name)) is float for name in FIELDS)


def test_bounds_of_equal_numbers_are_equal():
    assert Bounds(1, 2, 3, 4, 5) == Bounds(1.0, 2.0, 3.0, 4.0, 5.0)
    for name in FIELDS:
        values = dict(zip(FIELDS, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True))
        assert Bounds(**values) != Bounds(**(values | {name: 9.0}))


def test_double_integrator_maps_are_the_identity():
    model = DoubleIntegratorControlModel("a", 3)
    u = np.array([1.0, -2.0, 3.0])
    assert isinstance(model, AgentControlModel)
    assert model.position_dim == 3
    assert model.action_to_cartesian_accel(agent([0, 0, 0]), u).tolist() == u.tolist()
    assert model.cartesian_accel_to_action(agent([0, 0, 0]), u).tolist() == u.tolist()


def test_double_integrator_capacity_is_its_own_or_shared():
    bounds = Bounds(2.0, 1.5, 1.0, 0.0, 0.0)
    assert DoubleIntegratorControlModel("a", 2).max_cartesian_accel(bounds) == 1.5
    assert DoubleIntegratorControlModel("a", 2, capacity=0.5).max_cartesian_accel(bounds) == 0.5
    assert DoubleIntegratorControlModel("a", 2, capacity=0.0).max_cartesian_accel(bounds) == 0.0


def test_double_integrator_wrong_shape_is_refused():
    model = DoubleIntegratorControlModel("a", 2)
    with pytest.raises(InputError, match=r"action shape of 'a': expected \(2,\), got \(3,\)"):
        model.action_to_cartesian_accel(agent([0, 0]), np.zeros(3))
    with pytest.raises(InputError, match=r"cartesian_accel shape of 'a'"):
        model.cartesian_accel_to_action(agent([0, 0]), np.zeros(3))


@pytest.mark.parametrize("capacity", [-0.1, np.nan, np.inf])
def test_double_integrator_bad_capacity_is_refused(capacity):
    with pytest.raises(InputError, match=r"\('a'\).capacity: expected a finite"):
        DoubleIntegratorControlModel("a", 2, capacity=capacity)


@pytest.mark.parametrize("dim", [0, 1, 4, 2.0, float("nan"), float("inf"), True, "2", None])
def test_double_integrator_outside_plane_and_space_is_refused(dim):
    with pytest.raises(InputError, match="action_dim: expected 2 or 3, the Cartesian"):
        DoubleIntegratorControlModel("a", dim)


def test_double_integrator_of_other_kinds_is_refused():
    with pytest.raises(InputError, match="uid: expected an agent id as text, got None"):
        DoubleIntegratorControlModel(None, 2)
    with pytest.raises(InputError, match=r"capacity: expected a finite acceleration .*'x'"):
        DoubleIntegratorControlModel("a", 2, capacity="x")

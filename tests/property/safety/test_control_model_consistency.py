"""Mapping an acceleration to an action and back returns it, for every control model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.control_models import (
    BodyDrive,
    DifferentialDriveControlModel,
    DoubleIntegratorControlModel,
    JacobianControlModel,
    WheelDrive,
)
from tests.campaigns import size
from tests.unit.safety.scenes import agent


@settings(max_examples=size(40, 100), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_right_inverse_of_a_random_arm_with_default_damping(seed):
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(3, 7))
    model = JacobianControlModel("arm", 7, 3, lambda _: jacobian)
    state = agent([0, 0, 0])
    image = model.action_to_cartesian_accel(state, rng.normal(size=7))
    image /= np.linalg.norm(image)
    back = model.action_to_cartesian_accel(state, model.cartesian_accel_to_action(state, image))
    # Damping leaves (1e-3 / sigma)^2 of each component.
    sigma = np.linalg.svd(jacobian, compute_uv=False)[-1]
    assert np.abs(back - image).max() <= 1.01e-6 / sigma**2 + 1e-12
    if sigma >= 1.0:
        assert back == pytest.approx(image, abs=1.01e-6)


@settings(max_examples=size(40, 100), deadline=None)
@given(
    heading=st.floats(-10, 10),
    look_ahead=st.floats(0.02, 1.0),
    wheels=st.booleans(),
    a=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    v=st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
)
def test_right_inverse_of_a_base_and_a_point_mass(heading, look_ahead, wheels, a, v):
    drive = WheelDrive(0.1, 0.4, 10.0) if wheels else BodyDrive(1.0, 2.0, 3.0)
    state = agent([0, 0], v)
    for model in (
        DifferentialDriveControlModel("base", lambda _: heading, look_ahead, drive),
        DoubleIntegratorControlModel("mass", 2),
    ):
        action = model.cartesian_accel_to_action(state, np.array(a))
        assert model.action_to_cartesian_accel(state, action) == pytest.approx(a, abs=1e-8)

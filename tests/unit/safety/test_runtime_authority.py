"""The runtime refuses an ego that declares more than its action box can do, as early as it can."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from tests.unit.safety.scenes import agent

BOUNDS = Bounds(0.1, 10.0, 10.0, 0.0, 50.0)
AGENTS = {"ego": agent([0, 0]), "p": agent([5, 0])}


def runtime(ego, bounds=BOUNDS, **options):
    partner = DoubleIntegratorControlModel("p", 2, capacity=0.01)
    return SafetyRuntime(
        ego_uid="ego",
        control_models={"ego": ego, "p": partner},
        bounds=bounds,
        control_timestep=0.02,
        options=SafetyOptions(**options),
    )


def arm(capacity, **options):
    # Rows of norm 1.5: a box of 0.1 gives 0.15 m/s^2 along an axis.
    matrix = np.diag([1.5, 1.5])
    return JacobianControlModel(
        "ego", 2, 2, lambda _: matrix, max_cartesian_accel_value=capacity, **options
    )


def test_runtime_refuses_an_impossible_point_mass_at_construction():
    with pytest.raises(ConfigurationError, match=r"0.1414 m/s\^2 .* against 10 m/s\^2 declared"):
        runtime(DoubleIntegratorControlModel("ego", 2))


def test_runtime_refuses_an_impossible_arm_at_its_first_step():
    guarded = runtime(arm(10.0))
    with pytest.raises(ConfigurationError, match=r"0.15 m/s.* in the weakest .* against 10 m/s"):
        guarded.step(np.zeros(2), AGENTS)


def test_runtime_takes_the_same_declaration_once_the_action_is_what_it_is():
    # Position steps of 0.1 rad in 0.02 s are 2500 times what accelerations of 0.1 rad/s^2 are.
    model = arm(10.0, action_kind="joint_position_delta", control_timestep_s=0.02)
    assert not runtime(model).step(np.zeros(2), AGENTS).uncertified

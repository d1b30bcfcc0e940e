"""The fallback of an agent whose action is not its acceleration: stop, and know where it went."""

import numpy as np
import pytest

from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.runtime.fallback import LastKnownState, stop_action
from tests.unit.safety.scenes import agent, box

J = np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
BIAS = np.array([0.5, -0.25])
ARM = JacobianControlModel(
    "ego", 3, 2, lambda _: J, max_cartesian_accel_value=1.0, bias_fn=lambda _: BIAS
)


def test_stop_action_of_an_arm_decelerates_its_ball_despite_the_bias():
    ego = agent([0, 0], [0.3, -0.1])
    action = stop_action(ARM, ego, Bounds(100.0, 5.0, 1.0, 0.0, 0.0))
    assert J @ action + BIAS == pytest.approx([-3.0, 1.0], abs=1e-5)
    at_rest = stop_action(ARM, agent([0, 0]), Bounds(100.0, 5.0, 1.0, 0.0, 0.0))
    assert J @ at_rest + BIAS == pytest.approx([0.0, 0.0], abs=1e-5)


def test_stop_action_is_scaled_into_the_box_and_cut_at_the_capacity():
    model = DoubleIntegratorControlModel("ego", 2)
    fast = agent([0, 0], [3.0, 4.0])
    assert stop_action(model, fast, box(9.0, capacity=5.0)) == pytest.approx([-3.0, -4.0])
    assert stop_action(model, fast, box(2.0, capacity=5.0)) == pytest.approx([-1.5, -2.0])
    assert stop_action(model, agent([0, 0]), box(2.0)).tolist() == [0.0, 0.0]


def test_last_known_state_of_an_arm_moves_with_its_bias():
    last = LastKnownState(ego_uid="ego", model=ARM, dt=0.1)
    last.see({"ego": agent([1, 2], [0.3, 0.0])})
    last.carry_on(np.array([0.1, 0.2, 0.3]))
    ego = last.agents["ego"]
    # a = (2 * 0.1 + 0.3 + 0.5, 0.2 - 0.25) = (1, -0.05)
    assert ego.velocity == pytest.approx([0.4, -0.005])
    assert ego.position == pytest.approx([1.0 + 0.03 + 0.005, 2.0 - 0.00025])

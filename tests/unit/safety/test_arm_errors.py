"""What the arm classes refuse."""

import sys

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError, NotReadyError
from cadenza.safety.arms import EndEffectorBall, JointLimits, MujocoArm
from tests.unit.safety.arm_scenes import arm


def model(joint='<joint axis="0 0 1"/>', geom='<geom size="0.1"/>', rest=""):
    return (
        f'<mujoco><worldbody><body name="a">{joint}{geom}<site name="ee"/></body></worldbody>'
        f"{rest}</mujoco>"
    )


def test_missing_mujoco_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"cadenza\[mujoco\]"):
        MujocoArm()


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (model(joint="<freejoint/>"), "hinges or slides"),
        (model(joint=""), "at least one joint"),
        (model(geom='<geom type="box" size="1 1 1"/>'), "capsules and spheres only"),
        (model(geom='<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'), "got none"),
        ("<mujoco><worldbody></mujoco>", "MuJoCo refused the model"),
        ("nowhere.xml", "found no file"),
        (
            model(rest='<custom><numeric name="velocity_limit" data="1 2"/></custom>'),
            "expected 1 numbers",
        ),
        (
            model(rest='<custom><numeric name="acceleration_limit" data="0"/></custom>'),
            "limits > 0",
        ),
    ],
)
def test_models_without_meaning_are_refused(xml, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        MujocoArm(xml)


@pytest.mark.parametrize("bad", [np.zeros(6), np.full(7, np.nan)])
def test_state_refuses_malformed_numbers(bad):
    with pytest.raises(InputError, match="state: q:"):
        arm().state(bad, np.zeros(7))
    with pytest.raises(InputError, match="state: q_dot:"):
        arm().state(np.zeros(7), bad)


def limits(**changes):
    values = {
        "lower": [-1.0, -1.0],
        "upper": [1.0, 1.0],
        "velocity": [1.0, 1.0],
        "acceleration": [1.0, 1.0],
        "torque": [1.0, 1.0],
    }
    return JointLimits(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": [[-1.0]]}, r"shape \(n,\)"),
        ({"torque": [1.0]}, r"torque: expected shape \(2,\)"),
        ({"upper": [1.0, np.nan]}, "upper: expected numbers"),
        ({"velocity": [1.0, np.nan]}, "velocity: expected limits > 0"),
        ({"acceleration": [1.0, 0.0]}, "acceleration: expected limits > 0"),
        ({"upper": [1.0, -1.0]}, "upper: expected > lower"),
    ],
)
def test_limits_without_meaning_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        limits(**changes)


def test_ball_answers_for_its_last_snapshot_only():
    ball = EndEffectorBall(0.1)
    state = arm().state(arm().home(), np.full(7, 0.1))
    snapshot = ball.snapshot(state)
    assert snapshot.position == pytest.approx(state.ee_position)
    assert snapshot.velocity == pytest.approx(state.ee_jacobian[:3] @ state.q_dot)
    assert ball.jacobian(snapshot).tolist() == state.ee_jacobian[:3].tolist()
    assert ball.bias(snapshot).tolist() == state.ee_bias[:3].tolist()
    ball.snapshot(arm().state(arm().home() + 0.1, np.zeros(7)))
    with pytest.raises(NotReadyError, match="the snapshot made last"):
        ball.jacobian(snapshot)
    with pytest.raises(NotReadyError, match="the snapshot made last"):
        EndEffectorBall(0.1).bias(snapshot)


def test_control_model_maps_joint_accelerations_of_the_arm():
    ball = EndEffectorBall(0.1)
    state = arm().state(arm().home(), np.full(7, 0.1))
    snapshot = ball.snapshot(state)
    control = ball.control_model("arm", 7, max_cartesian_accel=2.0)
    wanted = np.linspace(-1.0, 1.0, 7)
    total = control.action_to_cartesian_accel(snapshot, wanted) + control.bias_accel(snapshot)
    step = 1e-6
    ahead = arm().state(state.q + step * state.q_dot, state.q_dot + step * wanted)
    behind = arm().state(state.q - step * state.q_dot, state.q_dot - step * wanted)
    velocities = [s.ee_jacobian[:3] @ s.q_dot for s in (ahead, behind)]
    assert total == pytest.approx((velocities[0] - velocities[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ee_site": "hand"}, r"'hand'.*\['ee'\]"),
        ({"exclude": (("base", "elbow"),)}, "names of bodies, got 'elbow'"),
        ({"inflation": 1.0}, "inflation: expected > 1"),
        ({"inflation": float("nan")}, "inflation: expected > 1"),
    ],
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        MujocoArm(**options)

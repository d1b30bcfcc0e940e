"""What the arm classes refuse."""

import sys

import numpy as np
import pytest

from cadenza.core.errors import (
    ConfigurationError,
    InputError,
    MissingExtraError,
    NotReadyError,
)
from cadenza.safety import arms
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


def test_unknown_site_lists_the_known():
    with pytest.raises(ConfigurationError, match=r"'hand'.*\['ee'\]"):
        MujocoArm(ee_site="hand")


def test_unknown_body_in_exclude_is_refused():
    with pytest.raises(ConfigurationError, match="names of bodies, got 'elbow'"):
        MujocoArm(exclude=(("base", "elbow"),))


@pytest.mark.parametrize("inflation", [1.0, 0.5, float("nan"), float("inf")])
def test_inflation_of_one_or_less_is_refused(inflation):
    with pytest.raises(ConfigurationError, match="inflation: expected > 1"):
        MujocoArm(inflation=inflation)


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
        ({"lower": []}, r"shape \(n,\)"),
        ({"torque": [1.0]}, r"torque: expected shape \(2,\)"),
        ({"upper": [1.0, np.nan]}, "upper: expected numbers"),
        ({"velocity": [1.0, np.nan]}, "velocity: expected limits > 0"),
        ({"velocity": [1.0, -1.0]}, "velocity: expected limits > 0"),
        ({"acceleration": [1.0, 0.0]}, "acceleration: expected limits > 0"),
        ({"upper": [1.0, -1.0]}, "upper: expected > lower"),
    ],
)
def test_limits_without_meaning_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        limits(**changes)


def test_limits_are_copies_that_cannot_be_written():
    upper = np.array([1.0, 1.0])
    made = limits(upper=upper)
    upper[0] = 5.0
    assert made.upper.tolist() == [1.0, 1.0]
    assert made.n_joints == 2
    with pytest.raises(ValueError, match="read-only"):
        made.upper[0] = 2.0
    assert np.isinf(JointLimits.unlimited(3).torque).all()


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


def test_package_names_are_importable_and_others_are_not():
    assert arms.MujocoArm is MujocoArm
    with pytest.raises(AttributeError, match="no attribute 'Leg'"):
        _ = arms.Leg

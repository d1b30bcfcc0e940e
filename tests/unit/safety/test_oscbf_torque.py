"""The torque filter: dynamics, limits of the motors, conflicts."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.oscbf import ArmConstraints, Priority, SelfCollisionRule, SpeedRule, TorqueOSCBF
from tests.unit.safety.arm_scenes import DT, LimitedArm, arm, plain_rows

STRONG = LimitedArm(torque=np.full(7, np.inf), acceleration=np.full(7, 200.0))
HARD = Priority()


def state_at(shift=0.0, q_dot=None):
    rest = np.zeros(7) if q_dot is None else q_dot
    return arm().state(arm().home() + shift, rest, with_manipulability=True)


def test_holding_torques_pass_bit_for_bit():
    state = state_at()
    rules = ArmConstraints(self_collision=SelfCollisionRule())
    result = TorqueOSCBF(arm(), dt=DT, constraints=rules).solve(state, torque_nom=state.bias_forces)
    assert result.solver_status == "inactive"
    assert result.torque.tolist() == state.bias_forces.tolist()
    assert result.q_ddot == pytest.approx(np.zeros(7), abs=1e-12)
    assert result.q_dot == pytest.approx(np.zeros(7), abs=1e-12)


def test_command_obeys_the_equation_of_motion():
    state = state_at(q_dot=np.linspace(-0.3, 0.3, 7))
    wanted = np.linspace(-2.0, 2.0, 7)
    result = TorqueOSCBF(STRONG, dt=DT).solve(state, q_ddot_nom=wanted)
    assert result.q_ddot.tolist() == wanted.tolist()
    assert result.torque == pytest.approx(state.mass_matrix @ wanted + state.bias_forces)
    assert result.q_dot == pytest.approx(state.q_dot + DT * wanted)


def test_task_acceleration_is_reached_whatever_the_posture_does():
    state = state_at(q_dot=np.linspace(-0.3, 0.3, 7))
    task = np.array([0.5, -0.2, 0.4, 0.0, 1.0, -0.5])
    reached = [
        TorqueOSCBF(STRONG, dt=DT).solve(state, a_nom=task, q_ddot_nom=posture).q_ddot
        for posture in (np.zeros(7), np.linspace(3.0, -3.0, 7))
    ]
    for q_ddot in reached:
        assert state.ee_jacobian @ q_ddot + state.ee_bias == pytest.approx(task, abs=1e-3)
    assert np.abs(reached[0] - reached[1]).max() > 0.1


def test_motor_limits_hold_to_the_last_bit():
    state = state_at()
    result = TorqueOSCBF(arm(), dt=DT).solve(state, a_nom=np.array([0, 0, 40.0, 0, 0, 0]))
    assert (np.abs(result.torque) <= arm().limits.torque).all()
    weak = LimitedArm(torque=np.full(7, 30.0))
    held = TorqueOSCBF(weak, dt=DT).solve(state, a_nom=np.array([0, 0, 40.0, 0, 0, 0]))
    assert np.abs(held.torque).max() == pytest.approx(30.0)
    assert (np.abs(held.torque) <= 30.0).all()
    assert held.certified
    assert held.row_names[:2] == ("torque:0+", "torque:1+")
    assert held.row_names[-1] == "torque:6-"
    bound = [held.row_names[k] for k in held.binding_rows]
    assert any(name.startswith("torque:") for name in bound)


def test_contradicting_hard_rows_brake():
    moving = np.full(7, 0.5)
    e = np.eye(7)[0]
    rows = plain_rows((e, -1.0, HARD), (-e, -1.0, HARD))
    state = arm().state(arm().home(), moving)
    rows.drift[:] = 0.0
    rows.bias -= 10.0 * rows.gradient @ moving  # so that the levels are -1 at this speed
    result = TorqueOSCBF(STRONG, dt=DT).solve(state, q_ddot_nom=np.full(7, 3.0), rows=rows)
    assert result.solver_status == "infeasible"
    assert result.q_ddot[1:] == pytest.approx(np.full(6, -200.0))
    assert result.slack[:2] == pytest.approx([1.0, 1.0], abs=1e-2)
    assert not result.certified


def test_next_speed_is_limited():
    state = state_at(q_dot=np.array([0.5, 0.2, 0.0, 0.1, 0.0, 0.0, 0.0]))
    now = float(np.linalg.norm(state.ee_jacobian[:3] @ state.q_dot))
    rules = ArmConstraints(speed=SpeedRule(limit=now))
    push = np.concatenate([10.0 * state.ee_jacobian[:3] @ state.q_dot, np.zeros(3)])
    result = TorqueOSCBF(STRONG, dt=DT, constraints=rules).solve(state, a_nom=push)
    following = arm().state(state.q + DT * state.q_dot, result.q_dot)
    speed = float(np.linalg.norm(following.ee_jacobian[:3] @ result.q_dot))
    assert speed <= now + 1e-4
    # To first order the next velocity is J q'+ + J' q' dt; the limit binds there, 0.1 % inside.
    predicted = state.ee_jacobian[:3] @ result.q_dot + DT * state.ee_bias[:3]
    assert 0.9989 * now <= np.linalg.norm(predicted) <= 0.9991 * now
    free = TorqueOSCBF(STRONG, dt=DT).solve(state, a_nom=push)
    assert np.linalg.norm(state.ee_jacobian[:3] @ free.q_dot) > now + 2e-3


@pytest.mark.parametrize("rules", [{"braking_share": 1e-5}, {"joint_gain": 0.05}], ids=str)
def test_joint_rules_change_the_command(rules):
    nominal = np.array([0.0, 4.0, 0.0, -4.0, 0.0, 4.0, 0.0])
    state = state_at(q_dot=0.05 * nominal)
    bare = TorqueOSCBF(STRONG, dt=DT).solve(state, q_ddot_nom=nominal)
    guarded = TorqueOSCBF(STRONG, dt=DT, constraints=ArmConstraints(**rules)).solve(
        state, q_ddot_nom=nominal
    )
    assert bare.q_ddot.tolist() == nominal.tolist()
    assert np.abs(guarded.q_ddot - nominal).max() > 1e-2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one of torque_nom, q_ddot_nom, a_nom"),
        ({"torque_nom": np.zeros(7), "a_nom": np.zeros(6)}, "torque_nom alone"),
        ({"a_nom": np.zeros(7)}, r"a_nom: expected shape \(6,\)"),
        ({"torque_nom": np.zeros(6)}, r"torque_nom: expected shape \(7,\)"),
        ({"q_ddot_nom": np.full(7, np.inf)}, "q_ddot_nom: expected finite"),
    ],
)
def test_malformed_calls_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        TorqueOSCBF(arm(), dt=DT).solve(state_at(), **arguments)


def test_unlimited_accelerations_are_refused():
    free = LimitedArm(acceleration=np.full(7, np.inf))
    with pytest.raises(ConfigurationError, match="finite acceleration limits"):
        TorqueOSCBF(free, dt=DT)
    with pytest.raises(ConfigurationError, match="dt: expected a finite step"):
        TorqueOSCBF(arm(), dt=-1.0)

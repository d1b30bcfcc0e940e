"""The velocity filter: cost, priorities, conflicts, and what it never does."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.oscbf import (
    ArmConstraints,
    Obstacle,
    ObstacleRule,
    Priority,
    SelfCollisionRule,
    SpeedRule,
    TaskCost,
    VelocityOSCBF,
)
from cadenza.safety.oscbf.program import task_frame
from cadenza.safety.oscbf.rules import BarrierRows
from cadenza.safety.solvers import QPSolution, SolveStatus
from tests.unit.safety.arm_scenes import DT, LimitedArm, arm, plain_rows, table

#: No acceleration limit: what is tested here is one step on its own.
AGILE = LimitedArm(acceleration=np.full(7, np.inf))
HARD, SOFT = Priority(), Priority(hard=False, weight=50.0)


def state_at(shift=0.0, q_dot=None):
    rest = np.zeros(7) if q_dot is None else q_dot
    return arm().state(arm().home() + shift, rest, with_manipulability=True)


def agile(constraints=None, **options):
    return VelocityOSCBF(AGILE, dt=DT, constraints=constraints, **options)


def test_inactive_nominal_passes_bit_for_bit():
    nominal = np.random.default_rng(0).uniform(-0.3, 0.3, 7)
    rules = ArmConstraints(self_collision=SelfCollisionRule(), half_spaces=(table(),))
    result = agile(rules).solve(state_at(), q_dot_nom=nominal)
    assert result.solver_status == "inactive"
    assert result.q_dot.tolist() == nominal.tolist()
    assert result.slack.tolist() == [0.0] * 9
    assert result.certified
    assert result.hard_rows == (True,) * 9
    assert result.row_names[0].startswith("self:")
    assert result.row_names[-1].startswith("half_space:table/")
    assert result.q_ddot is None


def test_posture_does_not_disturb_the_task():
    state, twist = state_at(), np.array([0.1, -0.05, 0.08, 0.2, 0.0, -0.1])
    posture = np.linspace(-0.5, 0.5, 7)
    result = agile().solve(state, nu_nom=twist, q_dot_nom=posture)
    J = state.ee_jacobian
    assert J @ result.q_dot == pytest.approx(twist, abs=1e-4)  # the inverse is damped
    # The posture still moves the arm, inside the null space of the task.
    without = agile().solve(state, nu_nom=twist)
    assert np.linalg.norm(result.q_dot - without.q_dot) > 0.05


def test_soft_row_is_relaxed_as_the_closed_form_says():
    state, nominal = state_at(), np.linspace(-0.2, 0.2, 7)
    a, b = np.linspace(1.0, -1.0, 7), -1.0
    P = task_frame(TaskCost(), state).P
    step = np.linalg.solve(P, a)
    for weight in (50.0, 500.0):
        soft = Priority(hard=False, weight=weight)
        result = agile().solve(state, q_dot_nom=nominal, rows=plain_rows((a, b, soft)))
        pull = (a @ nominal - b) / (a @ step + 1.0 / weight)
        assert result.q_dot == pytest.approx(nominal - pull * step, abs=1e-8)
        assert result.slack == pytest.approx([pull / weight], abs=1e-8)
        assert result.hard_rows == (False,)
        assert result.solver_status == "optimal"


def test_hard_row_stands_when_a_soft_one_contradicts_it():
    e = np.eye(7)[0]
    rows = plain_rows((e, -0.2, HARD), (-e, -0.3, SOFT))  # q' <= -0.2 and q' >= 0.3
    result = agile().solve(state_at(), q_dot_nom=np.zeros(7), rows=rows)
    assert result.q_dot[0] == pytest.approx(-0.2, abs=1e-9)
    assert result.slack == pytest.approx([0.0, 0.5], abs=1e-8)
    assert result.active_rows == (1,)
    assert result.certified


def test_contradicting_hard_rows_brake_and_are_flagged():
    e, nominal = np.eye(7)[0], np.full(7, 0.4)
    rows = plain_rows((e, -1.0, HARD), (-e, -1.0, HARD))
    result = agile().solve(state_at(), q_dot_nom=nominal, rows=rows)
    assert result.solver_status == "infeasible"
    assert result.braking
    assert not result.certified
    assert result.q_dot == pytest.approx(np.zeros(7), abs=1e-6)
    assert result.slack == pytest.approx([1.0, 1.0], abs=1e-5)


class Failing:
    """A solver that finds nothing."""

    name = "failing"

    def __init__(self, status):
        self.status = status

    def run(self, P, q, *_args, **_options):
        return QPSolution(np.full(len(q), np.nan), self.status, 0)


@pytest.mark.parametrize("status", [SolveStatus.MAX_ITER, SolveStatus.NUMERICAL])
def test_failed_solver_brakes_within_the_acceleration_limits(status):
    moving = np.full(7, 0.5)
    controller = VelocityOSCBF(arm(), dt=DT, solver=Failing(status))
    result = controller.solve(state_at(q_dot=moving), q_dot_nom=np.full(7, 9.0))
    assert result.solver_status == status.value
    assert result.q_dot == pytest.approx(0.5 - arm().limits.acceleration * DT)


def test_rows_that_are_no_numbers_brake():
    rows = plain_rows((np.full(7, np.nan), 0.0, HARD))
    result = agile().solve(state_at(), q_dot_nom=np.full(7, 0.1), rows=rows)
    assert result.solver_status == "bad_input"
    assert result.q_dot.tolist() == [0.0] * 7
    assert result.slack.tolist() == [np.inf]


def test_states_outside_the_joint_limits_are_named():
    beyond = arm().home()
    beyond[0] = arm().limits.upper[0] + 0.2
    result = VelocityOSCBF(arm(), dt=DT).solve(
        arm().state(beyond, np.zeros(7)), q_dot_nom=np.zeros(7)
    )
    assert result.conflicting_joints == (0,)
    assert not result.certified
    assert result.q_dot[0] == pytest.approx(-arm().limits.acceleration[0] * DT)


@pytest.mark.parametrize("seed", range(2))
def test_speed_limit_scales_the_task_down(seed):
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=3)
    twist = np.concatenate([2.0 * direction / np.linalg.norm(direction), np.zeros(3)])
    fast = LimitedArm(acceleration=np.full(7, np.inf), velocity=np.full(7, np.inf))
    rules = ArmConstraints(speed=SpeedRule(limit=0.5))
    state = state_at()
    result = VelocityOSCBF(fast, dt=DT, constraints=rules).solve(state, nu_nom=twist)
    velocity = state.ee_jacobian[:3] @ result.q_dot
    assert result.certified
    assert result.row_names == ("ee_speed",)
    assert 0.497 <= np.linalg.norm(velocity) <= 0.5 + 1e-12
    # Turning costs nothing while translation does, so the direction may yield a little.
    assert velocity @ direction / np.linalg.norm(velocity) / np.linalg.norm(direction) > 0.95


def test_speed_limit_that_no_step_can_meet_is_flagged_and_slows_down():
    # Already at 2 rad/s in the first joint, about 0.7 m/s: one step cannot shed that.
    moving = np.array([2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    rules = ArmConstraints(speed=SpeedRule(limit=0.2))
    state = state_at(q_dot=moving)
    result = VelocityOSCBF(arm(), dt=DT, constraints=rules).solve(state, q_dot_nom=moving)
    assert result.solver_status == "infeasible"
    assert result.q_dot[0] == pytest.approx(2.0 - 15.0 * DT)
    assert result.slack[0] == pytest.approx(
        np.linalg.norm(state.ee_jacobian[:3] @ result.q_dot) - 0.2
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one of q_dot_nom, nu_nom"),
        ({"q_dot_nom": np.zeros(6)}, r"q_dot_nom: expected shape \(7,\)"),
        ({"nu_nom": np.zeros(3)}, r"nu_nom: expected shape \(6,\)"),
        ({"q_dot_nom": np.full(7, np.nan)}, "q_dot_nom: expected finite"),
        (
            {
                "q_dot_nom": np.zeros(7),
                "rows": BarrierRows(np.zeros((0, 7)), np.zeros(0), np.zeros(0), np.zeros(0)),
                "obstacles": [Obstacle.ball("b", np.ones(3), 0.1)],
            },
            "rows or obstacles, got both",
        ),
    ],
)
def test_malformed_calls_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        agile().solve(state_at(), **arguments)


@pytest.mark.parametrize("dt", [0.0, np.nan])
def test_steps_without_length_are_refused(dt):
    with pytest.raises(ConfigurationError, match="dt: expected a finite step"):
        VelocityOSCBF(arm(), dt=dt)


def test_gains_beyond_the_sampling_rate_are_refused():
    rules = ArmConstraints(obstacles=ObstacleRule(priority=Priority(gain=5.0, second_gain=600.0)))
    with pytest.raises(ConfigurationError, match="every gain <= 1 / dt = 500"):
        VelocityOSCBF(arm(), dt=DT, constraints=rules)
    with pytest.raises(ConfigurationError, match="got 501"):
        VelocityOSCBF(arm(), dt=DT, constraints=ArmConstraints(joint_gain=501.0))

"""Both filters in a row on the simulated arm: the pairwise one for the hand, then the arm's own.

The pairwise filter decides joint accelerations that keep the ball around the hand clear of a moving
partner; the operational-space filter turns them into torques that respect joints, links, table and
the whole arm's distance to the same partner. MuJoCo's own joint limits and contacts are off.
"""

import mujoco
import numpy as np
import pytest

from cadenza.safety import (
    AgentSnapshot,
    Bounds,
    DoubleIntegratorControlModel,
    ExpCBFQP,
    SafetyState,
)
from cadenza.safety.arms import SEVEN_DOF_ARM, EndEffectorBall
from cadenza.safety.oscbf import (
    ArmConstraints,
    Obstacle,
    ObstacleRule,
    Priority,
    SelfCollisionRule,
    SpeedRule,
    TorqueOSCBF,
    VelocityOSCBF,
)
from tests.campaigns import size
from tests.unit.safety.arm_scenes import arm, table

DT = 4e-3
HAND, PARTNER = 0.10, 0.08
PARTNER_ACCEL = 0.6
MARGIN = 2e-3
RULES = ArmConstraints(
    self_collision=SelfCollisionRule(margin_m=0.01),
    obstacles=ObstacleRule(priority=Priority(gain=10.0, second_gain=20.0)),
    half_spaces=(table(),),
    speed=SpeedRule(limit=1.0),
)


class Cell:
    """The arm, a partner that swings across its way, and a task on both sides of it."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.model = mujoco.MjModel.from_xml_path(str(SEVEN_DOF_ARM))
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = arm().home() + rng.uniform(-0.1, 0.1, 7)
        self.start = arm().state(self.data.qpos, np.zeros(7)).ee_position
        self.amplitude = rng.uniform(0.1, 0.2)
        self.rate = np.sqrt(0.5 / self.amplitude)  # 0.5 m/s^2 at most, below PARTNER_ACCEL
        self.phase = rng.uniform(0.0, 2.0 * np.pi)

    def partner(self, t):
        angle = self.rate * t + self.phase
        side = np.array([0.0, 1.0, 0.0])
        centre = self.start + np.array([0.27, 0.0, 0.0])
        return AgentSnapshot(
            centre + self.amplitude * np.sin(angle) * side,
            self.amplitude * self.rate * np.cos(angle) * side,
            PARTNER,
        )

    def nominal(self, state, t):
        """Return joint accelerations that pull the hand from one side to the other."""
        target = self.start + np.array([0.2, 0.25 * np.sign(np.sin(1.5 * t)), 0.0])
        twist = state.ee_jacobian @ state.q_dot
        task = np.zeros(6)
        task[:3] = 25.0 * (target - state.ee_position) - 10.0 * twist[:3]
        task[3:] = -10.0 * twist[3:]
        inverse = np.linalg.pinv(state.ee_jacobian)
        null = np.eye(7) - inverse @ state.ee_jacobian
        return np.clip(inverse @ (task - state.ee_bias) - 5.0 * null @ state.q_dot, -10.0, 10.0)

    def whole_arm_gap(self, state, partner):
        distance = np.linalg.norm(state.sphere_centers - partner.position, axis=1)
        return float((distance - arm().sphere_radii).min()) - PARTNER

    def step(self, torque):
        self.data.ctrl[:] = torque
        for _ in range(round(DT / self.model.opt.timestep)):
            mujoco.mj_step(self.model, self.data)


def run(seed, *, inner, steps=700):
    """Return the smallest gaps of hand and arm, the joints' excess, and the inner results."""
    cell, ball, robot = Cell(seed), EndEffectorBall(HAND), arm()
    guard = ExpCBFQP.ego_only(
        control_models={
            "arm": ball.control_model("arm", 7, max_cartesian_accel=3.0),
            "human": DoubleIntegratorControlModel("human", 3, capacity=PARTNER_ACCEL),
        },
        margin_m=MARGIN,
    )
    torque_filter = TorqueOSCBF(robot, dt=DT, constraints=RULES)
    velocity_filter = VelocityOSCBF(robot, dt=DT, constraints=RULES)
    bounds, slack = Bounds(10.0, 3.0, 1e3, 0.0, 0.0), SafetyState({("arm", "human"): 0.0})
    hand, whole, over, results, statuses = np.inf, np.inf, -np.inf, [], set()
    for k in range(steps):
        state = robot.state(cell.data.qpos, cell.data.qvel)
        partner, wanted = cell.partner(k * DT), cell.nominal(state, k * DT)
        hand = min(hand, np.linalg.norm(state.ee_position - partner.position) - HAND - PARTNER)
        whole = min(whole, cell.whole_arm_gap(state, partner))
        over = max(over, *(state.q - robot.limits.upper), *(robot.limits.lower - state.q))
        wanted, info = guard.filter(
            wanted,
            {"agent_states": {"arm": ball.snapshot(state), "human": partner}},
            slack,
            bounds,
            ego_uid="arm",
            partner_predicted_states={"human": partner},
            dt=DT,
        )
        statuses.add(info["status"])
        seen = [
            Obstacle.ball(
                "human",
                partner.position,
                PARTNER,
                velocity=partner.velocity,
                acceleration_bound=PARTNER_ACCEL,
            )
        ]
        if inner == "torque":
            results.append(torque_filter.solve(state, q_ddot_nom=wanted, obstacles=seen))
            torque = results[-1].torque
        else:
            next_speed = state.q_dot + DT * wanted
            results.append(velocity_filter.solve(state, q_dot_nom=next_speed, obstacles=seen))
            change = (results[-1].q_dot - state.q_dot) / DT
            torque = state.mass_matrix @ change + state.bias_forces
        cell.step(torque)
    return hand, whole, over, results, statuses


@pytest.mark.parametrize("inner", ["torque", "velocity"])
@pytest.mark.parametrize("seed", range(size(1, 3)))
def test_chain_keeps_hand_arm_and_joints_safe(inner, seed):
    hand, whole, over, results, statuses = run(seed, inner=inner)
    assert hand >= 0.0
    assert whole >= 0.0
    assert over <= 0.0
    assert statuses <= {"inactive", "optimal"}
    assert "optimal" in statuses  # the partner was in the way
    assert all(result.certified for result in results)
    assert max(result.max_slack for result in results) <= 1e-8

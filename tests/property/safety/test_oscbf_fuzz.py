"""Any state, any nominal, any obstacles: the command is finite, in its limits, and honest."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.safety.geometry import Capsule
from cadenza.safety.oscbf import (
    ArmConstraints,
    Obstacle,
    Priority,
    SelfCollisionRule,
    SingularityRule,
    SpeedRule,
    TorqueOSCBF,
    VelocityOSCBF,
)
from tests.campaigns import size
from tests.unit.safety.arm_scenes import DT, arm, table

RULES = ArmConstraints(
    self_collision=SelfCollisionRule(margin_m=0.01),
    half_spaces=(table(0.05, Priority(hard=False, weight=300.0)),),
    singularity=SingularityRule(minimum=0.01),
    speed=SpeedRule(limit=0.8),
)


def scene(seed, scale):
    """Return a state anywhere within the limits, obstacles anywhere, and a nominal twist."""
    rng = np.random.default_rng(seed)
    limits = arm().limits
    q = rng.uniform(limits.lower, limits.upper)
    q_dot = rng.uniform(-1, 1, 7) * limits.velocity * rng.choice([0.0, 0.1, 1.0])
    state = arm().state(q, q_dot, with_manipulability=True)
    obstacles = []
    for k in range(rng.integers(0, 4)):
        start = rng.uniform(-0.8, 0.8, 3)
        end = start + rng.choice([0.0, 1.0]) * rng.normal(size=3)
        obstacles.append(
            Obstacle(
                name=str(k),
                shape=Capsule(start, end, float(rng.uniform(0.01, 0.3))),
                velocity=rng.normal(size=3),
                acceleration_bound=float(rng.choice([0.0, 1.0])),
            )
        )
    return state, obstacles, scale * rng.normal(size=6), scale * rng.normal(size=7)


scales = st.sampled_from([0.0, 0.1, 10.0, 1e6])
quick = settings(
    max_examples=size(60, 150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(seed=st.integers(0, 2**31), scale=scales)
def test_velocity_command_is_finite_within_limits_and_honest(seed, scale):
    state, obstacles, twist, posture = scene(seed, scale)
    controller = VelocityOSCBF(arm(), dt=DT, constraints=RULES)
    result = controller.solve(state, nu_nom=twist, q_dot_nom=posture, obstacles=obstacles)
    change = np.abs(result.q_dot - state.q_dot)
    assert np.isfinite(result.q_dot).all()
    assert (change <= arm().limits.acceleration * DT + 1e-12).all()
    normals, levels = controller.rows(state, obstacles).velocity_rows()
    missed = np.maximum(normals @ result.q_dot - levels, 0.0)
    assert result.slack[:-1] == pytest.approx(missed, abs=1e-7, rel=1e-7)
    hard = np.array(result.hard_rows)
    if result.certified:
        assert result.slack[hard].max(initial=0.0) == 0.0
    else:
        assert result.braking or result.conflicting_joints


@quick
@given(seed=st.integers(0, 2**31), scale=scales)
def test_torque_command_is_finite_within_limits_and_honest(seed, scale):
    state, obstacles, task, posture = scene(seed, scale)
    controller = TorqueOSCBF(arm(), dt=DT, constraints=RULES)
    result = controller.solve(state, a_nom=task, q_ddot_nom=posture, obstacles=obstacles)
    assert np.isfinite(result.torque).all()
    assert (np.abs(result.torque) <= arm().limits.torque).all()
    assert (np.abs(result.q_ddot) <= arm().limits.acceleration + 1e-9).all()
    if result.certified:
        assert result.slack[np.array(result.hard_rows)].max(initial=0.0) == 0.0
        motion = state.mass_matrix @ result.q_ddot + state.bias_forces
        assert result.torque == pytest.approx(motion, abs=1e-6)
    else:
        assert result.braking or result.conflicting_joints

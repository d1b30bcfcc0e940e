"""The seven-joint arm in closed loop, for the tests of the operational-space filter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import mujoco
import numpy as np

from cadenza.safety.arms import SEVEN_DOF_ARM, JointLimits, MujocoArm
from cadenza.safety.arms.arm import ArmState
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.oscbf import (
    ArmConstraints,
    HalfSpaceRule,
    Obstacle,
    OSCBFResult,
    Priority,
    TorqueOSCBF,
    VelocityOSCBF,
)
from cadenza.safety.oscbf.rules import BarrierRows

DT = 2e-3
#: Step of the closed loops.
LOOP_DT = 4e-3
#: Gentle enough that braking for a barrier stays within what the joints can decelerate.
CALM = Priority(gain=4.0, second_gain=8.0)

Target = Callable[[float], Sequence[Obstacle]]


@cache
def arm() -> MujocoArm:
    """Return one arm for all tests of a process; it keeps no state between calls."""
    return MujocoArm()


def random_start(rng: np.random.Generator, spread: float = 0.15) -> np.ndarray:
    """Return a configuration near home."""
    return arm().home() + rng.uniform(-spread, spread, 7)


@dataclass
class Log:
    """What a closed loop went through, one entry per step."""

    states: list[ArmState] = field(default_factory=list)
    results: list[OSCBFResult] = field(default_factory=list)

    def least(self, measure: Callable[[ArmState], float]) -> float:
        return min(measure(state) for state in self.states)

    def statuses(self) -> set[str]:
        return {result.solver_status for result in self.results}


def run_velocity(
    constraints: ArmConstraints,
    nominal: Callable[[ArmState], dict[str, np.ndarray]],
    *,
    q: np.ndarray,
    steps: int,
    obstacles: Target = lambda t: (),
) -> Log:
    """Integrate q+ = q + q' dt under the velocity filter."""
    controller = VelocityOSCBF(arm(), dt=LOOP_DT, constraints=constraints)
    q, q_dot, log = q.copy(), np.zeros(7), Log()
    for k in range(steps):
        state = arm().state(q, q_dot, with_manipulability=constraints.singularity is not None)
        seen = obstacles(k * LOOP_DT)
        result = controller.solve(state, **nominal(state), obstacles=seen)
        log.states.append(state)
        log.results.append(result)
        q_dot = result.q_dot
        q = q + LOOP_DT * q_dot
    return log


def run_torque(
    constraints: ArmConstraints,
    nominal: Callable[[ArmState], dict[str, np.ndarray]],
    *,
    q: np.ndarray,
    steps: int,
    obstacles: Target = lambda t: (),
) -> Log:
    """Step the MuJoCo model under the torque filter."""
    controller = TorqueOSCBF(arm(), dt=LOOP_DT, constraints=constraints)
    model = mujoco.MjModel.from_xml_path(str(SEVEN_DOF_ARM))
    # The filter alone keeps joints and links where they belong.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_LIMIT
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    data = mujoco.MjData(model)
    data.qpos[:] = q
    log = Log()
    for k in range(steps):
        needs = constraints.singularity is not None
        state = arm().state(data.qpos, data.qvel, with_manipulability=needs)
        seen = obstacles(k * LOOP_DT)
        result = controller.solve(state, **nominal(state), obstacles=seen)
        log.states.append(state)
        log.results.append(result)
        data.ctrl[:] = result.torque
        for _ in range(round(LOOP_DT / model.opt.timestep)):
            mujoco.mj_step(model, data)
    return log


def towards(target: np.ndarray, speed: float) -> Callable[[ArmState], dict[str, np.ndarray]]:
    """Return a nominal twist that drives the end effector at ``target``."""

    def nominal(state: ArmState) -> dict[str, np.ndarray]:
        offset = target - state.ee_position
        pull = 4.0 * offset
        pull *= min(1.0, speed / max(float(np.linalg.norm(pull)), 1e-9))
        return {"nu_nom": np.concatenate([pull, np.zeros(3)])}

    return nominal


def accelerate_towards(
    target: np.ndarray, speed: float
) -> Callable[[ArmState], dict[str, np.ndarray]]:
    """Return a nominal end-effector acceleration that drives it at ``target``."""

    def nominal(state: ArmState) -> dict[str, np.ndarray]:
        twist = state.ee_jacobian @ state.q_dot
        wanted = towards(target, speed)(state)["nu_nom"]
        return {"a_nom": 10.0 * (wanted - twist), "q_ddot_nom": -10.0 * state.q_dot}

    return nominal


def self_gap(state: ArmState) -> float:
    """Return the smallest gap between two links, m."""
    pairs, radii = arm().self_collision_pairs, arm().sphere_radii
    offset = state.sphere_centers[pairs[:, 0]] - state.sphere_centers[pairs[:, 1]]
    return float((np.linalg.norm(offset, axis=1) - radii[pairs].sum(axis=1)).min())


def table_gap(state: ArmState, height: float = 0.0) -> float:
    """Return the smallest height of a moving sphere over the table, m."""
    moving = arm().movable_spheres
    return float((state.sphere_centers[:, 2] - arm().sphere_radii)[moving].min()) - height


def obstacle_gap(state: ArmState, obstacle: Obstacle) -> float:
    """Return the smallest gap between a moving sphere and an obstacle, m."""
    moving = arm().movable_spheres
    shape, centers = obstacle.shape, state.sphere_centers[moving]
    axis = shape.end - shape.start
    share = np.clip((centers - shape.start) @ axis / max(axis @ axis, 1e-12), 0.0, 1.0)
    distance = np.linalg.norm(centers - shape.start - np.outer(share, axis), axis=1)
    return float((distance - shape.radius - arm().sphere_radii[moving]).min())


def table(height: float = 0.0, priority: Priority = CALM) -> HalfSpaceRule:
    return HalfSpaceRule(
        name="table", solid=HalfSpace(np.array([0.0, 0.0, 1.0]), height), priority=priority
    )


def speed(state: ArmState) -> float:
    """Return the end effector's speed, m/s."""
    return float(np.linalg.norm(state.ee_jacobian[:3] @ state.q_dot))


class LimitedArm:
    """The seven-joint arm with other joint limits."""

    def __init__(self, **changes: np.ndarray) -> None:
        own = arm().limits
        names = ("lower", "upper", "velocity", "acceleration", "torque")
        self.limits = JointLimits(**({name: getattr(own, name) for name in names} | changes))
        # no __getattr__: since Python 3.12 a runtime protocol does not see what it gives
        spheres = ("sphere_radii", "sphere_links", "movable_spheres", "self_collision_pairs")
        for name in (*spheres, "state"):
            setattr(self, name, getattr(arm(), name))


def plain_rows(*rows: tuple[np.ndarray, float, Priority]) -> BarrierRows:
    """Return barriers whose velocity rows are exactly a @ q' <= b, and q'' rows at rest too."""
    return BarrierRows(
        gradient=-np.array([a for a, _, _ in rows]),
        h=np.zeros(len(rows)),
        drift=np.array([b for _, b, _ in rows]),
        bias=np.array([b for _, b, _ in rows]),
        priorities=[priority for _, _, priority in rows],
        names=[f"row{k}" for k in range(len(rows))],
    )

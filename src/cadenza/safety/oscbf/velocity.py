"""Filter of joint velocities: limits and workspace are hard, the task outranks the posture.

Plant:   the arm follows the commanded velocity within one step, q+ = q + q' dt.
Rows:    h' >= -gain h for every rule of `rows`; joint limits as one box (`box`); the end effector's
         speed as a cone (`programme`).
Units:   rad/s, m/s, s.
Proof and limits: docs/oscbf.md.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.arms.state import ArmModel, ArmState
from cadenza.safety.oscbf.box import velocity_box
from cadenza.safety.oscbf.cost import TaskCost, task_frame
from cadenza.safety.oscbf.programme import Answer, Cone, Programme, ProgrammeSolver
from cadenza.safety.oscbf.result import SLACK_ACTIVE_FLOOR, OSCBFResult
from cadenza.safety.oscbf.rows import BarrierRows, RowBuilder
from cadenza.safety.oscbf.rules import ArmConstraints, Obstacle
from cadenza.safety.solvers import DaqpSolver, QPSolver


class VelocityOSCBF:
    """Operational-space filter that commands joint velocities.

    Args:
        arm: The arm.
        dt: Control step, s, > 0.
        constraints: What must hold beside the joint limits.
        cost: Weights of task and posture.
        solver: Solves the programmes; None takes DAQP with a workspace per shape.

    Raises:
        ConfigurationError: ``dt`` is not finite and positive, or a rate exceeds 1 / dt, with which
            a sampled barrier overshoots.
    """

    def __init__(
        self,
        arm: ArmModel,
        *,
        dt: float,
        constraints: ArmConstraints | None = None,
        cost: TaskCost | None = None,
        solver: QPSolver | None = None,
    ) -> None:
        self._rules = ArmConstraints() if constraints is None else constraints
        require_step("VelocityOSCBF", dt, self._rules)
        self._limits = arm.limits
        self._dt = dt
        self._cost = TaskCost() if cost is None else cost
        self._rows = RowBuilder(arm, self._rules)
        self._programmes = ProgrammeSolver(DaqpSolver() if solver is None else solver)

    def rows(self, state: ArmState, obstacles: Sequence[Obstacle] = ()) -> BarrierRows:
        """Return the barriers at ``state``; `solve` builds them itself when not given them."""
        return self._rows.build(state, obstacles)

    def solve(
        self,
        state: ArmState,
        *,
        q_dot_nom: FloatArray | None = None,
        nu_nom: FloatArray | None = None,
        obstacles: Sequence[Obstacle] = (),
        rows: BarrierRows | None = None,
    ) -> OSCBFResult:
        """Return the joint velocities to command.

        Args:
            state: The arm now; ``q_dot`` is the velocity the acceleration limits start from.
            q_dot_nom: Nominal joint velocities, shape (n,). Alone, the command to be filtered;
                beside ``nu_nom``, the posture motion, which gets what the task leaves.
            nu_nom: Nominal twist of the end effector, shape (6,), linear part first.
            obstacles: Obstacles at this instant.
            rows: Barriers of this state that `rows` has built, obstacles included.

        Raises:
            InputError: Neither nominal given, a wrong shape, an entry that is not finite, or both
                rows and obstacles.
        """
        n = self._limits.n_joints
        check_nominals("VelocityOSCBF.solve", n, q_dot_nom=q_dot_nom, nu_nom=nu_nom)
        barriers = self._rows.given_or_built(state, obstacles, rows)
        frame = task_frame(self._cost, state)
        if nu_nom is not None:
            nominal = frame.command(nu_nom, q_dot_nom)
        else:
            assert q_dot_nom is not None  # noqa: S101 - check_nominals has seen to it
            nominal = q_dot_nom
        A, b = barriers.velocity_rows()
        speed, cone = self._rules.speed, None
        if speed is not None:
            cone = Cone(state.ee_jacobian[:3], np.zeros(3), speed.limit, speed.priority)
        box = velocity_box(
            self._limits,
            state.q,
            state.q_dot,
            dt=self._dt,
            gain=self._rules.joint_gain,
            braking_share=self._rules.braking_share,
        )
        answer = self._programmes.solve(
            Programme(
                P=frame.P,
                nominal=nominal,
                brake=np.zeros(n),
                A=A,
                b=b,
                priorities=barriers.priorities,
                box=box,
                cone=cone,
            )
        )
        return make_result(answer, barriers, cone, box.conflicting, answer.u)


def make_result(
    answer: Answer,
    barriers: BarrierRows,
    cone: Cone | None,
    conflicting: tuple[int, ...],
    q_dot: FloatArray,
    *,
    q_ddot: FloatArray | None = None,
    torque: FloatArray | None = None,
    extra_names: tuple[str, ...] = (),
) -> OSCBFResult:
    """Return the record of one solve.

    Args:
        answer: What the programme gave; its slack lists the barriers, then ``extra_names``, then
            the cone.
        barriers: The rows of the rules.
        cone: The speed limit, if any.
        conflicting: Joints whose limits contradict each other.
        q_dot: Joint velocities after the step, shape (n,).
        q_ddot: Joint accelerations, shape (n,).
        torque: Torques, shape (n,).
        extra_names: Names of hard rows after the barriers.
    """
    slack = answer.slack

    def sizes() -> dict[str, Any]:
        active = np.flatnonzero(slack > SLACK_ACTIVE_FLOOR)
        return {
            "active_rows": tuple(active.tolist()),
            "max_slack": float(slack.max(initial=0.0)),
            "slack_l2": float(np.linalg.norm(slack)),
        }

    def rows() -> dict[str, Any]:
        names = (*barriers.names, *extra_names)
        hard = (*(row.hard for row in barriers.priorities), *(True for _ in extra_names))
        if cone is not None:
            names, hard = (*names, "ee_speed"), (*hard, cone.priority.hard)
        return {"row_names": names, "hard_rows": hard}

    later = {"active_rows": sizes, "max_slack": sizes, "slack_l2": sizes}
    later["row_names"] = later["hard_rows"] = rows
    return OSCBFResult.deferred(
        later,
        q_dot=q_dot,
        slack=slack,
        solve_ms=answer.solve_ms,
        solver_status=answer.status,
        binding_rows=answer.binding,
        conflicting_joints=conflicting,
        q_ddot=q_ddot,
        torque=torque,
    )


def require_step(owner: str, dt: float, rules: ArmConstraints) -> None:
    """Raise unless ``dt`` is a step that every rate of the rules allows."""
    if not 0.0 < dt < math.inf:
        raise ConfigurationError(f"{owner}.dt: expected a finite step > 0 s, got {dt}.")
    fastest = rules.largest_gain()
    if fastest * dt > 1.0:
        raise ConfigurationError(
            f"{owner}: expected every gain <= 1 / dt = {1.0 / dt:.6g} 1/s, got {fastest:.6g}; a "
            "barrier that is to shrink faster than once per step overshoots."
        )


def check_nominals(owner: str, n: int, **nominals: FloatArray | None) -> None:
    """Raise unless at least one nominal is given and each has its shape and finite entries.

    Names that start with ``nu`` or ``a_`` are twists or their rates, shape (6,); the others belong
    to the joints, shape (n,).
    """
    if all(value is None for value in nominals.values()):
        raise InputError(f"{owner}: expected at least one of {', '.join(nominals)}, got none.")
    for name, value in nominals.items():
        if value is not None:
            size = 6 if name.startswith(("nu", "a_")) else n
            require_shape(f"{owner}: {name}", value, (size,))
            require_finite(f"{owner}: {name}", value)

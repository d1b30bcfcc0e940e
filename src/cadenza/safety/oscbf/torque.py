"""Filter of joint torques: second-order barriers on the arm's own dynamics.

Plant:   M(q) q'' + bias_forces = torque; the torque is held for one step.
Rows:    h'' + (g1 + g2) h' + g1 g2 h >= 0 for every rule of `rows`; position, speed and
         acceleration limits as one box on q'' (`box`); torque limits as rows
         |M q'' + bias_forces| <= limit; the end effector's next speed as a cone (`programme`).
Units:   Nm, rad/s^2, m/s^2, s.
Limits:  a barrier that has to brake harder than the joints can makes the step infeasible and
         flagged; choose gains with gain x speed within what the arm can decelerate (docs/oscbf.md).
"""

from collections.abc import Sequence

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.arms.state import ArmModel, ArmState
from cadenza.safety.oscbf.box import acceleration_box
from cadenza.safety.oscbf.cost import TaskCost, task_frame
from cadenza.safety.oscbf.programme import Cone, Programme, ProgrammeSolver
from cadenza.safety.oscbf.result import OSCBFResult
from cadenza.safety.oscbf.rows import BarrierRows, RowBuilder
from cadenza.safety.oscbf.rules import ArmConstraints, Obstacle, Priority
from cadenza.safety.oscbf.velocity import check_nominals, make_result, require_step
from cadenza.safety.solvers import DaqpSolver, QPSolver


class TorqueOSCBF:
    """Operational-space filter that commands torques.

    Args:
        arm: The arm; its acceleration limits must be finite.
        dt: Control step, s, > 0.
        constraints: What must hold beside the joint limits.
        cost: Weights of task and posture; the dynamic inverse is the default here.
        solver: Solves the programmes; None takes DAQP with a workspace per shape.

    Raises:
        ConfigurationError: ``dt`` is not finite and positive, a rate exceeds 1 / dt, or a joint has
            no acceleration limit, without which no stopping distance is known.
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
        require_step("TorqueOSCBF", dt, self._rules)
        self._limits = arm.limits
        if not np.isfinite(self._limits.acceleration).all():
            raise ConfigurationError(
                "TorqueOSCBF: expected finite acceleration limits, got "
                f"{self._limits.acceleration}; state what the joints can do in JointLimits."
            )
        self._dt = dt
        self._cost = TaskCost(inverse="dynamic") if cost is None else cost
        self._rows = RowBuilder(arm, self._rules)
        self._programmes = ProgrammeSolver(DaqpSolver() if solver is None else solver)
        limited = np.flatnonzero(np.isfinite(self._limits.torque))
        self._limited = limited
        self._torque_names = (
            *(f"torque:{k}+" for k in limited),
            *(f"torque:{k}-" for k in limited),
        )
        self._torque_priorities = [Priority()] * (2 * len(limited))

    def rows(self, state: ArmState, obstacles: Sequence[Obstacle] = ()) -> BarrierRows:
        """Return the barriers at ``state``; `solve` builds them itself when not given them."""
        return self._rows.build(state, obstacles)

    def solve(
        self,
        state: ArmState,
        *,
        torque_nom: FloatArray | None = None,
        q_ddot_nom: FloatArray | None = None,
        a_nom: FloatArray | None = None,
        obstacles: Sequence[Obstacle] = (),
        rows: BarrierRows | None = None,
    ) -> OSCBFResult:
        """Return the torques to command.

        Args:
            state: The arm now.
            torque_nom: Nominal torques, gravity included, shape (n,); excludes the other two.
            q_ddot_nom: Nominal joint accelerations, shape (n,). Alone, the command to be filtered;
                beside ``a_nom``, the posture's, which gets what the task leaves.
            a_nom: Nominal acceleration of the end effector, shape (6,), linear part first.
            obstacles: Obstacles at this instant.
            rows: Barriers of this state that `rows` has built, obstacles included.

        Raises:
            InputError: No nominal, torques beside another one, a wrong shape, an entry that is not
                finite, or both rows and obstacles.
        """
        nominal, P = self._nominal(state, torque_nom, q_ddot_nom, a_nom)
        barriers = self._rows.given_or_built(state, obstacles, rows)
        dt, rules = self._dt, self._rules
        A, b = self._with_torque_rows(state, *barriers.acceleration_rows(state.q_dot))
        box = acceleration_box(
            self._limits,
            state.q,
            state.q_dot,
            dt=dt,
            gain=rules.joint_gain,
            braking_share=rules.braking_share,
        )
        cone = None
        if rules.speed is not None:
            linear = state.ee_jacobian[:3]
            drifted = linear @ state.q_dot + dt * state.ee_bias[:3]
            cone = Cone(dt * linear, drifted, rules.speed.limit, rules.speed.priority)
        answer = self._programmes.solve(
            Programme(
                P=P,
                nominal=nominal,
                brake=np.clip(-state.q_dot / dt, box.lower, box.upper),
                A=A,
                b=b,
                priorities=[*barriers.priorities, *self._torque_priorities],
                box=box,
                cone=cone,
            )
        )
        if answer.status == "inactive" and torque_nom is not None:
            torque = torque_nom
        else:
            torque = self._torque(state, answer.u)
        return make_result(
            answer,
            barriers,
            cone,
            box.conflicting,
            state.q_dot + dt * answer.u,
            q_ddot=answer.u,
            torque=torque,
            extra_names=self._torque_names,
        )

    def _nominal(
        self,
        state: ArmState,
        torque_nom: FloatArray | None,
        q_ddot_nom: FloatArray | None,
        a_nom: FloatArray | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the nominal joint accelerations, shape (n,), and the cost matrix, (n, n)."""
        n = self._limits.n_joints
        check_nominals(
            "TorqueOSCBF.solve", n, torque_nom=torque_nom, q_ddot_nom=q_ddot_nom, a_nom=a_nom
        )
        frame = task_frame(self._cost, state)
        if torque_nom is not None:
            if q_ddot_nom is not None or a_nom is not None:
                raise InputError(
                    "TorqueOSCBF.solve: expected torque_nom alone, got an acceleration beside it; "
                    "add the torques before filtering."
                )
            free = torque_nom - state.bias_forces
            return np.asarray(np.linalg.solve(state.mass_matrix, free), np.float64), frame.P
        if a_nom is not None:
            return frame.command(a_nom - state.ee_bias, q_ddot_nom), frame.P
        assert q_ddot_nom is not None  # noqa: S101 - check_nominals has seen to it
        return q_ddot_nom, frame.P

    def _with_torque_rows(
        self, state: ArmState, A: FloatArray, b: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Append M q'' <= limit - bias and -M q'' <= limit + bias for the limited joints."""
        if not len(self._limited):
            return A, b
        inertia = state.mass_matrix[self._limited]
        bias, most = state.bias_forces[self._limited], self._limits.torque[self._limited]
        return (
            np.concatenate([A, inertia, -inertia]),
            np.concatenate([b, most - bias, most + bias]),
        )

    def _torque(self, state: ArmState, q_ddot: FloatArray) -> FloatArray:
        """Return M q'' + bias, within the torque limits to the last bit."""
        torque = state.mass_matrix @ q_ddot + state.bias_forces
        return np.clip(torque, -self._limits.torque, self._limits.torque)

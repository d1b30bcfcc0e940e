"""Filters of one arm: limits and workspace are hard, the task outranks the posture.

Velocity:  the arm follows the commanded velocity within one step, q+ = q + q' dt. h' >= -gain h for
           every rule of `rules`.
Torque:    M(q) q'' + bias_forces = torque, held for one step. h'' + (g1 + g2) h' + g1 g2 h >= 0 for
           every rule; torque limits as rows |M q'' + bias_forces| <= limit. A barrier that has to
           brake harder than the joints can makes the step infeasible and flagged; choose gains with
           gain x speed within what the arm can decelerate (docs/oscbf.md, with proof and limits).
Both:      joint limits as one box, the end effector's next speed as a cone (`program`).
Units:     rad/s, rad/s^2, m/s, m/s^2, Nm, s.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, require_kinds
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.arms.state import ArmModel, ArmState
from cadenza.safety.oscbf.program import (
    Answer,
    Cone,
    OSCBFResult,
    Program,
    TaskCost,
    acceleration_box,
    slack_sizes,
    solve_program,
    task_frame,
    velocity_box,
)
from cadenza.safety.oscbf.rules import ArmConstraints, BarrierRows, Obstacle, Priority, RowBuilder
from cadenza.safety.solvers import QPSolver, as_solver


class ArmFilter:
    """What both levels share.

    Args:
        arm: The arm.
        dt: Control step, s, > 0.
        constraints: What must hold beside the joint limits.
        cost: Weights of task and posture.
        solver: Solves the programs; None takes DAQP with a workspace per shape.

    Raises:
        ConfigurationError: ``dt`` is not finite and positive, or a rate exceeds 1 / dt, with which
            a sampled barrier overshoots.
    """

    #: Weights where none are given.
    _DEFAULT_COST: TaskCost = TaskCost()

    def __init__(
        self,
        arm: ArmModel,
        *,
        dt: float,
        constraints: ArmConstraints | None = None,
        cost: TaskCost | None = None,
        solver: QPSolver | None = None,
    ) -> None:
        owner = type(self).__name__
        require_kinds(
            owner,
            arm=(arm, ArmModel),
            constraints=(constraints, ArmConstraints | None),
            cost=(cost, TaskCost | None),
        )
        self._rules = ArmConstraints() if constraints is None else constraints
        fastest = self._rules.largest_gain()
        if not (is_real(dt) and 0.0 < dt < math.inf):
            raise ConfigurationError(f"{owner}.dt: expected a finite step > 0 s, got {dt}.")
        if fastest * dt > 1.0:
            raise ConfigurationError(
                f"{owner}: expected every gain <= 1 / dt = {1.0 / dt:.6g} 1/s, got {fastest:.6g}; "
                "a barrier that is to shrink faster than once per step overshoots."
            )
        self._limits = arm.limits
        self._dt = dt
        self._cost = self._DEFAULT_COST if cost is None else cost
        self._rows = RowBuilder(arm, self._rules)
        self._solver = as_solver(solver)
        self._prepare()

    def _prepare(self) -> None:
        """Look at the limits that only one level needs."""

    def rows(self, state: ArmState, obstacles: Sequence[Obstacle] = ()) -> BarrierRows:
        """Return the barriers at ``state``; `solve` builds them itself when not given them."""
        return self._rows.build(state, obstacles)

    def _given_or_built(
        self, state: ArmState, obstacles: Sequence[Obstacle], rows: BarrierRows | None
    ) -> BarrierRows:
        if rows is None:
            return self._rows.build(state, obstacles)
        if len(obstacles):
            raise InputError(
                "solve: expected rows or obstacles, got both; pass the obstacles to rows() only."
            )
        return rows

    def _check_nominals(self, **nominals: FloatArray | None) -> None:
        """Raise unless at least one nominal is given and each has its shape and finite entries.

        Names that start with ``nu`` or ``a_`` are twists or their rates, shape (6,); the others
        belong to the joints, shape (n,).
        """
        owner = f"{type(self).__name__}.solve"
        if all(value is None for value in nominals.values()):
            raise InputError(f"{owner}: expected at least one of {', '.join(nominals)}, got none.")
        for name, value in nominals.items():
            if value is not None:
                size = 6 if name.startswith(("nu", "a_")) else self._limits.n_joints
                require_shape(f"{owner}: {name}", value, (size,))
                require_finite(f"{owner}: {name}", value)


class VelocityOSCBF(ArmFilter):
    """Operational-space filter that commands joint velocities; its arguments are `ArmFilter`'s."""

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
        self._check_nominals(q_dot_nom=q_dot_nom, nu_nom=nu_nom)
        barriers = self._given_or_built(state, obstacles, rows)
        frame = task_frame(self._cost, state)
        if nu_nom is not None:
            nominal = frame.command(nu_nom, q_dot_nom)
        else:
            assert q_dot_nom is not None  # noqa: S101 - _check_nominals has seen to it
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
        problem = Program(
            P=frame.P,
            nominal=nominal,
            brake=np.zeros(self._limits.n_joints),
            A=A,
            b=b,
            priorities=barriers.priorities,
            box=box,
            cone=cone,
        )
        answer = solve_program(problem, self._solver)
        return _record(problem, answer, barriers, q_dot=answer.u)


class TorqueOSCBF(ArmFilter):
    """Operational-space filter that commands torques; its arguments are `ArmFilter`'s.

    The dynamic inverse is the default of the cost here.

    Raises:
        ConfigurationError: See `ArmFilter`; or a joint has no acceleration limit, without which no
            stopping distance is known.
    """

    _DEFAULT_COST = TaskCost(inverse="dynamic")

    def _prepare(self) -> None:
        if not np.isfinite(self._limits.acceleration).all():
            raise ConfigurationError(
                "TorqueOSCBF: expected finite acceleration limits, got "
                f"{self._limits.acceleration}; state what the joints can do in JointLimits."
            )
        limited = np.flatnonzero(np.isfinite(self._limits.torque))
        self._limited = limited
        self._torque_names = (
            *(f"torque:{k}+" for k in limited),
            *(f"torque:{k}-" for k in limited),
        )
        self._torque_priorities = [Priority()] * (2 * len(limited))

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
        barriers = self._given_or_built(state, obstacles, rows)
        dt, rules = self._dt, self._rules
        normals, levels = barriers.acceleration_rows(state.q_dot)
        if len(self._limited):  # M q'' <= limit - bias and -M q'' <= limit + bias
            inertia = state.mass_matrix[self._limited]
            bias, most = state.bias_forces[self._limited], self._limits.torque[self._limited]
            normals = np.concatenate([normals, inertia, -inertia])
            levels = np.concatenate([levels, most - bias, most + bias])
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
        problem = Program(
            P=P,
            nominal=nominal,
            brake=np.clip(-state.q_dot / dt, box.lower, box.upper),
            A=normals,
            b=levels,
            priorities=[*barriers.priorities, *self._torque_priorities],
            box=box,
            cone=cone,
        )
        answer = solve_program(problem, self._solver)
        torque = torque_nom
        if answer.status != "inactive" or torque is None:
            torque = state.mass_matrix @ answer.u + state.bias_forces
            torque = np.clip(torque, -self._limits.torque, self._limits.torque)
        return _record(
            problem,
            answer,
            barriers,
            self._torque_names,
            q_dot=state.q_dot + dt * answer.u,
            q_ddot=answer.u,
            torque=torque,
        )

    def _nominal(
        self,
        state: ArmState,
        torque_nom: FloatArray | None,
        q_ddot_nom: FloatArray | None,
        a_nom: FloatArray | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the nominal joint accelerations, shape (n,), and the cost matrix, (n, n)."""
        self._check_nominals(torque_nom=torque_nom, q_ddot_nom=q_ddot_nom, a_nom=a_nom)
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
        assert q_ddot_nom is not None  # noqa: S101 - _check_nominals has seen to it
        return q_ddot_nom, frame.P


def _record(
    problem: Program,
    answer: Answer,
    barriers: BarrierRows,
    names: tuple[str, ...] = (),
    *,
    q_dot: FloatArray,
    q_ddot: FloatArray | None = None,
    torque: FloatArray | None = None,
) -> OSCBFResult:
    """Return the record of one solve; ``names`` are those of the rows after the barriers."""
    slack, cone = answer.slack, problem.cone

    def sizes() -> dict[str, Any]:
        return slack_sizes(slack)

    def rows() -> dict[str, Any]:
        last = () if cone is None else (cone.priority,)
        every = (*problem.priorities, *last)
        return {
            "row_names": (*barriers.names, *names, *(("ee_speed",) if last else ())),
            "hard_rows": tuple(priority.hard for priority in every),
        }

    return OSCBFResult.deferred(
        {
            **dict.fromkeys(("active_rows", "max_slack", "slack_l2"), sizes),
            **dict.fromkeys(("row_names", "hard_rows"), rows),
        },
        q_dot=q_dot,
        slack=slack,
        solve_ms=answer.solve_ms,
        solver_status=answer.status,
        binding_rows=answer.binding,
        conflicting_joints=problem.box.conflicting,
        q_ddot=q_ddot,
        torque=torque,
    )

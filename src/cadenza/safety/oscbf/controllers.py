"""Filters of one arm: limits and workspace are hard, the task outranks the posture.

Velocity:  the arm follows the commanded velocity within one step, q+ = q + q' dt. h' >= -gain h for
           every rule of `rules`.
Torque:    M(q) q'' + bias_forces = torque, held for one step. h'' + (g1 + g2) h' + g1 g2 h >= 0 for
           every rule; torque limits as rows |M q'' + bias_forces| <= limit. A barrier that has to
           brake harder than the joints can makes the step infeasible and flagged; choose gains with
           gain x speed within what the arm can decelerate (docs/oscbf.md, with proof and limits).
Ready rows: `OSCBF` takes rows A q' <= b that the caller builds, every one of them soft:
           min W_j^2 |q' - q'_nom|^2 + W_o^2 |J q' - nu_nom|^2 + rho |s|^2   s.t.  A q' - s <= b
           s = max(0, A q' - b) without any row s >= 0: a negative s costs and helps nothing.
           Weights enter squared; the slack penalty does not. Its objectives are those of Morton and
           Pavone, arXiv:2503.06736. Departure: this cost couples task and posture; the two levels
           separate them and have hard rows.
Collision: h = |c_a - c_b| - (r_a + r_b);  h' >= -alpha h  becomes
           -n^T (J_a - J_b) q' <= alpha h + lambda - n^T v_b,  n from b to a.
Levels:    joint limits as one box, the end effector's next speed as a cone (`program`).
Axes:      n joints, k task rows, m rows.
Units:     rad/s, rad/s^2, m/s, m/s^2, Nm, s.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, is_whole, require_kinds
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.arms.arm import ArmModel, ArmState
from cadenza.safety.cbf import COINCIDENT_DISTANCE
from cadenza.safety.oscbf.program import (
    Answer,
    Cone,
    JointBox,
    OSCBFResult,
    Program,
    SlackSolver,
    TaskCost,
    acceleration_box,
    slack_sizes,
    solve_program,
    task_frame,
    velocity_box,
)
from cadenza.safety.oscbf.rules import ArmConstraints, BarrierRows, Obstacle, RowBuilder
from cadenza.safety.solvers import UNBOUNDED, QPSolver, SolveStatus, as_solver

#: Most joints a program takes; a larger count is a mistake, not a robot.
MAX_JOINTS: Final = 1000

#: Rate at which a gap may be closed, 1/s: a tenth of the gap in 20 ms.
DEFAULT_CBF_ALPHA: Final = 5.0
DEFAULT_SLACK_PENALTY: Final = 100.0
DEFAULT_W_JOINT: Final = 1.0
DEFAULT_W_OPERATIONAL: Final = 1.0
#: Slack below this is more than solver tolerance, and worth a warning.
_NEGATIVE_SLACK_WARN_FLOOR: Final = -1e-6


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
        #: How the joints may approach their limits.
        self._approach = {
            "dt": dt,
            "gain": self._rules.joint_gain,
            "braking_share": self._rules.braking_share,
        }
        self._cost = self._DEFAULT_COST if cost is None else cost
        self._rows = RowBuilder(arm, self._rules)
        self._solver = SlackSolver(as_solver(solver))
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
        A, b = barriers.velocity_rows()
        speed, cone = self._rules.speed, None
        if speed is not None:
            cone = Cone(state.ee_jacobian[:3], np.zeros(3), speed.limit, speed.priority)
        box = velocity_box(self._limits, state.q, state.q_dot, **self._approach)
        nominal, brake = frame.command(nu_nom, q_dot_nom), np.zeros(self._limits.n_joints)
        problem = Program(frame.P, nominal, brake, A, b, barriers.costs, box, cone)
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
        self._torque_costs = np.full(2 * len(limited), np.inf)

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
        box = acceleration_box(self._limits, state.q, state.q_dot, **self._approach)
        cone = None
        if rules.speed is not None:
            linear = state.ee_jacobian[:3]
            drifted = linear @ state.q_dot + dt * state.ee_bias[:3]
            cone = Cone(dt * linear, drifted, rules.speed.limit, rules.speed.priority)
        brake = np.clip(-state.q_dot / dt, box.lower, box.upper)
        costs = np.append(barriers.costs, self._torque_costs)
        problem = Program(P, nominal, brake, normals, levels, costs, box, cone)
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
        task = None if a_nom is None else a_nom - state.ee_bias
        return frame.command(task, q_ddot_nom), frame.P


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
        hard, every = np.isinf(problem.costs).tolist(), (*barriers.names, *names)
        if cone is not None:
            hard, every = [*hard, cone.priority.hard], (*every, "ee_speed")
        return {"row_names": every, "hard_rows": tuple(hard)}

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


@dataclass(frozen=True, slots=True, eq=False)
class OSCBFConstraints:
    """Rows A q' <= b; InputError for other shapes, or an entry that is not finite."""

    a: FloatArray  # Row vectors, shape (m, n)
    b: FloatArray  # Right-hand sides, shape (m,)

    def __post_init__(self) -> None:
        for name, axes in (("a", 2), ("b", 1)):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.ndim != axes:
                raise InputError(
                    f"OSCBFConstraints.{name}: expected {axes}-D, got shape {array.shape}."
                )
            require_finite(f"OSCBFConstraints.{name}", array)
            object.__setattr__(self, name, array)
        if self.a.shape[0] != self.b.shape[0]:
            raise InputError(
                f"OSCBFConstraints: expected as many rows in a as entries in b, got "
                f"{self.a.shape[0]} and {self.b.shape[0]}."
            )


def joint_limit_constraint_row(
    *, n_joints: int, joint_index: int, upper: float | None = None, lower: float | None = None
) -> tuple[FloatArray, float]:
    """Return row and right-hand side of one velocity limit of one joint.

    Args:
        n_joints: n.
        joint_index: Which joint, in [0, n).
        upper: Largest velocity, rad/s; exactly one of ``upper`` and ``lower``.
        lower: Smallest velocity, rad/s.

    Returns:
        (e_k, upper) or (-e_k, -lower).

    Raises:
        InputError: An index out of range, both limits or none, or a limit that is not finite.
    """
    if not (is_whole(joint_index) and is_whole(n_joints) and 0 <= joint_index < n_joints):
        raise InputError(
            f"joint_limit_constraint_row: expected a whole joint_index in [0, {n_joints}), "
            f"got {joint_index!r}."
        )
    if (upper is None) == (lower is None):
        raise InputError(
            "joint_limit_constraint_row: expected exactly one of upper and lower, got "
            f"upper={upper}, lower={lower}; call it once per side."
        )
    row = np.zeros(n_joints)
    if upper is not None:
        row[joint_index], level = 1.0, float(upper)
    else:
        row[joint_index], level = -1.0, -float(lower or 0.0)
    if not np.isfinite(level):
        raise InputError(f"joint_limit_constraint_row: expected a finite limit, got {level}.")
    return row, level


def collision_constraint_row(
    *,
    n_joints: int,
    sphere_a_center: FloatArray,
    sphere_b_center: FloatArray,
    sphere_a_radius: float,
    sphere_b_radius: float,
    sphere_a_jacobian: FloatArray,
    sphere_b_jacobian: FloatArray | None = None,
    cbf_alpha: float = DEFAULT_CBF_ALPHA,
    lambda_ij: float = 0.0,
    sphere_b_velocity: FloatArray | None = None,
) -> tuple[FloatArray, float]:
    """Return row and right-hand side that keep two spheres apart.

    Coincident centres give a zero row with the level lambda - 1, which asks for a slack of
    1 - lambda: no direction would be better than another.

    Args:
        n_joints: n.
        sphere_a_center: Centre of a sphere of the arm, shape (3,), m.
        sphere_b_center: Centre of the other sphere, shape (3,), m.
        sphere_a_radius: Radius, m, > 0.
        sphere_b_radius: Radius, m, > 0.
        sphere_a_jacobian: Jacobian of the first centre, shape (3, n).
        sphere_b_jacobian: Jacobian of the second centre; None when the joints do not move it.
        cbf_alpha: Rate at which the gap may close, 1/s, >= 0.
        lambda_ij: Relaxation, m/s; positive relaxes.
        sphere_b_velocity: Velocity of the second centre that the joints do not cause, shape (3,),
            m/s; None for a sphere at rest.

    Raises:
        InputError: Wrong shapes, entries that are not finite, radii <= 0, or a negative rate.
    """
    name = "collision_constraint_row: "
    offset = _vector(name + "sphere_a_center", sphere_a_center, (3,)) - _vector(
        name + "sphere_b_center", sphere_b_center, (3,)
    )
    jacobian = _vector(name + "sphere_a_jacobian", sphere_a_jacobian, (3, n_joints))
    if sphere_b_jacobian is not None:
        jacobian = jacobian - _vector(name + "sphere_b_jacobian", sphere_b_jacobian, (3, n_joints))
    if not (0.0 < sphere_a_radius < np.inf and 0.0 < sphere_b_radius < np.inf):
        raise InputError(
            f"{name}expected finite radii > 0 m, got {sphere_a_radius} and {sphere_b_radius}."
        )
    if not 0.0 <= cbf_alpha < np.inf or not np.isfinite(lambda_ij):
        raise InputError(
            f"{name}expected a finite cbf_alpha >= 0 1/s and a finite lambda_ij, got "
            f"{cbf_alpha} and {lambda_ij}."
        )
    distance = float(np.linalg.norm(offset))
    if distance < COINCIDENT_DISTANCE:
        return np.zeros(n_joints), lambda_ij - 1.0
    normal = offset / distance
    level = cbf_alpha * (distance - sphere_a_radius - sphere_b_radius) + lambda_ij
    if sphere_b_velocity is not None:
        velocity = _vector(name + "sphere_b_velocity", sphere_b_velocity, (3,))
        level -= float(normal @ velocity)
    return -(normal @ jacobian), level


def _vector(name: str, value: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    require_shape(name, array, shape)
    require_finite(name, array)
    return array


class OSCBF:
    """Filter of joint velocities against rows that may all be relaxed, at a price.

    Args:
        n_joints: n, >= 1.
        weight_joint: W_j, > 0.
        weight_operational: W_o, >= 0.
        slack_penalty: rho, > 0.
        solver: Solves the program; None takes DAQP with a workspace per shape.

    Raises:
        InputError: A number out of range.
    """

    def __init__(
        self,
        *,
        n_joints: int,
        weight_joint: float = DEFAULT_W_JOINT,
        weight_operational: float = DEFAULT_W_OPERATIONAL,
        slack_penalty: float = DEFAULT_SLACK_PENALTY,
        solver: QPSolver | None = None,
    ) -> None:
        if not (is_whole(n_joints) and 1 <= n_joints <= MAX_JOINTS):
            raise InputError(
                f"OSCBF.n_joints: expected a whole number in [1, {MAX_JOINTS}], got {n_joints!r}."
            )
        for name, value, least in (
            ("weight_joint", weight_joint, "> 0"),
            ("weight_operational", weight_operational, ">= 0"),
            ("slack_penalty", slack_penalty, "> 0"),
        ):
            fine = is_real(value) and 0.0 <= value < math.inf and (value or least == ">= 0")
            if not fine:
                raise InputError(f"OSCBF.{name}: expected a finite number {least}, got {value}.")
        self._n = n_joints
        self._joint = weight_joint * weight_joint
        self._operational = weight_operational * weight_operational
        self._penalty = slack_penalty
        self._solver = SlackSolver(as_solver(solver))
        everywhere = np.full(n_joints, UNBOUNDED)
        self._box = JointBox(-everywhere, everywhere, ())

    @property
    def n_joints(self) -> int:
        """Number of joints."""
        return self._n

    def solve(
        self,
        *,
        q_dot_nom: FloatArray,
        nu_nom: FloatArray,
        jacobian: FloatArray,
        constraints: OSCBFConstraints,
    ) -> OSCBFResult:
        """Return the filtered joint velocities.

        Args:
            q_dot_nom: Nominal joint velocities, shape (n,).
            nu_nom: Nominal task velocity, shape (k,).
            jacobian: Task Jacobian, shape (k, n).
            constraints: Rows, shape (m, n); m may be 0.

        Returns:
            The command. When the solver fails, which a program that is always feasible gives no
            reason for, the joints are told to stop and ``solver_status`` says why.

        Raises:
            InputError: Shapes that do not fit each other, or entries that are not finite.
        """
        n, m = self._n, constraints.b.shape[0]
        for name, array, shape in (
            ("jacobian", jacobian, ("k", n)),
            ("q_dot_nom", q_dot_nom, (n,)),
            ("nu_nom", nu_nom, jacobian.shape[:1]),
        ):
            require_shape(f"OSCBF: {name}", array, shape)
            require_finite(f"OSCBF: {name}", array)
        require_shape("OSCBF: constraints.a", constraints.a, (m, n))
        P = self._operational * (jacobian.T @ jacobian)
        P.flat[:: n + 1] += self._joint
        q = -self._joint * q_dot_nom - self._operational * (jacobian.T @ nu_nom)
        costs, A, b = np.full(m, self._penalty), constraints.a, constraints.b
        started = time.perf_counter()
        answer = self._solver.run(P, q, A, b, costs, self._box)
        solve_ms = (time.perf_counter() - started) * 1e3
        if answer.status is SolveStatus.OPTIMAL:
            q_dot, raw, status = answer.x[:n], answer.x[n:] / math.sqrt(self._penalty), "optimal"
        else:
            q_dot, raw, status = np.zeros(n), -b, answer.status.value
        if status == "optimal" and m and float(raw.min()) < _NEGATIVE_SLACK_WARN_FLOOR:
            warnings.warn(
                f"OSCBF: raw slack went below {_NEGATIVE_SLACK_WARN_FLOOR:.0e} "
                f"(smallest {float(raw.min()):.3g}); it is read as 0, check the solver.",
                UserWarning,
                stacklevel=2,
            )
        slack = np.maximum(raw, 0.0)
        return OSCBFResult(
            q_dot=q_dot.copy(),
            slack=slack,
            solve_ms=solve_ms,
            solver_status=status,
            **slack_sizes(slack),
        )

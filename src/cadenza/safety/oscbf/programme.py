"""The optimisation behind one command, its cost and its record.

Cost:      1/2 (u - u_des)^T P (u - u_des),   P = N^T W_j^2 N + J^T W_o^2 J,   N = I - Jbar J
           A change of u inside the null space of J costs W_j only; one that disturbs the task
           costs W_o, and no posture error is weighed against it.
Inverse:   Jbar = J^T (J J^T + d^2 I)^-1                 ("damped"), or
           Jbar = M^-1 J^T (J M^-1 J^T + d^2 I)^-1       ("dynamic": a torque of the null space
           causes no task acceleration), Khatib, doi:10.1109/JRA.1987.1087068.
           With u = q'' and torque = M q'' + bias this is the cost over torques of Morton and
           Pavone, arXiv:2503.06736, with the entries of the velocity level.
Stages:    1. u_des itself, bit for bit, when it is in the box and meets every row and cone.
           2. the cost + 1/2 sum_soft weight_j s_j^2
              subject to  a_j u <= b_j (hard),  a_j u - s_j <= b_j (soft),  lower <= u <= upper.
           3. no solution: the box stays, every row gets slack, hard rows at `HARD_WEIGHT` each, and
              u_des is replaced by the command that brakes: the least violation, and of those the
              slowest. Should even this fail, the braking command, clipped to the box.
Slack:     one variable per soft row, scaled by sqrt(weight); s >= 0 needs no row of its own.
Cone:      |B u + c| <= limit, the speed of the end effector, by cutting planes: solve, cut along
           the direction in which the speed is too high, solve again.
Axes:      n variables, m rows, k task rows.
"""

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, get_args

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import require_positive
from cadenza.core.errors import ConfigurationError
from cadenza.core.lazy_names import Deferred
from cadenza.safety.arms.kinematics import dposv
from cadenza.safety.arms.state import ArmState
from cadenza.safety.oscbf.box import JointBox
from cadenza.safety.oscbf.rules import Priorities, Priority
from cadenza.safety.solvers import QPSolution, QPSolver, SolveStatus

#: Slack above which a row counts as relaxed; a tenth of a millimetre per second.
SLACK_ACTIVE_FLOOR: Final = 1e-4
#: Cost of a squared violation of a hard row in stage 3, against 1 for a squared change of the
#: command: a millionth of the command's error is what a violation is worth at most.
HARD_WEIGHT: Final = 1e6
#: Cuts stop this far inside the cone, relative to its limit, so that few are enough: neighbouring
#: cuts may be 0.06 rad apart.
_CONE_ROOM: Final = 1e-3
_MAX_CUTS: Final = 12
#: Bound of a variable that has none.
FREE: Final = 1e30
#: A row is met if its residual is below this times 1 + |b|; solvers are held to 1e-9.
_MET: Final = 2e-9
#: A row is active when it is this close to equality, relative to 1 + |b|.
_BINDING: Final = 1e-7

#: How the Jacobian is inverted.
Inverse = Literal["damped", "dynamic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """Weights of task and posture.

    Attributes:
        weight_joint: W_j, > 0; enters squared.
        weight_operational: W_o, > 0; enters squared.
        inverse: Pseudo-inverse behind the null-space projector.
        damping: d, > 0: the inverse stays finite in singular configurations.

    Raises:
        ConfigurationError: A number that is not finite and positive, or an unknown inverse.
    """

    weight_joint: float = 1.0
    weight_operational: float = 10.0
    inverse: Inverse = "damped"
    damping: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("weight_joint", "weight_operational", "damping"):
            require_positive(f"TaskCost.{name}", getattr(self, name))
        if self.inverse not in get_args(Inverse):
            raise ConfigurationError(
                f"TaskCost.inverse: expected one of {get_args(Inverse)}, got {self.inverse!r}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class TaskFrame:
    """The cost at one configuration."""

    P: FloatArray  # Cost matrix, shape (n, n), positive definite
    inverse: FloatArray  # Jbar, shape (n, k)
    projector: FloatArray  # N, shape (n, n)

    def command(self, task: FloatArray, posture: FloatArray | None) -> FloatArray:
        """Return Jbar task + N posture, shape (n,): the task first, the posture in what is left."""
        command = self.inverse @ task
        return command if posture is None else command + self.projector @ posture


def task_frame(cost: TaskCost, state: ArmState) -> TaskFrame:
    """Return the cost at one configuration; only the dynamic inverse reads the mass matrix."""
    jacobian = weighted = state.ee_jacobian
    if cost.inverse == "dynamic":
        weighted = np.asarray(np.linalg.solve(state.mass_matrix, jacobian.T).T, dtype=np.float64)
    k, n = jacobian.shape
    gram = jacobian @ weighted.T + cost.damping * cost.damping * _identity(k)
    inverse = dposv(gram, weighted)[1].T
    projector = _identity(n) - inverse @ jacobian
    joint, operational = cost.weight_joint**2, cost.weight_operational**2
    P = joint * (projector.T @ projector) + operational * (jacobian.T @ jacobian)
    return TaskFrame(P, inverse, projector)


@cache
def _identity(n: int) -> FloatArray:
    return np.eye(n)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OSCBFResult(Deferred):
    """Command of one step and how it came about; what follows from it is made when it is read.

    Attributes:
        q_dot: Joint velocities to command, or at torque level those after the step, shape (n,).
        slack: By how much each row is missed, shape (m,), >= 0.
        solve_ms: Time in the solver, ms.
        active_rows: Rows whose slack exceeds `SLACK_ACTIVE_FLOOR`.
        max_slack: Largest slack; 0 without rows.
        slack_l2: Euclidean norm of ``slack``.
        solver_status: ``inactive`` (nothing changed), ``optimal``, or why no admissible command was
            found: ``infeasible``, ``max_iter``, ``numerical``, ``bad_input``.
        row_names: Name of each row, m names; empty for rows the caller built.
        hard_rows: Whether each row is hard, m flags; empty when all are soft.
        binding_rows: Rows met with equality, or missed.
        conflicting_joints: Joints whose limits contradict each other in this state, so that the
            command keeps to the acceleration limit and misses another one.
        q_ddot: Joint accelerations, shape (n,); torque level only.
        torque: Actuator torques to command, shape (n,); torque level only.
    """

    q_dot: FloatArray
    slack: FloatArray
    solve_ms: float
    active_rows: tuple[int, ...]
    max_slack: float
    slack_l2: float
    solver_status: str
    row_names: tuple[str, ...] = ()
    hard_rows: tuple[bool, ...] = ()
    binding_rows: tuple[int, ...] = ()
    conflicting_joints: tuple[int, ...] = ()
    q_ddot: FloatArray | None = None
    torque: FloatArray | None = None

    @property
    def certified(self) -> bool:
        """Whether every hard row and every joint limit holds."""
        return self.solver_status in ("inactive", "optimal") and not self.conflicting_joints

    @property
    def braking(self) -> bool:
        """Whether the command is the least violation at the lowest speed."""
        return self.solver_status not in ("inactive", "optimal")


@dataclass(frozen=True, slots=True, eq=False)
class Cone:
    """|B u + c| <= limit."""

    B: FloatArray  # Shape (3, n)
    c: FloatArray  # Shape (3,), m/s
    limit: float  # m/s
    priority: Priority  # Hard or soft

    def excess(self, u: FloatArray) -> float:
        """Return |B u + c| - limit."""
        return math.hypot(*(self.B @ u + self.c).tolist()) - self.limit

    def cut(self, u: FloatArray) -> tuple[FloatArray, float]:
        """Return the row that bounds the speed along its direction at ``u``."""
        speed = self.B @ u + self.c
        direction = speed / math.hypot(*speed.tolist())
        level = self.limit * (1.0 - _CONE_ROOM) - float(direction @ self.c)
        return direction @ self.B, level


@dataclass(slots=True, eq=False)
class Programme:
    """One problem; see the module's text."""

    P: FloatArray  # Cost, shape (n, n), positive definite
    nominal: FloatArray  # u_des, shape (n,)
    brake: FloatArray  # Command that slows the arm down, shape (n,)
    A: FloatArray  # Rows, shape (m, n)
    b: FloatArray  # Right-hand sides, shape (m,)
    priorities: list[Priority]  # How each row enters, m of them
    box: JointBox  # Bounds of u
    cone: Cone | None  # Limit of the end effector's speed; None for none


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came out."""

    u: FloatArray  # Command, shape (n,)
    status: str  # ``inactive``, ``optimal``, or the solver's reason for stage 3
    #: By how much each row, then the cone if there is one, is missed, shape (m,) or (m+1,)
    slack: FloatArray
    binding: tuple[int, ...]  # Rows met with equality or missed
    solve_ms: float  # Time in the solver, ms


class ProgrammeSolver:
    """Solves programmes with one solver and keeps the arrays of each shape."""

    def __init__(self, solver: QPSolver) -> None:
        self._solver = solver
        self._workspaces: dict[tuple[int, int, int], _Workspace] = {}

    def solve(self, problem: Programme) -> Answer:
        """Return the command; always one in the box, and always finite."""
        if _is_admissible(problem):
            return _answer(problem, problem.nominal, "inactive", 0.0)
        started = time.perf_counter()
        u, status = self._with_cuts(problem)
        if u is None:
            u = self._least_violation(problem)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        return _answer(problem, u, status, elapsed_ms)

    def _with_cuts(self, problem: Programme) -> tuple[FloatArray | None, str]:
        """Return the optimum and ``optimal``, or None and why there is none."""
        priorities = Priorities.of(problem.priorities)
        hard, weights = priorities.hard, priorities.numbers[3]
        linear = -(problem.P @ problem.nominal)
        normals, levels, cone = problem.A, problem.b, problem.cone
        probe = problem.nominal
        for _ in range(_MAX_CUTS):
            if cone is not None and cone.excess(probe) > 0.0:
                normal, level = cone.cut(probe)
                normals, levels = np.vstack([normals, normal]), np.append(levels, level)
                hard = np.append(hard, cone.priority.hard)
                weights = np.append(weights, cone.priority.weight)
            solution = self._run(problem.P, linear, normals, levels, hard, weights, problem.box)
            if solution.status is not SolveStatus.OPTIMAL:
                return None, solution.status.value
            probe = solution.x[: linear.shape[0]]
            if cone is None or not cone.priority.hard or cone.excess(probe) <= 0.0:
                return probe, "optimal"
        return None, SolveStatus.MAX_ITER.value

    def _least_violation(self, problem: Programme) -> FloatArray:
        """Return the command that misses the hard rows least and, of those, is the slowest."""
        normals, levels, cone = problem.A, problem.b, problem.cone
        weights = [HARD_WEIGHT if row.hard else row.weight for row in problem.priorities]
        if cone is not None and cone.excess(problem.brake) > 0.0:
            normal, level = cone.cut(problem.brake)
            normals, levels = np.vstack([normals, normal]), np.append(levels, level)
            weights.append(HARD_WEIGHT if cone.priority.hard else cone.priority.weight)
        n = problem.brake.shape[0]
        hard, costs = np.zeros(len(weights), dtype=bool), np.array(weights)
        solution = self._run(np.eye(n), -problem.brake, normals, levels, hard, costs, problem.box)
        if solution.status is SolveStatus.OPTIMAL:
            return solution.x[:n]
        return np.clip(problem.brake, problem.box.lower, problem.box.upper)

    def _run(
        self,
        P: FloatArray,
        linear: FloatArray,
        A: FloatArray,
        b: FloatArray,
        hard: np.ndarray[tuple[int], np.dtype[np.bool_]],
        weights: FloatArray,
        box: JointBox,
    ) -> QPSolution:
        """Solve with slack on the rows that are not hard; x holds u first, then scaled slack."""
        n, m = linear.shape[0], b.shape[0]
        slots = m - int(np.count_nonzero(hard))
        lower, upper = np.maximum(box.lower, -FREE), np.minimum(box.upper, FREE)
        if not slots:
            return self._solver.run(P, linear, A, b, lower, upper)
        work = self._workspaces.get((n, m, slots))
        if work is None:
            work = self._workspaces[n, m, slots] = _Workspace(n, m, slots)
        work.P[:n, :n] = P
        work.q[:n] = linear
        work.A[:, :n] = A
        work.A[:, n:] = 0.0
        soft = np.flatnonzero(~hard)
        work.A[soft, n + np.arange(slots)] = -1.0 / np.sqrt(weights[soft])
        work.lower[:n], work.upper[:n] = lower, upper
        return self._solver.run(work.P, work.q, work.A, b, work.lower, work.upper)


class _Workspace:
    """Arrays of one shape: n variables, m rows, some of them with a slack variable."""

    def __init__(self, n: int, m: int, slots: int) -> None:
        self.P = np.eye(n + slots)
        self.q = np.zeros(n + slots)
        self.A = np.zeros((m, n + slots))
        self.upper = np.full(n + slots, FREE)
        self.lower = -self.upper


def _is_admissible(problem: Programme) -> bool:
    """Say whether the nominal command needs no change; NaN anywhere says no."""
    u, box = problem.nominal, problem.box
    if not np.minimum.reduce(np.minimum(u - box.lower, box.upper - u)) >= 0.0:
        return False
    if np.count_nonzero(problem.A @ u <= problem.b) < len(problem.b):
        return False
    return problem.cone is None or problem.cone.excess(u) <= 0.0


def _answer(problem: Programme, u: FloatArray, status: str, solve_ms: float) -> Answer:
    """Return the record of a command: what it misses and what it touches."""
    residual = problem.A @ u - problem.b
    scale = 1.0 + np.abs(problem.b)
    if problem.cone is not None:
        residual = np.append(residual, problem.cone.excess(u))
        scale = np.append(scale, 1.0 + problem.cone.limit)
    # Rows that are no numbers compare false both times: they count as missed without measure.
    met = residual <= _MET * scale
    if np.count_nonzero(met) == len(met):
        slack = np.zeros(len(met))
    else:
        slack = np.where(met, 0.0, residual)
        slack[np.isnan(residual)] = np.inf
    binding = np.flatnonzero(~(residual < -_BINDING * scale))
    return Answer(u, status, slack, tuple(binding.tolist()), solve_ms)

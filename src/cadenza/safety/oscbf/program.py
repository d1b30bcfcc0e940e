"""The optimization behind one command of an arm: joint limits as a box, cost, stages and record.

Box:       position, speed and acceleration of a joint at once. With e the distance to a position
           limit, w the speed towards it and a the share of the acceleration limit that braking
           counts on (the rest is left for model errors), the next speed c towards the limit may be
           at most c_max, the largest from which braking with a still stops in time
           (`cadenza.safety.cbf`, one dimension):
           velocity level, q+ = q + c dt:   c^2 / (2 a) + c dt / 2 + c dt <= e
           torque level, zero-order hold:   c^2 / (2 a) + c dt / 2 + max(c, (w + c) / 2) dt <= e
           and at most gain e, unless that asks for more than a.
Invariance: from w^2 / (2 a) + w dt / 2 <= e braking with a is always inside the interval, and any
           choice inside it leads to such a state again; see docs/safety.md, steps 1 to 5.
Empty:     a state outside that set. The acceleration limit then stands, since it is physical; the
           interval is the point of it nearest to what is asked, and the joint is reported.
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
Axes:      n variables, one per joint; m rows; k task rows.
"""

import math
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import require_positive
from cadenza.core.errors import ConfigurationError
from cadenza.core.lazy_names import Deferred
from cadenza.safety.arms.arm import ArmState, JointLimits, dposv
from cadenza.safety.oscbf.rules import Priority
from cadenza.safety.solvers import UNBOUNDED, QPSolution, QPSolver, SolveStatus

#: Slack above which a row counts as relaxed; a tenth of a millimetre per second.
SLACK_ACTIVE_FLOOR: Final = 1e-4
#: Cost of a squared violation of a hard row in stage 3, against 1 for a squared change of the
#: command: a millionth of the command's error is what a violation is worth at most.
HARD_WEIGHT: Final = 1e6
#: Cuts stop this far inside the cone, relative to its limit, so that few are enough: neighbouring
#: cuts may be 0.06 rad apart.
_CONE_ROOM: Final = 1e-3
_MAX_CUTS: Final = 12
#: A row is met if its residual is below this times 1 + |b|; solvers are held to 1e-9.
_MET: Final = 2e-9
#: A row is active when it is this close to equality, relative to 1 + |b|.
_BINDING: Final = 1e-7
#: Room for rounding when a bound is compared with what the acceleration limit reaches, rad/s.
_ROUNDING: Final = 1e-9
#: Turns a motion of a joint into one towards its upper and towards its lower limit.
_SIDES: Final = np.array([[1.0], [-1.0]])
#: Distance to a limit that does not exist, rad: larger than any, and its products stay finite.
_FAR: Final = 1e12

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


class TaskFrame(NamedTuple):
    """The cost at one configuration."""

    P: FloatArray  # Cost matrix, shape (n, n), positive definite
    inverse: FloatArray  # Jbar, shape (n, k)
    projector: FloatArray  # N, shape (n, n)

    def command(self, task: FloatArray | None, posture: FloatArray | None) -> FloatArray:
        """Return Jbar task + N posture, shape (n,): the task first, the posture in what is left.

        One of them may be None; a posture without a task is the command itself.
        """
        if task is None:
            return cast("FloatArray", posture)
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


def slack_sizes(slack: FloatArray) -> dict[str, Any]:
    """Return the fields of `OSCBFResult` that follow from the slack."""
    return {
        "active_rows": tuple(np.flatnonzero(slack > SLACK_ACTIVE_FLOOR).tolist()),
        "max_slack": float(slack.max(initial=0.0)),
        "slack_l2": float(np.linalg.norm(slack)),
    }


class Cone(NamedTuple):
    """|B u + c| <= limit."""

    B: FloatArray  # Shape (3, n)
    c: FloatArray  # Shape (3,), m/s
    limit: float  # m/s
    priority: Priority  # Hard or soft

    def excess(self, u: FloatArray) -> float:
        """Return |B u + c| - limit."""
        return math.hypot(*(self.B @ u + self.c).tolist()) - self.limit

    def cut(
        self, u: FloatArray, A: FloatArray, b: FloatArray, costs: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return rows with one more, which bounds the speed along its direction at ``u``."""
        speed = self.B @ u + self.c
        direction = speed / math.hypot(*speed.tolist())
        level = self.limit * (1.0 - _CONE_ROOM) - float(direction @ self.c)
        rows = np.vstack([A, direction @ self.B])
        return rows, np.append(b, level), np.append(costs, self.priority.cost)


class JointBox(NamedTuple):
    """Admissible interval of each joint."""

    lower: FloatArray  # Lower bounds, shape (n,)
    upper: FloatArray  # Upper bounds, shape (n,), >= ``lower``
    conflicting: tuple[int, ...]  # Joints whose limits contradict each other in this state


class Program(NamedTuple):
    """One problem; see the module's text."""

    P: FloatArray  # Cost, shape (n, n), positive definite
    nominal: FloatArray  # u_des, shape (n,)
    brake: FloatArray  # Command that slows the arm down, shape (n,)
    A: FloatArray  # Rows, shape (m, n)
    b: FloatArray  # Right-hand sides, shape (m,)
    costs: FloatArray  # Cost of a squared slack of each row, shape (m,); infinite for hard rows
    box: JointBox  # Bounds of u
    cone: Cone | None  # Limit of the end effector's speed; None for none


class Answer(NamedTuple):
    """What came out."""

    u: FloatArray  # Command, shape (n,)
    status: str  # ``inactive``, ``optimal``, or the solver's reason for stage 3
    #: By how much each row, then the cone if there is one, is missed, shape (m,) or (m+1,)
    slack: FloatArray
    binding: tuple[int, ...]  # Rows met with equality or missed
    solve_ms: float  # Time in the solver, ms


def velocity_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    *,
    dt: float,
    gain: float,
    braking_share: float = 1.0,
) -> JointBox:
    """Return the interval of the next joint velocities, from those of the last step, shape (n,).

    ``gain``, 1/s, at most 1 / dt, is the rate at which a limit may be approached, and
    ``braking_share``, in (0, 1], the part of the acceleration limit that stopping counts on.
    """
    return _speed_box(_constants(limits, dt, gain, braking_share), q, q_dot, "semi_implicit")


def acceleration_box(
    limits: JointLimits,
    q: FloatArray,
    q_dot: FloatArray,
    *,
    dt: float,
    gain: float,
    braking_share: float = 1.0,
) -> JointBox:
    """Return the interval of the joint accelerations; arguments as in `velocity_box`.

    The acceleration limits must be finite.
    """
    speeds = _speed_box(_constants(limits, dt, gain, braking_share), q, q_dot, "zoh")
    most = limits.acceleration
    return JointBox(
        lower=np.minimum(np.maximum((speeds.lower - q_dot) / dt, -most), most),
        upper=np.minimum(np.maximum((speeds.upper - q_dot) / dt, -most), most),
        conflicting=speeds.conflicting,
    )


class _Constants(NamedTuple):
    """What does not change from step to step; `bounds` are as seen from their side, upper first."""

    bounds: FloatArray  # (2, n), rad
    velocity: FloatArray  # (n,), as all below
    change: FloatArray  # largest change of the speed in one step
    braking: FloatArray  # a
    slowing: FloatArray  # a dt
    half_over: FloatArray  # 1 / (2 a)
    unlimited: NDArray[np.bool_] | None  # where a is infinite; None if nowhere
    dt: float
    gain: float


@lru_cache(maxsize=32)
def _constants(limits: JointLimits, dt: float, gain: float, braking_share: float) -> _Constants:
    a, most = braking_share * limits.acceleration, limits.acceleration
    bounds = np.minimum(np.stack((limits.upper, -limits.lower)), _FAR)
    unlimited = np.isinf(a) if np.isinf(a).any() else None
    fastest = np.minimum(limits.velocity, UNBOUNDED)
    return _Constants(bounds, fastest, most * dt, a, a * dt, 0.5 / a, unlimited, dt, gain)


def _speed_box(
    known: _Constants, q: FloatArray, q_dot: FloatArray, plant: Literal["zoh", "semi_implicit"]
) -> JointBox:
    """Return the interval of the next joint velocities for a plant."""
    speed = _SIDES * q_dot
    limit = _approach_limit(known, known.bounds - _SIDES * q, speed, plant)
    towards = np.minimum(limit, known.velocity)
    slowest, width = speed - known.change, towards[0] + towards[1]
    conflicting: tuple[int, ...] = ()
    if not np.minimum.reduce(np.minimum(towards - slowest, width), axis=None) >= 0.0:
        empty = (towards < slowest - _ROUNDING).any(axis=0) | (width < -_ROUNDING)
        conflicting = tuple(np.flatnonzero(empty).tolist())
        # Where the limits themselves contradict each other: between them.
        middle = _SIDES * (0.5 * (towards[0] - towards[1]))
        towards = np.maximum(np.where(width < 0.0, middle, towards), slowest)
    upper, lower = np.minimum(towards, speed + known.change)
    return JointBox(lower=-lower, upper=upper, conflicting=conflicting)


def _approach_limit(
    known: _Constants,
    excess: FloatArray,
    speed: FloatArray,
    plant: Literal["zoh", "semi_implicit"],
) -> FloatArray:
    """Return the largest next speed towards a limit; negative beyond the limit.

    Excess and speed have shape (2, n): towards the upper and towards the lower limits.
    """
    dt, acceleration = known.dt, known.braking
    at_gain = known.gain * excess
    room = np.maximum(excess, 0.0)
    # c (3 dt + sqrt(9 dt^2 + 8 e / a)) / 4 = e: divided by a, so that an unlimited a gives e / dt
    # after the reduction below, and no infinity is subtracted from another.
    stopping = room / (0.75 * dt + np.sqrt(0.5625 * dt * dt + known.half_over * room))
    if known.unlimited is not None:
        stopping = np.where(known.unlimited, room / dt, stopping)
    if plant == "zoh":
        faster = speed > stopping
        if faster.any():
            spare = 2.0 * (room - 0.5 * speed * dt) / acceleration
            radicand = dt * dt + spare
            slowing = np.where(
                radicand > 0.0,
                acceleration * spare / (dt + np.sqrt(np.maximum(radicand, 0.0))),
                -known.slowing,
            )
            stopping = np.where(faster, slowing, stopping)
    at_rate = np.maximum(at_gain, speed - known.slowing)
    most, beyond = np.minimum(stopping, at_rate), excess < 0.0
    return np.where(beyond, at_gain, most) if np.count_nonzero(beyond) else most


class SlackSolver:
    """Solves programs whose rows may have slack, and keeps the arrays of each shape.

    Not safe to share between threads.
    """

    def __init__(self, solver: QPSolver) -> None:
        self._solver = solver
        self._arrays: dict[tuple[int, bytes], tuple[FloatArray, ...]] = {}

    def run(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        costs: FloatArray,
        box: JointBox,
    ) -> QPSolution:
        """Return the minimizer of 1/2 u^T P u + q^T u + 1/2 sum_j costs_j s_j^2, A u - s <= b.

        Rows of infinite cost get no slack. x holds u, then sqrt(costs_j) s_j of the others.
        """
        n = q.shape[0]
        key = n, costs.tobytes()
        arrays = self._arrays.get(key)
        if arrays is None:
            arrays = self._arrays[key] = _blank(n, costs)
        cost, linear, rows, low, high = arrays
        cost[:n, :n], linear[:n], rows[:, :n] = P, q, A
        low[:n], high[:n] = box.lower, box.upper
        return self._solver.run(cost, linear, rows, b, low, high)


def _blank(n: int, costs: FloatArray) -> tuple[FloatArray, ...]:
    """Return P, q, A and bounds of n variables, still to be filled in, and of the slack."""
    soft = np.flatnonzero(costs < np.inf)
    size = n + len(soft)
    rows, high = np.zeros((len(costs), size)), np.full(size, UNBOUNDED)
    rows[soft, np.arange(n, size)] = -1.0 / np.sqrt(costs[soft])
    return np.eye(size), np.zeros(size), rows, -high, high


def solve_program(problem: Program, solver: SlackSolver) -> Answer:
    """Return the command; always one in the box, and always finite."""
    if _is_admissible(problem):
        return _answer(problem, problem.nominal, "inactive", 0.0)
    started = time.perf_counter()
    u, status = _with_cuts(problem, solver)
    if u is None:
        u = _least_violation(problem, solver)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    return _answer(problem, u, status, elapsed_ms)


def _with_cuts(problem: Program, solver: SlackSolver) -> tuple[FloatArray | None, str]:
    """Return the optimum and ``optimal``, or None and why there is none."""
    linear, cone = -(problem.P @ problem.nominal), problem.cone
    rows = problem.A, problem.b, problem.costs
    probe = problem.nominal
    for _ in range(_MAX_CUTS):
        if cone is not None and cone.excess(probe) > 0.0:
            rows = cone.cut(probe, *rows)
        solution = solver.run(problem.P, linear, *rows, problem.box)
        if solution.status is not SolveStatus.OPTIMAL:
            return None, solution.status.value
        probe = solution.x[: linear.shape[0]]
        if cone is None or not cone.priority.hard or cone.excess(probe) <= 0.0:
            return probe, "optimal"
    return None, SolveStatus.MAX_ITER.value


def _least_violation(problem: Program, solver: SlackSolver) -> FloatArray:
    """Return the command that misses the hard rows least and, of those, is the slowest."""
    brake, cone, box = problem.brake, problem.cone, problem.box
    rows = problem.A, problem.b, problem.costs
    if cone is not None and cone.excess(brake) > 0.0:
        rows = cone.cut(brake, *rows)
    A, b, costs = rows
    costs = np.where(np.isinf(costs), HARD_WEIGHT, costs)
    solution = solver.run(_identity(len(brake)), -brake, A, b, costs, box)
    if solution.status is SolveStatus.OPTIMAL:
        return solution.x[: len(brake)]
    return np.clip(brake, box.lower, box.upper)


def _is_admissible(problem: Program) -> bool:
    """Say whether the nominal command needs no change; NaN anywhere says no."""
    u, box = problem.nominal, problem.box
    if not np.minimum.reduce(np.minimum(u - box.lower, box.upper - u)) >= 0.0:
        return False
    if np.count_nonzero(problem.A @ u <= problem.b) < len(problem.b):
        return False
    return problem.cone is None or problem.cone.excess(u) <= 0.0


def _answer(problem: Program, u: FloatArray, status: str, solve_ms: float) -> Answer:
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

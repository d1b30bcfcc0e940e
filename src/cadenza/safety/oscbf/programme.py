"""The optimisation behind one command, in three stages that end in braking.

1. The nominal u_des itself, bit for bit, when it is in the box and meets every row and cone.
2. min 1/2 (u - u_des)^T P (u - u_des) + 1/2 sum_soft weight_j s_j^2
   subject to   a_j u <= b_j (hard),  a_j u - s_j <= b_j (soft),  lower <= u <= upper.
3. When 2 has no solution: the box stays, every row gets slack, hard rows at `HARD_WEIGHT` each, and
   u_des is replaced by the command that brakes: the least violation, and of those the slowest.
   Should even this fail, the braking command itself, clipped to the box.
Slack:    one variable per soft row, scaled by sqrt(weight); s >= 0 needs no row of its own.
Cone:     |B u + c| <= limit, the speed of the end effector, by cutting planes: solve, cut along the
          direction in which the speed is too high, solve again.
Axes:     n variables, m rows.
"""

import math
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.oscbf.box import JointBox
from cadenza.safety.oscbf.rules import Priorities, Priority
from cadenza.safety.solvers import QPSolution, QPSolver, SolveStatus

#: Cost of a squared violation of a hard row in stage 3, against 1 for a squared change of the
#: command: a millionth of the command's error is what a violation is worth at most.
HARD_WEIGHT: Final = 1e6
#: Cuts stop this far inside the cone, relative to its limit, so that few are enough: neighbouring
#: cuts may be 0.06 rad apart.
_CONE_ROOM: Final = 1e-3
_MAX_CUTS: Final = 12
#: Bound of a variable that has none.
_FREE: Final = 1e30
#: A row is met if its residual is below this times 1 + |b|; solvers are held to 1e-9.
_MET: Final = 2e-9
#: A row is active when it is this close to equality, relative to 1 + |b|.
_BINDING: Final = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class Cone:
    """|B u + c| <= limit.

    Attributes:
        B: Shape (3, n).
        c: Shape (3,), m/s.
        limit: m/s.
        priority: Hard or soft.
    """

    B: FloatArray
    c: FloatArray
    limit: float
    priority: Priority

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
    """One problem; see the module's text.

    Attributes:
        P: Cost, shape (n, n), positive definite.
        nominal: u_des, shape (n,).
        brake: Command that slows the arm down, shape (n,).
        A: Rows, shape (m, n).
        b: Right-hand sides, shape (m,).
        priorities: How each row enters, m of them.
        box: Bounds of u.
        cone: Limit of the end effector's speed; None for none.
    """

    P: FloatArray
    nominal: FloatArray
    brake: FloatArray
    A: FloatArray
    b: FloatArray
    priorities: list[Priority]
    box: JointBox
    cone: Cone | None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came out.

    Attributes:
        u: Command, shape (n,).
        status: ``inactive``, ``optimal``, or the solver's reason for stage 3.
        slack: By how much each row, then the cone if there is one, is missed, shape (m,) or (m+1,).
        binding: Rows met with equality or missed.
        solve_ms: Time in the solver, ms.
    """

    u: FloatArray
    status: str
    slack: FloatArray
    binding: tuple[int, ...]
    solve_ms: float


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
        lower, upper = np.maximum(box.lower, -_FREE), np.minimum(box.upper, _FREE)
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
        self.upper = np.full(n + slots, _FREE)
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

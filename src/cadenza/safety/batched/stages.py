"""The stages of a batched projection, each for the environments the one before left.

Axes:  n action components, m rows, B environments last.

The least unsafe actions of environments in which no action meets every row.

Order:  the box is hard; the most urgent row is met as far as the box allows, where it cannot be met
        by fixing all components that it sees; the others get slack v_j at cost 1/2 rho_j v_j^2,
        against 1/2 |x - u|^2. As in `filters.projection`.
Never:  the nominal action. Where the slack problem is not solved to its tolerance, the answer is
        that of the most urgent row alone.

Exact projection onto several rows and a box in two or three dimensions, by enumeration.

The projection of u onto a polytope is the projection of u onto the flat spanned by one of its
faces. In two and three dimensions there are few: every choice of at most n constraints that
contains a row. (Without a row in it the answer would be the clipped nominal, which the caller has
already found to miss a row.) Each choice gives a candidate in closed form; the nearest candidate
that meets all constraints is the projection, and if there is none, no point of the box meets all
rows. No iteration, no starting point, and infeasibility is decided rather than suspected.

Axes:    n action components, m rows, P box faces, K candidates, B environments last.
Capture: no branch depends on data.

DAQP, one environment after the other, for the few that a batched iteration left unsolved.

Only on a CPU and outside of a graph capture: it moves numbers to Python.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.safety.batched.active_set import ActiveSetAnswer, SoftProblem, solve_active_set
from cadenza.safety.batched.extremes import first_largest, first_smallest
from cadenza.safety.batched.one_row import ROUNDING, project_one_row_batch
from cadenza.safety.batched.status import INACTIVE, INFEASIBLE, NOT_CONVERGED, OPTIMAL
from cadenza.safety.filters.projection import UNSEEN
from cadenza.safety.solvers import DaqpSolver, QPSolution, SolveStatus

#: Room left around the most urgent row when the others are fitted around it, relative to |b|; in
#: float64 that of `cadenza.safety.filters.projection`, in float32 above rounding.
HARD_ROW_ROOM: Final = {torch.float64: 1e-9, torch.float32: 1e-5}


def least_violation_batch(
    rows: SoftProblem, first: Tensor, weight: Tensor, *, compact: bool, rescue: bool
) -> Tensor:
    """Return the least-violation actions, shape (n, B).

    Args:
        rows: Nominal actions, rows and box; its slack is not read.
        first: Index of the most urgent row, shape (B,).
        weight: rho_j, shape (m, B), > 0.
        compact: See `solve_active_set`.
        rescue: Solve with DAQP, one by one, what the active set method leaves.
    """
    a, alone, feasible = _most_urgent(rows, first)
    if rows.b.shape[0] == 1:
        return alone
    index = first.unsqueeze(0)
    fixed = ~feasible & (a.abs() > UNSEEN * a.abs().amax(0))
    a = torch.where(feasible, a, 0.0)
    hard = torch.where(feasible, rows.b.gather(0, index).squeeze(0), 0.0)
    room = HARD_ROW_ROOM[hard.dtype] * (1.0 + hard.abs())
    level = hard + room
    b = rows.b.scatter(0, index, level.unsqueeze(0))
    s = (1.0 / weight).scatter(0, index, torch.zeros_like(level).unsqueeze(0))
    problem = rows._replace(
        A=rows.A.scatter(0, index.unsqueeze(1).expand(1, *a.shape), a.unsqueeze(0)),
        b=b,
        s=s,
        lower=torch.where(fixed, alone, rows.lower),
        upper=torch.where(fixed, alone, rows.upper),
    )
    answer = solve_active_set(problem, compact=compact)
    # Large weights beside a row that hardly sees one component: rounding can leave the hard row.
    kept = (a * answer.x).sum(0) <= level + room
    answer = answer._replace(solved=answer.solved & kept)
    if rescue:
        answer = rescue_with_daqp(problem, answer)
    return torch.where(answer.solved, answer.x, alone)


def _most_urgent(rows: SoftProblem, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most urgent row (n, B), its answer alone (n, B), and where that meets it (B,)."""
    index = first.unsqueeze(0)
    b = rows.b.gather(0, index).squeeze(0)
    a = rows.A.gather(0, index.unsqueeze(1).expand(1, *rows.u.shape)).squeeze(0)
    return a, *project_one_row_batch(rows.u, a, b, rows.lower, rows.upper)


#: Numbers per array in the enumeration of faces on a CPU: the arrays of a pass fit the cache, and
#: torch uses no threads on them.
_FACE_NUMBERS: Final = 32767


class Batch(NamedTuple):
    """Problems of some environments, with what decides when they have no solution.

    Attributes:
        problem: Nominal actions, rows and box; no slack.
        first: Index of the most urgent row, shape (B,).
        weight: Weights of the slack of the other rows, shape (m, B).
    """

    problem: SoftProblem
    first: Tensor
    weight: Tensor

    def take(self, index: Tensor) -> "Batch":
        """Return the problems of some environments."""
        return Batch(
            self.problem.take(index),
            self.first.index_select(0, index),
            self.weight.index_select(1, index),
        )


class Answers(NamedTuple):
    """Actions of shape (n, B) and status codes of shape (B,), int8."""

    x: Tensor
    status: Tensor


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages in one of two ways; see `cadenza.safety.batched.projection`.

    Attributes:
        compact: Each stage runs for the environments that are left, else for all of them.
        rescue: Solve with DAQP what the iterations leave; needs ``compact``.
    """

    compact: bool
    rescue: bool

    def run(self, batch: Batch) -> Answers:
        """Return the answers of all environments."""
        problem = batch.problem
        x = torch.minimum(torch.maximum(problem.u, problem.lower), problem.upper)
        answers = Answers(x, _codes(x, OPTIMAL))
        if problem.b.shape[0] > 0:
            violated = ((problem.A * x).sum(1) - problem.b > 0.0).any(0)
            answers = self._replace(violated, batch, self._one_row, answers)
        unchanged = (answers.x == problem.u).all(0) & (answers.status == OPTIMAL)
        return Answers(answers.x, torch.where(unchanged, INACTIVE, answers.status))

    def _replace(
        self, mask: Tensor, batch: Batch, stage: Callable[[Batch], Answers], answers: Answers
    ) -> Answers:
        """Return ``answers`` with those of ``stage`` where ``mask``, shape (B,), is true."""
        if not self.compact:
            fresh = stage(batch)
            return Answers(
                torch.where(mask, fresh.x, answers.x),
                torch.where(mask, fresh.status, answers.status),
            )
        index = mask.nonzero().squeeze(1)
        if index.numel() == 0:
            return answers
        if index.numel() == mask.numel():
            return stage(batch)
        fresh = stage(batch.take(index))
        return Answers(
            answers.x.index_copy(1, index, fresh.x),
            answers.status.index_copy(0, index, fresh.status),
        )

    def _one_row(self, batch: Batch) -> Answers:
        """Solve for the most violated row; go on where that is not enough."""
        problem = batch.problem
        u, A, b = problem.u, problem.A, problem.b
        if b.shape[0] == 1:
            x, feasible = project_one_row_batch(u, A[0], b[0], problem.lower, problem.upper)
            return Answers(x, torch.where(feasible, _codes(x, OPTIMAL), INFEASIBLE))
        clipped = torch.minimum(torch.maximum(u, problem.lower), problem.upper)
        worst = first_largest((A * clipped).sum(1) - b).unsqueeze(0)
        row = A.gather(0, worst.unsqueeze(1).expand(1, *u.shape)).squeeze(0)
        level = b.gather(0, worst).squeeze(0)
        x, feasible = project_one_row_batch(u, row, level, problem.lower, problem.upper)
        met = (A * x).sum(1) - b <= ROUNDING[u.dtype] * (1.0 + b.abs())
        met = met.scatter(0, worst, value=True).all(0)
        answers = Answers(x, _codes(x, OPTIMAL))
        answers = self._replace(feasible & ~met, batch, self._several_rows, answers)
        return self._replace(~feasible, batch, self._no_answer, answers)

    def _several_rows(self, batch: Batch) -> Answers:
        """Solve for all rows; where that fails, the least violation."""
        n, m = batch.problem.u.shape[0], batch.problem.b.shape[0]
        if n in FACE_DIMS and m <= MAX_FACE_ROWS[n]:
            x, feasible = self._faces(batch.problem)
            status = torch.where(feasible, _codes(x, OPTIMAL), INFEASIBLE)
        else:
            x, status = self._iterate(batch.problem)
        least = self._replace(status != OPTIMAL, batch, self._no_answer, Answers(x, status))
        return Answers(least.x, status)

    def _faces(self, problem: SoftProblem) -> tuple[Tensor, Tensor]:
        """Enumerate faces; on a CPU in parts whose arrays fit the cache."""
        n, (m, size) = problem.u.shape[0], problem.b.shape
        count = face_count(n, m)
        step = max(64, _FACE_NUMBERS // (count * max(m, n))) if self.compact else size
        parts = [
            project_on_faces(p.u, p.A, p.b, p.lower, p.upper)
            for p in (
                SoftProblem(*(data[..., start : start + step] for data in problem))
                for start in range(0, size, step)
            )
        ]
        return torch.cat([x for x, _ in parts], 1), torch.cat([met for _, met in parts])

    def _iterate(self, problem: SoftProblem) -> Answers:
        """Solve by the dual active set method, then DAQP if wanted."""
        answer = solve_active_set(problem, compact=self.compact)
        if self.rescue:
            answer = rescue_with_daqp(problem, answer)
        x = answer.x
        status = torch.where(answer.infeasible, _codes(x, INFEASIBLE), NOT_CONVERGED)
        return Answers(x, torch.where(answer.solved, _codes(x, OPTIMAL), status))

    def _no_answer(self, batch: Batch) -> Answers:
        """Return the least violation."""
        x = least_violation_batch(
            batch.problem, batch.first, batch.weight, compact=self.compact, rescue=self.rescue
        )
        return Answers(x, _codes(x, INFEASIBLE))


def _codes(x: Tensor, code: int) -> Tensor:
    """Return ``code`` for every environment, int8."""
    return torch.full(x.shape[1:], code, dtype=torch.int8, device=x.device)


#: Dimensions the enumeration is written for.
FACE_DIMS: Final = (2, 3)
#: Largest number of rows that is enumerated, by dimension; the candidates grow with its n-th power.
MAX_FACE_ROWS: Final = {2: 12, 3: 6}


def project_on_faces(
    u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the nearest points of the polytopes, and where they are not empty.

    Args:
        u: Nominal points, shape (n, B), n in `FACE_DIMS`; clipped to the box they miss a row.
        A: Rows, shape (m, n, B).
        b: Right-hand sides, shape (m, B).
        lower: Lower bounds, shape (n, 1) or (n, B).
        upper: Upper bounds, same shape.

    Returns:
        x of shape (n, B), meaningful where feasible, shape (B,), is true.
    """
    x = _planar(u, A, b, lower, upper) if u.shape[0] == 2 else _spatial(u, A, b, lower, upper)
    low, high = lower.expand_as(u), upper.expand_as(u)
    # (K, m, B): residual of each row at each candidate
    residual = x[:, None, 0] * A[:, 0]
    for k in range(1, u.shape[0]):
        residual = torch.addcmul(residual, x[:, None, k], A[:, k])
    missed = (residual - (b + ROUNDING[u.dtype] * (1.0 + b.abs()))).amax(1)
    slack = ROUNDING[u.dtype] * (1.0 + high - low)
    outside = torch.maximum(x - (high + slack), (low - slack) - x).amax(1)
    meets = (missed <= 0.0) & (outside <= 0.0)  # no candidate, a division by zero, meets nothing
    distance = torch.where(meets, (x - u).square().sum(1), torch.inf)
    index, environment = first_smallest(distance), torch.arange(u.shape[1], device=u.device)
    feasible = distance.amin(0) < torch.inf
    answer = torch.where(feasible, x[index, :, environment].T, u)
    return torch.minimum(torch.maximum(answer, low), high), feasible


def _planar(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of the plane, shape (K, 2, B)."""
    excess = (A * u).sum(1) - b
    flats = _flats_2d(u, A.unbind(1), excess)
    return torch.cat((torch.stack(flats, 1), _edges(A, b, lower, upper)))


def _spatial(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates of space, shape (K, 3, B)."""
    parts = [_flats_3d(u, A, b), _edges(A, b, lower, upper)]
    parts.append(_sides(u, A, b, lower, upper))
    return torch.cat(parts)


def _edges(A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return where rows meet the edges of the box, one component free: (K, n, B)."""
    m, n, size = A.shape
    bounds = torch.stack((lower.expand(n, size), upper.expand(n, size)), 1)  # (n, 2, B)
    parts: list[Tensor] = []
    for free in range(n):
        columns: list[Tensor] = []
        rest = b.view(m, *([1] * (n - 1)), size)
        for place, held in enumerate(k for k in range(n) if k != free):
            # (1, 2, B) in the plane; (1, 2, 1, B) and (1, 1, 2, B) in space: all pairs of bounds
            sides = [2 if axis == place else 1 for axis in range(n - 1)]
            value = bounds[held].view(1, *sides, size)
            rest = rest - A[:, held].reshape(m, *([1] * (n - 1)), size) * value
            columns.append(value)
        found = rest / A[:, free].reshape(m, *([1] * (n - 1)), size)
        columns = [value.expand_as(found) for value in columns]
        columns.insert(free, found)
        parts.append(torch.stack(columns, -2).reshape(-1, n, size))
    return torch.cat(parts)


def _sides(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the candidates on the six sides of the box, two components free: (K, 3, B)."""
    m, n, size = A.shape
    bounds = torch.stack((lower.expand(n, size), upper.expand(n, size)))  # (2, 3, B)
    # Side (side, axis); its two free components are axis + 1 and axis + 2, cyclically.
    first, second = torch.roll(A, -1, 1), torch.roll(A, -2, 1)  # (m, 3, B)
    u_first, u_second = torch.roll(u, -1, 0), torch.roll(u, -2, 0)
    level = b.view(m, 1, 1, size) - A.unsqueeze(1) * bounds  # (m, 2, 3, B)
    columns = (first.unsqueeze(1), second.unsqueeze(1))  # (m, 1, 3, B)
    excess = columns[0] * u_first + columns[1] * u_second - level
    x_first, x_second = _flats_2d(torch.stack((u_first, u_second)), columns, excess)
    fixed = bounds.expand_as(x_first)  # (K, 2, 3, B)
    candidates = torch.stack((fixed, x_first, x_second), 3)  # (K, 2, 3, 3, B)
    # On axis a the entries are components a, a + 1, a + 2; roll them to 0, 1, 2.
    turned = [torch.roll(candidates[:, :, axis], axis, 2) for axis in range(n)]
    return torch.cat(turned, 1).reshape(-1, n, size)


def _flats_2d(u: Tensor, columns: Sequence[Tensor], excess: Tensor) -> tuple[Tensor, Tensor]:
    """Return the feet of u on all lines, and the crossings of all pairs of lines.

    Args:
        u: Nominal points, (2, ..., B).
        columns: Entries of the rows, (m, ..., B) each.
        excess: Residuals of the rows at ``u``, (m, ..., B).

    Returns:
        Both coordinates, (m + m (m - 1) / 2, ..., B).
    """
    a_x, a_y = columns
    scale = excess / (a_x * a_x + a_y * a_y)
    feet = (u[0] - scale * a_x, u[1] - scale * a_y)
    m = excess.shape[0]
    if m < 2:
        return feet
    first, second = _choices(m, 2, excess.device).unbind(1)
    r, s = excess[first], excess[second]
    p_x, p_y, q_x, q_y = a_x[first], a_y[first], a_x[second], a_y[second]
    determinant = p_x * q_y - p_y * q_x
    crossings = (
        u[0] - (r * q_y - s * p_y) / determinant,
        u[1] - (s * p_x - r * q_x) / determinant,
    )
    return torch.cat((feet[0], crossings[0])), torch.cat((feet[1], crossings[1]))


def _flats_3d(u: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Return the feet on all planes and lines, and the crossings of three planes: (K, 3, B)."""
    m = A.shape[0]
    excess = (A * u).sum(1) - b
    parts = [u - (excess / A.square().sum(1)).unsqueeze(1) * A]
    if m >= 2:
        first, second = _choices(m, 2, A.device).unbind(1)
        a, c = A[first], A[second]
        d = _cross(a, c)
        # Dual basis of the plane of a and c: steps that move one residual and not the other.
        step = excess[first].unsqueeze(1) * _cross(c, d)
        step = step + excess[second].unsqueeze(1) * _cross(d, a)
        parts.append(u - step / d.square().sum(1, keepdim=True))
    if m >= 3:
        first, second, third = _choices(m, 3, A.device).unbind(1)
        a, c, e = A[first], A[second], A[third]
        normal = _cross(c, e)
        step = (
            excess[first].unsqueeze(1) * normal
            + excess[second].unsqueeze(1) * _cross(e, a)
            + excess[third].unsqueeze(1) * _cross(a, c)
        )
        parts.append(u - step / (a * normal).sum(1, keepdim=True))
    return torch.cat(parts)


def _cross(a: Tensor, c: Tensor) -> Tensor:
    """Return the cross products over axis 1: (K, 3, B)."""
    (a0, a1, a2), (c0, c1, c2) = a.unbind(1), c.unbind(1)
    return torch.stack((a1 * c2 - a2 * c1, a2 * c0 - a0 * c2, a0 * c1 - a1 * c0), 1)


@cache
def _choices(m: int, k: int, device: torch.device) -> Tensor:
    """Return all choices of k of m rows, shape (K, k); kept, so that a capture finds them."""
    return torch.tensor(list(itertools.combinations(range(m), k)), device=device)


@cache
def face_count(n: int, m: int) -> int:
    """Return the number of candidates of m rows in n dimensions, K."""
    flat = m + math.comb(m, 2)
    if n == 2:
        return flat + 4 * m
    return flat + math.comb(m, 3) + 6 * flat + 12 * m


#: Bound of a slack, which has none.
_FREE: Final = 1e30


def rescue_with_daqp(problem: SoftProblem, answer: ActiveSetAnswer) -> ActiveSetAnswer:
    """Return ``answer`` with what it leaves undecided solved by DAQP.

    Args:
        problem: The data of all environments.
        answer: Answers so far.
    """
    rest = (~answer.solved & ~answer.infeasible).nonzero().squeeze(1)
    if rest.numel() == 0:
        return answer
    part: list[Any] = [data.double().numpy() for data in problem.take(rest)]
    solver = DaqpSolver()
    solutions = [
        _solve(solver, *(data[..., column] for data in part)) for column in range(rest.shape[0])
    ]
    found = np.stack([solution.x[: answer.x.shape[0]] for solution in solutions], axis=1)
    met = torch.tensor([solution.status is SolveStatus.OPTIMAL for solution in solutions])
    refused = torch.tensor([solution.status is SolveStatus.INFEASIBLE for solution in solutions])
    return ActiveSetAnswer(
        answer.x.index_copy(1, rest, torch.as_tensor(found, dtype=answer.x.dtype)),
        answer.solved.index_copy(0, rest, met),
        answer.infeasible.index_copy(0, rest, refused),
    )


def _solve(
    solver: DaqpSolver,
    u: FloatArray,
    A: FloatArray,
    b: FloatArray,
    s: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> QPSolution:
    """Solve one problem; a row with s > 0 gets a slack variable of cost 1 / s."""
    n, soft = u.shape[0], np.flatnonzero(s)
    count = n + soft.shape[0]
    rows = np.zeros((b.shape[0], count))
    rows[:, :n] = A
    rows[soft, n + np.arange(soft.shape[0])] = -1.0
    cost, q = np.ones(count), np.zeros(count)
    cost[n:], q[:n] = 1.0 / s[soft], -u
    low, high = np.full(count, -_FREE), np.full(count, _FREE)
    low[:n], high[:n] = lower, upper
    return solver.run(cost, q, rows, b, low, high)

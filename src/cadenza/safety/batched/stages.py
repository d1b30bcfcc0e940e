"""The stages of a batched projection, each for the environments the one before left.

Axes:  n action components, m rows, B environments last.

The least unsafe actions of environments in which no action meets every row.

Order:  the box is hard; the most urgent row is met as far as the box allows, where it cannot be met
        by fixing all components that it sees; the others get slack v_j at cost 1/2 rho_j v_j^2,
        against 1/2 |x - u|^2. As in `filters.projection`.
Never:  the nominal action. Where the slack problem is not solved to its tolerance, the answer is
        that of the most urgent row alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from cadenza.safety.batched.active_set import SoftProblem, solve_active_set
from cadenza.safety.batched.extremes import first_largest
from cadenza.safety.batched.faces import FACE_DIMS, MAX_FACE_ROWS, face_count, project_on_faces
from cadenza.safety.batched.one_row import ROUNDING, project_one_row_batch
from cadenza.safety.batched.rescue import rescue_with_daqp
from cadenza.safety.batched.status import INACTIVE, INFEASIBLE, NOT_CONVERGED, OPTIMAL
from cadenza.safety.filters.projection import UNSEEN

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

"""The least unsafe actions of environments in which no action meets every row.

Order:  the box is hard; the most urgent row is met as far as the box allows, where it cannot be met
        by fixing all components that it sees; the others get slack v_j at cost 1/2 rho_j v_j^2,
        against 1/2 |x - u|^2. As in `filters.projection`.
Never:  the nominal action. Where the slack problem is not solved to its tolerance, the answer is
        that of the most urgent row alone.
Axes:   n action components, m rows, B environments last.
"""

from typing import Final

import torch
from torch import Tensor

from cadenza.safety.batched.active_set import SoftProblem, solve_active_set
from cadenza.safety.batched.one_row import project_one_row_batch
from cadenza.safety.batched.rescue import rescue_with_daqp
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

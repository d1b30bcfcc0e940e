"""Projection onto several rows and a box by a dual active set method, for many environments.

Problem:  min 1/2 |x - u|^2 + 1/2 sum_j v_j^2 / s_j   subject to  lower <= x <= upper  and
              a_j @ x <= b_j        where s_j = 0 (hard rows),
              a_j @ x - v_j <= b_j  where s_j > 0 (rows with slack v_j = s_j y_j)
Method:   start at x = u with no active constraint; take the most violated constraint p and raise
          its multiplier while the active ones W stay tight,
              G_WW d = G_Wp,  y_W <- y_W - t d,  y_p <- y_p + t,  G = N N^T + diag s,
          until p is tight (t = t_2, p joins W) or a multiplier reaches zero (t = t_1, that one
          leaves W). Each full step raises the dual objective, so no active set returns, and the
          method ends; neither t_1 nor t_2 finite proves that there is no solution.
Source:   Goldfarb and Idnani, doi:10.1007/BF02591962; the solver of the single filter, DAQP, is of
          the same family.
Axes:     n action components, m rows, M = m + n constraints (rows, then box components),
          B environments last.
Capture:  with ``compact=False`` a fixed number of steps and no branch on data.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from cadenza.safety.batched.extremes import first_largest, first_smallest

#: Steps per constraint before a problem counts as not converged. Most problems need as many steps
#: as they have active constraints; each one that has to leave again costs two more.
STEPS_PER_CONSTRAINT: Final = 4
#: Steps between two looks at which environments are left.
_STEPS_PER_LOOK: Final = 4
#: Largest accepted residual over 1 + |b|, by precision. In float32 the sums themselves round to
#: about 1e-6.
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-5}
#: Violation over 1 + |b| that the iteration still works on.
_WORTHWHILE: Final = {torch.float64: 1e-13, torch.float32: 1e-6}
#: Part of a constraint's squared length that the active ones leave, below which it depends on
#: them; and relative size of a pivot below which the active ones depend on each other.
_DEPENDENT: Final = {torch.float64: 1e-13, torch.float32: 1e-6}
#: Rounding of x relative to the multipliers that it is a sum of.
_CANCELLATION: Final = {torch.float64: 2e-15, torch.float32: 1e-6}


class SoftProblem(NamedTuple):
    """Data of the projection; shapes (n, B), (m, n, B), (m, B), (m, B), (n, B), (n, B)."""

    u: Tensor
    A: Tensor
    b: Tensor
    s: Tensor
    lower: Tensor
    upper: Tensor

    def take(self, index: Tensor) -> "SoftProblem":
        """Return the problems of some environments."""
        return SoftProblem(*(data.index_select(-1, index) for data in self))


class _State(NamedTuple):
    """Iterate of the method.

    Attributes:
        y: Multipliers, >= 0, shape (M, B).
        side: Bound a component is held at, +1 upper or -1 lower, shape (n, B).
        active: Constraints that stay tight, shape (M, B).
        p: Constraint whose multiplier was raised last, shape (B,).
        entering: It is not tight yet, shape (B,).
        finished: Nothing is left to do, shape (B,).
        infeasible: There is proved to be no solution, shape (B,).
    """

    y: Tensor
    side: Tensor
    active: Tensor
    p: Tensor
    entering: Tensor
    finished: Tensor
    infeasible: Tensor

    def put(self, index: Tensor, part: "_State") -> "_State":
        """Return the state with some environments replaced."""
        return _State(
            *(old.index_copy(-1, index, new) for old, new in zip(self, part, strict=True))
        )

    def take(self, index: Tensor) -> "_State":
        """Return the state of some environments."""
        return _State(*(data.index_select(-1, index) for data in self))


class ActiveSetAnswer(NamedTuple):
    """Actions (n, B), where they solve the problem (B,), and where there is proved to be none."""

    x: Tensor
    solved: Tensor
    infeasible: Tensor


def solve_active_set(problem: SoftProblem, *, compact: bool) -> ActiveSetAnswer:
    """Return the projections.

    Args:
        problem: The data.
        compact: Continue with the unfinished environments only. It needs to know how many there
            are, which stops a GPU; without it all environments take all steps.

    Returns:
        The answers. An action that does not solve its problem means nothing.
    """
    state = _start(problem)
    gram = _gram(problem)
    for _ in range(-(-STEPS_PER_CONSTRAINT * gram.shape[0] // _STEPS_PER_LOOK)):
        if not compact:
            state = _steps(problem, gram, state)
            continue
        left = (~state.finished).nonzero().squeeze(1)
        if left.numel() == 0:
            break
        if left.numel() == state.finished.numel():
            state = _steps(problem, gram, state)
        else:
            part = _steps(problem.take(left), gram.index_select(-1, left), state.take(left))
            state = state.put(left, part)
    state = _polished(problem, gram, state)
    x = _action(problem, state)
    solved = _is_solution(problem, state, x) & ~state.infeasible
    return ActiveSetAnswer(x, solved, state.infeasible)


def _start(problem: SoftProblem) -> _State:
    (m, size), n = problem.b.shape, problem.u.shape[0]
    y = torch.zeros((m + n, size), dtype=problem.u.dtype, device=problem.u.device)
    nobody = torch.zeros(size, dtype=torch.bool, device=y.device)
    return _State(
        y=y,
        side=torch.ones_like(problem.u),
        active=torch.zeros_like(y, dtype=torch.bool),
        p=torch.zeros(size, dtype=torch.int64, device=y.device),
        entering=nobody,
        finished=nobody,
        infeasible=nobody,
    )


def _gram(problem: SoftProblem) -> Tensor:
    """Return G for components held at their upper bounds, shape (M, M, B)."""
    m, n = problem.b.shape[0], problem.u.shape[0]
    gram = problem.u.new_zeros((m + n, m + n, problem.u.shape[1]))
    gram[:m, :m] = (problem.A.unsqueeze(1) * problem.A.unsqueeze(0)).sum(2)
    gram[:m, m:] = problem.A
    gram[m:, :m] = problem.A.transpose(0, 1)
    for k in range(n):
        gram[m + k, m + k] = 1.0
    for j in range(m):
        gram[j, j] += problem.s[j]
    return gram


def _steps(problem: SoftProblem, gram: Tensor, state: _State) -> _State:
    for _ in range(_STEPS_PER_LOOK):
        state = _step(problem, gram, state)
    return state


def _step(problem: SoftProblem, gram: Tensor, state: _State) -> _State:
    """Take one step in every unfinished environment."""
    m = problem.b.shape[0]
    x = _action(problem, state, inside=False)
    rows = (problem.A * x).sum(1) - problem.b - problem.s * state.y[:m]
    above, below = x - problem.upper, problem.lower - x
    held = state.active[m:] | (state.y[m:] > 0.0)
    side = torch.where(held, state.side, torch.where(above >= below, 1.0, -1.0))
    violation = torch.cat((rows, torch.where(side > 0.0, above, below)))
    scale = torch.cat((1.0 + problem.b.abs(), torch.ones_like(x)))
    urgency = torch.where(state.active, -torch.inf, violation / scale)
    worst, choice = urgency.amax(0), first_largest(urgency)
    p = torch.where(state.entering, state.p, choice)
    finished = state.finished | (~state.entering & (worst <= _WORTHWHILE[x.dtype]))

    signs = torch.cat((torch.ones_like(problem.b), side))
    at_p = p.unsqueeze(0)
    column = gram.gather(0, at_p.unsqueeze(1).expand(1, *gram.shape[1:])).squeeze(0)
    column = column * signs * signs.gather(0, at_p)  # G_p, (M, B)
    direction = _solve_active(gram, signs, state.active, column)
    length = column.gather(0, at_p).squeeze(0)
    rest = length - (torch.where(state.active, column, 0.0) * direction).sum(0)
    hard = torch.cat((problem.s == 0.0, torch.ones_like(x, dtype=torch.bool)))
    room = (state.active & hard).sum(0) < x.shape[0]  # n independent constraints fix all of x
    room = room | ~hard.gather(0, at_p).squeeze(0)
    independent = room & (rest > _DEPENDENT[x.dtype] * length)
    full = violation.gather(0, at_p).squeeze(0) / torch.where(independent, rest, 1.0)
    full = torch.where(independent, full.clamp_min(0.0), torch.inf)
    falls = state.active & (direction > _DEPENDENT[x.dtype] * direction.abs().amax(0))
    ratios = torch.where(falls, state.y / torch.where(falls, direction, 1.0), torch.inf)
    partial, leaving = ratios.amin(0), first_smallest(ratios)

    infeasible = ~finished & (partial == torch.inf) & (full == torch.inf)
    moving = ~finished & ~infeasible
    t = torch.where(moving, torch.minimum(full, partial), 0.0)
    joins = moving & (full <= partial)
    leaves = moving & ~joins
    y = torch.where(state.active, (state.y - t * direction).clamp_min(0.0), state.y)
    y = y.scatter_add(0, at_p, t.unsqueeze(0))
    index = torch.arange(y.shape[0], device=y.device).unsqueeze(1)
    out = leaves & (index == leaving)
    return _State(
        y=torch.where(out, 0.0, y),
        side=side,
        active=(state.active | (joins & (index == p))) & ~out,
        p=p,
        entering=leaves,
        finished=finished | infeasible,
        infeasible=state.infeasible | infeasible,
    )


def _polished(problem: SoftProblem, gram: Tensor, state: _State) -> _State:
    """Return the state with multipliers free of the rounding that the steps have gathered.

    The residuals of the active constraints, which should vanish, give the correction.
    """
    m = problem.b.shape[0]
    x = _action(problem, state, inside=False)
    rows = (problem.A * x).sum(1) - problem.b - problem.s * state.y[:m]
    bound = torch.where(state.side > 0.0, problem.upper, problem.lower)
    free = problem.u - (problem.A * state.y[:m].unsqueeze(1)).sum(0) - state.side * state.y[m:]
    residual = torch.cat((rows, state.side * (free - bound)))
    signs = torch.cat((torch.ones_like(problem.b), state.side))
    correction = _solve_active(gram, signs, state.active, residual)
    y = torch.where(state.active, (state.y + correction).clamp_min(0.0), state.y)
    return state._replace(y=y)


def _action(problem: SoftProblem, state: _State, *, inside: bool = True) -> Tensor:
    """Return x of the multipliers, (n, B); moved into the box, to the last bit, if ``inside``."""
    m = problem.b.shape[0]
    pull = (problem.A * state.y[:m].unsqueeze(1)).sum(0)
    x = problem.u - pull - state.side * state.y[m:]
    bound = torch.where(state.side > 0.0, problem.upper, problem.lower)
    x = torch.where(state.active[m:], bound, x)
    return torch.minimum(torch.maximum(x, problem.lower), problem.upper) if inside else x


def _is_solution(problem: SoftProblem, state: _State, x: Tensor) -> Tensor:
    """Return where x and its multipliers meet the optimality conditions, shape (B,)."""
    m = problem.b.shape[0]
    y = state.y[:m]
    residual = (problem.A * x).sum(1) - problem.b - problem.s * y
    # The large multipliers of rows with slack cancel in x to their own rounding. Those of hard rows
    # get no such allowance: nothing stands behind a hard row that is missed.
    cancelling = torch.where(problem.s > 0.0, y, 0.0).sum(0)
    allowed = TOLERANCE[x.dtype] * (1.0 + problem.b.abs()) + _CANCELLATION[x.dtype] * cancelling
    return state.finished & (torch.maximum(residual, -y).abs() <= allowed).all(0)


def _solve_active(gram: Tensor, signs: Tensor, active: Tensor, column: Tensor) -> Tensor:
    """Return d with G_WW d = G_Wp and zero outside W, shape (M, B)."""
    both = active.unsqueeze(1) & active.unsqueeze(0)
    matrix = torch.where(both, gram * (signs.unsqueeze(1) * signs.unsqueeze(0)), 0.0)
    diagonal = torch.diagonal(matrix, dim1=0, dim2=1)  # (B, M)
    diagonal += torch.where(active, 0.0, 1.0).T
    return solve_positive(matrix, torch.where(active, column, 0.0))


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Return the solution of symmetric positive semidefinite systems, by LDL^T.

    A row that depends on the rows before it gets 0, which solves the system whenever it has a
    solution.

    Args:
        matrix: Shape (m, m, B); overwritten.
        right: Shape (m, B).
    """
    m = right.shape[0]
    floor = _DEPENDENT[matrix.dtype] * torch.diagonal(matrix, dim1=0, dim2=1).T
    solution = right.clone()
    pivots: list[Tensor] = []
    for k in range(m):
        pivot = matrix[k, k]
        usable = pivot > floor[k]
        inverse = torch.where(usable, 1.0 / torch.where(usable, pivot, 1.0), 0.0)
        pivots.append(inverse)
        column = matrix[k + 1 :, k] * inverse  # (m - k - 1, B)
        matrix[k + 1 :, k + 1 :] -= column.unsqueeze(1) * matrix[k, k + 1 :].unsqueeze(0)
        solution[k + 1 :] -= column * solution[k]
    for k in reversed(range(m)):
        known = (matrix[k, k + 1 :] * solution[k + 1 :]).sum(0)
        solution[k] = (solution[k] - known) * pivots[k]
    return solution

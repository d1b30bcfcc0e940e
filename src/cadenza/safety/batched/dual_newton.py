"""Projection onto rows and a box by Newton's method on the dual, for many environments at once.

Problem:  min 1/2 |x - u|^2 + 1/2 sum_j v_j^2 / s_j   subject to  lower <= x <= upper  and
              a_j @ x <= b_j        where s_j = 0 (hard rows),
              a_j @ x - v_j <= b_j  where s_j > 0 (rows with slack v_j)
Dual:     x(y) = clip(u - A^T y),  r(y) = A x(y) - b - s y;  optimal iff  y >= 0, r <= 0, y r = 0,
          that is max(r, -y) = 0, which is piecewise linear.
Newton:   W = {y + r > 0}, F = components strictly inside the box;
          (A_W F A_W^T + diag s) dy_W = r_W + A_W F A_N^T y_N,  dy_N = -y_N.
Damped:   among a few step lengths, the one with the smallest dual objective; the objective is
          convex and differentiable, so that the iteration cannot cycle.
Source:   semismooth Newton for complementarity problems, doi:10.1007/BF01581275 (nonsmooth
          equations); the choice of W is the primal-dual active set rule of
          doi:10.1137/S1052623401383558.
Axes:     n action components, m rows, B environments last.
Capture:  fixed numbers of iterations, no branch depends on data.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

#: Newton steps taken in full.
FULL_STEPS: Final = 8
#: Further steps with a step length search.
DAMPED_STEPS: Final = 20
#: Largest accepted residual over 1 + |b|, by precision. In float32 the sums themselves round to
#: about 1e-6.
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-5}
#: Step lengths that a damped step compares.
_STEP_LENGTHS: Final = (1.0, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01)
#: Relative size of a pivot below which a row depends on the rows before it.
_DEPENDENT: Final = {torch.float64: 1e-13, torch.float32: 1e-6}


class DualPoint(NamedTuple):
    """Iterate of the dual: multipliers y (m, B), action x (n, B), residuals r (m, B)."""

    y: Tensor
    x: Tensor
    r: Tensor


class DualProblem(NamedTuple):
    """Data of the projection; shapes (n, B), (m, n, B), (m, B), (m, B), (n, B), (n, B)."""

    u: Tensor
    A: Tensor
    b: Tensor
    s: Tensor
    lower: Tensor
    upper: Tensor

    def at(self, y: Tensor) -> DualPoint:
        """Return action and residuals of the multipliers ``y``."""
        x = self.u - (self.A * y.unsqueeze(1)).sum(0)
        x = torch.minimum(torch.maximum(x, self.lower), self.upper)
        return DualPoint(y, x, (self.A * x).sum(1) - self.b - self.s * y)

    def objective(self, point: DualPoint) -> Tensor:
        """Return the dual objective to minimise, shape (B,)."""
        # r = A x - b - s y, and s y^2 counts half
        linear = point.y * (point.r + 0.5 * self.s * point.y)
        return -0.5 * (point.x - self.u).square().sum(0) - linear.sum(0)

    def error(self, point: DualPoint) -> Tensor:
        """Return the largest optimality error over 1 + |b|, shape (B,)."""
        natural = torch.maximum(point.r, -point.y).abs()
        return (natural / (1.0 + self.b.abs())).amax(0)

    def take(self, index: Tensor) -> "DualProblem":
        """Return the problems of some environments."""
        return DualProblem(*(data.index_select(-1, index) for data in self))


def solve_dual(problem: DualProblem, *, compact: bool) -> tuple[DualPoint, Tensor]:
    """Return the projections, and where the iteration converged.

    Args:
        problem: The data.
        compact: Continue with the unfinished environments only. It needs to know how many there
            are, which stops a GPU; without it all environments take all steps.

    Returns:
        The last iterate, and converged of shape (B,). An action that did not converge means
        nothing.
    """
    point = problem.at(torch.zeros_like(problem.b))
    for _ in range(FULL_STEPS):
        point = problem.at(_newton(problem, point))
    tolerance = TOLERANCE[problem.u.dtype]
    converged = problem.error(point) <= tolerance
    if not compact:
        point = _damped(problem, point, early_exit=False)
        return point, problem.error(point) <= tolerance
    rest = (~converged).nonzero().squeeze(1)
    if rest.numel() == 0:
        return point, converged
    part = problem.take(rest)
    fresh = _damped(part, part.at(torch.zeros_like(part.b)), early_exit=True)
    converged = converged.index_copy(0, rest, part.error(fresh) <= tolerance)
    merged = (old.index_copy(1, rest, new) for old, new in zip(point, fresh, strict=True))
    return DualPoint(*merged), converged


def proves_infeasible(problem: DualProblem, y: Tensor) -> Tensor:
    """Return where the weights ``y`` prove that no point of the box meets all rows, shape (B,).

    Summing the rows with weights y >= 0 gives y^T A x <= y^T b; if even the box's smallest
    y^T A x is larger, the rows contradict each other there (Farkas).
    """
    y = y.clamp_min(0.0)
    y = y / y.amax(0).clamp_min(torch.finfo(y.dtype).tiny)
    a = (problem.A * y.unsqueeze(1)).sum(0)
    smallest = torch.where(a > 0.0, a * problem.lower, torch.where(a < 0.0, a * problem.upper, 0.0))
    level = (y * problem.b).sum(0)
    room = TOLERANCE[y.dtype] * (1.0 + (y * problem.b.abs()).sum(0))
    return smallest.sum(0) > level + room


def _damped(problem: DualProblem, point: DualPoint, *, early_exit: bool) -> DualPoint:
    """Take damped steps; the objective never rises."""
    best = problem.objective(point)
    for _ in range(DAMPED_STEPS):
        direction = _newton(problem, point) - point.y
        found = point
        for length in _STEP_LENGTHS:
            trial = problem.at((point.y + length * direction).clamp_min(0.0))
            value = problem.objective(trial)
            better = value < best
            best = torch.where(better, value, best)
            found = DualPoint(
                *(torch.where(better, new, old) for new, old in zip(trial, found, strict=True))
            )
        point = found
        if early_exit and bool((problem.error(point) <= TOLERANCE[problem.u.dtype]).all()):
            break
    return point


def _newton(problem: DualProblem, point: DualPoint) -> Tensor:
    """Return the multipliers after a full Newton step, >= 0 not enforced, shape (m, B)."""
    A, s = problem.A, problem.s
    working = point.y + point.r > 0.0
    free = (point.x > problem.lower) & (point.x < problem.upper)
    masked = A * free
    gram = (masked.unsqueeze(1) * A.unsqueeze(0)).sum(2)  # (m, m, B)
    rest = torch.where(working, 0.0, point.y)
    right = torch.where(working, point.r + (gram * rest.unsqueeze(0)).sum(1), 0.0)
    both = working.unsqueeze(1) & working.unsqueeze(0)
    gram = torch.where(both, gram, 0.0)
    diagonal = torch.diagonal(gram, dim1=0, dim2=1)  # (B, m)
    diagonal += torch.where(working, s, 1.0).T
    return torch.where(working, point.y + solve_positive(gram, right), 0.0)


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

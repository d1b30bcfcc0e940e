"""Exact searches for the nearest point of a box that meets rows, in many environments at once.

Problem:   min 1/2 |x - u|^2 + 1/2 sum_j v_j^2 / s_j   subject to  lower <= x <= upper  and
               a_j @ x <= b_j        where s_j = 0 (hard rows),
               a_j @ x - v_j <= b_j  where s_j > 0 (rows with slack v_j = s_j y_j)
One row:   x(mu) = clip(u - mu a). The excess a @ x(mu) - b falls piecewise linearly in mu, with two
           breakpoints per component; the segment that contains its zero gives mu exactly.
Faces:     in two and three dimensions x is the projection on the flat of a face. Every choice of at
           most n constraints that contains a row gives a candidate in closed form; the nearest one
           that meets everything is the answer, and if there is none, no point of the box meets all
           rows: infeasibility is decided, not suspected. (Without a row the candidate would be the
           clipped nominal, which the caller has found to miss one.)
Any size:  start at x = u with no active constraint; take the most violated constraint p and raise
           its multiplier while the active ones W stay tight,
               G_WW d = G_Wp,  y_W <- y_W - t d,  y_p <- y_p + t,  G = N N^T + diag s,
           until p is tight (t = t_2, p joins W) or a multiplier reaches zero (t = t_1, that one
           leaves W). Each full step raises the dual objective, so no active set returns, and the
           method ends; neither t_1 nor t_2 finite proves that there is no solution. Goldfarb and
           Idnani, doi:10.1007/BF02591962; DAQP is of the same family.
Axes:      n action components, m rows, M = m + n constraints (rows, then box components), K
           candidates, B environments last, so that every operation runs over contiguous memory.
Capture:   no branch depends on data.
"""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

#: Relative shortfall that is rounding of the sums, not a violated row, by precision.
ROUNDING: Final = {torch.float64: 1e-12, torch.float32: 2e-6}
#: Dimensions the enumeration of faces is written for, with the largest number of rows; the
#: candidates grow with its n-th power.
MAX_FACE_ROWS: Final = {2: 12, 3: 6}
#: Steps per constraint of the active set method before a problem counts as not converged. Most need
#: as many steps as they have active constraints; one that has to leave again costs two more.
STEPS_PER_CONSTRAINT: Final = 4
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


class Problems(NamedTuple):
    """Projections of B environments."""

    u: Tensor  # Nominal points, shape (n, B)
    A: Tensor  # Rows, shape (m, n, B)
    b: Tensor  # Right-hand sides, shape (m, B)
    s: Tensor  # Slack of each row per unit of its multiplier, shape (m, B); 0 for a hard row
    lower: Tensor  # Lower bounds, shape (n, B)
    upper: Tensor  # Upper bounds, shape (n, B)
    first: Tensor  # Index of the most urgent row, shape (B,)
    final: Tensor  # Without a solution the least violation is wanted, shape (B,), bool

    def take(self, index: Tensor) -> "Problems":
        """Return the problems of some environments."""
        return Problems(*(data.index_select(-1, index) for data in self))


def first_largest(values: Tensor) -> Tensor:
    """Return the index of the first largest entry along axis 0: (m, B) to (B,), int64.

    `max(dim)` and `argmax(dim)` take some hundred microseconds on a CPU where this takes ten: the
    former wakes all threads however small the array is, the latter leaves the vector unit idle.
    """
    return _first(values == values.amax(0), values.shape[0])


def first_smallest(values: Tensor) -> Tensor:
    """Return the index of the first smallest entry along axis 0: (m, B) to (B,), int64."""
    return _first(values == values.amin(0), values.shape[0])


def _first(found: Tensor, count: int) -> Tensor:
    """Return the first index at which ``found``, (m, B), is true; the last one if nowhere (NaN)."""
    index = torch.arange(count, device=found.device).unsqueeze(1)
    return torch.where(found, index, count - 1).amin(0)


def project_one_row_batch(
    u: Tensor, a: Tensor, b: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the points of the box closest to ``u`` with a @ x <= b, and where there is one.

    Shapes (n, B), of ``b`` and feasible (B,). Where no point of the box meets the row, x is the one
    with the smallest ``a @ x``, closest to ``u``.
    """
    x = torch.minimum(torch.maximum(u, lower), upper)
    value = (a * x).sum(0) - b
    squared = a * a
    moves = squared > 0.0
    safe = torch.where(moves, a, 1.0)
    near = torch.where(a > 0.0, upper, lower)
    far = torch.where(a > 0.0, lower, upper)
    starts = torch.where(moves, ((u - near) / safe).clamp_min_(0.0), 0.0)
    ends = torch.where(moves, ((u - far) / safe).clamp_min_(0.0), 0.0)
    length = ends - starts
    points = torch.cat((starts, ends))  # (2n, B)
    moved = torch.minimum((points.unsqueeze(1) - starts).clamp_min_(0.0), length)
    left = value - moved.mul_(squared).sum(1)  # (2n, B): excess that is left at each breakpoint
    passed = left >= 0.0
    mu = torch.where(passed, points, 0.0).amax(0)
    excess = torch.minimum(torch.where(passed, left, value).amin(0), value)
    slope = torch.where((starts <= mu) & (mu < ends), squared, 0.0).sum(0)
    sloped = slope > 0.0
    mu = mu + torch.where(sloped, excess / torch.where(sloped, slope, 1.0), 0.0)
    on_row = torch.minimum(torch.maximum(u - mu * a, lower), upper)
    corner = torch.where(moves, far, x)
    met = value <= 0.0
    x = torch.where(met, x, torch.where(sloped, on_row, corner))
    feasible = met | sloped | (excess <= ROUNDING[u.dtype] * (1.0 + b.abs()))
    return x, feasible


def project_on_faces(
    u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the nearest points of the polytopes, and where these are not empty, shape (B,).

    Shapes as in `Problems`, n in `MAX_FACE_ROWS`; ``u`` clipped to the box misses a row.
    """
    m, n, size = A.shape
    low, high = lower.expand_as(u), upper.expand_as(u)
    sides = torch.eye(n, dtype=u.dtype, device=u.device).unsqueeze(2).expand(n, n, size)
    normals = torch.cat((A, sides, sides))  # rows, upper bounds, lower bounds: (m + 2n, n, B)
    parts: list[list[Tensor]] = []
    for k in range(1, n + 1):
        # A vertex is wherever it is; from inside the box it is found with the least rounding.
        start = u if k < n else torch.minimum(torch.maximum(u, low), high)
        excess = torch.cat(((A * start).sum(1) - b, start - high, start - low))
        planes = torch.cat((normals, excess.unsqueeze(1)), 1)[_choices(m, n, k, u.device)]
        steps = _steps([plane.unbind(1) for plane in planes])
        parts.append([start_k - step for start_k, step in zip(start, steps, strict=True)])
    x = [torch.cat(column) for column in zip(*parts, strict=True)]  # n components, (K, B)
    missed, distance = torch.full_like(x[0], -torch.inf), torch.zeros_like(x[0])
    for a_j, b_j in zip(A, b + ROUNDING[u.dtype] * (1.0 + b.abs()), strict=True):
        residual = -b_j
        for a_jk, x_k in zip(a_j, x, strict=True):
            residual = torch.addcmul(residual, a_jk, x_k)
        missed = torch.maximum(missed, residual)
    below, above = (ROUNDING[u.dtype] * (1.0 + 2.0 * end.abs()) for end in (low, high))
    for x_k, u_k, least, most in zip(x, u, low - below, high + above, strict=True):
        missed = torch.maximum(missed, torch.maximum(x_k - most, least - x_k))
        distance = torch.addcmul(distance, x_k - u_k, x_k - u_k)
    # No candidate, a division by zero, meets nothing.
    distance = torch.where(missed <= 0.0, distance, torch.inf)
    index = first_smallest(distance).unsqueeze(0)
    feasible = distance.amin(0) < torch.inf
    nearest = torch.cat([x_k.gather(0, index) for x_k in x])
    answer = torch.where(feasible, nearest, u)
    return torch.minimum(torch.maximum(answer, low), high), feasible


def _steps(planes: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Return the shortest steps, to be taken back, that make k constraints tight: n of (K, B).

    Each of ``planes``, at most n of n in `MAX_FACE_ROWS`, has the components of its normal and by
    how much it is exceeded, (K, B).
    """
    *a, p = planes[0]
    if len(planes) == 1:
        scale = p / _dot(a, a)
        return [scale * a_k for a_k in a]
    *c, q = planes[1]
    if len(a) == 2:
        determinant = a[0] * c[1] - a[1] * c[0]
        return [(p * c[1] - q * a[1]) / determinant, (q * a[0] - p * c[0]) / determinant]
    line = _cross(a, c)  # of two planes the third direction is free
    e = line if len(planes) == 2 else planes[2][:3]
    normal, turned = _cross(c, e), _cross(e, a)
    steps = [p * x + q * y for x, y in zip(normal, turned, strict=True)]
    if len(planes) == 3:
        steps = [step + planes[2][3] * x for step, x in zip(steps, line, strict=True)]
    volume = _dot(a, normal)
    return [step / volume for step in steps]


def _dot(a: Sequence[Tensor], c: Sequence[Tensor]) -> Tensor:
    """Return the products of vectors given by their components."""
    total = a[0] * c[0]
    for a_k, c_k in zip(a[1:], c[1:], strict=True):
        total = torch.addcmul(total, a_k, c_k)
    return total


def _cross(a: Sequence[Tensor], c: Sequence[Tensor]) -> list[Tensor]:
    """Return the cross products of vectors given by their components."""
    (a_0, a_1, a_2), (c_0, c_1, c_2) = a, c
    return [a_1 * c_2 - a_2 * c_1, a_2 * c_0 - a_0 * c_2, a_0 * c_1 - a_1 * c_0]


@cache
def _choices(m: int, n: int, k: int, device: torch.device) -> Tensor:
    """Return the choices of k of m rows, n upper and n lower bounds, shape (k, K).

    With a row each, and no component at both of its bounds. Kept, so that a capture finds them.
    """
    kept: list[tuple[int, ...]] = []
    for choice in itertools.combinations(range(m + 2 * n), k):
        held = [(index - m) % n for index in choice if index >= m]
        if len(set(held)) == len(held) < k:
            kept.append(choice)
    return torch.tensor(kept, device=device).T


@cache
def face_count(n: int, m: int) -> int:
    """Return the number of candidates of m rows in n dimensions, K."""
    return sum(_choices(m, n, k, torch.device("cpu")).shape[1] for k in range(1, n + 1))


class _State(NamedTuple):
    """Iterate of the method."""

    y: Tensor  # Multipliers, >= 0, shape (M, B)
    side: Tensor  # Bound a component is held at, +1 upper or -1 lower, shape (n, B)
    active: Tensor  # Constraints that stay tight, shape (M, B)
    p: Tensor  # Constraint whose multiplier was raised last, shape (B,)
    entering: Tensor  # It is not tight yet, shape (B,)
    finished: Tensor  # Nothing is left to do, shape (B,)
    infeasible: Tensor  # There is proved to be no solution, shape (B,)


class ActiveSetAnswer(NamedTuple):
    """Actions (n, B), where they solve the problem (B,), and where there is proved to be none."""

    x: Tensor
    solved: Tensor
    infeasible: Tensor


def solve_active_set(problem: Problems) -> ActiveSetAnswer:
    """Return the projections; an action that does not solve its problem means nothing."""
    (m, size), n = problem.b.shape, problem.u.shape[0]
    y = problem.u.new_zeros((m + n, size))
    nobody = torch.zeros(size, dtype=torch.bool, device=y.device)
    state = _State(
        y=y,
        side=torch.ones_like(problem.u),
        active=torch.zeros_like(y, dtype=torch.bool),
        p=torch.zeros(size, dtype=torch.int64, device=y.device),
        entering=nobody,
        finished=nobody,
        infeasible=nobody,
    )
    gram = _gram(problem)
    for _ in range(STEPS_PER_CONSTRAINT * gram.shape[0]):
        state = _step(problem, gram, state)
    state = _polished(problem, gram, state)
    x = _action(problem, state)
    solved = _is_solution(problem, state, x) & ~state.infeasible
    return ActiveSetAnswer(x, solved, state.infeasible)


def _gram(problem: Problems) -> Tensor:
    """Return G for components held at their upper bounds, shape (M, M, B)."""
    m, n = problem.b.shape[0], problem.u.shape[0]
    gram = problem.u.new_zeros((m + n, m + n, problem.u.shape[1]))
    gram[:m, :m] = (problem.A.unsqueeze(1) * problem.A.unsqueeze(0)).sum(2)
    gram[:m, m:] = problem.A
    gram[m:, :m] = problem.A.transpose(0, 1)
    for k in range(m + n):
        gram[k, k] += problem.s[k] if k < m else 1.0
    return gram


def _step(problem: Problems, gram: Tensor, state: _State) -> _State:
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


def _polished(problem: Problems, gram: Tensor, state: _State) -> _State:
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


def _action(problem: Problems, state: _State, *, inside: bool = True) -> Tensor:
    """Return x of the multipliers, (n, B); moved into the box, to the last bit, if ``inside``."""
    m = problem.b.shape[0]
    pull = (problem.A * state.y[:m].unsqueeze(1)).sum(0)
    x = problem.u - pull - state.side * state.y[m:]
    bound = torch.where(state.side > 0.0, problem.upper, problem.lower)
    x = torch.where(state.active[m:], bound, x)
    return torch.minimum(torch.maximum(x, problem.lower), problem.upper) if inside else x


def _is_solution(problem: Problems, state: _State, x: Tensor) -> Tensor:
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
    """Return the solution of symmetric positive semidefinite systems, (m, m, B), by LDL^T.

    The matrix is overwritten. A row that depends on the rows before it gets 0, which solves the
    system whenever it has a solution.
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

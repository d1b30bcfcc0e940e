"""Nearest actions that meet every row, or the least unsafe ones, for thousands of environments.

Problem:  per environment, min |x - u|^2  subject to  A x <= b,  lo <= x <= hi
Order:    1. environments whose clipped nominal meets every row are done: with the box met too,
             the nominal comes back bit for bit;
          2. the exact one-row answer of the most violated row, where it meets the others;
          3. several rows: enumeration of faces for two and three action components, else a dual
             active set method, accepted only with every row met to 1e-9 (1 + |b|);
          4. no solution, or none found: least violation. The box is hard; the most urgent row is
             met as far as the box allows, where it cannot be met by fixing all components that it
             sees; the others get slack v_j at cost 1/2 rho_j v_j^2, against 1/2 |x - u|^2. Where
             that is not solved to its tolerance, the answer of the most urgent row alone. Never the
             nominal, and never an answer that did not converge.
Two ways: on a CPU each stage looks only at the environments that are left; where few are, and in
          place of the active set method, they are solved one by one as
          `cadenza.safety.filters.projection` does. On CUDA, and with ``capturable``, every stage
          runs for all of them and a mask chooses: no transfer to the host and no branch on data.
Searches: for  min 1/2 |x - u|^2 + 1/2 sum_j v_j^2 / s_j  subject to  lower <= x <= upper  and
              a_j @ x <= b_j        where s_j = 0 (hard rows),
              a_j @ x - v_j <= b_j  where s_j > 0 (rows with slack v_j = s_j y_j)
One row:  x(mu) = clip(u - mu a). The excess a @ x(mu) - b falls piecewise linearly in mu, with two
          breakpoints per component; the segment that contains its zero gives mu exactly.
Faces:    in two and three dimensions x is the projection on the flat of a face. Every choice of at
          most n constraints that contains a row gives a candidate in closed form; the nearest one
          that meets everything is the answer, and if there is none, no point of the box meets all
          rows: infeasibility is decided, not suspected. (Without a row the candidate would be the
          clipped nominal, which the caller has found to miss one.)
Any size: start at x = u with no active constraint; take the most violated constraint p and raise
          its multiplier while the active ones W stay tight,
              G_WW d = G_Wp,  y_W <- y_W - t d,  y_p <- y_p + t,  G = N N^T + diag s,
          until p is tight (t = t_2, p joins W) or a multiplier reaches zero (t = t_1, that one
          leaves W). Each full step raises the dual objective, so no active set returns, and the
          method ends; neither t_1 nor t_2 finite proves that there is no solution. Goldfarb and
          Idnani, doi:10.1007/BF02591962; DAQP is of the same family.
Gradient: with W the rows that hold the action back and F the components inside the box, both told
          from the answer to its rounding,
              x_F = u_F - A_WF^T y,  A_W x = b_W,
          and for a cotangent g, with z = (A_WF A_WF^T)^-1 A_WF g_F and q = g_F - A_WF^T z (zero
          outside F):  du = q,  db = z,  dA = -(y q^T + z x^T), while W and F stay the same.
          Passthrough: W is empty and q = g. No solution: zero. See arXiv:1703.00443.
Axes:     arguments have B first; inside, n action components, m rows, M = m + n constraints (rows,
          then box components), K candidates, and B environments last, so that every operation runs
          over contiguous memory.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from cadenza.core.checks import is_real, real_array, require_kinds
from cadenza.core.errors import InputError
from cadenza.safety.filters.projection import SLACK_WEIGHT, UNSEEN, least_violation, nearest
from cadenza.safety.solvers import DaqpSolver, SolveStatus

# What became of each environment; integers, because a tensor cannot hold `SolveStatus`.
#: The action is the nominal one, bit for bit; it meets every row.
INACTIVE: Final = 0
#: The action was changed and meets every row.
OPTIMAL: Final = 1
#: No action of the box meets every row; the action is the least violation.
INFEASIBLE: Final = 2
#: The solver did not finish; the action is the least violation, whose most urgent row is exact.
NOT_CONVERGED: Final = 3
#: The input is not finite or out of range; the action is zero, moved into the box.
BAD_INPUT: Final = 4
#: Word of each code in telemetry; the first three are those of `FilterInfo.status`.
STATUS_NAMES: Final = ("inactive", "optimal", "infeasible", "max_iter", "bad_input")

#: Distance at which a row or a bound counts as active, relative to the numbers it is a difference
#: of, by precision: above rounding, which a solver's answer has at bounds too.
_ACTIVE: Final = {torch.float64: 1e-11, torch.float32: 2e-6}
#: Room left around the most urgent row when the others are fitted around it, relative to |b|; in
#: float64 that of `cadenza.safety.filters.projection`, in float32 above rounding.
_HARD_ROW_ROOM: Final = {torch.float64: 1e-9, torch.float32: 1e-5}
#: Numbers in the largest arrays of a pass on a CPU: they fit the cache, and torch begins to use
#: threads at 32768, which costs more than it brings for arrays this small.
_CHUNK_NUMBERS: Final = 32767
#: The largest batch of the filter of which a CPU solves what clipping leaves one by one, faster
#: than all together; and the most that it solves so of what the one-row answers of any batch left.
FEW: Final = 128
_FEW_LEFT: Final = 12
#: Bound of a component that has none.
_FREE: Final = 1e30
#: Code of each answer of the solver; all others did not finish.
_CODES: Final = {SolveStatus.OPTIMAL: OPTIMAL, SolveStatus.INFEASIBLE: INFEASIBLE}
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


class BatchProjection(NamedTuple):
    """Answers of a batch.

    Attributes:
        u: Actions, shape (B, n).
        status: Codes of this module, shape (B,), int8.
        residual: Largest A u - b of each environment, shape (B,); -inf without rows.
    """

    u: Tensor
    status: Tensor
    residual: Tensor


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

    def inside(self, x: Tensor) -> Tensor:
        """Return the points of the boxes nearest to ``x``, shape (n, B)."""
        return torch.minimum(torch.maximum(x, self.lower), self.upper)


def project_batch(
    u_hat: Tensor,
    A: Tensor,
    b: Tensor,
    lo: Tensor | float | None = None,
    hi: Tensor | float | None = None,
    active_mask: Tensor | None = None,
    *,
    capturable: bool = False,
) -> BatchProjection:
    """Return the actions closest to ``u_hat`` that meet the rows and the box.

    Without a solution the most violated row is served first, and the others alike. Gradients with
    respect to ``u_hat``, ``A`` and ``b`` follow the active constraints; they are zero for an
    environment without a solution. Gradients with respect to the box are not offered.

    Args:
        u_hat: Nominal actions, shape (B, n), float64 or float32.
        A: Rows, shape (B, m, n); m may be 0.
        b: Right-hand sides, shape (B, m); +inf switches a row off.
        lo: Lower bounds: a number, shape (n,) or (B, n); None for none.
        hi: Upper bounds, likewise.
        active_mask: Rows that count, shape (B, m), bool; None counts all of them.
        capturable: Read nothing back from the device, so that the call can be captured in a CUDA
            graph. Environments whose numbers are bad then get `BAD_INPUT` and the box's point
            nearest to zero; zero where the box is empty or not a number.

    Raises:
        InputError: Shapes or dtypes disagree; unless ``capturable`` also an empty box or an entry
            that is not finite.
        ConfigurationError: ``capturable`` is neither True nor False.
    """
    require_kinds("project_batch", capturable=(capturable, bool))
    rows_on = _rows_on(u_hat, A, b, active_mask)
    lower = _bound("lo", lo, u_hat, -torch.inf)
    upper = _bound("hi", hi, u_hat, torch.inf)
    if not capturable:
        _require_numbers(u_hat, A, b, lower, upper)
    return project_ranked(u_hat, A, b, lower, upper, rows_on, capturable=capturable)


def project_ranked(
    u_hat: Tensor,
    A: Tensor,
    b: Tensor,
    lower: Tensor,
    upper: Tensor,
    rows_on: Tensor,
    first: Tensor | None = None,
    weight: Tensor | None = None,
    final: Tensor | None = None,
    *,
    capturable: bool = False,
) -> BatchProjection:
    """Return what `project_batch` does where the rows have a rank; its input is not checked.

    Without a solution the row with the index ``first``, shape (B,), int64, is served first; None
    takes the most violated one. ``weight``, (B, m), > 0, weighs the violations of the others; None
    takes `SLACK_WEIGHT` for each. Both bounds have shape (B, n). The least violation is searched
    for only where ``final``, (B,), is true; elsewhere the action means nothing without a solution.
    """
    masked = u_hat.is_cuda or capturable
    batch = u_hat.shape[0]
    if batch == 0:
        codes = torch.empty(0, dtype=torch.int8, device=u_hat.device)
        return BatchProjection(u_hat.clone(), codes, torch.empty_like(u_hat[:, 0]))
    given = (u_hat, A, b, lower, upper, rows_on, first, weight, final)
    size = batch if masked else chunk_size(A.shape[1], A.shape[2])
    parts = [
        _project(
            tuple(None if x is None else x[start : start + size] for x in given),
            _Stages(compact=not masked),
        )
        for start in range(0, batch, size)
    ]
    if len(parts) == 1:
        return parts[0]
    return BatchProjection(*(torch.cat(column) for column in zip(*parts, strict=True)))


def chunk_size(m: int, n: int) -> int:
    """Return how many environments a CPU takes at once, for m rows and n components."""
    return max(64, _CHUNK_NUMBERS // max(2 * n * n, m * n))


def _project(given: "tuple[Tensor | None, ...]", stages: "_Stages") -> BatchProjection:
    """Solve one pass over the arguments of `project_ranked`."""
    u_hat, A, b, lower, upper, rows_on = cast("tuple[Tensor, ...]", given[:6])
    first, weight, final = given[6:]
    with torch.no_grad():
        problems, good = _cleaned(u_hat, A, b, lower, upper, rows_on)
        weights = torch.full_like(problems.b, SLACK_WEIGHT) if weight is None else weight.T
        problems = problems._replace(s=1.0 / weights, final=good if final is None else final)
        if first is not None:
            problems = problems._replace(first=first)
        elif b.shape[1] > 0:
            excess = (problems.A * problems.inside(problems.u)).sum(1) - problems.b
            worst = first_largest(excess)
            problems = problems._replace(first=worst)
        x, status = stages.run(problems)
        x = torch.where(good, x, problems.inside(torch.zeros_like(x)))
        status = _codes(~good, BAD_INPUT, status)
        residual = torch.full_like(x[0], -torch.inf)
        if problems.b.shape[0] > 0:
            residual = ((problems.A * x).sum(1) - problems.b).amax(0)
    u = x.T
    if torch.is_grad_enabled() and (u_hat.requires_grad or A.requires_grad or b.requires_grad):
        apply = cast("Callable[..., Tensor]", _Projection.apply)  # pyright: ignore[reportUnknownMemberType] # torch leaves it untyped
        u = apply(u_hat, A, b, u, status, *problems)
    return BatchProjection(u, status, residual)


def _cleaned(
    u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor, rows_on: Tensor
) -> tuple[Problems, Tensor]:
    """Return the problems, B last, with harmless numbers in rows that are off or bad environments.

    Also returns where the input is good, shape (B,). Slack and rank are still to be filled in.
    """
    u, rows, b, lower, upper = u.T, A.permute(1, 2, 0), b.T, lower.T, upper.T
    box = ((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all(0)  # false for NaN
    good = torch.isfinite(u).all(0) & (torch.isfinite(rows).all(1) & (b > -torch.inf)).all(0) & box
    on = rows_on.T & (b < torch.inf) & good
    clean = Problems(
        u=torch.where(good, u, 0.0).contiguous(),
        A=torch.where(on.unsqueeze(1), rows, 0.0).contiguous(),
        b=torch.where(on, b, 1.0).contiguous(),  # 0 @ x <= 1 holds and never binds
        s=b,
        lower=torch.where(box, lower, 0.0).contiguous(),
        upper=torch.where(box, upper, 0.0).contiguous(),
        first=torch.zeros(u.shape[1], dtype=torch.int64, device=u.device),
        final=good,
    )
    return clean, good


class _Projection(torch.autograd.Function):
    """Identity on the solution, with the derivative of the solution map."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        _, _, _, u, status, *problems = arguments
        ctx.save_for_backward(u, status, *problems)
        return u.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        u, status, *data = ctx.saved_tensors
        du, dA, db = _pull_back(cotangents[0].T, u.T, status, Problems(*data))
        return du.T, dA.permute(2, 0, 1), db.T, *([None] * (2 + len(data)))


def _pull_back(
    g: Tensor, x: Tensor, status: Tensor, problems: Problems
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of u, A and b: shapes (n, B), (m, n, B), (m, B)."""
    u, A, b, _, lower, upper, _, _ = problems
    solved = (status == INACTIVE) | (status == OPTIMAL)
    moved = status == OPTIMAL  # an unchanged action is on a bound exactly, or not at all
    near = _ACTIVE[x.dtype] * torch.maximum(u.abs(), x.abs()).amax(0)
    room = torch.where(moved, near, 0.0)
    free = (x - lower > room) & (upper - x > room) & solved
    held = ((A * x).sum(1) - b).abs() <= _ACTIVE[x.dtype] * b.abs() + near * A.abs().sum(1)
    held = held & moved
    active = torch.where(held.unsqueeze(1) & free, A, 0.0)  # A_WF, (m, n, B)
    gram = (active.unsqueeze(1) * active.unsqueeze(0)).sum(2)
    g_free = torch.where(free, g, 0.0)
    z = solve_positive(gram.clone(), (active * g_free).sum(1))
    y = solve_positive(gram, (active * torch.where(free, u - x, 0.0)).sum(1))
    q = g_free - (active * z.unsqueeze(1)).sum(0)
    dA = -(y.unsqueeze(1) * q + z.unsqueeze(1) * x)
    return q, dA, z


class _Answers(NamedTuple):
    """Actions of shape (n, B) and status codes of shape (B,), int8."""

    x: Tensor
    status: Tensor


def _codes(mask: Tensor, code: int, otherwise: Tensor | int) -> Tensor:
    """Return ``code`` where ``mask`` is true, shape (B,), int8."""
    if isinstance(otherwise, int):
        otherwise = torch.full_like(mask, otherwise, dtype=torch.int8)
    return torch.where(mask, code, otherwise)


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages, each for the environments the one before left, or with a mask for all of them."""

    compact: bool

    def run(self, problems: Problems) -> _Answers:
        """Return the answers of all environments."""
        x = problems.inside(problems.u)
        answers = _Answers(x, torch.full_like(x[0], OPTIMAL, dtype=torch.int8))
        if problems.b.shape[0] > 0:
            violated = ((problems.A * x).sum(1) - problems.b > 0.0).any(0)
            answers = self._replace(violated, problems, self._one_row, answers)
        unchanged = (answers.x == problems.u).all(0) & (answers.status == OPTIMAL)
        return _Answers(answers.x, _codes(unchanged, INACTIVE, answers.status))

    def _replace(
        self,
        mask: Tensor,
        problems: Problems,
        stage: Callable[[Problems], _Answers],
        answers: _Answers,
    ) -> _Answers:
        """Return ``answers`` with those of ``stage`` where ``mask``, shape (B,), is true."""
        if not self.compact:
            fresh = stage(problems)
            return _Answers(
                torch.where(mask, fresh.x, answers.x),
                torch.where(mask, fresh.status, answers.status),
            )
        index = mask.nonzero().squeeze(1)
        if index.numel() == 0:
            return answers
        if index.numel() == mask.numel():
            return stage(problems)
        fresh = stage(problems.take(index))
        return _Answers(
            answers.x.index_copy(1, index, fresh.x),
            answers.status.index_copy(0, index, fresh.status),
        )

    def _one_row(self, problems: Problems) -> _Answers:
        """Solve for the most violated row; go on where that is not enough."""
        A, b = problems.A, problems.b
        if b.shape[0] == 1:
            x, feasible = _one_of(problems, problems.first)
            return _Answers(x, _codes(feasible, OPTIMAL, INFEASIBLE))
        worst = first_largest((A * problems.inside(problems.u)).sum(1) - b)
        x, feasible = _one_of(problems, worst)
        met = (A * x).sum(1) - b <= ROUNDING[x.dtype] * (1.0 + b.abs())
        met = met.scatter(0, worst.unsqueeze(0), value=True).all(0)
        answers = _Answers(x, _codes(feasible, OPTIMAL, INFEASIBLE))
        answers = self._replace(feasible & ~met, problems, self._several_rows, answers)
        lost = ~feasible & problems.final
        return self._replace(lost, problems, self._least_violation, answers)

    def _several_rows(self, problems: Problems) -> _Answers:
        """Solve for all rows; where that fails, the least violation."""
        n, m = problems.u.shape[0], problems.b.shape[0]
        by_faces = m <= MAX_FACE_ROWS.get(n, 0)
        # Faces judge float32 rows by their own rounding, which the scalar search does not.
        exact = problems.u.dtype == torch.float64 and not problems.u.is_cuda
        few = exact and problems.u.shape[1] <= _FEW_LEFT
        if self.compact and (few or not by_faces):
            return _one_by_one(problems)
        if by_faces:
            x, feasible = self._faces(problems)
            status = _codes(feasible, OPTIMAL, INFEASIBLE)
        else:
            x, solved, infeasible = solve_active_set(problems._replace(s=0.0 * problems.s))
            status = _codes(solved, OPTIMAL, _codes(infeasible, INFEASIBLE, NOT_CONVERGED))
        answers = _Answers(x, status)
        lost = (status != OPTIMAL) & problems.final
        least = self._replace(lost, problems, self._least_violation, answers)
        return _Answers(least.x, status)

    def _faces(self, problems: Problems) -> tuple[Tensor, Tensor]:
        """Enumerate faces; on a CPU in parts whose arrays fit the cache."""
        n, (m, size) = problems.u.shape[0], problems.b.shape
        numbers = face_count(n, m) * max(m, n)
        step = max(64, _CHUNK_NUMBERS // numbers) if self.compact else size
        parts = [
            project_on_faces(Problems(*(data[..., start : start + step] for data in problems)))
            for start in range(0, size, step)
        ]
        return torch.cat([x for x, _ in parts], 1), torch.cat([met for _, met in parts])

    def _least_violation(self, problems: Problems) -> _Answers:
        """Return the least-violation actions."""
        alone, feasible = _one_of(problems, problems.first)
        lost = torch.full_like(feasible, INFEASIBLE, dtype=torch.int8)
        if problems.b.shape[0] == 1:
            return _Answers(alone, lost)
        if self.compact:
            return _one_by_one(problems, lost=True)
        index = problems.first.unsqueeze(0)
        at_rows = index.unsqueeze(1).expand(1, *alone.shape)
        a = problems.A.gather(0, at_rows).squeeze(0)
        fixed = ~feasible & (a.abs() > UNSEEN * a.abs().amax(0))
        a = torch.where(feasible, a, 0.0)
        hard = torch.where(feasible, problems.b.gather(0, index).squeeze(0), 0.0)
        room = _HARD_ROW_ROOM[hard.dtype] * (1.0 + hard.abs())
        level = hard + room
        x, solved, _ = solve_active_set(
            problems._replace(
                A=problems.A.scatter(0, at_rows, a.unsqueeze(0)),
                b=problems.b.scatter(0, index, level.unsqueeze(0)),
                s=problems.s.scatter(0, index, torch.zeros_like(level).unsqueeze(0)),
                lower=torch.where(fixed, alone, problems.lower),
                upper=torch.where(fixed, alone, problems.upper),
            )
        )
        # Large weights beside a row that hardly sees one component: rounding can leave it.
        solved = solved & ((a * x).sum(0) <= level + room)
        return _Answers(torch.where(solved, x, alone), lost)


def _one_of(problems: Problems, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return the answers for one row of each environment, (n, B), and where they meet it, (B,)."""
    index = row.unsqueeze(0)
    a = problems.A.gather(0, index.unsqueeze(1).expand(1, *problems.u.shape)).squeeze(0)
    b = problems.b.gather(0, index).squeeze(0)
    return project_one_row_batch(problems.u, a, b, problems.lower, problems.upper)


def _one_by_one(problems: Problems, *, lost: bool = False) -> _Answers:
    """Solve one environment after the other; ``lost`` ones are known to have no solution."""
    solver, found, codes = DaqpSolver(), list[list[float]](), list[int]()
    free = problems._replace(
        s=1.0 / problems.s,
        lower=problems.lower.clamp_min(-_FREE),
        upper=problems.upper.clamp_max(_FREE),
    )
    for u, a, b, weights, lower, upper, first, final in zip(
        *(numbers_of(data.movedim(-1, 0)) for data in free), strict=True
    ):
        x, status = None, SolveStatus.INFEASIBLE
        if not lost:
            x, status = nearest(u, a, b, lower, upper, solver)
        if x is None and final:
            x = least_violation(u, a, b, first, weights, (lower, upper), solver)
        found.append(u if x is None else x)
        codes.append(code_of(status))
    like = problems.u
    return _Answers(like.new_tensor(found).T, like.new_tensor(codes, dtype=torch.int8))


def numbers_of(values: Tensor) -> list[Any]:
    """Return a tensor as lists of plain numbers."""
    return cast("list[Any]", values.tolist())  # pyright: ignore[reportUnknownMemberType] # torch leaves it untyped


def code_of(status: SolveStatus) -> int:
    """Return the code of a solver's answer that changed the action."""
    return _CODES.get(status, NOT_CONVERGED)


def require_tensor(name: str, values: object) -> Tensor:
    """Return ``values``; InputError unless it is a tensor."""
    if not isinstance(values, Tensor):
        raise InputError(
            f"{name}: expected a tensor, got {type(values).__name__}; "
            "convert it with torch.as_tensor."
        )
    return values


def tensor_like(name: str, values: object, like: Tensor) -> Tensor:
    """Return numbers as a tensor of the dtype and on the device of ``like``; a tensor as it is."""
    if isinstance(values, Tensor):
        return values
    if is_real(values):  # filled on the device: a graph capture allows no copy from the host
        return torch.full((), float(values), dtype=like.dtype, device=like.device)
    return torch.as_tensor(real_array(name, values), dtype=like.dtype, device=like.device)


def _rows_on(u: Tensor, A: Tensor, b: Tensor, active_mask: Tensor | None) -> Tensor:
    """Return which rows count, shape (B, m), after checking shapes and dtypes."""
    for name, values in (("u_hat", u), ("A", A), ("b", b)):
        require_tensor(f"project_batch: {name}", values)
    if u.dtype not in (torch.float64, torch.float32) or not u.dtype == A.dtype == b.dtype:
        raise InputError(
            "project_batch: expected u_hat, A and b all float64 or all float32, got "
            f"{u.dtype}, {A.dtype}, {b.dtype}."
        )
    sound = u.ndim == b.ndim == 2 and b.shape[0] == u.shape[0] and u.shape[1] > 0
    if not sound or A.shape != (*b.shape, u.shape[1]):
        raise InputError(
            "project_batch: expected u_hat (B, n), A (B, m, n) and b (B, m), n >= 1, got shapes "
            f"{tuple(u.shape)}, {tuple(A.shape)}, {tuple(b.shape)}."
        )
    if active_mask is None:
        return torch.ones_like(b, dtype=torch.bool)
    require_tensor("project_batch: active_mask", active_mask)
    if active_mask.shape != b.shape or active_mask.dtype != torch.bool:
        raise InputError(
            f"project_batch: expected active_mask of bool {tuple(b.shape)}, got "
            f"{active_mask.dtype} {tuple(active_mask.shape)}."
        )
    return active_mask


def _bound(name: str, bound: Tensor | float | None, u: Tensor, missing: float) -> Tensor:
    """Return a bound of shape (B, n)."""
    given = missing if bound is None else bound
    values = tensor_like(f"project_batch: {name}", given, u).to(dtype=u.dtype, device=u.device)
    try:
        return values.expand(u.shape)
    except RuntimeError as error:
        raise InputError(
            f"project_batch: {name}: expected a number, shape (n,) or (B, n) for u_hat "
            f"{tuple(u.shape)}, got shape {tuple(values.shape)}."
        ) from error


def _require_numbers(u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor) -> None:
    """Raise InputError if an entry is not finite or the box is empty; +inf in b is allowed."""
    for name, values, fine in (
        ("u_hat", u, torch.isfinite(u)),
        ("A", A, torch.isfinite(A)),
        ("b", b, b > -torch.inf),
    ):
        if not bool(fine.all()):
            environment = int((~fine).nonzero()[0, 0])
            raise InputError(
                f"project_batch: {name}: expected finite numbers, got "
                f"{values[environment].numpy(force=True)} in environment {environment}."
            )
    if not bool(((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all()):
        raise InputError("project_batch: expected lo <= hi in every component, got another box.")


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


def project_on_faces(problem: Problems) -> tuple[Tensor, Tensor]:
    """Return the nearest points of the polytopes, and where these are not empty, shape (B,).

    Shapes as in `Problems`, n in `MAX_FACE_ROWS`; ``u`` clipped to the box misses a row.
    """
    u, A, b, _, low, high, _, _ = problem
    m, n, size = A.shape
    sides = torch.eye(n, dtype=u.dtype, device=u.device).unsqueeze(2).expand(n, n, size)
    normals = torch.cat((A, sides, sides))  # rows, upper bounds, lower bounds: (m + 2n, n, B)
    parts: list[list[Tensor]] = []
    for k in range(1, n + 1):
        # A vertex is wherever it is; from inside the box it is found with the least rounding.
        start = u if k < n else problem.inside(u)
        excess = torch.cat(((A * start).sum(1) - b, start - high, start - low))
        planes = torch.cat((normals, excess.unsqueeze(1)), 1)
        chosen = _choices(m, n, k, u.device)  # one at a time: threads wake for larger arrays
        steps = _steps([planes.index_select(0, index).unbind(1) for index in chosen])
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
    found = torch.cat([x_k.gather(0, index) for x_k in x])
    return problem.inside(torch.where(feasible, found, u)), feasible


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


def solve_active_set(problem: Problems) -> tuple[Tensor, Tensor, Tensor]:
    """Return the projections, where they solve the problem, and where there is proved to be none.

    Shapes (n, B), (B,) and (B,); an action that does not solve its problem means nothing.
    """
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
    return x, solved, state.infeasible


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
    return problem.inside(x) if inside else x


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

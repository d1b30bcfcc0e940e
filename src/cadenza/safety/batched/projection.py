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
Gradient: with W the rows that hold the action back and F the components inside the box, both told
          from the answer to its rounding,
              x_F = u_F - A_WF^T y,  A_W x = b_W,
          and for a cotangent g, with z = (A_WF A_WF^T)^-1 A_WF g_F and q = g_F - A_WF^T z (zero
          outside F):  du = q,  db = z,  dA = -(y q^T + z x^T), while W and F stay the same.
          Passthrough: W is empty and q = g. No solution: zero. See arXiv:1703.00443.
Axes:     arguments have B first; inside, n action components, m rows, B environments last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from cadenza.core.checks import is_real, real_array, require_kinds
from cadenza.core.errors import InputError
from cadenza.safety.batched.search import (
    MAX_FACE_ROWS,
    ROUNDING,
    Problems,
    face_count,
    first_largest,
    project_on_faces,
    project_one_row_batch,
    solve_active_set,
    solve_positive,
)
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
            x = _into_box(problems.u, problems)
            worst = first_largest((problems.A * x).sum(1) - problems.b)
            problems = problems._replace(first=worst)
        x, status = stages.run(problems)
        x = torch.where(good, x, _into_box(torch.zeros_like(x), problems))
        status = torch.where(good, status, BAD_INPUT).to(torch.int8)
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


def _into_box(x: Tensor, problems: Problems) -> Tensor:
    return torch.minimum(torch.maximum(x, problems.lower), problems.upper)


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

    @classmethod
    def of(cls, x: Tensor, code: int) -> "_Answers":
        """Return ``x`` with one code for every environment."""
        return cls(x, torch.full(x.shape[1:], code, dtype=torch.int8, device=x.device))


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages, each for the environments the one before left, or with a mask for all of them."""

    compact: bool

    def run(self, problems: Problems) -> _Answers:
        """Return the answers of all environments."""
        answers = _Answers.of(_into_box(problems.u, problems), OPTIMAL)
        if problems.b.shape[0] > 0:
            violated = ((problems.A * answers.x).sum(1) - problems.b > 0.0).any(0)
            answers = self._replace(violated, problems, self._one_row, answers)
        unchanged = (answers.x == problems.u).all(0) & (answers.status == OPTIMAL)
        return _Answers(answers.x, torch.where(unchanged, INACTIVE, answers.status))

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
            answers = _Answers.of(x, OPTIMAL)
            return _Answers(x, torch.where(feasible, answers.status, INFEASIBLE))
        worst = first_largest((A * _into_box(problems.u, problems)).sum(1) - b)
        x, feasible = _one_of(problems, worst)
        met = (A * x).sum(1) - b <= ROUNDING[x.dtype] * (1.0 + b.abs())
        met = met.scatter(0, worst.unsqueeze(0), value=True).all(0)
        status = torch.where(feasible, _Answers.of(x, OPTIMAL).status, INFEASIBLE)
        answers = _Answers(x, status)
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
            status = torch.where(feasible, _Answers.of(x, OPTIMAL).status, INFEASIBLE)
        else:
            x, solved, infeasible = solve_active_set(problems._replace(s=0.0 * problems.s))
            status = torch.where(infeasible, _Answers.of(x, INFEASIBLE).status, NOT_CONVERGED)
            status = torch.where(solved, _Answers.of(x, OPTIMAL).status, status)
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
            project_on_faces(p.u, p.A, p.b, p.lower, p.upper)
            for p in (
                Problems(*(data[..., start : start + step] for data in problems))
                for start in range(0, size, step)
            )
        ]
        return torch.cat([x for x, _ in parts], 1), torch.cat([met for _, met in parts])

    def _least_violation(self, problems: Problems) -> _Answers:
        """Return the least-violation actions."""
        alone, feasible = _one_of(problems, problems.first)
        if problems.b.shape[0] == 1:
            return _Answers.of(alone, INFEASIBLE)
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
        return _Answers.of(torch.where(solved, x, alone), INFEASIBLE)


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
    if u.ndim != 2 or b.ndim != 2 or A.shape != (u.shape[0], b.shape[1], u.shape[1]):
        raise InputError(
            "project_batch: expected u_hat (B, n), A (B, m, n) and b (B, m), got shapes "
            f"{tuple(u.shape)}, {tuple(A.shape)}, {tuple(b.shape)}."
        )
    if u.shape[1] == 0:
        raise InputError("project_batch: u_hat: expected at least one action component, got none.")
    if b.shape[0] != u.shape[0]:
        raise InputError(f"project_batch: expected b of {u.shape[0]} rows, got {b.shape[0]}.")
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

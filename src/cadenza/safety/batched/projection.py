"""Nearest actions that meet every row, or the least unsafe ones, for thousands of environments.

Problem:  per environment, min |x - u|^2  subject to  A x <= b,  lo <= x <= hi
Order:    1. environments whose clipped nominal meets every row are done: with the box met too,
             the nominal comes back bit for bit;
          2. the exact one-row answer of the most violated row, where it meets the others;
          3. several rows: exact enumeration of faces for two and three action components
             (`faces`), else a dual active set method (`active_set`), accepted only with every
             row met to 1e-9 (1 + |b|);
          4. no solution, or none found: least violation (`stages`). An answer that did
             not converge is never returned.
Two ways: on a CPU each stage looks only at the environments that are left; with
          ``fixed_shape=True`` (default on CUDA) every stage runs for all of them and a mask
          chooses: no transfer to the host and no branch on data, so that it can be captured in a
          CUDA graph.
Axes:     arguments have B first; inside, B is last.

Gradient of a projection through its active constraints.

At the solution, with W the rows that hold the action back and F the components inside the box,
    x_F = u_F - A_WF^T y,  A_W x = b_W,
and the solution map is differentiable while W and F stay the same. For a cotangent g, with
K = A_WF A_WF^T, z = K^-1 A_WF g_F and q = g_F - A_WF^T z (zero outside F):
    du = q,   db = z,   dA = -(y q^T + z x^T).
Passthrough: W is empty and q = g. No solution: the gradient is zero.
Source:  differentiating quadratic programmes at their optimality conditions, arXiv:1703.00443.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.safety.batched.active_set import SoftProblem, solve_positive
from cadenza.safety.batched.extremes import first_largest
from cadenza.safety.batched.inputs import require_tensor, tensor_like
from cadenza.safety.batched.stages import Batch, Stages
from cadenza.safety.batched.status import BAD_INPUT, INACTIVE, OPTIMAL
from cadenza.safety.filters.projection import SLACK_WEIGHT

#: Distance from a row, over 1 + |b|, at which it counts as active, by precision.
_ACTIVE: Final = {torch.float64: 1e-9, torch.float32: 1e-5}


def differentiable(
    u_hat: Tensor, A: Tensor, b: Tensor, u: Tensor, status: Tensor, problem: SoftProblem
) -> Tensor:
    """Return ``u`` as a function of ``u_hat``, ``A`` and ``b``.

    Args:
        u_hat: Nominal actions, shape (B, n).
        A: Rows, shape (B, m, n).
        b: Right-hand sides, shape (B, m).
        u: The projections, shape (B, n).
        status: Codes, shape (B,).
        problem: The same data with B last and rows that are off replaced.
    """
    apply = cast("Callable[..., Tensor]", _Projection.apply)  # pyright: ignore[reportUnknownMemberType] # torch leaves it untyped
    return apply(u_hat, A, b, u, status, *problem)


class _Projection(torch.autograd.Function):
    """Identity on the solution, with the derivative of the solution map."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        _, _, _, u, status, *problem = arguments
        ctx.save_for_backward(u, status, *problem)
        return u.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        u, status, *data = ctx.saved_tensors
        du, dA, db = _pull_back(cotangents[0].T, u.T, status, SoftProblem(*data))
        return du.T, dA.permute(2, 0, 1), db.T, *([None] * (2 + len(data)))


def _pull_back(
    g: Tensor, x: Tensor, status: Tensor, problem: SoftProblem
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of u, A and b: shapes (n, B), (m, n, B), (m, B)."""
    u, A, b, _, lower, upper = problem
    solved = (status == INACTIVE) | (status == OPTIMAL)
    free = (x > lower) & (x < upper) & solved
    held = ((A * x).sum(1) - b).abs() <= _ACTIVE[x.dtype] * (1.0 + b.abs())
    held = held & (status == OPTIMAL)
    active = torch.where(held.unsqueeze(1) & free, A, 0.0)  # A_WF, (m, n, B)
    gram = (active.unsqueeze(1) * active.unsqueeze(0)).sum(2)
    g_free = torch.where(free, g, 0.0)
    z = solve_positive(gram.clone(), (active * g_free).sum(1))
    y = solve_positive(gram, (active * torch.where(free, u - x, 0.0)).sum(1))
    q = g_free - (active * z.unsqueeze(1)).sum(0)
    dA = -(y.unsqueeze(1) * q + z.unsqueeze(1) * x)
    return q, dA, z


#: What solves the environments that the batched iterations leave.
Rescue: TypeAlias = Literal["daqp", "none"]

#: Numbers in the largest arrays of a pass on a CPU; 32768 is where torch begins to use threads.
_CHUNK_NUMBERS: Final = 32767


class BatchProjection(NamedTuple):
    """Answers of a batch.

    Attributes:
        u: Actions, shape (B, n).
        status: Codes of `cadenza.safety.batched.status`, shape (B,), int8.
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
    first: Tensor | None = None,
    weight: Tensor | None = None,
    rescue: Rescue = "daqp",
    fixed_shape: bool | None = None,
    validate: bool = True,
) -> BatchProjection:
    """Return the actions closest to ``u_hat`` that meet the rows and the box.

    Gradients with respect to ``u_hat``, ``A`` and ``b`` follow the active constraints; they are
    zero for an environment without a solution. Gradients with respect to the box are not offered.

    Args:
        u_hat: Nominal actions, shape (B, n), float64 or float32.
        A: Rows, shape (B, m, n); m may be 0.
        b: Right-hand sides, shape (B, m); +inf switches a row off.
        lo: Lower bounds: a number, shape (n,) or (B, n); None for none.
        hi: Upper bounds, likewise.
        active_mask: Rows that count, shape (B, m), bool; None counts all of them.
        first: Index of the row that is served first when there is no solution, shape (B,),
            int64; None takes the most violated one.
        weight: Weights of the violations of the other rows then, shape (B, m), > 0; None takes
            `SLACK_WEIGHT` for each.
        rescue: "daqp" solves one by one what the iterations leave, on a CPU only; "none" returns
            the least violation for it. With two or three components and few rows nothing is left
            unless there is no solution.
        fixed_shape: Run every stage for all environments, so that nothing is read back from the
            device; None does so on CUDA.
        validate: Look for malformed and not finite input first, which waits for the device.
            Without it such environments get `BAD_INPUT` and the box's point nearest to zero; zero
            where the box is empty or not a number.

    Raises:
        InputError: With ``validate``: shapes or dtypes disagree, the box is empty, an entry is not
            finite, a weight is not positive, or ``first`` names no row. Without: only what shapes
            and dtypes show.
    """
    rows_on = _rows_on(u_hat, A, b, active_mask)
    _require_hierarchy(b, first, weight)
    lower = _bound("lo", lo, u_hat, -torch.inf)
    upper = _bound("hi", hi, u_hat, torch.inf)
    fixed = u_hat.is_cuda if fixed_shape is None else fixed_shape
    if rescue not in ("daqp", "none"):
        raise InputError(f"project_batch: expected rescue 'daqp' or 'none', got {rescue!r}.")
    if u_hat.shape[0] == 0:
        codes = torch.empty(0, dtype=torch.int8, device=u_hat.device)
        return BatchProjection(u_hat.clone(), codes, torch.empty_like(u_hat[:, 0]))
    stages = Stages(compact=not fixed, rescue=rescue == "daqp" and not fixed and not u_hat.is_cuda)
    given = (u_hat, A, b, lower, upper, rows_on, first, weight)
    size = u_hat.shape[0] if fixed else chunk_size(A.shape[1], A.shape[2])
    if u_hat.shape[0] <= size:
        return _project(given, stages, 0 if validate else None)
    parts = [
        _project(
            tuple(None if x is None else x[start : start + size] for x in given),
            stages,
            start if validate else None,
        )
        for start in range(0, u_hat.shape[0], size)
    ]
    return BatchProjection(*(torch.cat(column) for column in zip(*parts, strict=True)))


def chunk_size(m: int, n: int) -> int:
    """Return how many environments a CPU takes at once, for m rows and n components.

    The largest arrays of a pass then stay in the cache, and below the size from which torch splits
    an operation over threads, which costs more than it brings for arrays this small.
    """
    return max(64, _CHUNK_NUMBERS // max(2 * n * n, m * n))


def _project(
    given: "tuple[Tensor | None, ...]", stages: Stages, start: int | None
) -> BatchProjection:
    """Solve one pass.

    Args:
        given: u_hat, A, b, lower, upper, rows_on, first, weight.
        stages: How.
        start: Index of the first environment, for messages; None does not look at the numbers.
    """
    u_hat, A, b, lower, upper, rows_on = cast("tuple[Tensor, ...]", given[:6])
    first, weight = given[6:]
    if start is not None:
        _require_numbers(u_hat, A, b, lower, upper, start)
        _require_order(b, first, weight, rows_on, start)
    # From here on B is last, so that every operation runs over contiguous memory.
    problem = SoftProblem(u_hat.T, A.permute(1, 2, 0), b.T, torch.zeros_like(b.T), lower.T, upper.T)
    with torch.no_grad():
        problem, good = _clean(problem, rows_on.T)
        urgent, weights, sound = _hierarchy(problem, first, weight, rows_on)
        good = good & sound
        x, status = stages.run(Batch(problem, urgent, weights))
        x = torch.where(good, x, _into_box(torch.zeros_like(x), problem))
        status = torch.where(good, status, BAD_INPUT).to(torch.int8)
        residual = _largest_residual(problem, x)
    u = x.T
    if torch.is_grad_enabled() and (u_hat.requires_grad or A.requires_grad or b.requires_grad):
        u = differentiable(u_hat, A, b, u, status, problem)
    return BatchProjection(u, status, residual)


def _clean(problem: SoftProblem, rows_on: Tensor) -> tuple[SoftProblem, Tensor]:
    """Return the problems with harmless numbers in rows that are off and in bad environments.

    Also returns where the input is good, shape (B,).
    """
    u, A, b, s, lower, upper = problem
    box = ((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all(0)  # false for NaN
    good = torch.isfinite(u).all(0) & (torch.isfinite(A).all(1) & (b > -torch.inf)).all(0) & box
    on = rows_on & (b < torch.inf) & good
    clean = SoftProblem(
        torch.where(good, u, 0.0).contiguous(),
        torch.where(on.unsqueeze(1), A, 0.0).contiguous(),
        torch.where(on, b, 1.0).contiguous(),  # 0 @ x <= 1 holds and never binds
        s.contiguous(),
        torch.where(box, lower, 0.0).contiguous(),
        torch.where(box, upper, 0.0).contiguous(),
    )
    return clean, good


def _hierarchy(
    problem: SoftProblem, first: Tensor | None, weight: Tensor | None, rows_on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most urgent row, (B,), the others' weights, (m, B), and where sound, (B,)."""
    m, size = problem.b.shape
    sound = torch.ones(size, dtype=torch.bool, device=problem.u.device)
    if weight is None:
        weights = torch.full_like(problem.b, SLACK_WEIGHT)
    else:
        fits = ((weight > 0.0) & (weight < torch.inf)).T
        sound = (fits | ~rows_on.T).all(0)
        weights = torch.where(fits & rows_on.T, weight.T, SLACK_WEIGHT)
    if m == 0:
        return torch.zeros(size, dtype=torch.int64, device=problem.u.device), weights, sound
    if first is not None:
        named = (first >= 0) & (first < m)
        return torch.where(named, first, 0), weights, sound & named
    x = _into_box(problem.u, problem)
    return first_largest((problem.A * x).sum(1) - problem.b), weights, sound


def _into_box(x: Tensor, problem: SoftProblem) -> Tensor:
    return torch.minimum(torch.maximum(x, problem.lower), problem.upper)


def _largest_residual(problem: SoftProblem, x: Tensor) -> Tensor:
    """Return the largest A x - b of each environment, shape (B,)."""
    if problem.b.shape[0] == 0:
        return torch.full(x.shape[1:], -torch.inf, dtype=x.dtype, device=x.device)
    return ((problem.A * x).sum(1) - problem.b).amax(0)


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


def _require_numbers(
    u: Tensor, A: Tensor, b: Tensor, lower: Tensor, upper: Tensor, start: int
) -> None:
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
                f"{values[environment].numpy(force=True)} in environment {start + environment}."
            )
    if not bool(((lower <= upper) & (lower < torch.inf) & (upper > -torch.inf)).all()):
        raise InputError("project_batch: expected lo <= hi in every component, got another box.")


def _require_hierarchy(b: Tensor, first: Tensor | None, weight: Tensor | None) -> None:
    """Raise InputError unless shapes and dtypes fit the rows; does not wait for the device."""
    if first is not None and (first.shape != b.shape[:1] or first.dtype != torch.int64):
        raise InputError(
            f"project_batch: first: expected int64 {tuple(b.shape[:1])}, got {first.dtype} "
            f"{tuple(first.shape)}."
        )
    if weight is not None and (weight.shape != b.shape or weight.dtype != b.dtype):
        raise InputError(
            f"project_batch: weight: expected {b.dtype} {tuple(b.shape)}, got {weight.dtype} "
            f"{tuple(weight.shape)}."
        )


def _require_order(
    b: Tensor, first: Tensor | None, weight: Tensor | None, rows_on: Tensor, start: int
) -> None:
    """Raise InputError unless every row that counts has a weight > 0 and ``first`` is a row."""
    if weight is not None:
        fine = ((weight > 0.0) & (weight < torch.inf)) | ~rows_on
        if not bool(fine.all()):
            environment = int((~fine).nonzero()[0, 0])
            raise InputError(
                f"project_batch: weight: expected finite numbers > 0, got "
                f"{weight[environment].numpy(force=True)} in environment {start + environment}."
            )
    m = b.shape[1]
    if first is not None and m > 0 and not bool(((first >= 0) & (first < m)).all()):
        raise InputError(f"project_batch: first: expected row indices below {m}, got others.")

"""Batched projection: equal to the projection of one environment, and optimal on its own terms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.batched.projection import (
    INACTIVE,
    INFEASIBLE,
    OPTIMAL,
    project_batch,
    project_ranked,
)
from cadenza.safety.filters.projection import SLACK_WEIGHT, PairRows, project
from cadenza.safety.solvers import DaqpSolver, SolveStatus
from tests.campaigns import size

#: Problems per example: the batch mixes all four outcomes.
BATCH = 48
BOX = 2.0


def draw_problems(seed: int, n: int, m: int) -> dict[str, torch.Tensor]:
    """Unit rows through and beside the box; a third of the batch is easy, some is infeasible."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(BATCH, m, n))
    A /= np.linalg.norm(A, axis=2, keepdims=True)
    b = rng.normal(size=(BATCH, m)) - 0.1
    b[: BATCH // 3] += 1.5
    return {
        "u_hat": torch.tensor(rng.normal(size=(BATCH, n)) * 2.0),
        "A": torch.tensor(A),
        "b": torch.tensor(b),
        "h": torch.tensor(rng.normal(size=(BATCH, m))),
        "time_left": torch.tensor(rng.uniform(0.01, 2.0, size=(BATCH, m))),
    }


def solve(problems: dict[str, torch.Tensor], **options: object):
    box = torch.full_like(problems["u_hat"], BOX)
    return project_ranked(
        problems["u_hat"],
        problems["A"],
        problems["b"],
        -box,
        box,
        torch.ones_like(problems["b"], dtype=torch.bool),
        first=problems["h"].argmin(1),
        weight=SLACK_WEIGHT * (1.0 + 1.0 / problems["time_left"]),
        **options,  # pyright: ignore[reportArgumentType]
    )


def solve_one(problems: dict[str, torch.Tensor], i: int):
    n = problems["u_hat"].shape[1]
    numbers = [problems[name][i].tolist() for name in ("A", "b", "h", "time_left")]
    rows = PairRows(*numbers, [1.0] * len(numbers[1]))  # at 1 m/s a margin is the time left
    box = [-BOX] * n, [BOX] * n
    solution = project(problems["u_hat"][i].tolist(), rows, None, box, DaqpSolver())
    return solution.x, solution.status


sizes = st.tuples(st.sampled_from([1, 2, 3, 4, 7]), st.integers(1, 6))


@given(seed=st.integers(0, 10**6), size=sizes, capturable=st.booleans())
@settings(max_examples=size(15, 40), deadline=None)
def test_batch_equals_single_projection(seed: int, size: tuple[int, int], capturable: bool) -> None:
    problems = draw_problems(seed, *size)
    answer = solve(problems, capturable=capturable)
    for i in range(BATCH):
        x, status = solve_one(problems, i)
        feasible = status is SolveStatus.OPTIMAL
        assert (int(answer.status[i]) in (INACTIVE, OPTIMAL)) == feasible
        # Near-parallel rows amplify rounding, in more dimensions more often; the least violation
        # balances forces of up to 1e6, and only without fixed shapes is the search the same code.
        lost = 1e-5 if capturable else 1e-9
        tolerance = lost if not feasible else 1e-12 if size[0] <= 3 else 1e-11
        np.testing.assert_allclose(answer.u[i].numpy(), x, rtol=0.0, atol=tolerance)


@given(seed=st.integers(0, 10**6), size=sizes)
@settings(max_examples=size(15, 40), deadline=None)
def test_answers_meet_rows_and_box_and_nominal_passes_bit_for_bit(
    seed: int, size: tuple[int, int]
) -> None:
    problems = draw_problems(seed, *size)
    answer = solve(problems)
    assert bool((answer.u.abs() <= BOX).all())
    residual = (problems["A"] * answer.u.unsqueeze(1)).sum(-1) - problems["b"]
    solved = answer.status <= OPTIMAL
    assert bool((residual[solved] <= 1e-9 * (1.0 + problems["b"][solved].abs())).all())
    torch.testing.assert_close(answer.residual, residual.amax(1), rtol=0.0, atol=1e-14)
    passed = answer.status == INACTIVE
    assert torch.equal(answer.u[passed], problems["u_hat"][passed])
    nominal = (problems["A"] * problems["u_hat"].unsqueeze(1)).sum(-1) <= problems["b"]
    harmless = nominal.all(1) & (problems["u_hat"].abs() <= BOX).all(1)
    assert torch.equal(passed, harmless)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("low", "high"), [(None, 0.5), (-0.5, None), (-1e12, 0.5)])
def test_answers_meet_rows_in_a_box_that_is_open_or_wide(n: int, low: float, high: float) -> None:
    rng = np.random.default_rng(n)
    A, b, u = (rng.normal(size=shape) for shape in ((300, 3, n), (300, 3), (300, n)))
    answer = project_batch(torch.tensor(u), torch.tensor(A), torch.tensor(b), low, high)
    solved = answer.status <= OPTIMAL
    assert int(solved.sum()) > 100
    assert float(answer.residual[solved].max()) < 1e-9


@given(seed=st.integers(0, 10**6), size=sizes)
@settings(max_examples=size(10, 20), deadline=None)
def test_infeasible_environments_never_get_the_nominal_action(
    seed: int, size: tuple[int, int]
) -> None:
    problems = draw_problems(seed, *size)
    answer = solve(problems)
    lost = answer.status == INFEASIBLE
    changed = (answer.u[lost] != problems["u_hat"][lost]).any(1)
    assert bool(changed.all())
    first = problems["h"].argmin(1)[lost].view(-1, 1)
    row = problems["A"][lost].gather(1, first.unsqueeze(2).expand(-1, -1, size[0])).squeeze(1)
    reach = -BOX * row.abs().sum(1)
    level = torch.maximum(problems["b"][lost].gather(1, first).squeeze(1), reach)
    missed = (row * answer.u[lost]).sum(1) - level
    assert bool((missed <= 2e-8 * (1.0 + level.abs())).all())  # as far as the box allows


@given(seed=st.integers(0, 10**6), n=st.integers(2, 4), m=st.integers(2, 4))
@settings(max_examples=size(8, 15), deadline=None)
def test_rows_that_are_off_and_infinite_levels_do_not_exist(seed: int, n: int, m: int) -> None:
    problems = draw_problems(seed, n, m)
    mask = torch.rand(BATCH, m, generator=torch.Generator().manual_seed(seed)) < 0.5
    answer = project_batch(problems["u_hat"], problems["A"], problems["b"], -BOX, BOX, mask)
    level = torch.where(mask, problems["b"], torch.inf)
    infinite = project_batch(problems["u_hat"], problems["A"], level, -BOX, BOX)
    assert torch.equal(answer.u, infinite.u)
    kept = mask[:, 0] & ~mask[:, 1:].any(1)
    alone = project_batch(
        problems["u_hat"][kept], problems["A"][kept, :1], problems["b"][kept, :1], -BOX, BOX
    )
    solved = alone.status <= OPTIMAL
    assert torch.equal(answer.status[kept], alone.status)
    difference = (answer.u[kept] - alone.u).abs()[solved]
    assert bool((difference <= 1e-14).all())


#: Nominal actions (B, n), rows (B, m, n), levels (B, m).
Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw_wide(seed: int, n: int, m: int, scale: float) -> Arguments:
    """Nominal actions far outside the box and rows through it, so that many answers touch both."""
    rng = np.random.default_rng(seed)
    u, b = 2.0 * rng.normal(size=(200, n)), 0.5 * rng.normal(size=(200, m)) + 0.3
    return (
        torch.tensor(scale * u),
        torch.tensor(rng.normal(size=(200, m, n))),
        torch.tensor(scale * b),
    )


def slopes(
    arguments: Arguments, bound: float, weight: torch.Tensor, step: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Central differences of (weight * answer).sum(1), (B, inputs), and where none is at a kink."""
    sizes = [x[0].numel() for x in arguments]
    flat = torch.cat([x.flatten(1) for x in arguments], 1)

    def value(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        u, A, b = numbers.split(sizes, 1)
        answer = project_batch(u, A.reshape(arguments[1].shape), b, -bound, bound)
        return (answer.u * weight).sum(1), answer.status <= OPTIMAL

    middle, smooth = value(flat)
    found: list[torch.Tensor] = []
    for k in range(flat.shape[1]):
        move = torch.zeros_like(flat)
        move[:, k] = step
        (high, met), (low, also) = value(flat + move), value(flat - move)
        slope = (high - low) / (2.0 * step)
        bend = (high - 2.0 * middle + low).abs() / step
        smooth &= met & also & (bend <= 1e-3 * (1.0 + slope.abs()))
        found.append(slope)
    return torch.stack(found, 1), smooth


@pytest.mark.parametrize("capturable", [False, True])
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 8),
    m=st.integers(1, 6),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
@settings(max_examples=size(8, 100), deadline=None)
def test_gradients_are_the_slopes_of_the_answers(
    capturable: bool, seed: int, n: int, m: int, scale: float
) -> None:
    arguments = draw_wide(seed, n, m, scale)
    weight = torch.linspace(-1.0, 2.0, n, dtype=torch.float64)
    slope, smooth = slopes(arguments, 1.5 * scale, weight, step=1e-6)
    inputs = tuple(x.clone().requires_grad_(True) for x in arguments)
    bound = 1.5 * scale
    answer = project_batch(inputs[0], inputs[1], inputs[2], -bound, bound, capturable=capturable)
    (answer.u * weight).sum().backward()
    gradient = torch.cat([x.grad.flatten(1) for x in inputs if x.grad is not None], 1)
    error = (gradient - slope).abs() / (1.0 + slope.abs().amax(1, keepdim=True))
    assert int((smooth & (answer.status == OPTIMAL)).sum()) > 50
    assert float(error[smooth].max()) < 1e-3


def test_answers_on_a_bound_but_for_rounding_pull_no_gradient_through_it() -> None:
    torch.manual_seed(54)
    u = (torch.randn(1500, 5, dtype=torch.float64) * 2.0).requires_grad_(True)
    A = torch.randn(1500, 4, 5, dtype=torch.float64)
    b = torch.randn(1500, 4, dtype=torch.float64) * 0.5 + 0.3
    answer = project_batch(u, A, b, -1.5, 1.5)
    (gradient,) = torch.autograd.grad(answer.u.square().sum(), u)
    beside = ((1.5 - answer.u.abs()) < 1e-9) & (answer.status == OPTIMAL).unsqueeze(1)
    inexact = beside & (answer.u.abs() < 1.5)
    assert bool(inexact.any())
    assert bool((gradient[beside] == 0.0).all())

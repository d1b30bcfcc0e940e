"""Batched projection on problems with answers by hand, and its refusals."""

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.safety.batched import projection
from cadenza.safety.batched.projection import (
    BAD_INPUT,
    NOT_CONVERGED,
    OPTIMAL,
    project_batch,
    project_ranked,
)

F = torch.float64


def tensor(*environments):
    """One entry per environment."""
    return torch.tensor(environments, dtype=F)


BAD_BOXES = [(torch.nan, 1.0), (1.0, -1.0), (-torch.inf, -torch.inf)]


@pytest.mark.parametrize(("low", "high"), BAD_BOXES)
def test_bad_box_stays_in_its_environment(low, high):
    lo, hi = torch.full((3, 2), 0.25, dtype=F), torch.full((3, 2), 2.0, dtype=F)
    lo[1, 0], hi[1, 0] = low, high
    rows = torch.ones(3, 2, 2, dtype=F), torch.ones(3, 2, dtype=F)
    u = torch.ones(3, 2, dtype=F)
    answer = project_batch(u, *rows, lo, hi, capturable=True)
    assert answer.status.tolist() == [OPTIMAL, BAD_INPUT, OPTIMAL]
    assert answer.u.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]
    with pytest.raises(InputError, match="expected lo <= hi in every component"):
        project_batch(u, *rows, lo, hi)


def test_bad_numbers_stay_in_their_environment():
    u = torch.ones(5, 2, dtype=F)
    A = torch.ones(5, 2, 2, dtype=F)
    b = torch.ones(5, 2, dtype=F)
    good = project_batch(u, A, b, -2.0, 2.0)
    u[1, 0], A[2, 1, 1], b[3, 0], b[4, 0] = torch.nan, torch.inf, torch.nan, -torch.inf
    answer = project_batch(u, A, b, 0.25, 2.0, capturable=True)
    assert answer.status.tolist() == [OPTIMAL, BAD_INPUT, BAD_INPUT, BAD_INPUT, BAD_INPUT]
    assert answer.u[0].tolist() == good.u[0].tolist()
    assert answer.u[1:].tolist() == [[0.25, 0.25]] * 4  # the point of the box nearest to zero


def last_is_none(*shape):
    values = torch.ones(shape, dtype=F)
    values[-1] = torch.nan
    return values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u_hat": torch.ones(3, 2)}, "all float64 or all float32"),
        ({"u_hat": torch.ones(2).double()}, r"expected u_hat \(B, n\)"),
        ({"b": torch.ones(4, 1).double()}, r"expected u_hat \(B, n\), .* \(4, 1\)"),
        ({"active_mask": torch.ones(3, 2, dtype=torch.bool)}, "active_mask"),
        ({"lo": torch.ones(5)}, "lo: expected a number"),
        ({"lo": 1.0, "hi": -1.0}, "lo <= hi"),
        *(
            ({name: last_is_none(*shape)}, f"{name}: expected finite.*environment 2")
            for name, shape in (("u_hat", (3, 2)), ("A", (3, 1, 2)), ("b", (3, 1)))
        ),
    ],
)
def test_malformed_arguments_are_refused(change, message):
    given = {
        "u_hat": torch.ones(3, 2).double(),
        "A": torch.ones(3, 1, 2).double(),
        "b": torch.ones(3, 1).double(),
    }
    with pytest.raises(InputError, match=message):
        project_batch(**(given | change))


def test_unfinished_iterations_are_rescued_or_flagged_but_never_trusted(monkeypatch):
    monkeypatch.setattr(projection, "STEPS_PER_CONSTRAINT", 0)  # nothing is iterated
    u = tensor([3.0, 3.0, 0.0, 0.0])
    A = torch.eye(4, dtype=F)[:2].view(1, 2, 4)
    b = tensor([1.0, 2.0])
    rescued = project_batch(u, A, b, -5.0, 5.0)
    assert rescued.status.tolist() == [OPTIMAL]
    torch.testing.assert_close(rescued.u, tensor([1.0, 2.0, 0.0, 0.0]), rtol=0.0, atol=1e-12)
    box, on = torch.full_like(u, 5.0), torch.ones(1, 2, dtype=torch.bool)
    left = project_ranked(u, A, b, -box, box, on, torch.tensor([1]), capturable=True)
    assert left.status.tolist() == [NOT_CONVERGED]
    assert left.u.tolist() == [[3.0, 2.0, 0.0, 0.0]]  # the most urgent row alone


@pytest.mark.parametrize("far", [1e3, 1e5])
def test_far_nominal_actions_end_at_the_vertex_they_point_to(far):
    rows, levels = tensor([[0.6, 0.8], [0.8, -0.6]]), tensor([1.0, 0.5])
    vertex = tensor([1.0, 0.5])
    u = vertex + far * (0.7 * rows[0, 0] + 0.3 * rows[0, 1])  # both multipliers are positive
    count = 30  # more than are solved one by one
    answer = project_batch(
        u.repeat(count, 1), rows.repeat(count, 1, 1), levels.repeat(count, 1), -2.0, 2.0
    )
    assert set(answer.status.tolist()) == {OPTIMAL}
    torch.testing.assert_close(answer.u, vertex.repeat(count, 1), rtol=0.0, atol=1e-12)


def test_gradient_is_zero_without_a_solution_and_identity_at_passthrough():
    u = tensor([1.0, 0.0], [0.5, 0.5]).requires_grad_(True)
    A = tensor([[1.0, 0.0]], [[1.0, 0.0]]).requires_grad_(True)
    b = tensor([-5.0], [5.0]).requires_grad_(True)
    answer = project_batch(u, A, b, -2.0, 2.0)
    answer.u.sum().backward()
    assert u.grad.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert A.grad.abs().sum() == b.grad.abs().sum() == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graph_replays_the_projection():
    generator = torch.Generator().manual_seed(3)
    u, A, b = (
        torch.randn(shape, dtype=F, generator=generator) for shape in ((64, 2), (64, 3, 2), (64, 3))
    )
    expected = project_batch(u, A, b, -1.0, 1.0)
    u_gpu, A_gpu, b_gpu = u.cuda(), A.cuda(), b.cuda()
    project_batch(u_gpu, A_gpu, b_gpu, -1.0, 1.0, capturable=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = project_batch(u_gpu, A_gpu, b_gpu, -1.0, 1.0, capturable=True)
    graph.replay()
    torch.testing.assert_close(answer.u.cpu(), expected.u, rtol=0.0, atol=1e-6)

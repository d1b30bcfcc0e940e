"""DAQP, one environment after the other, for the few that a batched iteration left unsolved.

Only on a CPU and outside of a graph capture: it moves numbers to Python.
"""

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.safety.batched.dual_newton import DualProblem
from cadenza.safety.solvers import DaqpSolver, QPSolution, SolveStatus

#: Bound of a slack, which has none.
_FREE: Final = 1e30


def rescue_with_daqp(
    problem: DualProblem, x: Tensor, solved: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return answers, where they are solved, and where there is proved to be none.

    Args:
        problem: The data of all environments.
        x: Answers so far, shape (n, B).
        solved: Which of them hold, shape (B,).

    Returns:
        x and solved with DAQP's answers filled in, and infeasible of shape (B,).
    """
    infeasible = torch.zeros_like(solved)
    rest = (~solved).nonzero().squeeze(1)
    if rest.numel() == 0:
        return x, solved, infeasible
    part: list[Any] = [data.double().numpy() for data in problem.take(rest)]
    solver = DaqpSolver()
    answers = [
        _solve(solver, *(data[..., column] for data in part)) for column in range(rest.shape[0])
    ]
    found = np.stack([answer.x[: x.shape[0]] for answer in answers], axis=1)
    met = torch.tensor([answer.status is SolveStatus.OPTIMAL for answer in answers])
    refused = torch.tensor([answer.status is SolveStatus.INFEASIBLE for answer in answers])
    x = x.index_copy(1, rest, torch.as_tensor(found, dtype=x.dtype))
    return x, solved.index_copy(0, rest, met), infeasible.index_copy(0, rest, refused)


def _solve(
    solver: DaqpSolver,
    u: FloatArray,
    A: FloatArray,
    b: FloatArray,
    s: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> QPSolution:
    """Solve one problem; a row with s > 0 gets a slack variable of cost 1 / s."""
    n, soft = u.shape[0], np.flatnonzero(s)
    count = n + soft.shape[0]
    rows = np.zeros((b.shape[0], count))
    rows[:, :n] = A
    rows[soft, n + np.arange(soft.shape[0])] = -1.0
    cost, q = np.ones(count), np.zeros(count)
    cost[n:], q[:n] = 1.0 / s[soft], -u
    low, high = np.full(count, -_FREE), np.full(count, _FREE)
    low[:n], high[:n] = lower, upper
    return solver.run(cost, q, rows, b, low, high)

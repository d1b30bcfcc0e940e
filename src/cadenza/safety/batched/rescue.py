"""DAQP, one environment after the other, for the few that a batched iteration left unsolved.

Only on a CPU and outside of a graph capture: it moves numbers to Python.
"""

from typing import Any, Final

import numpy as np
import torch

from cadenza.core.arrays import FloatArray
from cadenza.safety.batched.active_set import ActiveSetAnswer, SoftProblem
from cadenza.safety.solvers import DaqpSolver, QPSolution, SolveStatus

#: Bound of a slack, which has none.
_FREE: Final = 1e30


def rescue_with_daqp(problem: SoftProblem, answer: ActiveSetAnswer) -> ActiveSetAnswer:
    """Return ``answer`` with what it leaves undecided solved by DAQP.

    Args:
        problem: The data of all environments.
        answer: Answers so far.
    """
    rest = (~answer.solved & ~answer.infeasible).nonzero().squeeze(1)
    if rest.numel() == 0:
        return answer
    part: list[Any] = [data.double().numpy() for data in problem.take(rest)]
    solver = DaqpSolver()
    solutions = [
        _solve(solver, *(data[..., column] for data in part)) for column in range(rest.shape[0])
    ]
    found = np.stack([solution.x[: answer.x.shape[0]] for solution in solutions], axis=1)
    met = torch.tensor([solution.status is SolveStatus.OPTIMAL for solution in solutions])
    refused = torch.tensor([solution.status is SolveStatus.INFEASIBLE for solution in solutions])
    return ActiveSetAnswer(
        answer.x.index_copy(1, rest, torch.as_tensor(found, dtype=answer.x.dtype)),
        answer.solved.index_copy(0, rest, met),
        answer.infeasible.index_copy(0, rest, refused),
    )


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

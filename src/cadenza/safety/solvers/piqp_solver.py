"""PIQP: a proximal interior-point method, here with refined answers.

Source:  Schwan, Jiang, Kuhn and Jones, arXiv:2304.00290.
"""

from typing import Any, Final

import numpy as np

from cadenza.core.extras import load_extra
from cadenza.safety.solvers.approximate import ApproximateSolver, Guess
from cadenza.safety.solvers.dense_problem import DenseProblem
from cadenza.safety.solvers.interface import SolveStatus

#: PIQP's exits that have a name here; every other one is a numerical failure.
_STATUS: Final = {
    "PIQP_SOLVED": SolveStatus.OPTIMAL,
    "PIQP_PRIMAL_INFEASIBLE": SolveStatus.INFEASIBLE,
    "PIQP_MAX_ITER_REACHED": SolveStatus.MAX_ITER,
}


class PIQPSolver(ApproximateSolver):
    """PIQP with one workspace per problem shape; it has no warm start.

    Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._piqp: Any = load_extra("piqp")
        self._workspaces: dict[tuple[int, ...], Any] = {}

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "piqp"

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return PIQP's answer."""
        del warm_start  # interior-point methods gain nothing from an old answer
        P, G = np.asfortranarray(problem.P), np.asfortranarray(problem.G)
        solver: Any = self._workspaces.get(G.shape)
        if solver is None:
            solver = self._workspaces[G.shape] = self._piqp.DenseSolver()
            solver.setup(P, problem.q, G=G, h_u=problem.h)
        else:
            solver.update(P=P, c=problem.q, G=G, h_u=problem.h)
        status: Any = solver.solve()
        return Guess(
            x=np.array(solver.result.x),
            multipliers=np.array(solver.result.z_u),
            status=_STATUS.get(str(status.name), SolveStatus.NUMERICAL),
            iterations=int(solver.result.info.iter),
        )

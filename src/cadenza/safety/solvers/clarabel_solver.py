"""Clarabel: an interior-point method, here with refined answers.

Source:  Goulart and Chen, arXiv:2405.12762.
"""

from typing import Any, Final

import numpy as np

from cadenza.core.extras import load_extra
from cadenza.safety.solvers.approximate import ApproximateSolver, Guess
from cadenza.safety.solvers.dense_problem import DenseProblem
from cadenza.safety.solvers.interface import SolveStatus

#: Tolerances handed to the method, below its default of 1e-8; refinement does the rest.
_TOLERANCE: Final = 1e-10
#: Names of Clarabel's exits that have a name here; every other one is a numerical failure.
#: Refinement proves the optimum or refuses it, so an inaccurate answer may try.
_STATUS: Final = {
    "Solved": SolveStatus.OPTIMAL,
    "AlmostSolved": SolveStatus.OPTIMAL,
    "PrimalInfeasible": SolveStatus.INFEASIBLE,
    "AlmostPrimalInfeasible": SolveStatus.INFEASIBLE,
    "MaxIterations": SolveStatus.MAX_ITER,
}


class ClarabelSolver(ApproximateSolver):
    """Clarabel, set up anew on every call; it has no warm start."""

    def __init__(self) -> None:
        self._clarabel: Any = load_extra("clarabel")
        #: Compressed columns, the form the library takes matrices in.
        self._csc: Any = load_extra("scipy.sparse").csc_matrix
        settings: Any = self._clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1  # the same bits on every machine
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(settings, name, _TOLERANCE)
        self._settings = settings

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "clarabel"

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return Clarabel's answer."""
        del warm_start  # interior-point methods gain nothing from an old answer
        solver: Any = self._clarabel.DefaultSolver(
            self._csc(np.triu(problem.P)),
            problem.q,
            self._csc(problem.G),
            problem.h,
            [self._clarabel.NonnegativeConeT(problem.h.shape[0])],
            self._settings,
        )
        answer: Any = solver.solve()
        return Guess(
            x=np.array(answer.x),
            multipliers=np.array(answer.z),
            status=_STATUS.get(str(answer.status), SolveStatus.NUMERICAL),
            iterations=int(answer.iterations),
        )

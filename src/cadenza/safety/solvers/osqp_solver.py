"""OSQP: an operator-splitting method, here with refined answers.

Source:  Stellato et al., arXiv:1711.08013.
Output:  its own polishing step prints from C whatever the verbosity, so it stays off; refinement
         replaces it.
"""

from typing import Any, Final

import numpy as np

from cadenza.core.extras import load_extra
from cadenza.safety.solvers.approximate import ApproximateSolver, Guess
from cadenza.safety.solvers.dense_problem import DenseProblem
from cadenza.safety.solvers.interface import SolveStatus

#: Absolute and relative tolerance of the method.
_TOLERANCE: Final = 1e-9
_MAX_ITERATIONS: Final = 50_000
#: OSQP's exit texts that have a name here; every other one is a numerical failure.
_STATUS: Final = {
    "solved": SolveStatus.OPTIMAL,
    "solved inaccurate": SolveStatus.OPTIMAL,
    "primal infeasible": SolveStatus.INFEASIBLE,
    "primal infeasible inaccurate": SolveStatus.INFEASIBLE,
    "maximum iterations reached": SolveStatus.MAX_ITER,
}


class OSQPSolver(ApproximateSolver):
    """OSQP, set up anew on every call; a warm start begins at the last answer of that shape.

    Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._osqp: Any = load_extra("osqp")
        #: Compressed columns, the form the library takes matrices in.
        self._csc: Any = load_extra("scipy.sparse").csc_matrix
        self._last: dict[tuple[int, ...], Guess] = {}

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "osqp"

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return OSQP's answer."""
        solver: Any = self._osqp.OSQP()
        solver.setup(
            self._csc(np.triu(problem.P)),
            problem.q,
            self._csc(problem.G),
            np.full(problem.h.shape[0], -np.inf),
            problem.h,
            verbose=False,
            polishing=False,
            eps_abs=_TOLERANCE,
            eps_rel=_TOLERANCE,
            max_iter=_MAX_ITERATIONS,
        )
        last = self._last.get(problem.G.shape) if warm_start else None
        if last is not None:
            solver.warm_start(x=last.x, y=last.multipliers)
        answer: Any = solver.solve(raise_error=False)
        guess = Guess(
            x=np.array(answer.x, dtype=np.float64),
            multipliers=np.array(answer.y, dtype=np.float64),
            status=_STATUS.get(str(answer.info.status), SolveStatus.NUMERICAL),
            iterations=int(answer.info.iter),
        )
        if guess.status is SolveStatus.OPTIMAL:
            self._last[problem.G.shape] = guess
        return guess

"""OSQP: an operator-splitting method, here with refined answers.

Source:  Stellato et al., arXiv:1711.08013.
Output:  its own polishing step prints from C whatever the verbosity, so it stays off; refinement
         replaces it.
"""

from typing import Any, Final, cast

import numpy as np
import scipy.sparse  # pyright: ignore[reportMissingTypeStubs] -- scipy ships none

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers.approximate import ApproximateSolver, Guess, import_backend
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
#: Compressed columns, the form the library takes matrices in.
_csc: Any = cast("Any", scipy.sparse).csc_matrix


class OSQPSolver(ApproximateSolver):
    """OSQP, set up anew on every call; a warm start begins at the last point of that length.

    Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._osqp: Any = import_backend("osqp")
        self._last: FloatArray | None = None

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "osqp"

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return OSQP's answer."""
        solver: Any = self._osqp.OSQP()
        solver.setup(
            _csc(np.triu(problem.P)),
            problem.q,
            _csc(problem.G),
            np.full(problem.h.shape[0], -np.inf),
            problem.h,
            verbose=False,
            polishing=False,
            eps_abs=_TOLERANCE,
            eps_rel=_TOLERANCE,
            max_iter=_MAX_ITERATIONS,
        )
        if warm_start and self._last is not None and self._last.shape == problem.q.shape:
            solver.warm_start(x=self._last)
        answer: Any = solver.solve(raise_error=False)
        status = _STATUS.get(str(answer.info.status), SolveStatus.NUMERICAL)
        x: FloatArray = np.array(answer.x, dtype=np.float64)
        if status is SolveStatus.OPTIMAL:
            self._last = x
        return Guess(
            x=x,
            multipliers=np.array(answer.y, dtype=np.float64),
            status=status,
            iterations=int(answer.info.iter),
        )

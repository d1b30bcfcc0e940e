"""Frame of the solvers whose method stops near the optimum: solve, refine, judge."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.solvers.dense_problem import DenseProblem, dense_problem
from cadenza.safety.solvers.interface import (
    QPSolution,
    SolverBase,
    SolveStatus,
    failure,
    judged,
)
from cadenza.safety.solvers.refine import refine


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """What a method returned.

    Attributes:
        x: Approximate minimiser, shape (n,).
        multipliers: Multipliers of the stacked rows, shape (k,).
        status: What the method says about itself.
        iterations: Iterations it reports.
    """

    x: FloatArray
    multipliers: FloatArray
    status: SolveStatus
    iterations: int


class ApproximateSolver(SolverBase):
    """A method whose answers become exact by refinement, or are reported as a failure."""

    @abstractmethod
    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return the method's answer to a finite, strictly convex problem."""

    def run(
        self,
        P: FloatArray,
        q: FloatArray,
        A: FloatArray,
        b: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
        *,
        warm_start: bool = False,
    ) -> QPSolution:
        """Return the minimiser; see `QPSolver.run`.

        Raises:
            InputError: Shapes that do not fit each other.
        """
        n = q.shape[0]
        problem = dense_problem(P, q, A, b, lower, upper)
        if problem is None:
            return failure(n, SolveStatus.BAD_INPUT)
        if problem.h.size:
            guess = self.guess(problem, warm_start=warm_start)
        else:  # nothing constrains x: refinement returns -P^-1 q, whatever the guess
            guess = Guess(q, problem.h, SolveStatus.OPTIMAL, 0)
        x = _refined(problem, guess)
        if x is not None:
            return judged(x, A, b, lower, upper, guess.iterations)
        claimed = guess.status is SolveStatus.OPTIMAL
        return failure(n, SolveStatus.NUMERICAL if claimed else guess.status, guess.iterations)


def _refined(problem: DenseProblem, guess: Guess) -> FloatArray | None:
    """Return the optimum if the guess leads to one; one that ran out of iterations may, too."""
    if guess.status not in (SolveStatus.OPTIMAL, SolveStatus.MAX_ITER):
        return None
    if not (np.all(np.isfinite(guess.x)) and np.all(np.isfinite(guess.multipliers))):
        return None
    return refine(problem, guess.x, guess.multipliers)

"""Frame of the solvers whose method stops near the optimum: solve, refine, judge."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.dense_problem import DenseProblem, dense_problem
from cadenza.safety.solvers.interface import (
    QPSolution,
    QPSolver,
    SolverBase,
    SolveStatus,
    failure,
    judged,
)
from cadenza.safety.solvers.refine import refine

#: Distance to a row, over 1 + |h|, within which an answer without multipliers counts as on it.
_TIGHT: Final = 1e-5


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


class SolveOnly(ApproximateSolver):
    """A foreign solver that offers ``solve(P, q, A, b, *, warm_start) -> (x, ms)`` only.

    Bounds on the variables reach it as rows, and what it raises for "no solution" is
    `ConcertoSafetyInfeasible`. Its answers are refined and judged like all others.

    Args:
        solver: The other solver.
    """

    def __init__(self, solver: Any) -> None:
        self._solver = solver

    @property
    def name(self) -> str:
        """Its own name, or that of its class."""
        return str(getattr(self._solver, "name", type(self._solver).__name__))

    def guess(self, problem: DenseProblem, *, warm_start: bool) -> Guess:
        """Return its answer, with the rows that are tight there as the active ones."""
        G, h = problem.G, problem.h
        try:
            x, _ = self._solver.solve(problem.P, problem.q, G, h, warm_start=warm_start)
        except ConcertoSafetyInfeasible:
            return Guess(problem.q, np.zeros(h.shape), SolveStatus.INFEASIBLE, 0)
        x = np.asarray(x, dtype=np.float64)
        tight = h - G @ x <= _TIGHT * (1.0 + np.abs(h))
        return Guess(x, np.where(tight, 1.0, 0.0), SolveStatus.OPTIMAL, 0)


def as_solver(solver: object) -> QPSolver:
    """Return ``solver`` as a `QPSolver`: as it is, inside `SolveOnly`, or DAQP for None.

    Raises:
        ConfigurationError: It offers neither ``run`` nor ``solve``.
    """
    if solver is None:
        return DaqpSolver()
    if callable(getattr(solver, "run", None)):
        return cast("QPSolver", solver)
    if callable(getattr(solver, "solve", None)):
        return SolveOnly(solver)
    raise ConfigurationError(
        f"solver: expected a QPSolver or None, got {type(solver).__name__}; take one from "
        "cadenza.safety.solvers.make_solver(name), or offer solve(P, q, A, b, *, warm_start)."
    )


def _refined(problem: DenseProblem, guess: Guess) -> FloatArray | None:
    """Return the optimum if the guess leads to one; one that ran out of iterations may, too."""
    if guess.status not in (SolveStatus.OPTIMAL, SolveStatus.MAX_ITER):
        return None
    if not (np.all(np.isfinite(guess.x)) and np.all(np.isfinite(guess.multipliers))):
        return None
    return refine(problem, guess.x, guess.multipliers)

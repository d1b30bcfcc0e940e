"""Solvers by name, and the one that picks a method by the problem."""

import contextlib
from collections.abc import Callable
from typing import Final

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import QPSolution, QPSolver, SolverBase, SolveStatus
from cadenza.safety.solvers.libraries import ClarabelSolver, QuadprogSolver

#: What another method may still settle; infeasible problems and bad numbers stay what they are.
_WORTH_ANOTHER: Final = (SolveStatus.MAX_ITER, SolveStatus.NUMERICAL)


class AutoSolver(SolverBase):
    """DAQP; quadprog and Clarabel, if installed, when it fails.

    Not safe to share between threads.
    """

    name = "auto"

    def __init__(self) -> None:
        self._first = DaqpSolver()
        self._others: list[QPSolver] | None = None

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

        Returns:
            The first answer that is optimal, or certain to have no better; else DAQP's.
        """
        first = self._first.run(P, q, A, b, lower, upper, warm_start=warm_start)
        if first.status not in _WORTH_ANOTHER:
            return first
        if self._others is None:  # built once they are needed, those whose packages are installed
            self._others = []
            for other in (QuadprogSolver, ClarabelSolver):
                with contextlib.suppress(MissingExtraError):
                    self._others.append(other())
        for solver in self._others:
            solution = solver.run(P, q, A, b, lower, upper)
            if solution.status not in _WORTH_ANOTHER:
                return solution
        return first


_CLASSES: Final[dict[str, Callable[[], QPSolver]]] = {
    "auto": AutoSolver,
    "daqp": DaqpSolver,
    "quadprog": QuadprogSolver,
    "clarabel": ClarabelSolver,
}

#: Names `make_solver` takes.
SUPPORTED_SOLVERS: Final = tuple(_CLASSES)


def make_solver(name: str) -> QPSolver:
    """Return a fresh solver.

    Args:
        name: One of `SUPPORTED_SOLVERS`.

    Raises:
        ConfigurationError: Another name.
        MissingExtraError: Its library is not installed.
    """
    if name not in _CLASSES:
        raise ConfigurationError(
            f"Unknown solver {name!r}: expected one of {', '.join(SUPPORTED_SOLVERS)}."
        )
    return _CLASSES[name]()

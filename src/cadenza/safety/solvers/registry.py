"""Solvers by name, and the one that picks a method by the problem."""

import contextlib
from collections.abc import Callable
from typing import Final, cast

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.safety.solvers.closed_form import ClosedFormSolver, in_closed_form
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import QPSolution, QPSolver, SolverBase, SolveStatus
from cadenza.safety.solvers.libraries import ClarabelSolver, OSQPSolver, PIQPSolver, QuadprogSolver

#: What another method may still settle; infeasible problems and bad numbers stay what they are.
_WORTH_ANOTHER: Final = (SolveStatus.MAX_ITER, SolveStatus.NUMERICAL)


class AutoSolver(SolverBase):
    """Closed form for one row, else DAQP; quadprog and Clarabel, if installed, when it fails.

    Not safe to share between threads.
    """

    name = "auto"

    def __init__(self) -> None:
        self._closed_form = ClosedFormSolver()
        self._chain: list[QPSolver] = [DaqpSolver()]
        self._complete = False

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
        if in_closed_form(P, b):
            solution = self._closed_form.run(P, q, A, b, lower, upper)
            if solution.status not in _WORTH_ANOTHER:
                return solution
        first = self._chain[0].run(P, q, A, b, lower, upper, warm_start=warm_start)
        if first.status not in _WORTH_ANOTHER:
            return first
        self._add_fallbacks()
        for solver in self._chain[1:]:
            solution = solver.run(P, q, A, b, lower, upper)
            if solution.status not in _WORTH_ANOTHER:
                return solution
        return first

    def _add_fallbacks(self) -> None:
        """Build the fallbacks once they are needed, those whose packages are installed."""
        if self._complete:
            return
        for fallback in (QuadprogSolver, ClarabelSolver):
            with contextlib.suppress(MissingExtraError):
                self._chain.append(fallback())
        self._complete = True


_CLASSES: Final[dict[str, Callable[[], QPSolver]]] = {
    "auto": AutoSolver,
    "closed_form": ClosedFormSolver,
    "daqp": DaqpSolver,
    "quadprog": QuadprogSolver,
    "piqp": PIQPSolver,
    "clarabel": ClarabelSolver,
    "osqp": OSQPSolver,
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
    if not isinstance(cast("object", name), str) or name not in _CLASSES:
        raise ConfigurationError(
            f"Unknown solver {name!r}: expected one of {', '.join(SUPPORTED_SOLVERS)}."
        )
    return _CLASSES[name]()

"""Solvers: the optimisation problems of the filters, exact or checked.

Start at:    `QPSolver` (the Protocol), `make_solver` (by name) and `DaqpSolver` (the default).
Promise:     an answer called optimal meets every row to `RESIDUAL_TOLERANCE`; anything else carries
             a status that says why.
May import:  `core`, `cadenza.safety.errors`.  Must not import: the filters.
Adding one:  one file, one line in `registry`, then the contract tests of the registered solvers.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names
from cadenza.safety.solvers.approximate import as_solver
from cadenza.safety.solvers.closed_form import project_one_row
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import (
    RESIDUAL_TOLERANCE,
    ROUNDING,
    QPSolution,
    QPSolver,
    SolveStatus,
    largest_residual,
)
from cadenza.safety.solvers.registry import SUPPORTED_SOLVERS, make_solver

__all__ = [
    "RESIDUAL_TOLERANCE",
    "ROUNDING",
    "SUPPORTED_SOLVERS",
    "DaqpSolver",
    "QPSolution",
    "QPSolver",
    "SolveStatus",
    "as_solver",
    "largest_residual",
    "make_solver",
    "project_one_row",
]

#: Classes with libraries of their own, imported at first use.
_EXPORTS: Final = {
    "AutoSolver": "auto_solver",
    "ClarabelSolver": "clarabel_solver",
    "ClosedFormSolver": "closed_form_solver",
    "OSQPSolver": "osqp_solver",
    "PIQPSolver": "piqp_solver",
    "QuadprogSolver": "quadprog_solver",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)

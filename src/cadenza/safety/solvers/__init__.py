"""Solvers: the optimisation problems of the filters, exact or checked.

Start at:    `QPSolver` (the Protocol), `make_solver` (by name) and `DaqpSolver` (the default).
Promise:     an answer called optimal meets every row to `RESIDUAL_TOLERANCE`; anything else carries
             a status that says why.
May import:  `core`, `cadenza.safety.errors`.  Must not import: the filters.
Adding one:  its class, one line in `registry`, then the contract tests of the registered solvers.
"""

from cadenza.safety.solvers.closed_form import ClosedFormSolver, project_one_row
from cadenza.safety.solvers.daqp_solver import DaqpSolver
from cadenza.safety.solvers.interface import (
    RESIDUAL_TOLERANCE,
    ROUNDING,
    QPSolution,
    QPSolver,
    SolveStatus,
    largest_residual,
)
from cadenza.safety.solvers.libraries import (
    ClarabelSolver,
    OSQPSolver,
    PIQPSolver,
    QuadprogSolver,
    as_solver,
)
from cadenza.safety.solvers.registry import SUPPORTED_SOLVERS, AutoSolver, make_solver

__all__ = [
    "RESIDUAL_TOLERANCE",
    "ROUNDING",
    "SUPPORTED_SOLVERS",
    "AutoSolver",
    "ClarabelSolver",
    "ClosedFormSolver",
    "DaqpSolver",
    "OSQPSolver",
    "PIQPSolver",
    "QPSolution",
    "QPSolver",
    "QuadprogSolver",
    "SolveStatus",
    "as_solver",
    "largest_residual",
    "make_solver",
    "project_one_row",
]

"""Solvers: the optimisation problems of the filters, exact or checked.

Start at:    `QPSolver` (the Protocol) and `DaqpSolver`.
Promise:     an answer called optimal meets every row to `RESIDUAL_TOLERANCE`; anything else carries
             a status that says why.
May import:  `core`.  Must not import: the filters.
"""

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

__all__ = [
    "RESIDUAL_TOLERANCE",
    "ROUNDING",
    "DaqpSolver",
    "QPSolution",
    "QPSolver",
    "SolveStatus",
    "largest_residual",
    "project_one_row",
]

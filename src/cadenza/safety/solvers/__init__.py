"""Solvers: the optimisation problems of the filters, exact or checked.

Start at:    `QPSolver` (the Protocol), `make_solver` (by name) and `DaqpSolver` (the default).
Promise:     an answer called optimal meets every row to `RESIDUAL_TOLERANCE`; anything else carries
             a status that says why.
May import:  `core`, `cadenza.safety.errors`.  Must not import: the filters.
Adding one:  one file, one line in `registry`, then the contract tests of the registered solvers.
"""

import importlib
from typing import Any, Final

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


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)

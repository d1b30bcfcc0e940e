"""Solvers by name."""

import importlib
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.safety.solvers.interface import QPSolver

#: Module and class of every solver; imported when one is asked for.
_CLASSES: Final = {
    "auto": ("auto_solver", "AutoSolver"),
    "closed_form": ("closed_form_solver", "ClosedFormSolver"),
    "daqp": ("daqp_solver", "DaqpSolver"),
    "quadprog": ("quadprog_solver", "QuadprogSolver"),
    "piqp": ("piqp_solver", "PIQPSolver"),
    "clarabel": ("clarabel_solver", "ClarabelSolver"),
    "osqp": ("osqp_solver", "OSQPSolver"),
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
    module, class_name = _CLASSES[name]
    solver: QPSolver = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)()
    return solver

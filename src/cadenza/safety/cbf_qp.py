"""Constructors of the pairwise filters, by whose actions may change.

`ExpCBFQP.ego_only` builds the filter for unknown partners, `cadenza.safety.filters.ego_only`;
`ExpCBFQP.centralized` and `ExpCBFQP.shared_control` those of `cadenza.safety.filters.joint`. The
names that code written for the original module imports are here as well.

Time of one small solve, for guards that ask whether a filter keeps up with its control rate.

Problem:  min 1/2 |x|^2 + q @ x, q = (0.1, -0.2), |x_k| <= 1; the minimiser is -q.
"""

import math
import time
from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA, pair_h_value
from cadenza.safety.contracts import AgentControlModel, SafetyMode
from cadenza.safety.filters.compat import ego_filter
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.joint import CentralizedCBFQP, SharedControlCBFQP
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import QPSolver, make_solver

__all__ = ["DEFAULT_CBF_GAMMA", "AgentSnapshot", "ExpCBFQP", "SafetyMode", "pair_h_value"]


class ExpCBFQP:
    """Pairwise safety filters; one constructor per answer to "whose actions may change".

    Calling the class itself builds the filter of a mode with its default options.
    """

    def __new__(
        cls,
        *,
        control_models: Mapping[str, AgentControlModel],
        mode: SafetyMode = SafetyMode.EGO_ONLY,
        solver: QPSolver | None = None,
        cbf_gamma: float = DEFAULT_CBF_GAMMA,
        dt: float | None = None,
    ) -> EgoOnlyCBFQP | CentralizedCBFQP | SharedControlCBFQP:
        """Return the filter of ``mode``.

        Args:
            control_models: Model of every agent by id.
            mode: Whose actions may change.
            solver: Solves several active rows; None means DAQP.
            cbf_gamma: Rate at which overlap is undone, 1/s.
            dt: Control step, s, of the joint modes, whose row is the continuous-time one without;
                the ego-only filter takes it in every call.

        Raises:
            ConfigurationError: As the constructors of the mode, ``dt`` for the ego-only mode, or
                another kind of ``mode``.
        """
        if mode is SafetyMode.EGO_ONLY:
            if dt is not None:
                raise ConfigurationError(
                    "ExpCBFQP: expected no dt for SafetyMode.EGO_ONLY, whose filter(...) takes it, "
                    f"got {dt}."
                )
            return cls.ego_only(control_models=control_models, solver=solver, cbf_gamma=cbf_gamma)
        if mode is SafetyMode.CENTRALIZED:
            build: type[CentralizedCBFQP | SharedControlCBFQP] = cls.centralized
        elif mode is SafetyMode.SHARED_CONTROL:
            build = cls.shared_control
        else:
            raise ConfigurationError(f"ExpCBFQP: mode: expected a SafetyMode, got {mode!r}.")
        return build(control_models=control_models, solver=solver, cbf_gamma=cbf_gamma, dt=dt)

    #: The filter that changes the ego's action only.
    ego_only = staticmethod(ego_filter)
    #: The filter that changes every agent's action.
    centralized = CentralizedCBFQP
    #: The filter that changes partners' actions a little.
    shared_control = SharedControlCBFQP


#: P, q, A, b of the problem, the box as four rows.
_PROBLEM: Final[tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = (
    np.eye(2),
    np.array([0.1, -0.2]),
    np.concatenate([np.eye(2), -np.eye(2)]),
    np.ones(4),
)


def solve_qp_stub(*args: object, **kwargs: object) -> tuple[float, float]:
    """Solve the problem with Clarabel and return what came out and how long it took.

    The name and the open signature are those of the function that guards have always been given;
    none of the arguments is read.

    Returns:
        Euclidean norm of the minimiser, and the seconds of the solve without loading the library.
    """
    del args, kwargs
    solver = _solver()
    started = time.perf_counter()
    x, _ = solver.solve(*_PROBLEM)
    elapsed_s = time.perf_counter() - started
    return math.hypot(*x.tolist()), elapsed_s


@cache
def _solver() -> QPSolver:
    """Return the solver, kept for the next call, after a first solve that loads its library."""
    solver = make_solver("clarabel")
    solver.solve(*_PROBLEM)
    return solver

"""Operational-space filter on ready rows, every row soft.

Problem:    min W_j^2 |q' - q'_nom|^2 + W_o^2 |J q' - nu_nom|^2 + rho |s|^2   s.t.  A q' - s <= b
Slack:      s = max(0, A q' - b) without any row s >= 0: a negative s costs and helps nothing.
Source:     Morton and Pavone, arXiv:2503.06736, for the two weighted objectives. Departure: this
            cost couples task and posture; `VelocityOSCBF` separates them and has hard rows.
Weights:    enter squared; the slack penalty does not.
Axes:       n joints, k task rows, m rows.
"""

import math
import time
import warnings
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import InputError
from cadenza.safety.oscbf.constraints import OSCBFConstraints
from cadenza.safety.oscbf.result import SLACK_ACTIVE_FLOOR, OSCBFResult
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver

#: Most joints a programme takes; a larger count is a mistake, not a robot.
MAX_JOINTS: Final = 1000

DEFAULT_SLACK_PENALTY: Final = 100.0
DEFAULT_W_JOINT: Final = 1.0
DEFAULT_W_OPERATIONAL: Final = 1.0
#: Slack below this is more than solver tolerance, and worth a warning.
_NEGATIVE_SLACK_WARN_FLOOR: Final = -1e-6
#: Bound of a variable that has none.
_FREE: Final = 1e30


class OSCBF:
    """Filter of joint velocities against rows that may all be relaxed, at a price.

    Args:
        n_joints: n, >= 1.
        weight_joint: W_j, > 0.
        weight_operational: W_o, >= 0.
        slack_penalty: rho, > 0.
        solver: Solves the programme; None takes DAQP with a workspace per shape.

    Raises:
        InputError: A number out of range.
    """

    def __init__(
        self,
        *,
        n_joints: int,
        weight_joint: float = DEFAULT_W_JOINT,
        weight_operational: float = DEFAULT_W_OPERATIONAL,
        slack_penalty: float = DEFAULT_SLACK_PENALTY,
        solver: QPSolver | None = None,
    ) -> None:
        if not (is_whole(n_joints) and 1 <= n_joints <= MAX_JOINTS):
            raise InputError(
                f"OSCBF.n_joints: expected a whole number in [1, {MAX_JOINTS}], got {n_joints!r}."
            )
        for name, value, floor in (
            ("weight_joint", weight_joint, "> 0"),
            ("weight_operational", weight_operational, ">= 0"),
            ("slack_penalty", slack_penalty, "> 0"),
        ):
            if not (
                is_real(value)
                and math.isfinite(value)
                and (value > 0.0 or (floor == ">= 0" and value == 0.0))
            ):
                raise InputError(f"OSCBF.{name}: expected a finite number {floor}, got {value}.")
        self._n = n_joints
        self._joint = weight_joint * weight_joint
        self._operational = weight_operational * weight_operational
        self._penalty = slack_penalty
        self._solver = as_solver(solver)
        self._workspaces: dict[int, _Workspace] = {}

    @property
    def n_joints(self) -> int:
        """Number of joints."""
        return self._n

    def solve(
        self,
        *,
        q_dot_nom: FloatArray,
        nu_nom: FloatArray,
        jacobian: FloatArray,
        constraints: OSCBFConstraints,
    ) -> OSCBFResult:
        """Return the filtered joint velocities.

        Args:
            q_dot_nom: Nominal joint velocities, shape (n,).
            nu_nom: Nominal task velocity, shape (k,).
            jacobian: Task Jacobian, shape (k, n).
            constraints: Rows, shape (m, n); m may be 0.

        Returns:
            The command. When the solver fails, which a programme that is always feasible gives no
            reason for, the joints are told to stop and ``solver_status`` says why.

        Raises:
            InputError: Shapes that do not fit each other, or entries that are not finite.
        """
        self._check(q_dot_nom, nu_nom, jacobian, constraints)
        n, m = self._n, constraints.b.shape[0]
        work = self._workspaces.get(m)
        if work is None:
            work = self._workspaces[m] = _Workspace(n, m, self._penalty)
        work.P[:n, :n] = self._operational * (jacobian.T @ jacobian)
        work.P[np.arange(n), np.arange(n)] += self._joint
        work.q[:n] = -self._joint * q_dot_nom - self._operational * (jacobian.T @ nu_nom)
        work.A[:, :n] = constraints.a
        started = time.perf_counter()
        answer = self._solver.run(work.P, work.q, work.A, constraints.b, work.lower, work.upper)
        solve_ms = (time.perf_counter() - started) * 1e3
        if answer.status is SolveStatus.OPTIMAL:
            q_dot, raw, status = answer.x[:n], answer.x[n:], "optimal"
        else:
            q_dot, raw, status = np.zeros(n), -constraints.b, answer.status.value
        if status == "optimal" and m and float(raw.min()) < _NEGATIVE_SLACK_WARN_FLOOR:
            warnings.warn(
                f"OSCBF: raw slack went below {_NEGATIVE_SLACK_WARN_FLOOR:.0e} "
                f"(smallest {float(raw.min()):.3g}); it is read as 0, check the solver.",
                UserWarning,
                stacklevel=2,
            )
        return soft_result(q_dot.copy(), np.maximum(raw, 0.0), solve_ms, status)

    def _check(
        self,
        q_dot_nom: FloatArray,
        nu_nom: FloatArray,
        jacobian: FloatArray,
        constraints: OSCBFConstraints,
    ) -> None:
        n = self._n
        if jacobian.ndim != 2 or jacobian.shape[1] != n:
            raise InputError(f"OSCBF: jacobian: expected shape (k, {n}), got {jacobian.shape}.")
        for name, array, shape in (
            ("q_dot_nom", q_dot_nom, (n,)),
            ("nu_nom", nu_nom, (jacobian.shape[0],)),
            ("constraints.a", constraints.a, (constraints.b.shape[0], n)),
        ):
            if array.shape != shape:
                raise InputError(f"OSCBF: {name}: expected shape {shape}, got {array.shape}.")
        for name, array in (("q_dot_nom", q_dot_nom), ("nu_nom", nu_nom), ("jacobian", jacobian)):
            require_finite(f"OSCBF: {name}", array)


class _Workspace:
    """Arrays of the programme with m rows; only the blocks that change are written per call."""

    def __init__(self, n: int, m: int, penalty: float) -> None:
        self.P = np.zeros((n + m, n + m))
        self.P[np.arange(n, n + m), np.arange(n, n + m)] = penalty
        self.q = np.zeros(n + m)
        self.A = np.zeros((m, n + m))
        self.A[:, n:] = -np.eye(m)
        self.upper = np.full(n + m, _FREE)
        self.lower = -self.upper


def soft_result(q_dot: FloatArray, slack: FloatArray, solve_ms: float, status: str) -> OSCBFResult:
    """Return the record of a solve with nothing but soft rows."""
    return OSCBFResult(
        q_dot=q_dot,
        slack=slack,
        solve_ms=solve_ms,
        active_rows=tuple(np.flatnonzero(slack > SLACK_ACTIVE_FLOOR).tolist()),
        max_slack=float(slack.max(initial=0.0)),
        slack_l2=float(np.linalg.norm(slack)),
        solver_status=status,
    )

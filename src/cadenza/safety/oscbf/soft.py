"""Operational-space filter on ready rows A q' <= b, every row soft; and two kinds of rows.

Problem:    min W_j^2 |q' - q'_nom|^2 + W_o^2 |J q' - nu_nom|^2 + rho |s|^2   s.t.  A q' - s <= b
Slack:      s = max(0, A q' - b) without any row s >= 0: a negative s costs and helps nothing.
Weights:    enter squared; the slack penalty does not.
Collision:  h = |c_a - c_b| - (r_a + r_b);  h' >= -alpha h  becomes
            -n^T (J_a - J_b) q' <= alpha h + lambda - n^T v_b,  n from b to a.
Source:     Morton and Pavone, arXiv:2503.06736, for the two weighted objectives. Departure: this
            cost couples task and posture; `VelocityOSCBF` separates them and has hard rows.
Axes:       n joints, k task rows, m rows.
Units:      rad/s for joint rows, m and m/s for collision rows.
"""

import math
import time
import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import InputError
from cadenza.safety.cbf import COINCIDENT_DISTANCE
from cadenza.safety.oscbf.program import JointBox, OSCBFResult, slack_sizes, solve_with_slack
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver

#: Most joints a program takes; a larger count is a mistake, not a robot.
MAX_JOINTS: Final = 1000

#: Rate at which a gap may be closed, 1/s: a tenth of the gap in 20 ms.
DEFAULT_CBF_ALPHA: Final = 5.0
DEFAULT_SLACK_PENALTY: Final = 100.0
DEFAULT_W_JOINT: Final = 1.0
DEFAULT_W_OPERATIONAL: Final = 1.0
#: Slack below this is more than solver tolerance, and worth a warning.
_NEGATIVE_SLACK_WARN_FLOOR: Final = -1e-6


@dataclass(frozen=True, slots=True, eq=False)
class OSCBFConstraints:
    """Rows A q' <= b; InputError for other shapes, or an entry that is not finite."""

    a: FloatArray  # Row vectors, shape (m, n)
    b: FloatArray  # Right-hand sides, shape (m,)

    def __post_init__(self) -> None:
        for name, axes in (("a", 2), ("b", 1)):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.ndim != axes:
                raise InputError(
                    f"OSCBFConstraints.{name}: expected {axes}-D, got shape {array.shape}."
                )
            require_finite(f"OSCBFConstraints.{name}", array)
            object.__setattr__(self, name, array)
        if self.a.shape[0] != self.b.shape[0]:
            raise InputError(
                f"OSCBFConstraints: expected as many rows in a as entries in b, got "
                f"{self.a.shape[0]} and {self.b.shape[0]}."
            )


def joint_limit_constraint_row(
    *, n_joints: int, joint_index: int, upper: float | None = None, lower: float | None = None
) -> tuple[FloatArray, float]:
    """Return row and right-hand side of one velocity limit of one joint.

    Args:
        n_joints: n.
        joint_index: Which joint, in [0, n).
        upper: Largest velocity, rad/s; exactly one of ``upper`` and ``lower``.
        lower: Smallest velocity, rad/s.

    Returns:
        (e_k, upper) or (-e_k, -lower).

    Raises:
        InputError: An index out of range, both limits or none, or a limit that is not finite.
    """
    if not (is_whole(joint_index) and is_whole(n_joints) and 0 <= joint_index < n_joints):
        raise InputError(
            f"joint_limit_constraint_row: expected a whole joint_index in [0, {n_joints}), "
            f"got {joint_index!r}."
        )
    if (upper is None) == (lower is None):
        raise InputError(
            "joint_limit_constraint_row: expected exactly one of upper and lower, got "
            f"upper={upper}, lower={lower}; call it once per side."
        )
    row = np.zeros(n_joints)
    if upper is not None:
        row[joint_index], level = 1.0, float(upper)
    else:
        row[joint_index], level = -1.0, -float(lower or 0.0)
    if not np.isfinite(level):
        raise InputError(f"joint_limit_constraint_row: expected a finite limit, got {level}.")
    return row, level


def collision_constraint_row(
    *,
    n_joints: int,
    sphere_a_center: FloatArray,
    sphere_b_center: FloatArray,
    sphere_a_radius: float,
    sphere_b_radius: float,
    sphere_a_jacobian: FloatArray,
    sphere_b_jacobian: FloatArray | None = None,
    cbf_alpha: float = DEFAULT_CBF_ALPHA,
    lambda_ij: float = 0.0,
    sphere_b_velocity: FloatArray | None = None,
) -> tuple[FloatArray, float]:
    """Return row and right-hand side that keep two spheres apart.

    Coincident centres give a zero row with the level lambda - 1, which asks for a slack of
    1 - lambda: no direction would be better than another.

    Args:
        n_joints: n.
        sphere_a_center: Centre of a sphere of the arm, shape (3,), m.
        sphere_b_center: Centre of the other sphere, shape (3,), m.
        sphere_a_radius: Radius, m, > 0.
        sphere_b_radius: Radius, m, > 0.
        sphere_a_jacobian: Jacobian of the first centre, shape (3, n).
        sphere_b_jacobian: Jacobian of the second centre; None when the joints do not move it.
        cbf_alpha: Rate at which the gap may close, 1/s, >= 0.
        lambda_ij: Relaxation, m/s; positive relaxes.
        sphere_b_velocity: Velocity of the second centre that the joints do not cause, shape (3,),
            m/s; None for a sphere at rest.

    Raises:
        InputError: Wrong shapes, entries that are not finite, radii <= 0, or a negative rate.
    """
    name = "collision_constraint_row: "
    offset = _vector(name + "sphere_a_center", sphere_a_center, (3,)) - _vector(
        name + "sphere_b_center", sphere_b_center, (3,)
    )
    jacobian = _vector(name + "sphere_a_jacobian", sphere_a_jacobian, (3, n_joints))
    if sphere_b_jacobian is not None:
        jacobian = jacobian - _vector(name + "sphere_b_jacobian", sphere_b_jacobian, (3, n_joints))
    if not (0.0 < sphere_a_radius < np.inf and 0.0 < sphere_b_radius < np.inf):
        raise InputError(
            f"{name}expected finite radii > 0 m, got {sphere_a_radius} and {sphere_b_radius}."
        )
    if not 0.0 <= cbf_alpha < np.inf or not np.isfinite(lambda_ij):
        raise InputError(
            f"{name}expected a finite cbf_alpha >= 0 1/s and a finite lambda_ij, got "
            f"{cbf_alpha} and {lambda_ij}."
        )
    distance = float(np.linalg.norm(offset))
    if distance < COINCIDENT_DISTANCE:
        return np.zeros(n_joints), lambda_ij - 1.0
    normal = offset / distance
    level = cbf_alpha * (distance - sphere_a_radius - sphere_b_radius) + lambda_ij
    if sphere_b_velocity is not None:
        velocity = _vector(name + "sphere_b_velocity", sphere_b_velocity, (3,))
        level -= float(normal @ velocity)
    return -(normal @ jacobian), level


def _vector(name: str, value: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    require_shape(name, array, shape)
    require_finite(name, array)
    return array


class OSCBF:
    """Filter of joint velocities against rows that may all be relaxed, at a price.

    Args:
        n_joints: n, >= 1.
        weight_joint: W_j, > 0.
        weight_operational: W_o, >= 0.
        slack_penalty: rho, > 0.
        solver: Solves the program; None takes DAQP with a workspace per shape.

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
        for name, value, least in (
            ("weight_joint", weight_joint, "> 0"),
            ("weight_operational", weight_operational, ">= 0"),
            ("slack_penalty", slack_penalty, "> 0"),
        ):
            fine = is_real(value) and 0.0 <= value < math.inf and (value or least == ">= 0")
            if not fine:
                raise InputError(f"OSCBF.{name}: expected a finite number {least}, got {value}.")
        self._n = n_joints
        self._joint = weight_joint * weight_joint
        self._operational = weight_operational * weight_operational
        self._penalty = slack_penalty
        self._solver = as_solver(solver)
        everywhere = np.full(n_joints, np.inf)
        self._box = JointBox(-everywhere, everywhere, ())

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
            The command. When the solver fails, which a program that is always feasible gives no
            reason for, the joints are told to stop and ``solver_status`` says why.

        Raises:
            InputError: Shapes that do not fit each other, or entries that are not finite.
        """
        n, m = self._n, constraints.b.shape[0]
        for name, array, shape in (
            ("jacobian", jacobian, ("k", n)),
            ("q_dot_nom", q_dot_nom, (n,)),
            ("nu_nom", nu_nom, jacobian.shape[:1]),
        ):
            require_shape(f"OSCBF: {name}", array, shape)
            require_finite(f"OSCBF: {name}", array)
        require_shape("OSCBF: constraints.a", constraints.a, (m, n))
        P = self._operational * (jacobian.T @ jacobian)
        P[np.arange(n), np.arange(n)] += self._joint
        q = -self._joint * q_dot_nom - self._operational * (jacobian.T @ nu_nom)
        costs, A, b = np.full(m, self._penalty), constraints.a, constraints.b
        started = time.perf_counter()
        answer = solve_with_slack(self._solver, P, q, A, b, costs, self._box)
        solve_ms = (time.perf_counter() - started) * 1e3
        if answer.status is SolveStatus.OPTIMAL:
            q_dot, raw, status = answer.x[:n], answer.x[n:] / math.sqrt(self._penalty), "optimal"
        else:
            q_dot, raw, status = np.zeros(n), -b, answer.status.value
        if status == "optimal" and m and float(raw.min()) < _NEGATIVE_SLACK_WARN_FLOOR:
            warnings.warn(
                f"OSCBF: raw slack went below {_NEGATIVE_SLACK_WARN_FLOOR:.0e} "
                f"(smallest {float(raw.min()):.3g}); it is read as 0, check the solver.",
                UserWarning,
                stacklevel=2,
            )
        slack = np.maximum(raw, 0.0)
        return OSCBFResult(
            q_dot=q_dot.copy(),
            slack=slack,
            solve_ms=solve_ms,
            solver_status=status,
            **slack_sizes(slack),
        )

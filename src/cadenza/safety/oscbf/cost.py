"""Cost that leaves the task alone while the posture is served, and the command it starts from.

Cost:      1/2 (u - u_des)^T P (u - u_des),   P = N^T W_j^2 N + J^T W_o^2 J,   N = I - Jbar J
           A change of u inside the null space of J costs W_j only; one that disturbs the task
           costs W_o, and no posture error is weighed against it.
Inverse:   Jbar = J^T (J J^T + d^2 I)^-1                 ("damped"), or
           Jbar = M^-1 J^T (J M^-1 J^T + d^2 I)^-1       ("dynamic": a torque of the null space
           causes no task acceleration), Khatib, doi:10.1109/JRA.1987.1087068.
Torques:   with u = q'' and torque = M q'' + bias the same cost over torques is
           N^T M^-1 W_j^2 M^-1 N + M^-1 J^T W_o^2 J M^-1, N the null-space projector of torques.
Source:    Morton and Pavone, arXiv:2503.06736. Departure: solved over q'', where P has the same
           entries at both levels and is better conditioned than over torques.
Axes:      n joints, k task rows.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.arms.kinematics import dposv
from cadenza.safety.arms.state import ArmState

#: How the Jacobian is inverted.
Inverse = Literal["damped", "dynamic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """Weights of task and posture.

    Attributes:
        weight_joint: W_j, > 0; enters squared.
        weight_operational: W_o, > 0; enters squared.
        inverse: Pseudo-inverse behind the null-space projector.
        damping: d, > 0: the inverse stays finite in singular configurations.

    Raises:
        ConfigurationError: A number that is not finite and positive, or an unknown inverse.
    """

    weight_joint: float = 1.0
    weight_operational: float = 10.0
    inverse: Inverse = "damped"
    damping: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("weight_joint", "weight_operational", "damping"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ConfigurationError(
                    f"TaskCost.{name}: expected a finite number > 0, got {value}."
                )
        if self.inverse not in get_args(Inverse):
            raise ConfigurationError(
                f"TaskCost.inverse: expected one of {get_args(Inverse)}, got {self.inverse!r}."
            )


@dataclass(frozen=True, slots=True, eq=False)
class TaskFrame:
    """The cost at one configuration.

    Attributes:
        P: Cost matrix, shape (n, n), positive definite.
        inverse: Jbar, shape (n, k).
        projector: N, shape (n, n).
    """

    P: FloatArray
    inverse: FloatArray
    projector: FloatArray

    def command(self, task: FloatArray, posture: FloatArray | None) -> FloatArray:
        """Return Jbar task + N posture, shape (n,): the task first, the posture in what is left."""
        command = self.inverse @ task
        return command if posture is None else command + self.projector @ posture


def task_frame(cost: TaskCost, state: ArmState) -> TaskFrame:
    """Return the cost at one configuration; only the dynamic inverse reads the mass matrix."""
    jacobian = weighted = state.ee_jacobian
    if cost.inverse == "dynamic":
        weighted = np.asarray(np.linalg.solve(state.mass_matrix, jacobian.T).T, dtype=np.float64)
    k, n = jacobian.shape
    gram = jacobian @ weighted.T + cost.damping * cost.damping * _identity(k)
    inverse = dposv(gram, weighted)[1].T
    projector = _identity(n) - inverse @ jacobian
    joint, operational = cost.weight_joint**2, cost.weight_operational**2
    P = joint * (projector.T @ projector) + operational * (jacobian.T @ jacobian)
    return TaskFrame(P, inverse, projector)


@cache
def _identity(n: int) -> FloatArray:
    return np.eye(n)

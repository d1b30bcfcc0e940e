"""Bounded disturbances and what they can cost a barrier.

Equation:  x' = f(x) + g(x) u + E(x) w,  |w| <= bound (Euclidean)
Cost:      min over w of (d psi / dx) E w = -bound |E^T grad psi|; the smooth upper bound
           sqrt(|E^T grad psi|^2 + eps^2) stands for the norm, so that it can be differentiated.
Source:    Jankovic, Robust control barrier functions for constrained stabilization of nonlinear
           systems, doi:10.1016/j.automatica.2018.07.004.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine.dynamics import ControlAffineDynamics

#: eps, in the unit of the norm. It costs at most bound * eps and keeps derivatives finite at zero.
_SMOOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Disturbance:
    """A bounded disturbance of the state's rate.

    Attributes:
        bound: Largest Euclidean norm of w, in the unit of w, >= 0.
        matrix: E(x), shape (n, q), for a state of shape (n,); branch-free torch code.

    Raises:
        ConfigurationError: A bound that is negative or not finite.
    """

    bound: float
    matrix: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not 0.0 <= self.bound < math.inf:
            raise ConfigurationError(
                f"Disturbance.bound: expected a finite number >= 0, got {self.bound}."
            )

    @classmethod
    def matched(cls, dynamics: ControlAffineDynamics, bound: float) -> "Disturbance":
        """Return a disturbance that enters where the action does: E = g."""
        return cls(bound, dynamics.input_map)

    @classmethod
    def through(cls, matrix: ArrayLike, bound: float) -> "Disturbance":
        """Return a disturbance through a constant matrix, shape (n, q).

        Raises:
            ConfigurationError: No matrix of finite numbers.
        """
        constant = np.array(matrix, dtype=np.float64)
        if constant.ndim != 2 or not np.isfinite(constant).all():
            raise ConfigurationError(
                "Disturbance.through: expected a matrix of finite numbers, shape (n, q), got "
                f"shape {constant.shape}."
            )
        fixed = torch.as_tensor(constant)
        return cls(bound, lambda x: fixed.to(x.device))

    @classmethod
    def ball(cls, dynamics: ControlAffineDynamics, bound: float) -> "Disturbance":
        """Return a disturbance in any direction of the state space: E = I."""
        return cls.through(np.eye(dynamics.state_dim), bound)

    def cost(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Return the most by which w can lower the rate of a function with this gradient."""
        pushed = gradient @ self.matrix(x)
        return self.bound * torch.sqrt(pushed @ pushed + _SMOOTHING**2)


def total_cost(disturbances: Sequence[Disturbance], gradient: Tensor, x: Tensor) -> Tensor:
    """Return the summed cost of independent disturbances, a number."""
    total = torch.zeros_like(gradient[0])
    for disturbance in disturbances:
        total = total + disturbance.cost(gradient, x)
    return total

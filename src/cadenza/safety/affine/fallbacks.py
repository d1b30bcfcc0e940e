"""What to do in a step whose rows no action of the box meets, by name.

"least_violation":  the most violated row as far as the box allows, the others as well as they can
                    be met around it; where a row has no direction to push in, around the action of
                    rest.
"brake":            the robot's own `brake`.
"hold_zero":        the zero action.
Promise:            whatever a fallback returns is checked and moved into the box.
Adding one:         ``FALLBACKS.register("mine", function)`` before the filter is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.affine.dynamics import BrakingDynamics, ControlAffineDynamics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FallbackRequest:
    """What a fallback may look at.

    Attributes:
        dynamics: The robot.
        state: Shape (n,).
        nominal: The proposed action, shape (k,).
        least_violation: The action that misses the rows least, shape (k,).
        lower: Lower bounds of the box, shape (k,).
        upper: Upper bounds of the box, shape (k,).
        status: Why there is no solution; see `AffineInfo.status`.
    """

    dynamics: ControlAffineDynamics
    state: FloatArray
    nominal: FloatArray
    least_violation: FloatArray
    lower: FloatArray
    upper: FloatArray
    status: str


#: Returns an action, shape (k,).
Fallback: TypeAlias = Callable[[FallbackRequest], FloatArray]


class FallbackRegistry:
    """Fallbacks by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Fallback] = {}

    def names(self) -> tuple[str, ...]:
        """Return the known names, in order of registration."""
        return tuple(self._by_name)

    def register(self, name: str, fallback: Fallback) -> None:
        """Add a fallback.

        Raises:
            ConfigurationError: The name is empty or taken.
        """
        if not name or name in self._by_name:
            raise ConfigurationError(
                f"FALLBACKS: expected a new name, got {name!r}; known: {', '.join(self._by_name)}."
            )
        self._by_name[name] = fallback

    def get(self, name: str, dynamics: ControlAffineDynamics) -> Fallback:
        """Return a fallback for a robot.

        Raises:
            UnknownNameError: No such name.
            ConfigurationError: "brake" for a robot that cannot brake.
        """
        if name not in self._by_name:
            raise UnknownNameError(
                f"FALLBACKS: expected one of {', '.join(self._by_name)}, got {name!r}."
            )
        if name == "brake" and not isinstance(dynamics, BrakingDynamics):
            raise ConfigurationError(
                f"fallback 'brake': expected dynamics with a brake method, got "
                f"{type(dynamics).__name__}; add one or choose another fallback."
            )
        return self._by_name[name]


def rest_action(dynamics: ControlAffineDynamics, state: torch.Tensor) -> torch.Tensor:
    """Return the action a robot rests with, shape (k,): its own brake, or zero."""
    if isinstance(dynamics, BrakingDynamics):
        return dynamics.brake(state)
    return torch.zeros(dynamics.action_dim, dtype=state.dtype, device=state.device)


def run_fallback(name: str, fallback: Fallback, request: FallbackRequest) -> FloatArray:
    """Return the fallback's action, moved into the box, shape (k,).

    Raises:
        InputError: It returned something else than k finite numbers.
    """
    action = np.asarray(fallback(request), dtype=np.float64)
    if action.shape != request.lower.shape or not np.isfinite(action).all():
        raise InputError(
            f"fallback {name!r}: expected finite numbers of shape {request.lower.shape}, got "
            f"{action.tolist()}."
        )
    return np.minimum(np.maximum(action, request.lower), request.upper)


def _least_violation(request: FallbackRequest) -> FloatArray:
    return request.least_violation


def _brake(request: FallbackRequest) -> FloatArray:
    return rest_action(request.dynamics, torch.as_tensor(request.state)).numpy()


def _hold_zero(request: FallbackRequest) -> FloatArray:
    return np.zeros_like(request.lower)


#: The registry of the package.
FALLBACKS: Final = FallbackRegistry()
FALLBACKS.register("least_violation", _least_violation)
FALLBACKS.register("brake", _brake)
FALLBACKS.register("hold_zero", _hold_zero)

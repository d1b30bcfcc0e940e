"""Emergency actions: away from every dangerous partner, as hard as the actuators allow.

`CartesianAccelEmergencyController` serves agents whose action is their acceleration; for all
others see `cadenza.safety.emergency_jacobian`, whose controller this module offers as well.
"""

import importlib
import math
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.protocols import EmergencyController as EmergencyController
from cadenza.safety.snapshot import AgentSnapshot

#: Length of a sum of unit vectors below which they cancel and give no direction.
_CANCELLED: Final = 1e-12
#: Time constant of the stop when repulsions cancel, s. Full braking of a slow agent would reverse
#: it within one control step and swing; v / 0.1 s does not for steps up to 0.1 s.
DEFAULT_STOP_TIME_S: Final = 0.1


def net_repulsion(
    agent_state: AgentSnapshot, pairwise_repulsion_vectors: list[FloatArray]
) -> FloatArray | None:
    """Return the sum of the vectors, shape (d,); None if they cancel or there are none.

    Raises:
        InputError: A vector has another shape than the position.
    """
    push = np.zeros(agent_state.position.shape)
    for vector in pairwise_repulsion_vectors:
        require_shape("repulsion vector", vector, push.shape)
        push += vector
    return push if float(np.linalg.norm(push)) >= _CANCELLED else None


def stretch(vector: FloatArray, length: float) -> FloatArray:
    """Return ``vector``, which must not vanish, with the given Euclidean length."""
    return vector * (length / float(np.linalg.norm(vector)))


def braking_accel(agent_state: AgentSnapshot, capacity: float, stop_time_s: float) -> FloatArray:
    """Return the acceleration that stops the agent, shape (d,), m/s^2: -v / stop_time_s."""
    speed = float(np.linalg.norm(agent_state.velocity))
    gain = min(1.0 / stop_time_s, capacity / speed) if speed > 0.0 else 0.0
    return -gain * agent_state.velocity


def scale_into_box(action: FloatArray, c: float) -> FloatArray:
    """Return ``action`` scaled down as a whole so that |action_k| <= c; its direction stays."""
    largest = float(np.max(np.abs(action)))
    return action * (c / largest) if largest > c else action


def require_stop_time(owner: str, stop_time_s: float) -> None:
    """Raise unless the stop time is a positive finite number.

    Raises:
        ConfigurationError: It is not.
    """
    if not 0.0 < stop_time_s < math.inf:
        raise ConfigurationError(f"{owner}: expected stop_time_s > 0, got {stop_time_s}.")


class CartesianAccelEmergencyController:
    """Sums the repulsion vectors and pushes that way; for agents whose action is acceleration.

    Args:
        stop_time_s: Time constant of braking along -v when the vectors cancel, s, > 0; at least
            the control step.

    Raises:
        ConfigurationError: ``stop_time_s`` is not a positive finite number.
    """

    def __init__(self, *, stop_time_s: float = DEFAULT_STOP_TIME_S) -> None:
        require_stop_time("CartesianAccelEmergencyController", stop_time_s)
        self._stop_time_s = stop_time_s

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency acceleration, shape (d,), m/s^2, inside the action box.

        It points along the summed vectors; where they cancel, or there are none, the agent brakes
        along its velocity. The push has the norm of the Cartesian capacity, scaled down as a
        whole, so that its direction stays, where a component would leave the box.

        Raises:
            InputError: A vector has another shape than the position.
        """
        repulsion = net_repulsion(agent_state, pairwise_repulsion_vectors)
        capacity = bounds.cartesian_accel_capacity
        if repulsion is None:
            push = braking_accel(agent_state, capacity, self._stop_time_s)
        else:
            push = stretch(repulsion, capacity)
        return scale_into_box(push, bounds.action_linf_component)


def __getattr__(name: str) -> Any:
    """Return the controller for embodiments with a Jacobian, whose module imports this one."""
    if name == "JacobianEmergencyController":
        return getattr(importlib.import_module("cadenza.safety.emergency_jacobian"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Emergency actions: away from every dangerous partner, as hard as the actuators allow."""

import math
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.snapshot import AgentSnapshot

#: Length of a sum of unit vectors below which they cancel and give no direction.
_CANCELLED: Final = 1e-12
#: Time constant of the stop when repulsions cancel, s. Full braking of a slow agent would reverse
#: it within one control step and swing; v / 0.1 s does not for steps up to 0.1 s.
DEFAULT_STOP_TIME_S: Final = 0.1


class CartesianAccelEmergencyController:
    """Sums the repulsion vectors and pushes that way; for agents whose action is acceleration.

    Args:
        stop_time_s: Time constant of braking along -v when the vectors cancel, s, > 0; at least
            the control step.

    Raises:
        ConfigurationError: ``stop_time_s`` is not a positive finite number.
    """

    def __init__(self, *, stop_time_s: float = DEFAULT_STOP_TIME_S) -> None:
        if not 0.0 < stop_time_s < math.inf:
            raise ConfigurationError(
                f"CartesianAccelEmergencyController: expected stop_time_s > 0, got {stop_time_s}."
            )
        self._stop_time_s = stop_time_s

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency acceleration, shape (d,), m/s^2, inside the action box.

        The push has the norm of the Cartesian capacity, scaled down as a whole, so that its
        direction stays, where a component would leave the box.

        Args:
            agent_state: The agent that acts.
            pairwise_repulsion_vectors: Unit vectors away from each dangerous partner.
            bounds: Capacity and box.
        """
        capacity = bounds.cartesian_accel_capacity
        push = np.zeros(agent_state.position.shape)
        for vector in pairwise_repulsion_vectors:
            push += vector
        norm = float(np.linalg.norm(push))
        if norm >= _CANCELLED:
            push *= capacity / norm
        else:
            speed = float(np.linalg.norm(agent_state.velocity))
            gain = min(1.0 / self._stop_time_s, capacity / speed) if speed > 0.0 else 0.0
            push = -gain * agent_state.velocity
        largest = float(np.max(np.abs(push)))
        if largest > bounds.action_linf_component:
            push *= bounds.action_linf_component / largest
        return push

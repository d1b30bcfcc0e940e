"""What an emergency controller answered, checked before anyone executes it."""

from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.bounds import Bounds
from cadenza.safety.errors import EmergencyOutputError
from cadenza.safety.protocols import EmergencyController
from cadenza.safety.snapshot import AgentSnapshot

#: Relative excess over the action box that is rounding, of actions in float32 at most.
_BOX_ROUNDING: Final = 1e-6


def checked_push(
    uid: str,
    controller: EmergencyController,
    state: AgentSnapshot,
    pushes: list[FloatArray],
    bounds: Bounds,
    shape: tuple[int, ...],
) -> FloatArray:
    """Return the controller's action once it is known to be one; rounding is clipped off.

    Raises:
        EmergencyOutputError: It has another shape, is not finite or leaves the box.
    """
    found = cast("object", controller.compute_override(state, pushes, bounds))
    if not isinstance(found, np.ndarray):
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected an array, got "
            f"{type(found).__name__}; correct the emergency controller."
        )
    push = cast("np.ndarray[Any, Any]", found)
    if push.shape != shape or push.dtype.kind not in "fiu":
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected real numbers of shape {shape}, "
            f"got {push.dtype} of {push.shape}; correct the emergency controller."
        )
    c = bounds.action_linf_component
    largest = float(np.abs(push).max(initial=0.0))
    if not largest <= c * (1.0 + _BOX_ROUNDING):  # NaN fails too
        raise EmergencyOutputError(
            f"maybe_brake: emergency action of {uid!r}: expected components within {c:g}, got "
            f"{push.tolist()}; scale it down in the emergency controller."
        )
    return np.clip(push, -c, c) if largest > c else push

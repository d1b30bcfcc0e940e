"""Scripted egos of the handover: the receiver that observes, and receivers that assume.

Receiver:  go above the presented handle, turn the hand to it, come down, close when within half a
           millimetre; go above the fixture, turn the peg to it, come down, stay.
Law:       step = way to the next point, turn = turn to it; both as far as an action reaches. While
           the peg turns in the hand, the hand moves so that the peg's tip stays.
Axes:      N = rows, one episode each. Nothing is remembered: the phase follows from the view of
           `cadenza.envs.mujoco.handover`, one state, (31,), or N of them.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.policies import EgoSeat, register_policy
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.types import Observation
from cadenza.partners.handover import GRIP_STEP, TURN_STEP

#: What the view's entries were divided by; `cadenza.envs.mujoco.handover` has the same.
VIEW_SCALE: Final[FloatArray] = np.array(
    ([0.2] * 3 + [0.5] * 3) * 2 + [0.1] * 6 + [0.2] * 3 + [0.5] * 6 + [1.0] * 2 + [75.0, 11.0]
)
#: Closing is tried within this distance of the handle's point, m: by the receiver that observes,
#: less than the weld's tolerance; by those that trust their grasp, on their way.
CLOSE_WITHIN: Final = 0.0006
CLOSE_EARLY: Final = 0.01
#: Height above the handle and above the seat at which a hand first arrives, m.
ABOVE_HANDLE: Final = 0.04
ABOVE_SEAT: Final = 0.045
#: Errors with which a hand may come down: to the handle and into the hole, m and rad.
HANDLE_ERRORS: Final = (0.006, 0.1)
HOLE_ERRORS: Final = (0.0006, 0.025)
#: Height below which the peg's tip is in the hole, m.
IN_HOLE: Final = 0.028
#: Largest step down into the hole, m per tick; arms reach about a quarter of it.
_LOWERING: Final = 0.008
#: From the grip to the peg's tip, m, roughly.
_TO_TIP: Final = -0.07


def receive(view: FloatArray, *, point_only: bool, nominal_grasp: bool) -> FloatArray:
    """Return the actions of N receivers, (N, 7), for views in m and rad, (N, 31).

    Args:
        view: See the module.
        point_only: Ignore how the peg is turned in the presenter's hand.
        nominal_grasp: Once it holds the peg, assume it was grasped straight and in the middle.
    """
    gap, turn = view[:, 0:3], view[:, 24:27] if point_only else view[:, 3:6]
    far = _beside(gap, turn, HANDLE_ERRORS)
    reach = gap + np.where(far, ABOVE_HANDLE, 0.0)[:, None] * [0.0, 0.0, 1.0]
    distance = np.sqrt((gap * gap).sum(axis=1))
    within = CLOSE_EARLY if nominal_grasp else CLOSE_WITHIN
    closing = np.where((distance < within) & ~far, 1.0, -1.0)
    holding, handing = view[:, 27] > 0.5, view[:, 28] > 0.5

    seat, straighten = view[:, 6:9], view[:, 9:12]
    if nominal_grasp:
        seat, straighten = view[:, 18:21], view[:, 21:24]
    above = _beside(seat, straighten, HOLE_ERRORS) & (seat[:, 2] < -IN_HOLE)
    carry = seat + np.where(above, ABOVE_SEAT, 0.0)[:, None] * [0.0, 0.0, 1.0]
    carry[:, 2] = np.where(above, carry[:, 2], np.maximum(carry[:, 2], -_LOWERING))
    spin = np.clip(straighten, -TURN_STEP, TURN_STEP)
    carry[:, 0] -= _TO_TIP * spin[:, 1]
    carry[:, 1] += _TO_TIP * spin[:, 0]
    carry = np.where(handing[:, None], 0.0, carry)
    spin = np.where(handing[:, None], 0.0, spin)

    held = holding[:, None]
    step = _limited(np.where(held, carry, reach), GRIP_STEP) / GRIP_STEP
    turning = _limited(np.where(held, spin, turn), TURN_STEP) / TURN_STEP
    grip = np.where(holding, 1.0, closing)[:, None]
    return np.concatenate((step, turning, grip), axis=1)


def _beside(way: FloatArray, turn: FloatArray, errors: tuple[float, float]) -> NDArray[np.bool_]:
    sideways = np.sqrt(way[:, 0] * way[:, 0] + way[:, 1] * way[:, 1])
    return (sideways > errors[0]) | (np.sqrt((turn * turn).sum(axis=1)) > errors[1])


def _limited(vectors: FloatArray, limit: float) -> FloatArray:
    size = np.sqrt((vectors * vectors).sum(axis=1))
    return vectors * np.minimum(1.0, limit / np.maximum(size, 1e-12))[:, None]


class ReceivingEgo:
    """Base of the receivers.

    Raises:
        InputError: The seat is none of the handover's.
    """

    point_only = False
    nominal_grasp = False

    def __init__(self, seat: EgoSeat) -> None:
        if (seat.observation_dim, seat.action_dim) != (len(VIEW_SCALE), 7):
            raise InputError(
                f"{type(self).__name__}: expected the task handover_mj ({len(VIEW_SCALE)} "
                f"observations, 7 actions), got {seat.observation_dim} and {seat.action_dim}."
            )
        self._uid = seat.uid

    def reset(self, *, seed: int) -> None:
        """Nothing to forget."""
        del seed

    def reset_row(self, row: int) -> None:
        """Nothing to forget."""

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the action, float32, (7,) or (N, 7)."""
        state = obs["agent"][self._uid]["state"]
        view = np.atleast_2d(state).astype(np.float64) * VIEW_SCALE
        action = receive(view, point_only=self.point_only, nominal_grasp=self.nominal_grasp)
        return action.astype(np.float32)[0 if state.ndim == 1 else slice(None)]


@register_policy("handover_reference")
class HandoverReference(ReceivingEgo):
    """Observes how the peg is presented and how it lies in its hand."""


@register_policy("handover_nominal_grasp")
class HandoverNominalGrasp(ReceivingEgo):
    """Observes the presented peg and then trusts its grasp."""

    nominal_grasp = True


@register_policy("handover_blind")
class HandoverBlind(ReceivingEgo):
    """Goes where the handle is told to be, blind to how the peg is turned, and trusts its grasp."""

    point_only = True
    nominal_grasp = True

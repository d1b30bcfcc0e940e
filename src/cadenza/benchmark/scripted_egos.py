"""Scripted egos of the coupled tasks: references that feel their partner, and laws that do not.

Co-carry:  step = 0.6 gap + the partner's last step + g (step towards the goal, at most `lead`),
           g = 1 - |gap| / band. A partner that has not been ahead for 0.5 s makes lead and band
           grow within 1 s: it waits to be led. Ahead is who is nearer to the goal than level. Blind
           ones play a leader's law on the ego's end of the bar, on a fixed schedule.
Handover:  go above the presented handle, turn the hand to it, come down, close when within half a
           millimetre; go above the fixture, turn the peg to it, come down, stay. Step = way to the
           next point, turn = turn to it; both as far as an action reaches. While the peg turns in
           the hand, the hand moves so that the peg's tip stays. The phase follows from the view of
           `cadenza.envs.mujoco.handover`, (31,).
Doorway:   go through the door, unless the other is in it, or on its way to it and not clearly
           later; then wait aside. Blind ones go at once, or after a time.
Axes:      N = rows, one episode each; `reset_row` begins another one in a row. An ego takes one
           state or N of them; those of co-carry read the view "task", (20,).
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.policies import EgoSeat, MemorylessPolicy, register_policy
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.types import Observation
from cadenza.partners import doorway, handover
from cadenza.partners.cocarry import (
    GRIP_STEP,
    MIN_LENGTH,
    TICK_S,
    VIEW_SCALE,
    CarryingLaw,
    Traits,
    View,
    in_step,
    length,
    limited,
    read_view,
)

#: Share of the gap that a step closes.
GAP_GAIN: Final = 0.6
#: Lead, m per tick, and band, m: at first, and grown.
LEAD: Final = (0.004, 0.03)
BAND: Final = (0.012, 0.04)
#: Patience with a partner that is not ahead, and the time in which lead and band grow, s.
PATIENCE_S: Final = 0.5
GROWTH_S: Final = 1.0
#: Gap towards the goal from which on the partner counts as ahead, m: above the droop of the arms.
AHEAD: Final = 0.002
#: Mean delay of the leaders, s.
MEAN_DELAY_S: Final = 0.75


def carry(states: FloatArray) -> FloatArray:
    """Return the reference's actions before it loses patience, (N, 3), for task views (N, 20)."""
    return limited(_push(read_view(states), LEAD[0], BAND[0]), GRIP_STEP) / GRIP_STEP


def _push(view: View, lead: Any, band: Any) -> FloatArray:
    """Return the reference's steps, (N, 3), m; lead and band are numbers or (N, 1)."""
    push = in_step(view.gap, band) * limited(view.to_goal, lead)
    return GAP_GAIN * view.gap + view.other_step + push


class ScriptedEgo(MemorylessPolicy, ABC):
    """Base of the scripted egos; a subclass adds its law, and what it remembers."""

    sizes: ClassVar[tuple[int, int]]
    seat: ClassVar[str]

    def __init__(self, seat: EgoSeat) -> None:
        if (seat.observation_dim, seat.action_dim) != self.sizes:
            raise InputError(
                f"{type(self).__name__}: expected the task {self.seat} ({self.sizes[0]} "
                f"observations, {self.sizes[1]} actions), got {seat.observation_dim} and "
                f"{seat.action_dim}."
            )
        self._uid = seat.uid

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the action, float32, (A,) or (N, A)."""
        state = obs["agent"][self._uid]["state"]
        actions = self.act_rows(np.atleast_2d(state))
        return actions[0] if state.ndim == 1 else actions

    @abstractmethod
    def actions(self, states: NDArray[Any]) -> FloatArray:
        """Return the actions, (N, A), for states (N, D)."""

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the actions in N lanes, float32, (N, A)."""
        return self.actions(states).astype(np.float32)


class CarryingEgo(ScriptedEgo):
    """Base of those of co-carry, for the view "task" and the track "grip"."""

    sizes: ClassVar[tuple[int, int]] = (len(VIEW_SCALE), 3)
    seat = "cocarry_mj with view 'task' and track 'grip'"

    def actions(self, states: NDArray[Any]) -> FloatArray:
        """See `ScriptedEgo`."""
        return limited(self.steps(read_view(states)), GRIP_STEP) / GRIP_STEP

    @abstractmethod
    def steps(self, view: View) -> FloatArray:
        """Return the wanted steps of the grips, (N, 3), m."""


@register_policy("cocarry_reference")
class CoCarryReference(CarryingEgo):
    """Feels whether its partner leads, goes along, and leads itself where it does not."""

    def __init__(self, seat: EgoSeat) -> None:
        super().__init__(seat)
        self._waited: FloatArray = np.zeros(0)

    def reset(self, *, seed: int) -> None:
        """See `ScriptedEgo`."""
        del seed
        self._waited = np.zeros(0)

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `ScriptedEgo`."""
        del seed
        self._waited[row : row + 1] = 0.0

    def steps(self, view: View) -> FloatArray:
        """See `ScriptedEgo`."""
        new = len(view.time) - len(self._waited)
        waited = np.concatenate((self._waited, np.zeros(max(new, 0))))[: len(view.time)]
        ahead = (view.gap * view.to_goal).sum(axis=1) > AHEAD * np.maximum(
            length(view.to_goal)[:, 0], MIN_LENGTH
        )
        self._waited = np.where(ahead, 0.0, waited + TICK_S)
        grown = np.clip((self._waited - PATIENCE_S) / GROWTH_S, 0.0, 1.0)[:, None]
        lead, band = (low + (high - low) * grown for low, high in (LEAD, BAND))
        return _push(view, lead, band)


@register_policy("cocarry_level")
class CoCarryLevel(CarryingEgo):
    """Stays level with its partner and ignores the goal: easy partners need no more."""

    def steps(self, view: View) -> FloatArray:
        """See `ScriptedEgo`."""
        return GAP_GAIN * view.gap + view.other_step


@register_policy("cocarry_blind_nominal")
class CoCarryBlindNominal(CarryingEgo):
    """Moves its end to the goal on the nominal partner's schedule, and never looks."""

    delay_s: ClassVar[float] = 0.0

    def __init__(self, seat: EgoSeat) -> None:
        super().__init__(seat)
        self._law: CarryingLaw | None = None

    def reset(self, *, seed: int) -> None:
        """See `ScriptedEgo`."""
        del seed
        self._law = None

    def reset_row(self, row: int, *, seed: int) -> None:
        """See `ScriptedEgo`."""
        del seed
        if self._law is not None:
            self._law.restart(row)

    def steps(self, view: View) -> FloatArray:
        """See `ScriptedEgo`."""
        rows = len(view.time)
        if self._law is None or len(self._law.role) != rows:
            self._law = CarryingLaw(self._traits(rows))
        return self._law.act(view)

    def _traits(self, rows: int) -> Traits:
        traits = Traits.nominal(rows)
        traits.delay[:] = self.delay_s
        return traits


@register_policy("cocarry_blind_mean")
class CoCarryBlindMean(CoCarryBlindNominal):
    """The same on the mean schedule of all leaders: the best one that never looks."""

    delay_s = MEAN_DELAY_S


@register_policy("cocarry_hold")
class CoCarryHold(CarryingEgo):
    """Holds its end of the bar where it was."""

    def steps(self, view: View) -> FloatArray:
        """See `ScriptedEgo`."""
        return -view.moved


#: What the view's entries were divided by; `cadenza.envs.mujoco.handover` has the same.
RECEIVER_SCALE: Final[FloatArray] = np.array(
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

    ``point_only`` ignores how the peg is turned in the presenter's hand; ``nominal_grasp`` assumes,
    once it holds the peg, that it was grasped straight and in the middle.
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
    spin = np.clip(straighten, -handover.TURN_STEP, handover.TURN_STEP)
    carry[:, 0] -= _TO_TIP * spin[:, 1]
    carry[:, 1] += _TO_TIP * spin[:, 0]
    carry = np.where(handing[:, None], 0.0, carry)
    spin = np.where(handing[:, None], 0.0, spin)

    held = holding[:, None]
    step = _at_most(np.where(held, carry, reach), handover.GRIP_STEP) / handover.GRIP_STEP
    turning = _at_most(np.where(held, spin, turn), handover.TURN_STEP) / handover.TURN_STEP
    grip = np.where(holding, 1.0, closing)[:, None]
    return np.concatenate((step, turning, grip), axis=1)


def _beside(way: FloatArray, turn: FloatArray, errors: tuple[float, float]) -> NDArray[np.bool_]:
    sideways = np.sqrt(way[:, 0] * way[:, 0] + way[:, 1] * way[:, 1])
    return (sideways > errors[0]) | (np.sqrt((turn * turn).sum(axis=1)) > errors[1])


def _at_most(vectors: FloatArray, limit: float) -> FloatArray:
    size = np.sqrt((vectors * vectors).sum(axis=1))
    return vectors * np.minimum(1.0, limit / np.maximum(size, 1e-12))[:, None]


class ReceivingEgo(ScriptedEgo):
    """Base of the receivers; nothing is remembered."""

    sizes: ClassVar[tuple[int, int]] = (len(RECEIVER_SCALE), 7)
    seat = "handover_mj"
    point_only = False
    nominal_grasp = False

    def actions(self, states: NDArray[Any]) -> FloatArray:
        """See `ScriptedEgo`."""
        view = states.astype(np.float64) * RECEIVER_SCALE
        return receive(view, point_only=self.point_only, nominal_grasp=self.nominal_grasp)


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


#: The ego's top speed at the door, m/s; `cadenza.envs.doorway` has the same.
EGO_SPEED: Final = 1.0
#: By how much the ego must be earlier at the door to go before a partner that comes, s.
HEAD_START_S: Final = 0.5
#: Progress from which on a partner that moves to the door counts as coming, m: nearer than where it
#: waits; and the speed from which on it moves, m/s.
COMING: Final = (-1.1, 0.15)
#: When the late ego goes, s: a partner that goes at once has then passed.
LATE_S: Final = 3.5


class DoorwayEgo(MemorylessPolicy, ABC):
    """Base of the egos at the door, for both plants; a subclass says when to go."""

    def __init__(self, seat: EgoSeat) -> None:
        if seat.observation_dim not in doorway.STATE_SIZES or seat.action_dim != 2:
            raise InputError(
                f"{type(self).__name__}: expected the task doorway or doorway_diffdrive "
                f"({doorway.STATE_SIZES[0]} or {doorway.STATE_SIZES[1]} observations, 2 actions), "
                f"got {seat.observation_dim} and {seat.action_dim}."
            )
        self._uid, self._speed = seat.uid, float(seat.high[0])

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the action, float32, (2,) or (N, 2)."""
        state = obs["agent"][self._uid]["state"]
        actions = self.act_rows(np.atleast_2d(state))
        return actions[0] if state.ndim == 1 else actions

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the actions in N lanes, float32, (N, 2)."""
        view = doorway.View.of(states)
        going = doorway.through(view, self._speed, blind=self.blind)
        return _going_or_waiting(view, self.goes(view), going, self._speed).astype(np.float32)

    blind: ClassVar[bool] = True

    @abstractmethod
    def goes(self, view: doorway.View) -> NDArray[np.bool_]:
        """Return whether to go through the door, (N,)."""


@register_policy("doorway_reference")
class DoorwayReference(DoorwayEgo):
    """Goes first if it is earlier or the partner waits, else second."""

    blind = False

    def goes(self, view: doorway.View) -> NDArray[np.bool_]:
        """See `DoorwayEgo`."""
        return has_the_turn(view, self._speed)


def has_the_turn(view: doorway.View, speed: float) -> NDArray[np.bool_]:
    """Return whether an ego that looks goes through the door, (N,)."""
    passed, inside = view.other_passed(), view.other_inside()
    near, moving = COMING
    comes = (view.other_progress > near) & (view.other_speed > moving)
    lead = view.other_to_entry() / doorway.MAX_SPEED - view.to_entry() / speed
    committed = (view.progress > doorway.INSIDE) | (lead > HEAD_START_S) | ~comes
    deeper = view.progress > view.other_progress
    return passed | (committed & ~inside) | (inside & deeper & (view.progress > doorway.INSIDE))


def take_turns(states: FloatArray) -> FloatArray:
    """Return what `DoorwayReference` wants, (N, 2), as a law of the states."""
    view = doorway.View.of(states)
    going = doorway.through(view, EGO_SPEED)
    return _going_or_waiting(view, has_the_turn(view, EGO_SPEED), going, EGO_SPEED)


def _going_or_waiting(
    view: doorway.View, goes: NDArray[np.bool_], going: FloatArray, speed: float
) -> FloatArray:
    """Return the commands, (N, 2), of egos that go through the door or wait aside."""
    waiting = doorway.aside(view, speed)
    return doorway.commands(view, np.where(goes[:, None], going, waiting))


@register_policy("doorway_first")
class DoorwayFirst(DoorwayEgo):
    """Goes at once, and never looks."""

    def goes(self, view: doorway.View) -> NDArray[np.bool_]:
        """See `DoorwayEgo`."""
        return np.ones(len(view.time), dtype=np.bool_)


@register_policy("doorway_late")
class DoorwayLate(DoorwayEgo):
    """Waits aside until one who goes at once has passed, then goes, and never looks."""

    def goes(self, view: doorway.View) -> NDArray[np.bool_]:
        """See `DoorwayEgo`."""
        return view.time >= LATE_S

"""Scripted egos of co-carry: the reference that feels its partner, and laws to compare it with.

Reference:  step = 0.6 gap + the partner's last step + g (step towards the goal, at most `lead`),
            g = 1 - |gap| / band. A partner that has not been ahead for 0.5 s makes lead and band
            grow within 1 s: it waits to be led. Ahead is who is nearer to the goal than level.
Blind:      a leader's law on the ego's end of the bar, on a fixed schedule.
Axes:       N = rows, one episode each; `reset_row` begins another one in a row. Every ego reads the
            view "task" and takes one state, (20,), or N of them.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.policies import EgoSeat, register_policy
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.types import Observation
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


class CarryingEgo(ABC):
    """Base of the scripted egos; a subclass adds its law.

    Raises:
        InputError: The seat is none of co-carry's with the view "task" and the track "grip".
    """

    def __init__(self, seat: EgoSeat) -> None:
        if (seat.observation_dim, seat.action_dim) != (len(VIEW_SCALE), 3):
            raise InputError(
                f"{type(self).__name__}: expected the task cocarry_mj with view 'task' and track "
                f"'grip' ({len(VIEW_SCALE)} observations, 3 actions), got {seat.observation_dim} "
                f"and {seat.action_dim}."
            )
        self._uid = seat.uid

    def reset(self, *, seed: int) -> None:
        """Forget the last episodes; nothing is drawn."""
        del seed
        self.forget()

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the action, float32, (3,) or (N, 3)."""
        state = obs["agent"][self._uid]["state"]
        steps = self.steps(read_view(np.atleast_2d(state)))
        action = (limited(steps, GRIP_STEP) / GRIP_STEP).astype(np.float32)
        return action[0] if state.ndim == 1 else action

    @abstractmethod
    def steps(self, view: View) -> FloatArray:
        """Return the wanted steps of the grips, (N, 3), m."""

    @abstractmethod
    def forget(self) -> None:
        """Begin an episode in every row."""

    @abstractmethod
    def reset_row(self, row: int) -> None:
        """Begin an episode in one row of a batch."""


@register_policy("cocarry_reference")
class CoCarryReference(CarryingEgo):
    """Feels whether its partner leads, goes along, and leads itself where it does not."""

    def __init__(self, seat: EgoSeat) -> None:
        super().__init__(seat)
        self._waited: FloatArray = np.zeros(0)

    def forget(self) -> None:
        """See `CarryingEgo`."""
        self._waited = np.zeros(0)

    def reset_row(self, row: int) -> None:
        """See `CarryingEgo`."""
        self._waited[row : row + 1] = 0.0

    def steps(self, view: View) -> FloatArray:
        """See `CarryingEgo`."""
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

    def forget(self) -> None:
        """Nothing to forget."""

    def reset_row(self, row: int) -> None:
        """Nothing to forget."""

    def steps(self, view: View) -> FloatArray:
        """See `CarryingEgo`."""
        return GAP_GAIN * view.gap + view.other_step


@register_policy("cocarry_blind_nominal")
class CoCarryBlindNominal(CarryingEgo):
    """Moves its end to the goal on the nominal partner's schedule, and never looks."""

    delay_s = 0.0

    def __init__(self, seat: EgoSeat) -> None:
        super().__init__(seat)
        self._law: CarryingLaw | None = None

    def forget(self) -> None:
        """See `CarryingEgo`."""
        self._law = None

    def reset_row(self, row: int) -> None:
        """See `CarryingEgo`."""
        if self._law is not None:
            self._law.restart(row, self._traits(1))

    def steps(self, view: View) -> FloatArray:
        """See `CarryingEgo`."""
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

    def forget(self) -> None:
        """Nothing to forget."""

    def reset_row(self, row: int) -> None:
        """Nothing to forget."""

    def steps(self, view: View) -> FloatArray:
        """See `CarryingEgo`."""
        return -view.moved

"""Scripted egos of co-carry: the reference that feels its partner, and laws to compare it with.

Reference:  step = 0.6 gap + the partner's last step + g (step towards the goal, at most `lead`),
            g = 1 - |gap| / band. A partner that has not moved ahead by itself for 0.5 s makes lead
            and band grow within 1 s; moving ahead means being nearer to the goal than level.
Axes:       N = rows, one episode each.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.partners.cocarry import (
    GRIP_STEP,
    TICK_S,
    in_step,
    length,
    limited,
    read_view,
)

GAP_GAIN: Final = 0.6
LEAD: Final = (0.004, 0.03)
BAND: Final = (0.012, 0.04)
PATIENCE_S: Final = 0.5
GROWTH_S: Final = 1.0
AHEAD: Final = 0.002


class Reference:
    def __init__(self) -> None:
        self._waited: FloatArray = np.zeros(0)

    def reset(self) -> None:
        self._waited = np.zeros(0)

    def reset_row(self, row: int) -> None:
        if row < len(self._waited):
            self._waited[row] = 0.0

    def act(self, state: NDArray[Any]) -> FloatArray:
        """Return actions (N, 3) for task views (N, 20)."""
        view = read_view(state)
        if len(self._waited) < len(state):
            self._waited = np.concatenate((self._waited, np.zeros(len(state) - len(self._waited))))
        way = view.to_goal / np.maximum(length(view.to_goal), 1e-9)
        ahead = (view.gap * way).sum(axis=1) > AHEAD
        self._waited = np.where(ahead, 0.0, self._waited + TICK_S)
        grown = np.clip((self._waited - PATIENCE_S) / GROWTH_S, 0.0, 1.0)[:, None]
        lead = LEAD[0] + (LEAD[1] - LEAD[0]) * grown
        band = BAND[0] + (BAND[1] - BAND[0]) * grown
        push = in_step(view.gap, band) * limited(view.to_goal, lead)
        step = GAP_GAIN * view.gap + view.other_step + push
        return limited(step, GRIP_STEP) / GRIP_STEP

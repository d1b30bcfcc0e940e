"""Nominal controllers of the ego: what the filter has to correct.

Each is a pure function from the scene to an action, shape (B, d), m/s^2. `nominal_action` keeps
every action inside the open box: an action the filter computed for a row that cannot be met
touches the box, so it can never be taken for the nominal one.

Axes: B episodes, d Cartesian dimensions.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.verifier.views import EgoView

#: Returns nominal actions, shape (B, d), m/s^2.
EgoNominal: TypeAlias = Callable[[EgoView], FloatArray]

#: Share of the box that nominal actions use.
_INSIDE: Final = 0.999
#: Speed that `full_speed` reaches for, m/s.
_FULL_SPEED: Final = 3.0


def drive_at(view: EgoView) -> FloatArray:
    """Stop the sideways motion and drive at the nearest partner, box exhausted."""
    aim = view.ahead - 2.0 * view.sideways
    largest = np.maximum(np.abs(aim).max(axis=1, keepdims=True), 1e-12)
    return view.limit * aim / largest


def drive_at_shaken(view: EgoView) -> FloatArray:
    """Drive at the nearest partner, but do something random in every fifth step."""
    shaken = (view.chance < 0.2)[:, None]
    return np.where(shaken, view.limit * view.draw, drive_at(view))


def to_goal(view: EgoView) -> FloatArray:
    """Drive to a goal behind the partners, as a trained policy would."""
    return 0.8 * view.to_goal - 1.2 * view.velocity


def random_action(view: EgoView) -> FloatArray:
    """Choose anything in the box."""
    return view.limit * view.draw


def full_speed(view: EgoView) -> FloatArray:
    """Reach for 3 m/s towards the nearest partner within one step."""
    return (_FULL_SPEED * view.ahead - view.velocity) / view.dt


#: Every nominal controller by name.
EGO_NOMINALS: Final[dict[str, EgoNominal]] = {
    "drive_at": drive_at,
    "drive_at_shaken": drive_at_shaken,
    "to_goal": to_goal,
    "random_action": random_action,
    "full_speed": full_speed,
}


def nominal_action(view: EgoView, controller: EgoNominal) -> FloatArray:
    """Return what ``controller`` asks for, inside the open box, shape (B, d), m/s^2."""
    edge = _INSIDE * view.limit
    return np.clip(controller(view), -edge, edge)

"""Opponents: partners that use their whole bound to make contact.

Each is a pure function from the scene to an acceleration, as a share of the bound: rows longer
than one are shortened to one, so no opponent can break its declaration. They know the ego's true
state and what the filter believes about them.

Axes: M pairs, d Cartesian dimensions.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import UnknownNameError
from cadenza.safety.verifier.views import PartnerView, dot, length, unit

#: Returns accelerations in units of the bound, shape (M, d).
Adversary: TypeAlias = Callable[[PartnerView], FloatArray]


def chase(view: PartnerView) -> FloatArray:
    """Push straight at the ego, always."""
    return view.toward


def lead(view: PartnerView) -> FloatArray:
    """Aim ahead of the ego, up to 1.5 s along its relative motion."""
    ahead = 1.5 * view.phase[:, None]
    return unit(0.5 * view.toward + ahead * view.velocity, view.toward)


def cut_across(view: PartnerView) -> FloatArray:
    """Move across the ego's path, to the side its phase chooses."""
    side = np.where(view.phase < 0.5, -1.0, 1.0)[:, None]
    return unit(side * view.tangential + 0.3 * view.toward, view.toward)


def brake_check(view: PartnerView) -> FloatArray:
    """Give way so that the ego follows, then turn and push; each for a quarter to one second."""
    half_s = 0.25 + 0.75 * view.phase
    retreats = (view.step * view.dt / half_s) % 2.0 < 1.0
    return np.where(retreats[:, None], -view.toward, view.toward)


def orbit(view: PartnerView) -> FloatArray:
    """Spin around the ego, a little inwards."""
    along = dot(view.taste, view.toward)[:, None] * view.toward
    around = unit(view.tangential, unit(view.taste - along))
    return unit(np.where(view.phase[:, None] < 0.5, -around, around) + 0.3 * view.toward)


def random_bang(view: PartnerView) -> FloatArray:
    """Push in a new direction in every step, with the whole bound."""
    return unit(view.draw, view.toward)


def alternate(view: PartnerView) -> FloatArray:
    """Push at the ego and away from it in turns of one to four steps."""
    turn = 1 + np.floor(4.0 * view.phase)
    pushes = (view.step // turn) % 2.0 < 1.0
    return np.where(pushes[:, None], view.toward, -view.toward)


def exploit_delay(view: PartnerView) -> FloatArray:
    """Show one motion and do another, within the age of what the filter sees.

    One half gives way for as long as its numbers are old, and pushes just as long. The other half
    pushes at the ego from beside the line along which the filter expects the push.
    """
    period = np.maximum(view.age_s, view.dt)
    retreats = (view.step * view.dt / period) % 2.0 < 1.0
    feint = np.where(retreats[:, None], -view.toward, view.toward)
    along = dot(view.toward, view.believed_toward)[:, None] * view.believed_toward
    aside = unit(view.toward + 2.0 * unit(view.toward - along, view.tangential), view.toward)
    return np.where(view.phase[:, None] < 0.5, feint, aside)


def bang_bang(view: PartnerView) -> FloatArray:
    """Push at the ego from one side, and from the middle of each step on from the other."""
    return _swung(view, -1.0 if view.step % 1.0 < 0.5 else 1.0)


def turning(view: PartnerView) -> FloatArray:
    """Push at the ego and turn the push from one side to the other within each step."""
    return _swung(view, 2.0 * (view.step % 1.0) - 1.0)


def stand_still(view: PartnerView) -> FloatArray:
    """Brake to rest and stay there."""
    return -view.own_velocity / (view.bound * view.dt) if view.bound > 0.0 else 0.0 * view.toward


def late_brake(view: PartnerView) -> FloatArray:
    """Charge at the ego and brake at the last moment, or a little later."""
    closing = np.maximum(-dot(view.velocity, view.toward), 0.0)
    stop_m = 0.5 * closing * closing / max(view.bound, 1e-9)
    charges = view.excess > (0.2 + 0.8 * view.phase) * stop_m
    return np.where(charges[:, None], view.toward, -view.toward)


def _swung(view: PartnerView, share: float) -> FloatArray:
    """Return pushes at the ego, turned by a share of angles up to 1 rad, most of them small."""
    along = dot(view.taste, view.toward)[:, None] * view.toward
    aside = unit(view.taste - along, view.tangential)
    return unit(view.toward + share * np.tan(view.phase**3)[:, None] * aside)


#: Every opponent by name.
ADVERSARIES: Final[dict[str, Adversary]] = {
    "chase": chase,
    "lead": lead,
    "cut_across": cut_across,
    "brake_check": brake_check,
    "orbit": orbit,
    "random_bang": random_bang,
    "alternate": alternate,
    "exploit_delay": exploit_delay,
    "bang_bang": bang_bang,
    "turning": turning,
    "stand_still": stand_still,
    "late_brake": late_brake,
}


def get_adversary(name: str) -> Adversary:
    """Return the opponent called ``name``.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in ADVERSARIES:
        raise UnknownNameError(f"adversary: expected one of {sorted(ADVERSARIES)}, got {name!r}.")
    return ADVERSARIES[name]


def bounded_push(view: PartnerView, adversary: Adversary) -> FloatArray:
    """Return the accelerations that ``adversary`` asks for, within the bound, (M, d), m/s^2."""
    share = adversary(view)
    return view.bound * share / np.maximum(length(share), 1.0)[:, None]

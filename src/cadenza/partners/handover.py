"""Partners of the handover: families of presenters, to receive from and held out.

View:      what a presenter sees, see `cadenza.envs.mujoco.handover`, 18 numbers.
Action:    step of the own grip and turn of the own hand, (6,), over `GRIP_STEP` and `TURN_STEP`.
Law:       after a delay, run to a station in the zone at constant speed and stay; once it has let
           go, draw back upwards. A yielding presenter gives way to the receiver's hand near it; a
           reactive one waits for the receiver, then brings the handle to its hand.
Axes:      N = rows, one episode each; every operation works row by row.
Units:     m, rad, s.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.options import Options, Rng, RowTraits, TraitPartner, member

#: What the view's entries were divided by; `cadenza.envs.mujoco.handover` has the same.
VIEW_SCALE: Final[FloatArray] = np.array(
    [0.2] * 3 + [0.5] * 3 + [0.2] * 3 + [0.1] * 6 + [1.0] * 2 + [11.0]
)
#: Largest step of a grip, m, and of its turn, rad, per tick.
GRIP_STEP: Final = 0.02
TURN_STEP: Final = 0.2
#: Half the width of the zone, m, and the longest usual delay, s.
ZONE_SPREAD: Final = 0.03
DELAY_S: Final = 1.0

#: Share of what is left to its station that a step asks for, and of the turn.
_GAIN: Final = 0.8
#: A yielding presenter gives way to a hand nearer than this, m, by this share of the gap.
_YIELD_WITHIN: Final = 0.03
_YIELDING: Final = 0.3
#: A reactive presenter starts for a receiver nearer than this to the zone, m.
_WAITS_FOR: Final = 0.25


@dataclass(slots=True, eq=False)  # eq=False: array == is ambiguous
class Presenting(RowTraits):
    """How each of N rows presents.

    Attributes:
        station: From the middle of the zone, (N, 3), m.
        turn: Of the hand about z, (N,), rad.
        delay: Before it starts, (N,), s.
        speed: Largest share of the largest step, (N,).
        yields: Whether it gives way, (N,).
        reacts: Whether it waits for the receiver and meets its hand, (N,).
    """

    station: FloatArray
    turn: FloatArray
    delay: FloatArray
    speed: FloatArray
    yields: NDArray[np.bool_]
    reacts: NDArray[np.bool_]

    @classmethod
    def nominal(cls, rows: int) -> Self:
        """Return ``rows`` punctual presenters in the middle of the zone."""
        none = np.zeros(rows, dtype=np.bool_)
        still = np.zeros(rows)
        return cls(np.zeros((rows, 3)), still, still.copy(), np.ones(rows), none, none.copy())

    def act(self, view: FloatArray) -> FloatArray:
        """Return the actions of N presenters, (N, 6), for views in m, rad and s, (N, 18)."""
        zone, straight, gap = view[:, 0:3], view[:, 3:6], view[:, 6:9]
        held = view[:, 16] > 0.5
        distance = np.sqrt((gap * gap).sum(axis=1))
        way = zone + self.station
        meets = self.reacts & (distance < _WAITS_FOR)
        met = zone + np.clip(gap - zone, -ZONE_SPREAD, ZONE_SPREAD)
        way = np.where(meets[:, None], met, way)
        close = self.yields & (distance < _YIELD_WITHIN)
        way = np.where(close[:, None], _YIELDING * gap, way)
        step = _GAIN * way / GRIP_STEP
        size = np.sqrt((step * step).sum(axis=1))
        step = step * np.minimum(1.0, self.speed / np.maximum(size, 1e-9))[:, None]
        turn = straight.copy()
        turn[:, 2] += self.turn
        turn = np.clip(_GAIN * turn / TURN_STEP, -1.0, 1.0)
        waiting = (view[:, 17] < self.delay) | (self.reacts & ~meets)
        action = np.where(waiting[:, None], 0.0, np.concatenate((step, turn), axis=1))
        return np.where(held[:, None], action, [0.5, 0.0, 0.5, 0.0, 0.0, 0.0])


def draw_presenting(rng: np.random.Generator) -> Presenting:
    """Return a presenter with a station in the zone and a delay at random."""
    traits = Presenting.nominal(1)
    traits.station[:] = rng.uniform(-ZONE_SPREAD, ZONE_SPREAD, 3)
    traits.delay[:] = rng.uniform(0.0, DELAY_S)
    return traits


class HandoverPartner(TraitPartner):
    """Base of the presenters; a member says how an episode's traits are drawn."""

    tasks: ClassVar[tuple[str, ...]] = ("handover_mj",)
    traits_type: ClassVar[type[RowTraits]] = Presenting

    def actions(self, states: NDArray[Any]) -> FloatArray:
        """Return the actions of N presenters, (N, 6), for states (N, 18)."""
        if states.shape[1] != len(VIEW_SCALE):
            raise InputError(
                f"handover view: expected states of {len(VIEW_SCALE)} numbers, got shape "
                f"{states.shape}; presenters play the partner of handover_mj."
            )
        require_finite("handover view", states)
        return self.traits(len(states)).act(states.astype(np.float64) * VIEW_SCALE)


@member(HandoverPartner, "handover_presenter")
def _presenter(rng: Rng, _: Options) -> Presenting:
    """Presents in the zone after up to 1 s, and stays."""
    return draw_presenting(rng)


@member(HandoverPartner, "handover_nominal")
def _nominal(rng: Rng, _: Options) -> Presenting:
    """Presents in the middle of the zone, punctually."""
    del rng
    return Presenting.nominal(1)


@member(HandoverPartner, "handover_biased")
def _biased(rng: Rng, _: Options) -> Presenting:
    """Held out: presents turned by 15 to 45 degrees."""
    traits = draw_presenting(rng)
    traits.turn[:] = rng.choice((-1.0, 1.0)) * np.radians(rng.uniform(15.0, 45.0))
    return traits


@member(HandoverPartner, "handover_late")
def _late(rng: Rng, _: Options) -> Presenting:
    """Held out: starts late and moves slowly."""
    traits = draw_presenting(rng)
    traits.delay[:], traits.speed[:] = rng.uniform(1.0, 2.0), rng.uniform(0.5, 0.7)
    return traits


@member(HandoverPartner, "handover_yielding")
def _yielding(rng: Rng, _: Options) -> Presenting:
    """Held out: gives way towards a hand near it."""
    traits = draw_presenting(rng)
    traits.yields[:] = True
    return traits


@member(HandoverPartner, "handover_reactive")
def _reactive(rng: Rng, _: Options) -> Presenting:
    """Held out: waits for the receiver and meets it."""
    traits = draw_presenting(rng)
    traits.reacts[:] = True
    return traits

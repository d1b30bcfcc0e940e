"""Partners of the handover: families of presenters, to receive from and held out.

View:      what a presenter sees, see `cadenza.envs.mujoco.handover`, 18 numbers.
Action:    step of the own grip and turn of the own hand, (6,), over `GRIP_STEP` and `TURN_STEP`.
Law:       after a delay, run to a station in the zone at constant speed and stay; once it has let
           go, draw back upwards. A yielding presenter gives way to the receiver's hand near it; a
           reactive one waits for the receiver, then brings the handle to its hand.
Axes:      N = rows, one episode each; every operation works row by row.
Units:     m, rad, s.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.interface import DrawingPartner
from cadenza.partners.observations import read_state
from cadenza.partners.options import family_card, refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

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
class Presenting:
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
    def nominal(cls, rows: int) -> "Presenting":
        """Return ``rows`` punctual presenters in the middle of the zone."""
        none = np.zeros(rows, dtype=np.bool_)
        still = np.zeros(rows)
        return cls(np.zeros((rows, 3)), still, still.copy(), np.ones(rows), none, none.copy())

    def write(self, row: int, other: "Presenting") -> None:
        """Take over the one row of ``other``."""
        for field in fields(self):
            getattr(self, field.name)[row] = getattr(other, field.name)[0]

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


class HandoverPartner(DrawingPartner):
    """Base of the presenters; a subclass says how an episode's traits are drawn.

    Raises:
        ConfigurationError: An option is unknown.
    """

    def __init_subclass__(cls) -> None:
        """Write the card of a subclass that has none, with its docstring's first line."""
        super().__init_subclass__()
        if "card" not in vars(cls):
            cls.card = family_card(cls.__doc__ or "", "handover_mj")

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        refuse_unknown_options(type(self).__name__, spec.extra, ())
        self._uid = spec.extra.get("uid", "partner")
        self._traits = Presenting.nominal(0)

    def reset(self, *, seed: int | None = None) -> None:
        """Draw the traits of a new episode from the stream that ``seed`` selects."""
        super().reset(seed=seed)
        self._traits = Presenting.nominal(0)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        traits = self._rows(row + 1)
        super().reset_row(row, seed=seed)
        traits.write(row, self.draw(self.generators[row]))

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action for the state that ``obs`` holds.

        Args:
            obs: Nested observation; only ``obs["agent"][uid]["state"]`` is read.
            deterministic: Without effect: what is random in a partner is drawn at ``reset``.

        Returns:
            Action, (6,), or (N, 6) for a state of shape (N, 18).

        Raises:
            InputError: The state is missing, of another layout or not finite.
        """
        del deterministic
        state = read_state(obs, self._uid)
        view = np.atleast_2d(state)
        if view.shape[1] != len(VIEW_SCALE):
            raise InputError(
                f"handover view: expected states of {len(VIEW_SCALE)} numbers, got shape "
                f"{state.shape}; presenters play the partner of handover_mj."
            )
        require_finite("handover view", view)
        traits = self._rows(len(view))
        action = traits.act(view.astype(np.float64) * VIEW_SCALE).astype(np.float32)
        return self.checked(action[0] if state.ndim == 1 else action)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return one row of traits for a new episode."""

    def _rows(self, rows: int) -> Presenting:
        """Return the traits, of at least ``rows`` rows."""
        known = len(self._traits.delay)
        if known < rows:
            longer = Presenting.nominal(rows)
            for field in fields(Presenting):
                getattr(longer, field.name)[:known] = getattr(self._traits, field.name)
            self._traits = longer
            for row in range(known, rows):
                longer.write(row, self.draw(self.generators[row]))
        return self._traits


@register_partner("handover_presenter")
class HandoverPresenter(HandoverPartner):
    """Presents in the zone after up to 1 s, and stays."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return a presenter of the zone."""
        return draw_presenting(rng)


@register_partner("handover_nominal")
class HandoverNominal(HandoverPartner):
    """Presents in the middle of the zone, punctually."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return the nominal presenter."""
        del rng
        return Presenting.nominal(1)


@register_partner("handover_biased")
class HandoverBiased(HandoverPartner):
    """Held out: presents turned by 15 to 45 degrees."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return a presenter of biased pose."""
        traits = draw_presenting(rng)
        traits.turn[:] = rng.choice((-1.0, 1.0)) * np.radians(rng.uniform(15.0, 45.0))
        return traits


@register_partner("handover_late")
class HandoverLate(HandoverPartner):
    """Held out: starts late and moves slowly."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return a late presenter."""
        traits = draw_presenting(rng)
        traits.delay[:], traits.speed[:] = rng.uniform(1.0, 2.0), rng.uniform(0.5, 0.7)
        return traits


@register_partner("handover_yielding")
class HandoverYielding(HandoverPartner):
    """Held out: gives way towards a hand near it."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return a yielding presenter."""
        traits = draw_presenting(rng)
        traits.yields[:] = True
        return traits


@register_partner("handover_reactive")
class HandoverReactive(HandoverPartner):
    """Held out: waits for the receiver and meets it."""

    def draw(self, rng: np.random.Generator) -> Presenting:
        """Return a reactive presenter."""
        traits = draw_presenting(rng)
        traits.reacts[:] = True
        return traits

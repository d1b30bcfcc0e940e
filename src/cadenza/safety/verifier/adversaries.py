"""Opponents and nominal controllers: who makes contact, and what the filter has to correct.

Opponent:  a pure function from the true scene to a command, as a share of the largest one: rows
           longer than one are shortened to one, so no opponent can break its declaration. The
           command is an acceleration, or of a partner with a limited speed a velocity. An opponent
           knows the ego's true state and what the filter believes about it.
Nominal:   a pure function from the scene to an action. `nominal_action` keeps it inside the open
           box: an action the filter computed for a row that cannot be met touches the box, so it
           can never be taken for the nominal one.
Axes:      M = B N pairs of one ego and one of N partners, B episodes, d Cartesian dimensions.
Units:     m, m/s, m/s^2, s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray

IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

#: Lengths below this have no direction; far below anything that happens in a scene.
_TINY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Motion:
    """Positions and velocities of a batch of episodes."""

    ego_position: FloatArray  # Shape (B, d), m
    ego_velocity: FloatArray  # Shape (B, d), m/s
    positions: FloatArray  # Partners' centres, shape (B, N, d), m
    velocities: FloatArray  # Partners' velocities, shape (B, N, d), m/s

    @property
    def offset(self) -> FloatArray:
        """Ego's centre less the partners', shape (B, N, d), m."""
        return self.ego_position[:, None] - self.positions

    @property
    def relative(self) -> FloatArray:
        """Ego's velocity less the partners', shape (B, N, d), m/s."""
        return self.ego_velocity[:, None] - self.velocities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _View:
    """One step of many pairs or episodes, one row each."""

    def take(self, rows: IndexArray) -> Self:
        """Return the view of some of the rows."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: x[rows] for k, x in values.items() if isinstance(x, np.ndarray)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartnerView(_View):
    """One step as the partners see it; they know everything, the filter's belief included."""

    toward: FloatArray  # Unit vector from the partner to the ego, shape (M, d)
    excess: FloatArray  # Free distance between the balls, shape (M,), m
    velocity: FloatArray  # Ego's velocity relative to the partner, shape (M, d), m/s
    own_velocity: FloatArray  # Partner's velocity, shape (M, d), m/s
    ego_velocity: FloatArray  # Ego's velocity, shape (M, d), m/s
    #: Unit vector from where the filter last saw the partner, shape (M, d)
    believed_toward: FloatArray
    age_s: FloatArray  # How old the filter's numbers are, shape (M,), s
    taste: FloatArray  # Unit vector that stays the same during an episode, shape (M, d)
    phase: FloatArray  # Number in [0, 1) that stays the same during an episode, shape (M,)
    draw: FloatArray  # Fresh standard normal numbers, shape (M, d)
    step: float  # Steps since the episode began; the part of it is how much of this one has passed
    dt: FloatArray | float  # Control step, s
    bound: FloatArray | float  # Largest command of a partner, m/s^2 or m/s

    @property
    def tangential(self) -> FloatArray:
        """Relative velocity without its part along the line of centres, shape (M, d), m/s."""
        return self.velocity - dot(self.velocity, self.toward)[:, None] * self.toward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EgoView(_View):
    """One step as the ego's nominal controller sees it."""

    ahead: FloatArray  # Unit vector from the ego to the nearest partner, shape (B, d)
    velocity: FloatArray  # Ego's velocity, shape (B, d), m/s
    #: Ego's velocity relative to that partner, without its part along ``ahead``, shape (B, d), m/s
    sideways: FloatArray
    to_goal: FloatArray  # From the ego to a goal behind the partners, shape (B, d), m
    draw: FloatArray  # Fresh numbers, uniform in [-1, 1), shape (B, d)
    chance: FloatArray  # Fresh numbers, uniform in [0, 1), shape (B,)
    dt: float  # Control step, s
    limit: float  # Half width of the action box, m/s^2


def dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the scalar products along the last axis."""
    product: FloatArray = np.einsum("...k,...k->...", a, b)
    return product


def length(vectors: FloatArray) -> FloatArray:
    """Return the Euclidean lengths along the last axis."""
    return np.sqrt(dot(vectors, vectors))


def unit(vectors: FloatArray, fallback: FloatArray | None = None) -> FloatArray:
    """Return ``vectors`` scaled to length one.

    Args:
        vectors: Shape (..., d).
        fallback: Unit vectors for those without a direction, shape (..., d); None: zero.
    """
    lengths = length(vectors)[..., None]
    instead: Any = np.zeros_like(vectors) if fallback is None else fallback
    return np.where(lengths > _TINY, vectors / np.maximum(lengths, _TINY), instead)


#: Returns commands in units of the bound, shape (M, d).
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
    change = np.asarray(view.bound * view.dt)[..., None]
    return -view.own_velocity / np.where(change > 0.0, change, np.inf)


def late_brake(view: PartnerView) -> FloatArray:
    """Charge at the ego and brake at the last moment, or a little later."""
    closing = np.maximum(-dot(view.velocity, view.toward), 0.0)
    stop_m = 0.5 * closing * closing / np.maximum(view.bound, 1e-9)
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


#: Those that make sense for a partner whose command is its velocity.
PURSUITS: Final[dict[str, Adversary]] = {
    name: plays for name, plays in ADVERSARIES.items() if plays not in (stand_still, late_brake)
}


def bounded_push(view: PartnerView, adversary: Adversary) -> FloatArray:
    """Return the commands that ``adversary`` gives, within the bound, (M, d), m/s^2 or m/s."""
    share = adversary(view)
    bound = np.asarray(view.bound)[..., None]
    return bound * share / np.maximum(length(share), 1.0)[:, None]


#: Ways in which measurements mislead an ego; see `misleading`.
MISLEADING: Final = 5


def misleading(
    ways: IndexArray, toward: FloatArray, taste: FloatArray, step: int
) -> tuple[FloatArray, FloatArray]:
    """Return in which direction the partners' measured positions and velocities are wrong.

    A partner looks farther away and less fast than it is; or looks so while it is seen beside where
    it is, now left, now right; or is seen aside only; or the error turns round in every step, or
    every eight.

    Args:
        ways: Which way each error takes, below `MISLEADING`, shape (M,).
        toward: Unit vectors from the partners to the ego, shape (M, d).
        taste: Unit vectors that stay the same during an episode, shape (M, d).
        step: Steps since the episode began.

    Returns:
        Unit vectors, or zero, shape (M, d) each.
    """
    back, flip, slow = -toward, 1.0 - 2.0 * (step % 2), 1.0 - 2.0 * (step // 8 % 2)
    aside = unit(taste - dot(taste, toward)[:, None] * toward)
    position = np.stack((back, unit(back + flip * aside), flip * aside, flip * back, slow * back))
    velocity = np.stack((back, unit(back - flip * aside), back, flip * back, -slow * back))
    rows = np.arange(len(ways))
    return position[ways, rows], velocity[ways, rows]


class Opponents:
    """The partners of a batch: who plays which strategy, and what they keep during an episode.

    Args:
        strategies: What they may play, by name.
        chosen: Index of each partner's strategy, shape (B, N).
        dim: Cartesian dimension d.
        contact_m: Distance of the centres at contact, m.
        rng: Draws what they keep.
    """

    def __init__(
        self,
        strategies: Mapping[str, Adversary],
        chosen: IndexArray,
        *,
        dim: int,
        contact_m: float,
        rng: np.random.Generator,
    ) -> None:
        self._strategies, self._chosen, self._contact_m = strategies, chosen, contact_m
        self._phase: FloatArray = rng.uniform(size=chosen.size)
        self._taste = unit(rng.normal(size=(chosen.size, dim)))
        self._ways: IndexArray = rng.integers(MISLEADING, size=chosen.size)
        #: Pairs of each strategy, (M,) in all.
        self._pairs_of = [np.flatnonzero(chosen.reshape(-1) == k) for k in range(len(strategies))]

    def names(self, episode: int) -> list[str]:
        """Return the strategies of an episode's partners."""
        names = list(self._strategies)
        return [names[int(k)] for k in self._chosen[episode]]

    def commands(
        self,
        motion: Motion,
        believed: FloatArray,
        ages_s: FloatArray,
        step: float,
        draws: np.random.Generator,
        *,
        dt: FloatArray | float,
        bound: FloatArray | float,
    ) -> FloatArray:
        """Return what the partners command, shape (B, N, d), m/s^2 or m/s.

        Args:
            motion: Where everybody is.
            believed: Where the filter last saw the partners, shape (B, N, d), m.
            ages_s: How old that is, shape (B, N), s.
            step: Steps since the episode began; see `PartnerView`.
            draws: Only source of randomness.
            dt: Control step, s, or those of the pairs, shape (M,).
            bound: Largest command, m/s^2 or m/s, or those of the pairs, shape (M,).
        """
        shape = motion.positions.shape
        flat = (-1, shape[2])
        offset = motion.offset.reshape(flat)
        ego_velocity = np.repeat(motion.ego_velocity, shape[1], axis=0)
        own_velocity = motion.velocities.reshape(flat)
        toward = unit(offset, self._taste)
        view = PartnerView(
            toward=toward,
            excess=length(offset) - self._contact_m,
            velocity=ego_velocity - own_velocity,
            own_velocity=own_velocity,
            ego_velocity=ego_velocity,
            believed_toward=unit((motion.ego_position[:, None] - believed).reshape(flat), toward),
            age_s=ages_s.reshape(-1),
            taste=self._taste,
            phase=self._phase,
            draw=draws.normal(size=offset.shape),
            step=step,
            dt=dt,
            bound=bound,
        )
        commands = np.zeros_like(offset)
        for strategy, rows in zip(self._strategies.values(), self._pairs_of, strict=True):
            if rows.size:
                commands[rows] = bounded_push(view.take(rows), strategy)
        return commands.reshape(shape)

    def errors(self, motion: Motion, step: int) -> tuple[FloatArray, FloatArray]:
        """Return in which directions measured positions and velocities are wrong, (B, N, d) each.

        Unit vectors, or zero; see `misleading`.
        """
        shape = motion.positions.shape
        toward = unit(motion.offset.reshape(-1, shape[2]), self._taste)
        position, velocity = misleading(self._ways, toward, self._taste, step)
        return position.reshape(shape), velocity.reshape(shape)


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

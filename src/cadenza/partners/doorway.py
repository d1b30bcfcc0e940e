"""Partners at the door: who lets whom go first.

Way:      before the door to a point in its axis, ENTRY in front of the wall, which is turned into
          the axis LEAD ahead; through the door along the axis; then straight to the goal. Speeds
          fall with the distance to the goal.
Waiting:  at a place in the half where the robot's own goal lies, out of the other's way.
Roles:    polite    lets the other pass first, however long that takes;
          pushy     goes at once, unless the other is in the door already;
          hesitant  comes close to the door, stops there for a while, then goes like a pushy one;
          parked    stays where it is.
          Until ``change_at`` a partner plays one role and then another one. Who is in the door
          passes it; of two, the one that is further, and the other goes back. Nobody goes on
          towards one who is as near as both need to stop.
Wheels:   the same way, forward or backward: the yaw rate turns the heading to the wanted direction
          or against it, whichever is nearer; the speed is the wanted one's part along the heading.
Reads:    the layout of `cadenza.envs.doorway`, with or without wheels; acts by its numbers.
Random:   row i of a batch draws from child i of the episode's stream, row 0 from the stream itself;
          only + - * / sqrt and comparisons act on a row's numbers, so that it does not depend on N.
Units:    m, m/s, rad/s, s.  Axes: N = rows.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.options import NumberOption, Options, Rng, RowTraits, TraitPartner, member

#: Numbers of a state: of a holonomic robot, and of one on wheels.
STATE_SIZES: Final = (11, 14)
#: A partner's top speed, m/s; `cadenza.envs.doorway` has the same.
MAX_SPEED: Final = 0.75
#: Largest yaw rate, rad/s, and yaw rate per sine of the angle to turn.
MAX_YAW_RATE: Final = 2.0
TURN_GAIN: Final = 5.0
#: Speed below which a wanted direction counts less and less, m/s.
STILL: Final = 0.05
#: Distance from the wall's middle of the point before the door, m, and how far ahead of itself a
#: robot aims along the axis, m.
ENTRY: Final = 0.6
LEAD: Final = 0.35
#: Distance behind the wall's middle from which on a robot turns to its goal, m.
EXIT: Final = 0.4
#: Where a robot waits: distance from the wall's middle and from the axis, m.
WAITING_PLACE: Final = (1.2, 0.8)
#: Speed per distance to a place where the robot stops, 1/s.
ARRIVAL_GAIN: Final = 2.0
#: Progress through the wall from which on a robot is in the door, and has passed it, m.
INSIDE: Final = -0.4
PASSED: Final = 0.35
#: Progress from which on a robot that gives way first goes straight back, m.
BACK_OUT: Final = -0.5
#: Distance of the centres below which nobody goes on towards the other, at rest, m, and what the
#: squares of both speeds add, m per (m/s)^2: both brake at 2 m/s^2.
STOP_DISTANCE: Final = 0.5
STOP_GROWTH: Final = 0.25
#: Progress at which a hesitant one stops, m, and its speed until then, as a share.
HESITATION_POINT: Final = -0.75
HESITATION_SPEED: Final = 0.6
#: Roles by number.
ROLES: Final = ("polite", "pushy", "hesitant", "parked")
POLITE, PUSHY, HESITANT, PARKED = range(len(ROLES))


class View(NamedTuple):
    """What a robot sees, (N,) or (N, 2) each.

    Attributes:
        position: Own centre.
        goal: Goal, minus own position.
        other: The other's centre, minus own.
        forward: Sign of the direction in x in which it passes the door.
        progress: x along ``forward``, negative before the door.
        other_progress: The same of the other, which goes the opposite way.
        other_speed: Speed of the other along its way through the door.
        squared_speeds: Of both robots, the sum.
        heading: Unit vector; None without wheels.
        time: Since the start.
    """

    position: FloatArray
    goal: FloatArray
    other: FloatArray
    forward: FloatArray
    progress: FloatArray
    other_progress: FloatArray
    other_speed: FloatArray
    squared_speeds: FloatArray
    heading: FloatArray | None
    time: FloatArray

    @classmethod
    def of(cls, states: NDArray[Any]) -> "View":
        """Read states (N, 11) or (N, 14).

        Raises:
            InputError: They have another width or are not finite.
        """
        if states.shape[-1] not in STATE_SIZES:
            raise InputError(
                f"doorway: expected states of {STATE_SIZES[0]} or {STATE_SIZES[1]} numbers, got "
                f"{states.shape[-1]}; it plays the tasks 'doorway' and 'doorway_diffdrive' only."
            )
        require_finite("doorway: state", states)
        s = states.astype(np.float64)
        velocity, other_velocity = s[:, 2:4], s[:, 2:4] + s[:, 8:10]
        forward = np.where(s[:, 0] + s[:, 4] > 0.0, 1.0, -1.0)
        return cls(
            position=s[:, :2],
            goal=s[:, 4:6],
            other=s[:, 6:8],
            forward=forward,
            progress=forward * s[:, 0],
            other_progress=-forward * (s[:, 0] + s[:, 6]),
            other_speed=-forward * other_velocity[:, 0],
            squared_speeds=_square(velocity) + _square(other_velocity),
            heading=s[:, 10:12] if states.shape[-1] == STATE_SIZES[1] else None,
            time=s[:, -1],
        )

    def to_entry(self) -> FloatArray:
        """Return the distance to the point before the door."""
        return _length(ENTRY + self.progress, self.position[:, 1])

    def other_to_entry(self) -> FloatArray:
        """Return the other's distance to the point before the door on its side."""
        return _length(ENTRY + self.other_progress, self.position[:, 1] + self.other[:, 1])

    def other_passed(self) -> NDArray[np.bool_]:
        """Return whether the other is through the door."""
        return self.other_progress > PASSED

    def other_inside(self) -> NDArray[np.bool_]:
        """Return whether the other is in the door."""
        return (self.other_progress > INSIDE) & ~self.other_passed()


def through(view: View, speed: Any, *, blind: bool = False) -> FloatArray:
    """Return the velocity, (N, 2), of a robot that goes through the door to its goal.

    It stops where the other stands in its way, unless it is ``blind``.
    """
    x, y = view.position.T
    to_entry = view.to_entry()
    ahead = np.where(
        view.progress < -ENTRY,
        np.maximum(LEAD - to_entry, 0.0) - ENTRY,
        view.progress + LEAD,
    )
    on_axis = np.stack((view.forward * ahead - x, -y), axis=1)
    arriving = (view.progress > EXIT)[:, None]
    target = np.where(arriving, view.goal, on_axis)
    way = _length(target[:, 0], target[:, 1])
    slow = np.where(arriving[:, 0], ARRIVAL_GAIN * way, speed)
    velocity = target * (np.minimum(slow, speed) / np.maximum(way, 1e-9))[:, None]
    if blind:
        return velocity
    towards = (velocity * view.other).sum(axis=1) > 0.0
    room = STOP_DISTANCE + STOP_GROWTH * view.squared_speeds
    blocked = towards & (_length(view.other[:, 0], view.other[:, 1]) < room)
    return np.where(blocked[:, None], 0.0, velocity)


def aside(view: View, speed: Any) -> FloatArray:
    """Return the velocity, (N, 2), of a robot that goes to its waiting place."""
    half = np.where(view.position[:, 1] + view.goal[:, 1] > 0.0, 1.0, -1.0)
    out = view.progress > BACK_OUT  # of the door first
    x = -view.forward * np.where(out, ENTRY, WAITING_PLACE[0])
    place = np.stack((x, np.where(out, 0.0, half * WAITING_PLACE[1])), axis=1)
    target = place - view.position
    way = _length(target[:, 0], target[:, 1])
    return target * (np.minimum(ARRIVAL_GAIN * way, speed) / np.maximum(way, 1e-9))[:, None]


def commands(view: View, velocity: FloatArray) -> FloatArray:
    """Return the actions, (N, 2), for wanted velocities."""
    if view.heading is None:
        return velocity
    (c, s), (x, y) = view.heading.T, velocity.T
    along: FloatArray = c * x + s * y
    across: FloatArray = np.copysign(1.0, along) * (c * y - s * x)
    size = np.maximum(_length(x, y), STILL)
    yaw_rate = np.clip(TURN_GAIN * across / size, -MAX_YAW_RATE, MAX_YAW_RATE)
    return np.stack((along, yaw_rate), axis=1)


def _square(vectors: FloatArray) -> FloatArray:
    x, y = vectors.T
    return x * x + y * y


def _length(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.sqrt(x * x + y * y)


@dataclass(slots=True, eq=False)
class Traits(RowTraits):
    """How the rows of a batch behave, (N,) each.

    Attributes:
        role: Number in `ROLES`.
        later: The role after ``change_at``.
        change_at: s.
        pause: Until when a hesitant one stands before the door, s.
    """

    role: NDArray[np.int64]
    later: NDArray[np.int64]
    change_at: FloatArray
    pause: FloatArray

    @classmethod
    def nominal(cls, rows: int) -> Self:
        """Return polite rows."""
        whole, zeros = np.zeros(rows, dtype=np.int64), np.zeros(rows)
        return cls(whole, whole.copy(), zeros, zeros.copy())

    @classmethod
    def playing(cls, role: int) -> Self:
        """Return one row that keeps to its role."""
        traits = cls.nominal(1)
        traits.role[:] = traits.later[:] = role
        return traits


_SPEED: Final = NumberOption(
    key="max_speed", default=MAX_SPEED, low=0.0, high=MAX_SPEED, summary="top speed, m/s"
)


class DoorwayPartner(TraitPartner):
    """Base of the partners at the door; a member draws its traits."""

    tasks: ClassVar[tuple[str, ...]] = ("doorway", "doorway_diffdrive")
    common_options: ClassVar[tuple[NumberOption, ...]] = (_SPEED,)
    traits_type = Traits

    @property
    def strata(self) -> tuple[str, ...]:
        """Role of every row drawn so far, with the later one where it changes."""
        if self._traits is None:
            return ()
        traits: Traits = self._traits
        roles: list[int] = traits.role.tolist()
        later: list[int] = traits.later.tolist()
        return tuple(
            ROLES[one] if one == other else f"{ROLES[one]} to {ROLES[other]}"
            for one, other in zip(roles, later, strict=True)
        )

    @property
    def stratum(self) -> str | None:
        """Role of the first row; None before it is drawn."""
        return self.stratum_of(0)

    def stratum_of(self, row: int) -> str | None:
        """Return the role played in one row; None before it is drawn."""
        return self.strata[row] if row < len(self.strata) else None

    def actions(self, states: NDArray[Any]) -> FloatArray:
        """See `TraitPartner`."""
        view = View.of(states)
        rows, speed = len(states), self._options[_SPEED.key]
        traits: Traits = self.traits(rows)
        role = np.where(
            view.time < traits.change_at[:rows], traits.role[:rows], traits.later[:rows]
        )
        hesitates = (role == HESITANT) & (view.time < traits.pause[:rows])
        inside = (view.progress > INSIDE) & ~(
            view.other_inside() & (view.other_progress >= view.progress)
        )
        claims = ~view.other_inside() & ((role == PUSHY) | (role == HESITANT))
        goes = inside | view.other_passed() | claims
        share = np.where(hesitates & ~inside, HESITATION_SPEED, 1.0)
        velocity = np.where(goes[:, None], through(view, speed * share), aside(view, speed))
        stands = hesitates & ~inside & goes & (view.progress > HESITATION_POINT)
        stands |= role == PARKED
        return commands(view, np.where(stands[:, None], 0.0, velocity))


#: Spans of what is drawn, s.
_CHANGES: Final = (0.3, 2.0)
_PAUSES: Final = (0.5, 2.5)


@member(DoorwayPartner, "doorway_polite")
def _polite(rng: Rng, _: Options) -> Traits:
    """Steps aside until the other has passed."""
    del rng
    return Traits.playing(POLITE)


@member(DoorwayPartner, "doorway_pushy")
def _pushy(rng: Rng, _: Options) -> Traits:
    """Goes at once, unless the other is in the door already."""
    del rng
    return Traits.playing(PUSHY)


@member(DoorwayPartner, "doorway_hesitant")
def _hesitant(rng: Rng, _: Options) -> Traits:
    """Stops before the door for a while, and then goes."""
    traits = Traits.playing(HESITANT)
    traits.pause[:] = rng.uniform(*_PAUSES)
    return traits


@member(DoorwayPartner, "doorway_changing")
def _changing(rng: Rng, _: Options) -> Traits:
    """Changes its mind once: from polite to pushy, or the reverse."""
    first, later = (POLITE, PUSHY) if rng.random() < 0.5 else (PUSHY, POLITE)
    traits = Traits.playing(first)
    traits.later[:], traits.change_at[:] = later, rng.uniform(*_CHANGES)
    return traits


@member(DoorwayPartner, "doorway_mixed")
def _mixed(rng: Rng, options: Options) -> Traits:
    """Polite, pushy, hesitant or changing its mind, another one every episode."""
    draws = (_polite, _pushy, _hesitant, _changing)
    return draws[int(rng.integers(len(draws)))](rng, options)


@member(DoorwayPartner, "doorway_parked")
def _parked(rng: Rng, _: Options) -> Traits:
    """Stays where it is: no ego succeeds beside it."""
    del rng
    return Traits.playing(PARKED)

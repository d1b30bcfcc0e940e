"""Laws of robots that carry one bar together, and the families of partners that follow them.

View:      what a robot sees, see `cadenza.envs.mujoco.cocarry`: goal minus bar centre, gap (other
           grip minus where it should be seen from the own grip), speeds of both grips, bar angles,
           force, own way since the start, time, largest force so far; 20 numbers.
Action:    step of the own grip over `GRIP_STEP`, (3,), float32.
Leader:    gain (r(t) - own way), r a point that runs along a path to the goal at constant speed
           after a delay; it looks at nobody.
Follower:  gain gap + feed (the other's last step): stays level, does not know the goal.
Shared:    as a follower, plus a nudge towards the goal while in step, 1 - |gap| / band.
Families:  an episode's delay, speed, path, gain and the like are drawn at its start, from the
           generator of its row. Trained with: leaders, sharing partners, followers and mixtures of
           them. Held out: `HELD_OUT_EASY`, which an ego that only stays level carries with, and
           `HELD_OUT_HARD`, which ask it to take the other role.
Axes:      N = rows, one episode each; every operation works row by row.
Units:     m per tick, m, m/s, s.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.options import NumberOption, Options, Rng, RowTraits, TraitPartner, member
from cadenza.partners.spec import PartnerSpec

#: What the view's entries were divided by; `cadenza.envs.mujoco.cocarry` has the same numbers.
VIEW_SCALE: Final[FloatArray] = np.array(
    [0.2] * 3 + [0.02] * 3 + [0.2] * 6 + [0.1] * 2 + [20.0] + [0.2] * 3 + [5.0] + [1.0]
)
#: Largest step of a grip, m per tick, and a tick, s.
GRIP_STEP: Final = 0.03
TICK_S: Final = 0.05
#: Lengths below this are divided by as if they were this, m.
MIN_LENGTH: Final = 1e-9

#: Paths of a leader: straight, lift first, sideways first, over an arc, under one.
PATHS: Final = ("straight", "lift_first", "lateral_first", "arc", "low_arc")
#: Height of an arc, m.
ARC: Final = 0.1
#: Roles a partner can play.
LEADER, SHARED, FOLLOWER = range(3)
STRATA: Final = ("leader", "shared", "follower")
#: Nudge of a sharing partner, m per tick, and the gap at which it ends, m.
NUDGE: Final = 0.004
NUDGE_BAND: Final = 0.012


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: array == is ambiguous
class View:
    """One tick as N robots see it, in m and s.

    Attributes:
        to_goal: Goal minus bar centre, (N, 3).
        gap: Other grip minus where it should be: where the own grip should move, (N, 3).
        other_step: The other grip's last step, (N, 3), m per tick.
        moved: Own way since the start, (N, 3).
        time: Since the start, (N,), s.
    """

    to_goal: FloatArray
    gap: FloatArray
    other_step: FloatArray
    moved: FloatArray
    time: FloatArray


def read_view(state: NDArray[Any]) -> View:
    """Return what a task view tells the laws.

    Args:
        state: (N, 20).

    Raises:
        InputError: The layout is another one, or a number is not finite.
    """
    if state.ndim != 2 or state.shape[1] != len(VIEW_SCALE):
        raise InputError(
            f"co-carry view: expected states of {len(VIEW_SCALE)} numbers, got shape "
            f"{state.shape}; laws and scripted robots read the view 'task'."
        )
    require_finite("co-carry view", state)
    view = state.astype(np.float64) * VIEW_SCALE
    return View(view[:, :3], view[:, 3:6], view[:, 9:12] * TICK_S, view[:, 15:18], view[:, 18])


def length(vectors: FloatArray) -> FloatArray:
    """Return Euclidean lengths, (N, 1), of vectors (N, 3)."""
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    return np.sqrt(x * x + y * y + z * z)[:, None]


def limited(vectors: FloatArray, limit: Any) -> FloatArray:
    """Return vectors (N, 3) no longer than ``limit``, a number or (N, 1)."""
    return vectors * np.minimum(1.0, limit / np.maximum(length(vectors), MIN_LENGTH))


def in_step(gap: FloatArray, band: Any) -> FloatArray:
    """Return how much in step two grips are, (N, 1): 1 without gap, 0 from ``band`` on."""
    return np.maximum(0.0, 1.0 - length(gap) / band)


def path_point(path: NDArray[np.int64], way: FloatArray, run: FloatArray) -> FloatArray:
    """Return the points that lie ``run`` along paths from 0 to ``way``, (N, 3).

    Args:
        path: Index in `PATHS`, (N,).
        way: (N, 3), m.
        run: (N,), m.
    """
    whole = length(way)[:, 0]
    share = np.minimum(run / np.maximum(whole, MIN_LENGTH), 1.0)
    point = way * share[:, None]
    up, flat = np.abs(way[:, 2]), np.sqrt(way[:, 0] * way[:, 0] + way[:, 1] * way[:, 1])
    for index, (first, before) in ((1, (up, 2)), (2, (flat, 0))):
        begun = np.minimum(run / np.maximum(first, MIN_LENGTH), 1.0)
        rest = np.minimum(
            np.maximum(run - first, 0.0) / np.maximum(up + flat - first, MIN_LENGTH), 1.0
        )
        lift, side = (begun, rest) if before == 2 else (rest, begun)
        corner = way * np.stack((side, side, lift), axis=1)
        point = np.where((path == index)[:, None], corner, point)
    bow = ARC * np.sin(np.pi * share)
    point[:, 2] += np.where(path == 3, bow, np.where(path == 4, -bow, 0.0))
    return point


@dataclass(slots=True, eq=False)  # eq=False: array == is ambiguous
class Traits(RowTraits):
    """How each of N rows behaves, (N,) each.

    Attributes:
        role: `LEADER`, `SHARED` or `FOLLOWER`.
        delay: Leader: seconds before it starts.
        speed: Leader: m/s.
        path: Leader: index in `PATHS`.
        gain: Pull towards the reference point, or to close the gap.
        feed: Share of the other's last step that is copied.
        lag: Ticks between deciding and doing.
        pause: Leader: seconds it stands still half-way.
        later: Role after the change; the first one again for who never changes.
        change_at: Second from which a follower plays `later`; a leader changes half-way.
    """

    role: NDArray[np.int64]
    delay: FloatArray
    speed: FloatArray
    path: NDArray[np.int64]
    gain: FloatArray
    feed: FloatArray
    lag: NDArray[np.int64]
    pause: FloatArray
    later: NDArray[np.int64]
    change_at: FloatArray

    @classmethod
    def nominal(cls, rows: int, role: int = LEADER) -> Self:
        """Return ``rows`` punctual robots that take the straight way."""
        return cls(
            role=np.full(rows, role),
            delay=np.zeros(rows),
            speed=np.full(rows, 0.13),
            path=np.zeros(rows, dtype=np.int64),
            gain=np.full(rows, 0.5),
            feed=np.full(rows, 0.6),
            lag=np.zeros(rows, dtype=np.int64),
            pause=np.zeros(rows),
            later=np.full(rows, role),
            change_at=np.zeros(rows),
        )


#: Longest lag, ticks.
MAX_LAG: Final = 10


class CarryingLaw:
    """Plays `Traits` in N rows and remembers what they need: where a leader began, lagged steps."""

    def __init__(self, traits: Traits) -> None:
        rows = len(traits.role)
        self.traits = traits
        self.role: NDArray[np.int64] = traits.role.copy()
        self._fresh = np.ones(rows, dtype=np.bool_)
        self._way, self._origin = np.zeros((rows, 3)), np.zeros((rows, 3))
        self._since = np.zeros(rows)
        self._steps = np.zeros((MAX_LAG + 1, rows, 3))

    def grown(self, traits: Traits) -> "CarryingLaw":
        """Return the law of more rows; those that are played here go on."""
        known, longer = len(self.role), CarryingLaw(traits)
        for name in ("role", "_fresh", "_way", "_origin", "_since"):
            getattr(longer, name)[:known] = getattr(self, name)
        longer._steps[:, :known] = self._steps
        return longer

    def restart(self, row: int) -> None:
        """Begin an episode in ``row`` with the traits that stand there now."""
        self.role[row] = self.traits.role[row]
        self._fresh[row] = True
        self._steps[:, row] = 0.0

    def act(self, view: View) -> FloatArray:
        """Return the steps of N grips, (N, 3), m, and remember them."""
        traits = self.traits
        self._begin_way(view, self._fresh, traits.delay)
        self._fresh[:] = False
        self._change_roles(view)
        point = self._origin + path_point(traits.path, self._way, self._run(view))
        lead = traits.gain[:, None] * (point - view.moved)
        follow = traits.gain[:, None] * view.gap + traits.feed[:, None] * view.other_step
        nudge = in_step(view.gap, NUDGE_BAND) * limited(view.to_goal, NUDGE)
        role = self.role[:, None]
        step = np.where(role == LEADER, lead, follow + np.where(role == SHARED, nudge, 0.0))
        self._steps = np.roll(self._steps, 1, axis=0)
        self._steps[0] = limited(step, GRIP_STEP)
        return self._steps[traits.lag, np.arange(len(traits.lag))]

    def _begin_way(self, view: View, rows: NDArray[np.bool_], delay: FloatArray) -> None:
        self._way[rows], self._origin[rows] = view.to_goal[rows], view.moved[rows]
        self._since[rows] = view.time[rows] + delay[rows]

    def _run(self, view: View) -> FloatArray:
        """Return how far each leader's point has run, (N,), m."""
        traits = self.traits
        time = np.maximum(view.time - self._since, 0.0)
        half = 0.5 * length(self._way)[:, 0] / traits.speed
        return traits.speed * (time - np.minimum(np.maximum(time - half, 0.0), traits.pause))

    def _change_roles(self, view: View) -> None:
        traits = self.traits
        half_way = self._run(view) >= 0.5 * length(self._way)[:, 0]
        due = np.where(traits.role == LEADER, half_way, view.time >= traits.change_at)
        changing = due & (self.role != traits.later)
        self.role = np.where(changing, traits.later, self.role)
        self._begin_way(view, changing & (traits.later == LEADER), np.zeros(len(due)))


class CoCarryPartner(TraitPartner):
    """Base of the co-carry partners; a member says how an episode's traits are drawn."""

    tasks: ClassVar[tuple[str, ...]] = ("cocarry_mj",)
    traits_type: ClassVar[type[RowTraits]] = Traits

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._law: CarryingLaw | None = None

    @property
    def strata(self) -> tuple[str, ...]:
        """Role that each row began its episode with: ``leader``, ``shared`` or ``follower``."""
        roles: list[int] = [] if self._traits is None else self._traits.role.tolist()
        return tuple(STRATA[role] for role in roles)

    @property
    def stratum(self) -> str | None:
        """Role of the episode of a scalar partner; None before the first."""
        return self.stratum_of(0)

    def stratum_of(self, row: int) -> str | None:
        """See `PartnerBase.stratum_of`."""
        return self.strata[row] if row < len(self.strata) else None

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode; see `PartnerBase.reset`."""
        super().reset(seed=seed)
        self._law = None

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        law, traits = self._law, self._traits
        if law is not None and traits is not None:
            if law.traits is not traits:
                self._law = law = law.grown(traits)
            law.restart(row)

    def actions(self, states: NDArray[Any]) -> FloatArray:
        """Return the steps of N grips over `GRIP_STEP`, (N, 3), for states (N, 20)."""
        view, traits = read_view(states), self.traits(len(states))
        if self._law is None or self._law.traits is not traits:
            self._law = CarryingLaw(traits) if self._law is None else self._law.grown(traits)
        return self._law.act(view) / GRIP_STEP


#: Held out, by what they ask of the ego.
HELD_OUT_EASY: Final = (
    "cocarry_low_arc",
    "cocarry_lagged_leader",
    "cocarry_pausing_leader",
    "cocarry_follower_turns_leader",
)
HELD_OUT_HARD: Final = (
    "cocarry_slow_follower",
    "cocarry_lagged_follower",
    "cocarry_leader_turns_follower",
)
#: Paths that training knows: all but the low arc.
_TRAINED_PATHS: Final = 4

_PATHS: Final = NumberOption(
    key="paths", default=_TRAINED_PATHS, low=1, high=_TRAINED_PATHS, low_excluded=False,
    summary=f"how many of the paths it takes: {', '.join(PATHS[:_TRAINED_PATHS])}",
)  # fmt: skip
_LEADERS: Final = NumberOption(
    key="leaders", default=0.6, low=0.0, high=1.0, low_excluded=False,
    summary="share of leaders",
)  # fmt: skip
_SHARING: Final = NumberOption(
    key="sharing", default=0.2, low=0.0, high=1.0, low_excluded=False,
    summary="share of sharing partners; the rest follows",
)  # fmt: skip


def draw_leader(rng: np.random.Generator, *, paths: int = _TRAINED_PATHS) -> Traits:
    """Return a leader: delay, speed, path, gain and lag at random."""
    traits = Traits.nominal(1)
    traits.delay[:], traits.speed[:] = rng.uniform(0.0, 1.5), rng.uniform(0.08, 0.18)
    traits.path[:], traits.gain[:] = rng.integers(paths), rng.uniform(0.3, 0.7)
    traits.lag[:] = rng.integers(4)
    return traits


def draw_follower(rng: np.random.Generator, role: int = FOLLOWER) -> Traits:
    """Return a follower or a sharing partner: gain and feed-forward at random."""
    traits = Traits.nominal(1, role)
    traits.gain[:], traits.feed[:] = rng.uniform(0.3, 0.6), rng.uniform(0.3, 0.9)
    return traits


@member(CoCarryPartner, "cocarry_nominal")
def _nominal(rng: Rng, _: Options) -> Traits:
    """Leads straight to the goal, punctually."""
    del rng
    return Traits.nominal(1)


@member(CoCarryPartner, "cocarry_leader", _PATHS)
def _leader(rng: Rng, options: Options) -> Traits:
    """Leads to the goal after a delay, along one of four paths."""
    return draw_leader(rng, paths=int(options["paths"]))


@member(CoCarryPartner, "cocarry_shared")
def _shared(rng: Rng, _: Options) -> Traits:
    """Stays level with the ego and nudges towards the goal while in step."""
    return draw_follower(rng, SHARED)


@member(CoCarryPartner, "cocarry_follower")
def _follower(rng: Rng, _: Options) -> Traits:
    """Stays level with the ego without knowing the goal."""
    return draw_follower(rng)


@member(CoCarryPartner, "cocarry_mixed", _LEADERS, _SHARING, _PATHS)
def _mixed(rng: Rng, options: Options) -> Traits:
    """Leads, shares or follows, another role every episode."""
    leaders, place = options["leaders"], rng.random()
    if place < leaders:
        return draw_leader(rng, paths=int(options["paths"]))
    return draw_follower(rng, SHARED if place < leaders + options["sharing"] else FOLLOWER)


@member(CoCarryPartner, "cocarry_low_arc")
def _low_arc(rng: Rng, _: Options) -> Traits:
    """Held out, easy: leads along a low arc."""
    traits = draw_leader(rng)
    traits.path[:] = PATHS.index("low_arc")
    return traits


@member(CoCarryPartner, "cocarry_lagged_leader")
def _lagged_leader(rng: Rng, _: Options) -> Traits:
    """Held out, easy: leads with a lag of 4 to 6 ticks."""
    traits = draw_leader(rng)
    traits.lag[:] = rng.integers(4, 7)
    return traits


@member(CoCarryPartner, "cocarry_pausing_leader")
def _pausing_leader(rng: Rng, _: Options) -> Traits:
    """Held out, easy: leads and stops for 1 s half-way."""
    traits = draw_leader(rng)
    traits.pause[:] = 1.0
    return traits


@member(CoCarryPartner, "cocarry_follower_turns_leader")
def _follower_turns_leader(rng: Rng, _: Options) -> Traits:
    """Held out, easy: follows for 2 to 4 s, then leads."""
    traits = draw_follower(rng)
    traits.later[:], traits.change_at[:] = LEADER, rng.uniform(2.0, 4.0)
    traits.speed[:] = rng.uniform(0.08, 0.18)
    return traits


@member(CoCarryPartner, "cocarry_slow_follower")
def _slow_follower(rng: Rng, _: Options) -> Traits:
    """Held out, hard: follows reluctantly."""
    traits = draw_follower(rng)
    traits.gain[:], traits.feed[:] = rng.uniform(0.15, 0.3), rng.uniform(0.0, 0.2)
    return traits


@member(CoCarryPartner, "cocarry_lagged_follower")
def _lagged_follower(rng: Rng, _: Options) -> Traits:
    """Held out, hard: follows with a lag of 4 to 6 ticks."""
    traits = draw_follower(rng)
    traits.lag[:] = rng.integers(4, 7)
    return traits


@member(CoCarryPartner, "cocarry_leader_turns_follower")
def _leader_turns_follower(rng: Rng, _: Options) -> Traits:
    """Held out, hard: leads half of the way, then follows."""
    traits = draw_leader(rng)
    traits.later[:], traits.feed[:] = FOLLOWER, rng.uniform(0.3, 0.9)
    return traits

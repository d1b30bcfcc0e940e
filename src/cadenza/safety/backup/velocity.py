"""A base that takes velocity commands: when a command keeps stopping and fleeing possible.

Escape:    a plan is a unit vector n and a command r with n @ r >= v_p. It is clear after one step
           of u if, with x(.) under u for dt and under r for ever after,
               n @ (x(s) - p) - P(s) >= D    for all s >= 0,
           P being the partner's reach. n is chosen once and stays: nothing turns.
           Offered: the remembered plan, and n = today's normal with
               r = v1                                             if n @ v1 >= v_p,
               r = v_p n + T min(1, sqrt(V^2 - v_p^2) / |T|)      else,
           v1 the velocity after the step and T its part across n. r = V n where the base follows
           at once or with a lag.
Passive:   u is clear if, under u for dt and the command 0 after, n @ (x(s) - p_j) - P_j(s) >= D_j
           for every partner until the base is slower than the tolerated speed; n is the normal here
           or the one where it stops.
Rows:      n @ w >= level, candidates only; w is the velocity that a step leads to, or the command
           where that is reached at once or never. Level of an escape: the least from which a plan
           is clear if nothing moves across n. Of an obstacle, or a partner that the base stops
           beside: that its stopping path keeps the gap.
Delay:     what was commanded before acts first. Its path was checked when it was commanded, so a
           step is decided from where it leads, with packets that are older by the delay.
Theorem:   A and B in docs/safety.md.
Axes:      d Cartesian dimensions.
Units:     m, m/s, m/s^2, s.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.safety.backup.base import (
    ROUNDING_SPEED,
    Base,
    BaseSettings,
    Plan,
    Row,
    Scene,
    Vector,
    dot,
    minus,
    moved,
    nearest,
)
from cadenza.safety.backup.reach import (
    DISPROVED_M,
    ROUNDING_M,
    Bound,
    Piece,
    best_bound,
    escape_gap,
    min_sep,
    normal_from,
    worst_bound,
)
from cadenza.safety.backup.statics import TOLERANCE_M, StaticScene
from cadenza.safety.control_models import VelocityModel
from cadenza.safety.solvers import make_solver

#: Halvings of the search for a row's level: to 1/4096 of the speeds that it is searched in.
HALVINGS: Final = 12


class Response:
    """How a base's velocity follows a constant command: at once.

    What follows for its plans is the same for all bases; slower ones say what differs.
    """

    def __init__(self, model: VelocityModel) -> None:
        self.top: float = model.max_speed
        self.rest: Vector = (0.0,) * model.dim

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        del v, time_s
        return u

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        del v
        return moved(self.rest, u, time_s)

    def path(self, x: Vector, v: Vector, u: Vector, time_s: float) -> list[tuple[Vector, ...]]:
        """Return control points of each piece of the way; for ever means until u is reached."""
        del v
        return [(x, x if time_s == math.inf else moved(x, u, time_s))]

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return the speed along n from below; for an infinite time, until u is reached."""
        del v
        along = dot(n, u)
        return [] if time_s == math.inf else [(time_s, along, along)]

    def escape(self, n: Vector, v1: Vector, cap: float) -> Vector:
        """Return a command that flees along n from ``v1`` on, n @ r >= ``cap``: V n."""
        del v1, cap
        return moved(self.rest, n, self.top)

    def stop_time(self, v: Vector, tolerated: float) -> float:
        """Return how long the command 0 takes until the speed is at most ``tolerated``, s."""
        del v, tolerated
        return 0.0

    def line(self, along: float, gap: float, fastest: float, dt: float) -> float:
        """Return the level of a row: n @ w >= level keeps ``gap`` while the base steps and stops.

        Args:
            along: n @ v, m/s.
            gap: m.
            fastest: The larger of the present and the wanted speed, m/s.
            dt: Control step, s.
        """
        del along, fastest
        return -gap / dt

    def near_m(self, dt: float) -> float:
        """Return how near an obstacle must be for its row to forbid a velocity, m."""
        return self.top * dt

    def target(self, v: Vector, u: Vector, dt: float) -> Vector:
        """Return w, what rows restrict: the velocity after a step of u, or u itself."""
        del v, dt
        return u

    def within(self, v: Vector, wanted: Vector, w: Vector, dt: float) -> Vector:
        """Return a command for w, which rows moved away from ``wanted``."""
        del v, wanted, dt
        return w

    def escape_level(self, v: Vector, w: Vector, bound: Bound, dt: float) -> float:
        """Return the least n @ w from which fleeing is possible if w changes along n only."""
        del v, w
        return (bound.reach(dt) - bound.excess) / dt  # after the step V n flees

    def flees(self, v: Vector, u: Vector, v1: Vector, r: Vector, bound: Bound, dt: float) -> float:
        """Return the least separation under u for dt and r for ever, m."""
        n = bound.normal
        pieces = self.pieces(n, v, u, dt) + self.pieces(n, v1, r, math.inf)
        return min_sep(bound, pieces, dot(n, r))

    def keeps(self, v: Vector, r: Vector, bound: Bound) -> float:
        """Return the least separation under r for ever, m; what `flees` left after its step."""
        n = bound.normal
        return min_sep(bound, self.pieces(n, v, r, math.inf), dot(n, r))

    def stops(
        self, v: Vector, u: Vector, v1: Vector, bound: Bound, dt: float, stop_s: float
    ) -> float:
        """Return the least separation under u for dt and 0 for ``stop_s``, m."""
        n = bound.normal
        pieces = self.pieces(n, v, u, dt) + self.pieces(n, v1, self.rest, stop_s)
        return min_sep(bound, pieces, math.inf)

    def rests(self, v: Vector, bound: Bound, tolerated: float) -> float:
        """Return the most that `stops` may have left after its step, m."""
        back = moved(self.rest, bound.normal, -1.0)  # speeds along n from above
        pieces = self.pieces(back, v, self.rest, self.stop_time(v, tolerated))
        return min_sep(bound, [(time_s, -begin, -end) for time_s, begin, end in pieces], math.inf)


class Straight(Response):
    """The velocity goes straight to the command, at the rate c."""

    def __init__(self, model: VelocityModel) -> None:
        super().__init__(model)
        self._rate = model.max_accel

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        way, change = minus(u, v), self._rate * time_s
        length = math.hypot(*way)
        return u if length <= change else moved(v, way, change / length)

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        way = minus(u, v)
        length = math.hypot(*way)
        rise_s = min(length / self._rate, time_s)
        share = rise_s * self._rate / length if length > 0.0 else 0.0
        return moved(moved(self.rest, v, time_s), way, share * (time_s - 0.5 * rise_s))

    def path(self, x: Vector, v: Vector, u: Vector, time_s: float) -> list[tuple[Vector, ...]]:
        """Return control points of the ramp and of what is left of the time at u."""
        rise_s = min(math.hypot(*minus(u, v)) / self._rate, time_s)
        reached = self.after(v, u, rise_s)
        bend = moved(x, v, 0.5 * rise_s)
        ramp = moved(bend, reached, 0.5 * rise_s)
        if not rise_s < time_s < math.inf:
            return [(x, bend, ramp)]
        return [(x, bend, ramp), (ramp, moved(ramp, u, time_s - rise_s))]

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return the speed along n, exactly."""
        if time_s <= 0.0:
            return []
        begin, end = dot(n, v), dot(n, u)
        rise_s = math.hypot(*minus(u, v)) / self._rate
        if rise_s >= time_s:
            return [(time_s, begin, begin + (end - begin) * (time_s / rise_s))]
        if time_s == math.inf:
            return [(rise_s, begin, end)]
        return [(rise_s, begin, end), (time_s - rise_s, end, end)]

    def escape(self, n: Vector, v1: Vector, cap: float) -> Vector:
        """Return ``v1`` if it flees, else the nearest command that does."""
        along = dot(n, v1)
        across = moved(v1, n, -along)
        side = math.hypot(*across)
        if along >= cap and math.hypot(along, side) <= self.top:
            return v1
        along = min(max(along, cap), self.top)
        room = math.sqrt(max(self.top * self.top - along * along, 0.0))
        return moved(moved(self.rest, n, along), across, 1.0 if side <= room else room / side)

    def stop_time(self, v: Vector, tolerated: float) -> float:
        """Return how long the ramp to 0 takes, s."""
        return max(0.0, math.hypot(*v) - tolerated) / self._rate

    def line(self, along: float, gap: float, fastest: float, dt: float) -> float:
        """Return the level: what a straight ramp to 0 covers grows linearly with n @ w."""
        stop_s = 0.5 * fastest / self._rate
        return -min(gap / (dt + stop_s), (gap + 0.5 * along * dt) / (0.5 * dt + stop_s))

    def near_m(self, dt: float) -> float:
        """Return what the top speed covers until it has ended, m."""
        return self.top * (dt + 0.5 * self.top / self._rate)

    def target(self, v: Vector, u: Vector, dt: float) -> Vector:
        """Return the velocity after a step of u."""
        return self.after(v, u, dt)

    def within(self, v: Vector, wanted: Vector, w: Vector, dt: float) -> Vector:
        """Return w with less change across the way rows moved it, so that one step reaches it."""
        push, change, limit = minus(w, wanted), minus(w, v), self._rate * dt
        length, squared = math.hypot(*push), dot(change, change)
        if squared <= limit * limit or length == 0.0:
            return w
        along = dot(push, change) / length
        room = math.sqrt(max(limit * limit - along * along, 0.0))
        share = room / math.sqrt(max(squared - along * along, 1e-300))
        line = moved(v, push, along / length)
        return moved(line, minus(w, line), min(share, 1.0))

    def escape_level(self, v: Vector, w: Vector, bound: Bound, dt: float) -> float:
        """Return the least n @ w that leaves the gap that fleeing takes."""
        n, top, rate, cap = bound.normal, self.top, self._rate, bound.cap
        along = dot(n, v)
        side = math.hypot(*moved(w, n, -dot(n, w)))
        spare = max(0.0, side - math.sqrt(max(top * top - cap * cap, 0.0)))
        later = bound.later(dt)

        def is_clear(level: float) -> bool:
            short = cap - level
            growth = rate * short / math.hypot(short, spare) if short > 0.0 else rate
            ramp_s = min(abs(level - along) / rate, dt)
            gap = later.excess + level * dt - 0.5 * (level - along) * ramp_s
            return gap >= escape_gap(later, level, growth)

        change = rate * dt
        return _least(is_clear, max(along - change, -top), min(along + change, top))


class ByAxis(Straight):
    """Each component of the velocity goes to the command's at the rate c."""

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        change = self._rate * time_s
        return tuple([v[k] + max(-change, min(u[k] - v[k], change)) for k in range(len(v))])

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        return self.path(self.rest, v, u, time_s)[-1][-1]

    def path(self, x: Vector, v: Vector, u: Vector, time_s: float) -> list[tuple[Vector, ...]]:
        """Return control points: a piece ends where a component has reached its command."""
        pieces: list[tuple[Vector, ...]] = []
        since = 0.0
        for until in self._ends(v, u, time_s):
            span = until - since
            reached = self.after(v, u, span)
            bend = moved(x, v, 0.5 * span)
            end = moved(bend, reached, 0.5 * span)
            pieces.append((x, bend, end))
            x, v, since = end, reached, until
        return pieces or [(x, x)]

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return the speed along n, exactly."""
        pieces: list[Piece] = []
        since, begin = 0.0, dot(n, v)
        for until in self._ends(v, u, time_s):
            end = dot(n, self.after(v, u, until))
            pieces.append((until - since, begin, end))
            since, begin = until, end
        return pieces

    def _ends(self, v: Vector, u: Vector, time_s: float) -> list[float]:
        """Return where linear pieces of the velocity end within a time, s."""
        ends = sorted({abs(u[k] - v[k]) / self._rate for k in range(len(v))})
        inside = [end for end in ends if 0.0 < end < time_s]
        return inside if time_s == math.inf else [*inside, time_s]

    def stop_time(self, v: Vector, tolerated: float) -> float:
        """Return how long the slowest component takes to 0, s."""
        if math.hypot(*v) <= tolerated:
            return 0.0
        return max(abs(v_k) for v_k in v) / self._rate


class Lagging(Response):
    """The velocity approaches the command as exp(-s / T).

    With y = x + T v, y' = u, and x' = (y - x) / T points at y: x stays in the hull of x and of the
    path of y.
    """

    def __init__(self, model: VelocityModel, lag_s: float) -> None:
        super().__init__(model)
        self._lag = lag_s

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        return moved(u, minus(v, u), math.exp(-time_s / self._lag))

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        gained = -self._lag * math.expm1(-time_s / self._lag)
        return moved(moved(self.rest, u, time_s), minus(v, u), gained)

    def path(self, x: Vector, v: Vector, u: Vector, time_s: float) -> list[tuple[Vector, ...]]:
        """Return x and the path of y, whose hull contains the way; for ever leads to y itself."""
        ahead = moved(x, v, self._lag)
        if time_s == math.inf:
            return [(x, ahead)]
        return [(x, ahead, moved(ahead, u, time_s), moved(x, self.travel(v, u, time_s), 1.0))]

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return chords where the speed along n grows, else its tangents at both ends of a part."""
        goal, begin = dot(n, u), dot(n, v)
        if time_s <= 0.0:
            return []
        parts = 1 + min(3, int(2.0 * time_s / self._lag))
        span = time_s / parts
        decay = math.exp(-span / self._lag)
        pieces: list[Piece] = []
        for _ in range(parts):
            end = goal + (begin - goal) * decay
            if begin <= goal + ROUNDING_SPEED:
                pieces.append((span, begin, end))
            else:
                fall, slower = (begin - goal) / self._lag, (end - goal) / self._lag
                bend_s = (begin - end - slower * span) / (fall - slower)
                bend = begin - fall * bend_s
                pieces += [(bend_s, begin, bend), (span - bend_s, bend, end)]
            begin = end
        return pieces

    def stop_time(self, v: Vector, tolerated: float) -> float:
        """Return how long the speed takes to decay, s."""
        speed = math.hypot(*v)
        return self._lag * math.log(speed / tolerated) if speed > tolerated else 0.0

    def line(self, along: float, gap: float, fastest: float, dt: float) -> float:
        """Return the level that keeps y, where the base comes to rest, beyond the gap."""
        del fastest
        return -(gap + self._lag * along) / dt

    def near_m(self, dt: float) -> float:
        """Return what the top speed covers until it has ended, m."""
        return self.top * (dt + self._lag)

    def escape_level(self, v: Vector, w: Vector, bound: Bound, dt: float) -> float:
        """Return the least n @ w from which fleeing is possible, by a search."""
        n = bound.normal
        along = dot(n, w)

        def is_clear(level: float) -> bool:
            u = moved(w, n, level - along)
            v1 = self.after(v, u, dt)
            return self.flees(v, u, v1, self.escape(n, v1, bound.cap), bound, dt) >= 0.0

        return _least(is_clear, -self.top, self.top)

    def flees(self, v: Vector, u: Vector, v1: Vector, r: Vector, bound: Bound, dt: float) -> float:
        """Return a lower bound of the least separation under u for dt and r = V n for ever, m.

        After the step the partner is taken to be at its cap: it then gains
            int_0^inf (v_p - V + (V - sigma1) exp(-s / T))^+ ds.
        """
        del r
        n, cap = bound.normal, bound.cap
        least = min_sep(bound, self.pieces(n, v, u, dt), math.inf)
        left = bound.excess + dot(n, self.travel(v, u, dt)) - bound.reach(dt)
        return min(least, left - self._lost(dot(n, v1), cap))

    def keeps(self, v: Vector, r: Vector, bound: Bound) -> float:
        """Return a lower bound of the least separation under r = V n for ever, m."""
        del r
        return bound.excess - self._lost(dot(bound.normal, v), bound.cap)

    def _lost(self, along: float, cap: float) -> float:
        """Return how much a partner at its cap gains until the base is as fast, m."""
        short, faster = cap - along, self.top - cap
        if short <= 0.0:
            return 0.0
        lost = self._lag * short
        if faster > 0.0:
            lost -= faster * self._lag * math.log((faster + short) / faster)
        return lost


def _least(is_clear: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number in [low, high] that is clear, by halving; ``high`` if none is."""
    if is_clear(low):
        return low
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if is_clear(middle):
            high = middle
        else:
            low = middle
    return high


def response_of(model: VelocityModel) -> Response:
    """Return how the base of a model follows its commands."""
    if model.lag_s is not None:
        return Lagging(model, model.lag_s)
    return {"norm": Straight, "axis": ByAxis, "none": Response}[model.limit](model)


class VelocityBase(Base):
    """A velocity-commanded base, as the filter asks it; see `Base`."""

    def __init__(self, model: VelocityModel, settings: BaseSettings) -> None:
        if model.lag_s is not None and settings.passive and settings.contact_speed <= 0.0:
            refuse(
                ConfigurationError,
                f"VelocityModel({model.uid!r}) with a lag, passive: contact_speed",
                expected="> 0 m/s, because it never rests exactly",
                got=settings.contact_speed,
            )
        super().__init__(settings)
        self._response = response_of(model)
        self._top = model.max_speed
        self._solver = make_solver("daqp")
        self._delay = model.delay_s
        #: Commands that have not acted yet, oldest first; the first has partly acted.
        self._pending: list[Vector] = [self._response.rest] * math.ceil(
            self._delay / self._dt - ROUNDING_SPEED
        )
        self._tolerated = settings.contact_speed + ROUNDING_SPEED
        self._x = self._v = self._response.rest
        #: Obstacles as seen from where the step begins.
        self._ahead: StaticScene | None = None
        #: Position and partners as measured, before the delay, and what acts in it: the velocity
        #: before, the command, and for how long.
        self._measured, self._latest = self._x, self._partners
        self._before: list[tuple[Vector, Vector, float]] = []
        self._bounds: list[Bound] = []
        #: The command asked about last, and the velocity after a step of it.
        self._asked: tuple[Vector, Vector] | None = None

    def look(self, scene: Scene) -> None:
        """Take in the scene: where the step begins, and all partners along today's normals."""
        x, v, partners = scene.position, scene.velocity, scene.partners
        obstacles = scene.obstacles if scene.obstacles else None
        self._statics = None
        if obstacles is not None:
            self._statics = StaticScene(obstacles, x, scene.clearance_m)
        self._measured, self._latest, self._ahead = x, partners, self._statics
        if self._pending:
            self._before, time_s = [], self._delay - (len(self._pending) - 1) * self._dt
            for command in self._pending:
                self._before.append((v, command, time_s))
                x = moved(x, self._response.travel(v, command, time_s), 1.0)
                v, time_s = self._response.after(v, command, time_s), self._dt
            partners = tuple([p._replace(age_s=p.age_s + self._delay) for p in partners])
            if obstacles is not None:
                self._ahead = StaticScene(obstacles, x, scene.clearance_m)
        self._x, self._v, self._partners, self._asked = x, v, partners, None
        self._bounds = [worst_bound(normal_from(p, x), x, p, self._settings) for p in partners]

    def _is_clear_before(self, n: Vector, j: int) -> bool:
        """Return whether partner j stays away along n until this step's command acts."""
        if self._settings.passive and all(
            math.hypot(*speed) <= self._tolerated for speed in (self._before[0][0], *self._pending)
        ):
            return True
        pieces: list[Piece] = []
        for v, command, time_s in self._before:
            pieces += self._response.pieces(n, v, command, time_s)
        bound = worst_bound(n, self._measured, self._latest[j], self._settings)
        return min_sep(bound, pieces, math.inf) >= -ROUNDING_M

    def admissible(self, nominal: Vector) -> Vector:
        """Return the command, scaled to the top speed where it is faster."""
        size = math.hypot(*nominal)
        if size <= self._top:
            return nominal
        return moved(self._response.rest, nominal, self._top / size)

    def _after(self, action: Vector) -> Vector:
        """Return the velocity after a step."""
        if self._asked is None or self._asked[0] is not action:
            self._asked = (action, self._response.after(self._v, action, self._dt))
        return self._asked[1]

    def static_clear(self, action: Vector) -> bool:
        """Return whether one step of ``action``, then the command 0, is clear of obstacles."""
        statics = self._statics
        if statics is None:
            return True
        pieces = self._stopping_path(action, self._after(action))
        x = end = self._measured
        before = list[tuple[Vector, ...]]()
        for v, command, time_s in self._before:
            before += self._response.path(end, v, command, time_s)
            end = before[-1][-1]
        pieces = before + pieces
        length = max([math.dist(x, z) for piece in pieces for z in piece])
        # Whether stopping is clear decides what is reported, never what is done.
        spare = TOLERANCE_M if action is self._response.rest else 0.0
        return statics.is_clear(pieces, length, spare)

    def _stopping_path(self, action: Vector, v1: Vector) -> list[tuple[Vector, ...]]:
        """Return the path of one step of ``action`` and the command 0 after it."""
        response = self._response
        pieces = response.path(self._x, self._v, action, self._dt)
        return pieces + response.path(pieces[-1][-1], v1, response.rest, math.inf)

    def partner_plan(self, action: Vector, held: Plan | None) -> Plan | None:
        """Return a plan that is clear after one step of ``action``; see the module."""
        if not self._bounds:
            return Plan((), self._response.rest)
        if self._pending and held is None:  # else the remembered plan is clear until the step
            for j, bound in enumerate(self._bounds):
                if not self._is_clear_before(bound.normal, j):
                    return None
        v1 = self._after(action)
        if self._settings.passive:
            return self._stop_plan(action, v1)
        bound, response = self._bounds[0], self._response
        command = response.escape(bound.normal, v1, bound.cap)
        if response.flees(self._v, action, v1, command, bound, self._dt) >= -ROUNDING_M:
            return Plan((bound.normal,), command)
        if held is not None:
            bound = worst_bound(held.normals[0], self._x, self._partners[0], self._settings)
            if response.flees(self._v, action, v1, held.command, bound, self._dt) >= -ROUNDING_M:
                return held
        return None

    def _stop_plan(self, action: Vector, v1: Vector) -> Plan | None:
        """Return the plan to stop if it is clear of every partner after one step."""
        response, normals = self._response, [bound.normal for bound in self._bounds]
        stop_s = response.stop_time(v1, self._tolerated)
        if stop_s <= 0.0 and self._is_slow(action):
            return Plan(tuple(normals), response.rest)
        for j, bound in enumerate(self._bounds):
            if response.stops(self._v, action, v1, bound, self._dt, stop_s) >= -ROUNDING_M:
                continue
            end, partner = self._stopping_path(action, v1)[-1][-1], self._partners[j]
            normals[j] = normal_from(partner, end)
            there = worst_bound(normals[j], self._x, partner, self._settings)
            if response.stops(self._v, action, v1, there, self._dt, stop_s) < -ROUNDING_M:
                return None
        return Plan(tuple(normals), response.rest)

    def _is_slow(self, action: Vector) -> bool:
        """Return whether the base stays within the tolerated speed during one step."""
        now = self._response.after(self._v, action, 0.0)
        largest = [max(abs(a), abs(b)) for a, b in zip(now, action, strict=True)]
        return math.hypot(*largest) <= self._tolerated

    def _is_touched_before(self) -> bool:
        """Return whether a late base is seen to be touched while it moves, before its plan acts."""
        x, settings = self._measured, self._settings
        if not self._before or (
            settings.passive and math.hypot(*self._before[0][0]) <= self._tolerated
        ):
            return False
        wrong_m = 2.0 * settings.position_error_m + DISPROVED_M
        return any(
            math.dist(x, p.position) + p.max_speed * p.age_s + wrong_m < p.contact_m
            for p in self._latest
        )

    def still_holds(self, held: Plan) -> bool:
        """Return whether the measurement leaves the plan possible at all; see `Base`."""
        response, v, passive = self._response, self._v, self._settings.passive
        if self._is_touched_before():
            return False
        if passive and math.hypot(*v) <= self._tolerated:
            return True
        for n, partner in zip(held.normals, self._latest, strict=True):
            bound = best_bound(n, self._x, partner, self._settings)
            bound = bound.later(self._delay) if self._delay else bound
            left = (
                response.rests(v, bound, self._tolerated)
                if passive
                else response.keeps(v, held.command, bound)
            )
            if left < 0.0:
                return False
        return True

    def candidates(self, nominal: Vector, held: Plan | None) -> Iterator[tuple[str, Vector]]:
        """Yield the projection on the rows, its blends with the backup, and an escape.

        Where the backup is the command 0 it is no candidate: stopping is tried anyway.
        """
        best = self._projected(nominal)
        if best is not nominal or math.hypot(*nominal) >= self._top * (1.0 - ROUNDING_SPEED):
            yield "rows", best  # else no command meets the rows, and the nominal one was tried
        backup = self._backup(held)
        for share in (0.75, 0.5, 0.25):
            yield "blend", moved(backup, minus(best, backup), share)
        if self._bounds and not self._settings.passive:
            yield "escape", backup

    def _backup(self, held: Plan | None) -> Vector:
        """Return the remembered escape, or today's; the command 0 where stopping is the answer."""
        if not self._bounds or self._settings.passive:
            return self._response.rest
        if held is not None:
            return held.command
        bound = self._bounds[0]
        return self._response.escape(bound.normal, self._v, bound.cap)

    def _projected(self, nominal: Vector) -> Vector:
        """Return the command nearest to ``nominal`` that meets the rows, if there is one."""
        response, v, dt = self._response, self._v, self._dt
        wanted = response.target(v, nominal, dt)
        fastest = max(math.hypot(*v), math.hypot(*nominal))
        rows: list[Row] = []
        for bound in self._bounds:
            n = bound.normal
            if self._settings.passive:
                time_s = dt + response.stop_time(moved(response.rest, n, fastest), self._tolerated)
                gap = bound.excess - bound.furthest_reach(time_s)
                rows.append((n, response.line(dot(n, v), gap, fastest, dt)))
            else:
                rows.append((n, response.escape_level(v, wanted, bound, dt)))
        if self._ahead is not None:
            for gap, n in self._ahead.near(response.near_m(dt)):
                rows.append((n, response.line(dot(n, v), gap, fastest, dt)))
        found = nearest(wanted, rows, self._solver)
        if found is None or found is wanted:
            return nominal
        return self.admissible(response.within(v, wanted, found, dt))

    def stop(self) -> Vector:
        """Return the command 0."""
        return self._response.rest

    def separation(self, action: Vector) -> float:
        """Return n @ u for the nearest partner, m/s; where it is to rest, minus the speed."""
        if not self._bounds:
            return 0.0
        if self._settings.passive:
            return -math.hypot(*action)
        return dot(min(self._bounds, key=lambda bound: bound.excess).normal, action)

    def executed(self, action: Vector) -> None:
        """Take in what is commanded: it acts after the delay."""
        if self._pending:
            self._pending = [*self._pending[1:], action]

    def state_dict(self) -> dict[str, object]:
        """Return the commands that have not acted yet."""
        return {"pending": [list(command) for command in self._pending]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            ValueError: There are more or fewer commands on their way than the delay holds.
        """
        pending: list[Vector] = [tuple(map(float, command)) for command in state["pending"]]
        if [len(u) for u in pending] != [len(u) for u in self._pending]:
            raise ValueError(f"expected {len(self._pending)} commands, got {len(pending)}")
        if not all(abs(number) <= self._top for u in pending for number in u):
            raise ValueError("expected commands within the top speed")
        self._pending = pending

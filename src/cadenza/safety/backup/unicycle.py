"""A wheeled base that takes speeds and rates of turn: when stopping and fleeing stay possible.

Motion:    x' = v e(th), th' = w; v and w go to the command at the rates a_v and a_w; the disc's
           center is c = x + o e(th). One command gives v and w in closed form, x only as an
           integral, so the path is bounded by a sector.
Sector:    over a time with forward length L+, backward length L- and headings in [a, b],
               -n @ dx <= L+ max(0, max cos(th - phi)) + L- max(0, max -cos(th - phi)),
           phi the direction of -n, both over [a, b]; an offset o adds
               o max(0, max cos(th - phi) - cos(th_0 - phi)).
           `Sweep.fall` is H: this for the step, plus this for the brake after it.
Stop:      a command is clear of an obstacle if e - H >= 0, e = distance - D, with the normal at c,
           or with the one at the predicted stop y and e + n @ (c - y) for e; and of a partner if
           e - max(0, P(time to rest)) - H >= 0.
Escape:    a plan is a unit vector n and one of the commands (V, 0) and (-V_reverse, 0). Along it
               n @ c' >= v min cos  where v > 0,   v max cos  where v < 0,
           over the headings of each piece; it is clear if the partner's reach leaves D for ever.
Ideal:     where v and w follow at once, the point ahead p = x + l e moves with J u within
               |p(s) - p - s J u| <= s^2 |w| hypot(v, l w) / 2,   J = [e, l f],
           and flees in any direction: u = J^-1 v_f n, n today's normal, without a memory.
Rows:      candidates only, on the velocity q = J u of the point ahead, nearest in |q|; obstacles
           are kept at D + m from that point. A slower command that turns as wanted comes before
           stopping, or the robot parks in front of what it could drive around.
Theorem:   C and C' in docs/safety.md.
Units:     m, rad, s.
"""

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from cadenza.safety.backup.base import (
    Base,
    BaseSettings,
    Plan,
    Row,
    Scene,
    Vector,
    nearest,
)
from cadenza.safety.backup.reach import (
    COINCIDENT,
    ROUNDING_M,
    Bound,
    best_bound,
    min_sep,
    normal_from,
    worst_bound,
)
from cadenza.safety.backup.statics import MAX_ROWS, Part, StaticScene
from cadenza.safety.control_models import UnicycleModel
from cadenza.safety.solvers import make_solver

#: m as a share of l: the axle trails the point ahead on a smaller circle, and with less it parks
#: the robot on the obstacle; with more a slow robot is held off where it could slide along.
CANDIDATE_ROOM: Final = 0.5
#: Shares of a command that are tried, in this order.
_SHARES: Final = (0.75, 0.5, 0.25)
_TURN: Final = 2.0 * math.pi

#: To stop, and the plan of a robot that needs no memory.
_REST: Final[Vector] = (0.0, 0.0)
_ANY_TIME: Final = Plan((), ())


def ramp(start: float, goal: float, rate: float, time_s: float) -> tuple[float, float]:
    """Return for how long a speed changes within a time, s, and what it is then."""
    way = goal - start
    rise_s = abs(way) / rate
    if rise_s > time_s:
        return time_s, start + math.copysign(rate * time_s, way)
    return rise_s, goal


def lengths(start: float, end: float, rise_s: float, hold_s: float) -> tuple[float, float]:
    """Return the ways forward and backward of a speed that changes linearly, then holds."""
    if start * end >= 0.0:
        way = 0.5 * (start + end) * rise_s + end * hold_s
        return (way, 0.0) if way >= 0.0 else (0.0, -way)
    until = rise_s * start / (start - end)
    first, second = 0.5 * start * until, 0.5 * end * (rise_s - until) + end * hold_s
    return (first, -second) if end < 0.0 else (second, -first)


def turned(start: float, end: float, rise_s: float, hold_s: float) -> tuple[float, float, float]:
    """Return the least, largest and last angle of a rate of turn that changes, then holds."""
    if start * end >= 0.0:
        last = 0.5 * (start + end) * rise_s + end * hold_s
        return (0.0, last, last) if last >= 0.0 else (last, 0.0, last)
    until = rise_s * start / (start - end)
    peak = 0.5 * start * until
    last = peak + 0.5 * end * (rise_s - until) + end * hold_s
    return min(0.0, peak, last), max(0.0, peak, last), last


def largest_cosine(low: float, high: float) -> float:
    """Return the largest cosine of the angles in [low, high]."""
    if math.ceil(low / _TURN) * _TURN <= high:
        return 1.0
    return max(math.cos(low), math.cos(high))


class Sweep(NamedTuple):
    """What the disc may sweep: one step of a command, then the brake.

    Attributes:
        forward: L+ of the step, m.
        backward: L-, m.
        low: Smallest heading of the step, rad.
        high: Largest.
        heading: At the end of the step.
        speed: v at the end of the step.
        yaw_rate: w at the end of the step.
        stop_m: Way of the brake, m; negative backward.
        stop_low: Smallest heading while the brake drives.
        stop_high: Largest.
        all_low: Smallest heading until nothing moves.
        all_high: Largest.
        start: Heading now.
        offset_m: |o|, m.
        shift: 0, or pi for an offset behind the axle, rad.
        rest_s: Time until the disc rests, s.
        ahead: Way of the disc's center to about where it stops, m.
    """

    forward: float
    backward: float
    low: float
    high: float
    heading: float
    speed: float
    yaw_rate: float
    stop_m: float
    stop_low: float
    stop_high: float
    all_low: float
    all_high: float
    start: float
    offset_m: float
    shift: float
    rest_s: float
    ahead: Vector

    @property
    def length(self) -> float:
        """No point of the disc moves farther, m."""
        way = self.forward + self.backward + abs(self.stop_m)
        return way + self.offset_m * min(2.0, self.all_high - self.all_low)

    def fall(self, n: Vector) -> float:
        """Return H: how far the disc's center may come against ``n``, m, >= 0."""
        phi = math.atan2(-n[1], -n[0])
        most = 0.0
        if self.forward > 0.0:
            cosine = largest_cosine(self.low - phi, self.high - phi)
            if cosine > 0.0:
                most += self.forward * cosine
        away = phi + math.pi
        if self.backward > 0.0:
            cosine = largest_cosine(self.low - away, self.high - away)
            if cosine > 0.0:
                most += self.backward * cosine
        if self.stop_m != 0.0:
            toward = phi if self.stop_m > 0.0 else away
            cosine = largest_cosine(self.stop_low - toward, self.stop_high - toward)
            if cosine > 0.0:
                most += abs(self.stop_m) * cosine
        return most + self.swing(phi) if self.offset_m else most

    def ends_before(self, bound: Bound) -> bool:
        """Return whether the disc rests before a partner reaches it; where it rests all along."""
        fall = self.fall(bound.normal)
        return self.length == 0.0 or bound.excess >= bound.furthest_reach(self.rest_s) + fall

    def swing(self, phi: float) -> float:
        """Return how far turning alone may bring the disc's center toward ``phi``, m, >= 0."""
        phi -= self.shift
        cosine = largest_cosine(self.all_low - phi, self.all_high - phi)
        return self.offset_m * max(0.0, cosine - math.cos(self.start - phi))


def sweep(
    model: UnicycleModel, heading: float, speed: float, yaw_rate: float, action: Vector, dt: float
) -> Sweep:
    """Return what one step of ``action`` and the brake after it sweep."""
    a_v, a_w, o = model.accel, model.yaw_accel, model.center_offset_m
    rise_v, v1 = ramp(speed, action[0], a_v, dt)
    rise_w, w1 = ramp(yaw_rate, action[1], a_w, dt)
    forward, backward = lengths(speed, v1, rise_v, dt - rise_v)
    low, high, last = turned(yaw_rate, w1, rise_w, dt - rise_w)
    low, high, end = heading + low, heading + high, heading + last
    stop_v, stop_w = abs(v1) / a_v, abs(w1) / a_w
    stop_m = 0.5 * v1 * stop_v
    spin = 0.5 * w1 * stop_w
    until = min(stop_v, stop_w)
    drift = w1 * until * (1.0 - 0.5 * until / stop_w) if until > 0.0 else 0.0
    rest_s = dt + stop_v if v1 != 0.0 else rise_v
    if o:
        rest_s = max(rest_s, dt + stop_w if w1 != 0.0 else rise_w)
    middle, final = heading + 0.5 * last, end + 0.5 * drift
    net, turn = forward - backward, end + spin
    return Sweep(
        forward=forward,
        backward=backward,
        low=low,
        high=high,
        heading=end,
        speed=v1,
        yaw_rate=w1,
        stop_m=stop_m,
        stop_low=end + min(0.0, drift),
        stop_high=end + max(0.0, drift),
        all_low=min(low, turn),
        all_high=max(high, turn),
        start=heading,
        offset_m=abs(o),
        shift=0.0 if o >= 0.0 else math.pi,
        rest_s=rest_s,
        ahead=(
            net * math.cos(middle)
            + stop_m * math.cos(final)
            + o * (math.cos(turn) - math.cos(heading)),
            net * math.sin(middle)
            + stop_m * math.sin(final)
            + o * (math.sin(turn) - math.sin(heading)),
        ),
    )


class UnicycleBase(Base):
    """A unicycle, as the filter asks it; see `Base`."""

    def __init__(self, model: UnicycleModel, settings: BaseSettings) -> None:
        super().__init__(settings)
        self._model = model
        self._o, self._l = model.center_offset_m, model.look_ahead_m
        self._escapes_at_once = model.is_ideal and not settings.passive
        #: The disc lies within this of the point ahead besides its radius.
        self._around = abs(self._l - self._o)
        self._top = max(model.max_speed, model.max_reverse)
        side = self._l * model.max_yaw_rate
        self._box: tuple[Row, ...] = (
            ((1.0, 0.0), -model.max_reverse),
            ((-1.0, 0.0), -model.max_speed),
            ((0.0, 1.0), -side),
            ((0.0, -1.0), -side),
        )
        self._solver = make_solver("daqp")
        self._c: Vector = _REST
        self._e: Vector = (1.0, 0.0)
        self._heading = self._v = self._w = 0.0
        self._bounds: list[Bound] = []
        #: The same from the point ahead, once somebody asked for them.
        self._bounds_ahead: list[Bound] | None = None
        #: The obstacles that the robot could reach before it stops, nearest first.
        self._near: list[Part] = []
        #: The last action looked at: both checks ask for its sweep.
        self._swept: tuple[Vector, Sweep] | None = None

    def look(self, scene: Scene) -> None:
        """Take in the scene: obstacles within reach, e and pi of every partner."""
        self._c, self._heading, self._w = scene.position, scene.heading, scene.yaw_rate
        self._e = e = (math.cos(scene.heading), math.sin(scene.heading))
        self._v = scene.velocity[0] * e[0] + scene.velocity[1] * e[1]
        self._swept = None
        self._statics, self._near = None, []
        if scene.obstacles is not None and len(scene.obstacles):
            model, top = self._model, max(abs(self._v), self._top)
            within = top * self._dt + 0.5 * top * top / model.accel + 2.0 * abs(self._o) + self._l
            self._statics = StaticScene(scene.obstacles, self._c, scene.clearance_m)
            self._near = sorted(self._statics.within(within), key=itemgetter(0))
        self._partners = scene.partners
        self._bounds, self._bounds_ahead = self._seen_from(self._c), None

    def _seen_from(self, point: Vector) -> list[Bound]:
        """Return all partners along the normals at a point, as seen from there."""
        settings = self._settings
        return [worst_bound(normal_from(p, point), point, p, settings) for p in self._partners]

    def _seen_ahead(self) -> list[Bound]:
        """Return all partners as seen from the point ahead."""
        if self._bounds_ahead is None:
            self._bounds_ahead = self._seen_from(self._point())
        return self._bounds_ahead

    def admissible(self, nominal: Vector) -> Vector:
        """Return the command within its limits; the same object if it meets the rows, too.

        A command that misses them is not tried as it is, safe or not: it would lead up to the
        obstacle, where there is no more room to turn.
        """
        v, w = self._limited(*nominal)
        rows = self._rows(v)[0]
        is_kept = all(n[0] * v + n[1] * self._l * w >= level for n, level in rows)
        return nominal if is_kept and (v, w) == nominal else (v, w)

    def _sweep(self, action: Vector) -> Sweep:
        if self._swept is not None and self._swept[0] is action:
            return self._swept[1]
        swept = sweep(self._model, self._heading, self._v, self._w, action, self._dt)
        self._swept = action, swept
        return swept

    def static_clear(self, action: Vector) -> bool:
        """Return whether one step of ``action``, then the command (0, 0), is clear of obstacles."""
        if not self._near:
            return True
        swept = self._sweep(action)
        length, (x, y) = swept.length, swept.ahead
        for room, n, level, gap in self._near:
            if room >= length:
                break  # nor can the ones behind be reached
            if room >= swept.fall(n):
                continue
            distance, n = gap((self._c[0] + x, self._c[1] + y))
            if distance - level - n[0] * x - n[1] * y < swept.fall(n):
                return False
        return True

    def partner_plan(self, action: Vector, held: Plan | None) -> Plan | None:
        """Return a plan that is clear after one step of ``action``; see the module."""
        if not self._partners:
            return _ANY_TIME
        if self._settings.passive:
            return self._stop_plan(action)
        if self._escapes_at_once:
            return _ANY_TIME if self._point_stays_clear(action) else None
        swept, n = self._sweep(action), self._bounds[0].normal
        facing = n[0] * math.cos(swept.heading) + n[1] * math.sin(swept.heading)
        plan = Plan((n,), self._flight(facing))
        if self._separates(swept, plan, self._bounds[0]):
            return plan
        if held:
            bound = worst_bound(held.normals[0], self._c, self._partners[0], self._settings)
            if self._separates(swept, held, bound):
                return held
        return None

    def _flight(self, facing: float) -> Vector:
        return (self._model.max_speed if facing >= 0.0 else -self._model.max_reverse, 0.0)

    def _stop_plan(self, action: Vector) -> Plan | None:
        """Return the plan to stop if the disc rests before any partner can reach it."""
        swept, normals = self._sweep(action), [bound.normal for bound in self._bounds]
        stop = (self._c[0] + swept.ahead[0], self._c[1] + swept.ahead[1])
        for j, (partner, bound) in enumerate(zip(self._partners, self._bounds, strict=True)):
            if swept.ends_before(bound):
                continue
            normals[j] = normal_from(partner, stop)
            there = worst_bound(normals[j], self._c, partner, self._settings)
            if math.dist(stop, partner.position) < COINCIDENT or not swept.ends_before(there):
                return None
        return Plan(tuple(normals), _REST)

    def _separates(self, swept: Sweep, plan: Plan, bound: Bound, *, hopeful: bool = False) -> bool:
        """Return whether a plan is clear after the step; ``hopeful``: whether it may be."""
        (n,), model = plan.normals, self._model
        psi, flight, excess = math.atan2(n[1], n[0]), plan.command[0], bound.excess
        pieces: list[tuple[float, float, float]] = []

        def add(duration: float, begin: float, end: float, low: float, high: float) -> None:
            """Append a piece in which v is linear and the headings lie in [low, high]."""
            if begin * end < 0.0:
                until = duration * begin / (begin - end)
                add(until, begin, 0.0, low, high)
                add(duration - until, 0.0, end, low, high)
            elif duration > 0.0:
                most = largest_cosine(low - psi, high - psi)
                least = -largest_cosine(low - psi - math.pi, high - psi - math.pi)
                cosine = least if (begin + end > 0.0) is not hopeful else most
                pieces.append((duration, begin * cosine, end * cosine))

        rise_s, _ = ramp(self._v, swept.speed, model.accel, self._dt)
        add(rise_s, self._v, swept.speed, swept.low, swept.high)
        add(self._dt - rise_s, swept.speed, swept.speed, swept.low, swept.high)
        turn_s = abs(swept.yaw_rate) / model.yaw_accel
        last = swept.heading + 0.5 * swept.yaw_rate * turn_s
        low, high = min(swept.heading, last), max(swept.heading, last)
        rise_s = abs(flight - swept.speed) / model.accel
        both_s = min(turn_s, rise_s)
        _, middle = ramp(swept.speed, flight, model.accel, both_s)
        add(both_s, swept.speed, middle, low, high)
        add(turn_s - both_s, flight, flight, low, high)
        add(rise_s - both_s, middle, flight, last, last)
        if swept.offset_m:
            excess += 2.0 * swept.offset_m if hopeful else -swept.swing(psi + math.pi)
        seen = bound._replace(excess=excess)
        return min_sep(seen, pieces, flight * math.cos(last - psi)) >= -ROUNDING_M

    def _point_stays_clear(self, action: Vector) -> bool:
        """Return whether the point ahead keeps its distance within the step, whatever is done."""
        bound = self._seen_ahead()[0]
        n, (v, w) = bound.normal, action
        ahead, aside = self._in_frame(n)
        moved = self._dt * (v * ahead)
        moved += self._dt * self._l * w * aside
        lost = 0.5 * self._dt * self._dt * abs(w) * math.hypot(v, self._l * w)
        room = bound.excess - self._around + ROUNDING_M
        return room >= 0.0 and room + moved - lost - bound.reach(self._dt) >= 0.0

    def _in_frame(self, n: Vector) -> Vector:
        """Return a direction in the frame of the base: ahead, and to its left."""
        ex, ey = self._e
        return n[0] * ex + n[1] * ey, n[1] * ex - n[0] * ey

    def _point(self) -> Vector:
        """Return p, the point ahead of the axle."""
        ahead = self._l - self._o
        return (self._c[0] + ahead * self._e[0], self._c[1] + ahead * self._e[1])

    def still_holds(self, held: Plan) -> bool:
        """Return whether the measurement leaves the plan possible at all; see `Base`."""
        if not held.normals:
            return True
        bounds = [
            best_bound(n, self._c, partner, self._settings)
            for n, partner in zip(held.normals, self._partners, strict=True)
        ]
        if self._settings.passive:
            brake = sweep(self._model, self._heading, self._v, self._w, _REST, 0.0)
            return all(brake.ends_before(bound) for bound in bounds)
        return self._separates(self._sweep(held.command), held, bounds[0], hopeful=True)

    def candidates(self, nominal: Vector, held: Plan | None) -> Iterator[tuple[str, Vector]]:
        """Yield the projection on the rows, slower turns, blends with the answer, the answer."""
        best = self._projected(nominal)
        yield "rows", best
        for share in (*_SHARES, 0.0):
            yield "blend", (share * best[0], best[1])
        answer = self._answer(held)
        for share in _SHARES:
            yield (
                "blend",
                tuple([share * b + (1.0 - share) * a for a, b in zip(answer, best, strict=True)]),
            )
        if self._partners and not self._settings.passive:
            yield "escape", answer

    def _answer(self, held: Plan | None) -> Vector:
        """Return the robot's own answer to its partners: to flee, or to stop."""
        if not self._partners or self._settings.passive:
            return _REST
        if held and held.normals:
            return held.command
        ahead, aside = self._in_frame(self._seen_ahead()[0].normal)
        if self._escapes_at_once:
            speed = self._model.flight_speed(self._dt)
            return (speed * ahead, speed * aside / self._l)
        turn = math.copysign(self._model.max_yaw_rate, aside if ahead >= 0.0 else -aside)
        return (self._flight(ahead)[0], turn)

    def _projected(self, nominal: Vector) -> Vector:
        """Return the command nearest to ``nominal`` in v^2 + l^2 w^2 that meets the rows."""
        rows, walls = self._rows(nominal[0])
        q = (nominal[0], self._l * nominal[1])
        found = nearest(q, (*self._box, *rows), self._solver)
        if found is None and walls < len(rows):
            found = nearest(q, (*self._box, *rows[:walls]), self._solver)
        x, y = (0.0, q[1]) if found is None else found
        return self._limited(x, y / self._l)

    def _limited(self, v: float, w: float) -> Vector:
        """Return the command, each component moved to its limit where it is beyond."""
        model = self._model
        turn = model.max_yaw_rate
        return min(max(v, -model.max_reverse), model.max_speed), min(max(w, -turn), turn)

    def _rows(self, speed: float) -> tuple[list[Row], int]:
        """Return rows on (v, l w) if ``speed`` is driven at most, walls first, and their number."""
        if not self._near and not self._partners:
            return [], 0
        p, dt = self._point(), self._dt
        brake_s = 0.5 * max(abs(self._v), abs(speed)) / self._model.accel
        room = CANDIDATE_ROOM * self._around
        rows: list[Row] = []
        for _, _, level, gap in self._near[:MAX_ROWS]:
            distance, n = gap(p)
            rows.append((self._in_frame(n), -(distance - level - room) / (dt + brake_s)))
        walls = len(rows)
        for bound in self._seen_ahead():
            n = self._in_frame(bound.normal)
            if self._escapes_at_once:
                turn = self._model.max_yaw_rate
                lost = 0.5 * dt * turn * math.hypot(self._top, self._l * turn)
                come = bound.reach(dt)
                rows.append((n, (come - (bound.excess - self._around)) / dt + lost))
            else:
                come = bound.furthest_reach(dt + 2.0 * brake_s)
                rows.append((n, -(bound.excess - room - come) / (dt + brake_s)))
        return rows, walls

    def stop(self) -> Vector:
        """Return the command (0, 0)."""
        return _REST

    def separation(self, action: Vector) -> float:
        """Return n @ J u for the nearest partner, m/s; where it is to rest, minus |J u|."""
        if not self._partners:
            return 0.0
        if self._settings.passive:
            return -math.hypot(action[0], self._l * action[1])
        n = min(self._bounds, key=lambda bound: bound.excess).normal
        ahead, aside = self._in_frame(n)
        return action[0] * ahead + self._l * action[1] * aside

"""`VelocityBase` for many robots at once: the same formulas, one entry per robot.

Each class and function is the twin of the one of its name in `velocity`, which explains it; a
property test proves both equal.

Limits:  no command delay; the filter asks the scalar base there.
Axes:    N robots of a batch, M of them, J partners, d dimensions, R rows.
Units:   m, m/s, m/s^2, s.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup.base import ROUNDING_SPEED, BaseSettings
from cadenza.safety.backup.batched_reach import (
    BatchedPlans,
    BatchedScene,
    BatchedStatics,
    Bound,
    Flags,
    Pieces,
    Rows,
    dot,
    escape_gap,
    min_sep,
    nearest_each,
    norm,
    over,
    scaled,
)
from cadenza.safety.backup.reach import COINCIDENT, DISPROVED_M, ROUNDING_M
from cadenza.safety.backup.statics import TOLERANCE_M
from cadenza.safety.backup.velocity import HALVINGS, response_of
from cadenza.safety.control_models import VelocityModel
from cadenza.safety.solvers import make_solver


class Response:
    """How the velocities follow constant commands, shape (M, d) each: at once."""

    def __init__(self, model: VelocityModel) -> None:
        self.top: float = model.max_speed
        self.rate: float = model.max_accel

    def after(self, v: FloatArray, u: FloatArray, time_s: FloatArray | float) -> FloatArray:
        """Return the velocity after a time."""
        del v, time_s
        return u

    def path(self, x: FloatArray, v: FloatArray, u: FloatArray, dt: float) -> list[FloatArray]:
        """Return control points of one step, the last one its end."""
        del v
        return [x, x + u * dt]

    def stop_path(self, x: FloatArray, v: FloatArray) -> list[FloatArray]:
        """Return control points of stopping, the last one its end."""
        del v
        return [x]

    def pieces(
        self, n: FloatArray, v: FloatArray, u: FloatArray, time_s: FloatArray | None
    ) -> Pieces:
        """Return the speed along n; without a time, until u is reached."""
        del v
        along = dot(n, u)
        return [] if time_s is None else [(time_s, along, along)]

    def stop_time(self, v: FloatArray, tolerated: float) -> FloatArray:
        """Return how long the command 0 takes until the speed is tolerated."""
        del tolerated
        return np.zeros(len(v))

    def line(
        self, along: FloatArray, gap: FloatArray, fastest: FloatArray, dt: float
    ) -> FloatArray:
        """Return the levels of rows that keep gaps, shapes (M, R); ``fastest`` is (M, 1)."""
        del along, fastest
        return -gap / dt

    def escape(self, n: FloatArray, v1: FloatArray, cap: float) -> FloatArray:
        """Return V n."""
        del v1, cap
        return n * self.top

    def target(self, v: FloatArray, u: FloatArray, dt: float) -> FloatArray:
        """Return what rows restrict."""
        del v, dt
        return u

    def within(self, v: FloatArray, wanted: FloatArray, w: FloatArray, dt: float) -> FloatArray:
        """Return commands for w."""
        del v, wanted, dt
        return w

    def escape_level(self, v: FloatArray, w: FloatArray, bound: Bound, dt: float) -> FloatArray:
        """Return the least n @ w from which fleeing is possible if w changes along n only."""
        del v, w
        return (bound.reach(dt) - bound.excess) / dt

    def flees(
        self, v: FloatArray, u: FloatArray, v1: FloatArray, r: FloatArray, bound: Bound, dt: float
    ) -> FloatArray:
        """Return the least separation under u for dt and r for ever."""
        n = bound.normal
        pieces = self.pieces(n, v, u, np.full(len(v), dt)) + self.pieces(n, v1, r, None)
        return min_sep(bound, pieces, dot(n, r))

    def keeps(self, v: FloatArray, r: FloatArray, bound: Bound) -> FloatArray:
        """Return the least separation under r for ever."""
        return min_sep(bound, self.pieces(bound.normal, v, r, None), dot(bound.normal, r))

    def stops(
        self,
        v: FloatArray,
        u: FloatArray,
        v1: FloatArray,
        bound: Bound,
        dt: float,
        stop_s: FloatArray,
    ) -> FloatArray:
        """Return the least separation under u for dt and 0 for ``stop_s``."""
        n = bound.normal
        pieces = self.pieces(n, v, u, np.full(len(v), dt))
        pieces += self.pieces(n, v1, np.zeros_like(v1), stop_s)
        return min_sep(bound, pieces, math.inf)

    def rests(self, v: FloatArray, bound: Bound, tolerated: float) -> FloatArray:
        """Return the most that `stops` may have left after its step."""
        stop_s = self.stop_time(v, tolerated)
        pieces = self.pieces(-bound.normal, v, np.zeros_like(v), stop_s)
        return min_sep(bound, [(time_s, -begin, -end) for time_s, begin, end in pieces], math.inf)


class Straight(Response):
    """Straight to the command, at the rate c."""

    def after(self, v: FloatArray, u: FloatArray, time_s: FloatArray | float) -> FloatArray:
        """Return the velocity after a time."""
        way, change = u - v, self.rate * time_s
        length = norm(way)
        reached = length <= change
        return np.where(reached[:, None], u, v + scaled(way, over(change, length)))

    def path(self, x: FloatArray, v: FloatArray, u: FloatArray, dt: float) -> list[FloatArray]:
        """Return control points of the ramp and of what is left of the step at u."""
        rise_s = np.minimum(norm(u - v) / self.rate, dt)
        reached = self.after(v, u, rise_s)
        bend = x + scaled(v, 0.5 * rise_s)
        ramp = bend + scaled(reached, 0.5 * rise_s)
        return [x, bend, ramp, ramp + scaled(u, dt - rise_s)]

    def stop_path(self, x: FloatArray, v: FloatArray) -> list[FloatArray]:
        """Return control points of the ramp to 0."""
        bend = x + scaled(v, 0.5 * norm(v) / self.rate)
        return [bend, bend]

    def pieces(
        self, n: FloatArray, v: FloatArray, u: FloatArray, time_s: FloatArray | None
    ) -> Pieces:
        """Return the speed along n, exactly."""
        begin, end = dot(n, v), dot(n, u)
        rise_s = norm(u - v) / self.rate
        if time_s is None:
            return [(rise_s, begin, end)]
        late = rise_s >= time_s
        reached = np.where(late, begin + (end - begin) * over(time_s, rise_s), end)
        left = np.where(late, 0.0, time_s - rise_s)
        return [(np.minimum(rise_s, time_s), begin, reached), (left, end, end)]

    def escape(self, n: FloatArray, v1: FloatArray, cap: float) -> FloatArray:
        """Return ``v1`` where it flees, else the nearest command that does."""
        along = dot(n, v1)
        across = v1 - scaled(n, along)
        side = norm(across)
        flees = (along >= cap) & (np.hypot(along, side) <= self.top)
        along = np.minimum(np.maximum(along, cap), self.top)
        room = np.sqrt(np.maximum(self.top * self.top - along * along, 0.0))
        share = np.where(side <= room, 1.0, over(room, side))
        return np.where(flees[:, None], v1, scaled(n, along) + scaled(across, share))

    def stop_time(self, v: FloatArray, tolerated: float) -> FloatArray:
        """Return how long the ramp to 0 takes."""
        return np.maximum(0.0, norm(v) - tolerated) / self.rate

    def line(
        self, along: FloatArray, gap: FloatArray, fastest: FloatArray, dt: float
    ) -> FloatArray:
        """Return the levels: what a ramp to 0 covers grows linearly with n @ w."""
        stop_s = 0.5 * fastest / self.rate
        return -np.minimum(gap / (dt + stop_s), (gap + 0.5 * along * dt) / (0.5 * dt + stop_s))

    def target(self, v: FloatArray, u: FloatArray, dt: float) -> FloatArray:
        """Return the velocity after a step of u."""
        return self.after(v, u, dt)

    def within(self, v: FloatArray, wanted: FloatArray, w: FloatArray, dt: float) -> FloatArray:
        """Return w with less change across the way rows moved it."""
        push, change, limit = w - wanted, w - v, self.rate * dt
        length, squared = norm(push), dot(change, change)
        along = over(dot(push, change), length)
        room = np.sqrt(np.maximum(limit * limit - along * along, 0.0))
        share = np.minimum(room / np.sqrt(np.maximum(squared - along * along, 1e-300)), 1.0)
        line = v + scaled(push, over(along, length))
        fits = (squared <= limit * limit) | (length == 0.0)
        return np.where(fits[:, None], w, line + scaled(w - line, share))

    def escape_level(self, v: FloatArray, w: FloatArray, bound: Bound, dt: float) -> FloatArray:
        """Return the least n @ w that leaves the gap that fleeing takes."""
        n, top, rate, cap = bound.normal, self.top, self.rate, bound.cap
        along = dot(n, v)
        side = norm(w - scaled(n, dot(n, w)))
        spare = np.maximum(0.0, side - math.sqrt(max(top * top - cap * cap, 0.0)))
        later = bound.later(dt)

        def is_clear(level: FloatArray) -> Flags:
            short = cap - level
            growth = np.where(short > 0.0, over(rate * short, np.hypot(short, spare)), rate)
            ramp_s = np.minimum(np.abs(level - along) / rate, dt)
            gap = later.excess + level * dt - 0.5 * (level - along) * ramp_s
            return gap >= escape_gap(later, level, growth)

        change = rate * dt
        return _least(is_clear, np.maximum(along - change, -top), np.minimum(along + change, top))


class ByAxis(Straight):
    """Each component goes to the command's at the rate c."""

    def after(self, v: FloatArray, u: FloatArray, time_s: FloatArray | float) -> FloatArray:
        """Return the velocity after a time."""
        change = np.asarray(self.rate * time_s)
        change = change[:, None] if change.ndim else change
        return v + np.maximum(-change, np.minimum(u - v, change))

    def path(self, x: FloatArray, v: FloatArray, u: FloatArray, dt: float) -> list[FloatArray]:
        """Return control points: a piece ends where a component has reached its command."""
        return self._way(x, v, u, np.full(len(x), dt))

    def stop_path(self, x: FloatArray, v: FloatArray) -> list[FloatArray]:
        """Return control points of the ramps to 0."""
        return self._way(x, v, np.zeros_like(v), None)[1:]

    def _way(
        self, x: FloatArray, v: FloatArray, u: FloatArray, time_s: FloatArray | None
    ) -> list[FloatArray]:
        points, since = [x], np.zeros(len(x))
        for until in self._ends(v, u, time_s):
            span = until - since
            reached = self.after(v, u, span)
            bend = x + scaled(v, 0.5 * span)
            end = bend + scaled(reached, 0.5 * span)
            points += [bend, end]
            x, v, since = end, reached, until
        return points

    def pieces(
        self, n: FloatArray, v: FloatArray, u: FloatArray, time_s: FloatArray | None
    ) -> Pieces:
        """Return the speed along n, exactly."""
        pieces: Pieces = []
        since, begin = np.zeros(len(v)), dot(n, v)
        for until in self._ends(v, u, time_s):
            end = dot(n, self.after(v, u, until))
            pieces.append((until - since, begin, end))
            since, begin = until, end
        return pieces

    def _ends(self, v: FloatArray, u: FloatArray, time_s: FloatArray | None) -> list[FloatArray]:
        """Return where linear pieces of the velocity end within a time, in order."""
        ends: FloatArray = np.sort(np.abs(u - v) / self.rate, axis=1)
        if time_s is None:
            return list(ends.T)
        return [*np.minimum(ends, time_s[:, None]).T, time_s]

    def stop_time(self, v: FloatArray, tolerated: float) -> FloatArray:
        """Return how long the slowest component takes to 0."""
        slowest: FloatArray = np.abs(v).max(axis=1)
        return np.where(norm(v) <= tolerated, 0.0, slowest / self.rate)


class Lagging(Response):
    """The velocity approaches the command as exp(-s / T)."""

    def __init__(self, model: VelocityModel, lag_s: float) -> None:
        super().__init__(model)
        self._lag = lag_s

    def after(self, v: FloatArray, u: FloatArray, time_s: FloatArray | float) -> FloatArray:
        """Return the velocity after a time, the same for all."""
        return u + (v - u) * np.exp(-time_s / self._lag)

    def _travel(self, v: FloatArray, u: FloatArray, dt: float) -> FloatArray:
        return u * dt + (v - u) * (-self._lag * math.expm1(-dt / self._lag))

    def path(self, x: FloatArray, v: FloatArray, u: FloatArray, dt: float) -> list[FloatArray]:
        """Return x, the path of y = x + T v, and the end."""
        ahead = x + v * self._lag
        return [x, ahead, ahead + u * dt, x + self._travel(v, u, dt)]

    def stop_path(self, x: FloatArray, v: FloatArray) -> list[FloatArray]:
        """Return y, where the base comes to rest."""
        return [x + v * self._lag]

    def pieces(
        self, n: FloatArray, v: FloatArray, u: FloatArray, time_s: FloatArray | None
    ) -> Pieces:
        """Return chords where the speed along n grows, else tangents at both ends of a part."""
        if time_s is None:
            return []
        goal, begin = dot(n, u), dot(n, v)
        parts = 1 + np.minimum(3, (2.0 * time_s / self._lag).astype(np.int64))
        span = time_s / parts
        decay = np.exp(-span / self._lag)
        pieces: Pieces = []
        for part in range(int(parts.max(initial=0))):
            lasts = np.where(part < parts, span, 0.0)
            end = goal + (begin - goal) * decay
            fall, slower = (begin - goal) / self._lag, (end - goal) / self._lag
            grows = (begin <= goal + ROUNDING_SPEED) | (lasts == 0.0)
            bend_s = np.where(grows, lasts, over(begin - end - slower * span, fall - slower))
            bend = np.where(grows, end, begin - fall * bend_s)
            pieces += [(bend_s, begin, bend), (np.where(grows, 0.0, span - bend_s), bend, end)]
            begin = end
        return pieces

    def stop_time(self, v: FloatArray, tolerated: float) -> FloatArray:
        """Return how long the speed takes to decay."""
        speed = norm(v)
        return self._lag * np.log(np.maximum(speed, tolerated) / tolerated)

    def line(
        self, along: FloatArray, gap: FloatArray, fastest: FloatArray, dt: float
    ) -> FloatArray:
        """Return the levels that keep y beyond gaps."""
        del fastest
        return -(gap + self._lag * along) / dt

    def escape_level(self, v: FloatArray, w: FloatArray, bound: Bound, dt: float) -> FloatArray:
        """Return the least n @ w from which fleeing is possible, by a search."""
        n = bound.normal
        along = dot(n, w)

        def is_clear(level: FloatArray) -> Flags:
            u = w + scaled(n, level - along)
            v1 = self.after(v, u, dt)
            return self.flees(v, u, v1, self.escape(n, v1, bound.cap), bound, dt) >= 0.0

        return _least(is_clear, np.full(len(v), -self.top), np.full(len(v), self.top))

    def flees(
        self, v: FloatArray, u: FloatArray, v1: FloatArray, r: FloatArray, bound: Bound, dt: float
    ) -> FloatArray:
        """Return a lower bound of the least separation under u for dt and V n for ever."""
        del r
        n = bound.normal
        least = min_sep(bound, self.pieces(n, v, u, np.full(len(v), dt)), math.inf)
        left = bound.excess + dot(n, self._travel(v, u, dt)) - bound.reach(dt)
        return np.minimum(least, left - self._lost(dot(n, v1), bound.cap))

    def keeps(self, v: FloatArray, r: FloatArray, bound: Bound) -> FloatArray:
        """Return a lower bound of the least separation under V n for ever."""
        del r
        return bound.excess - self._lost(dot(bound.normal, v), bound.cap)

    def _lost(self, along: FloatArray, cap: float) -> FloatArray:
        """Return how much a partner at its cap gains until the base is as fast."""
        short, faster = np.maximum(cap - along, 0.0), self.top - cap
        lost = self._lag * short
        if faster > 0.0:
            lost = lost - faster * self._lag * np.log((faster + short) / faster)
        return lost


def _least(
    is_clear: Callable[[FloatArray], Flags], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return the least numbers in [low, high] that are clear, by halving; ``high`` if none is."""
    lowest, clear = low, is_clear(low)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        here = is_clear(middle)
        low, high = np.where(here, low, middle), np.where(here, middle, high)
    return np.where(clear, lowest, high)


def _response_of(model: VelocityModel) -> Response:
    if model.lag_s is not None:
        return Lagging(model, model.lag_s)
    return {"norm": Straight, "axis": ByAxis, "none": Response}[model.limit](model)


class BatchedVelocityBase:
    """Velocity-commanded bases of one model without a delay, as `BatchedBackupFilter` asks them."""

    def __init__(self, model: VelocityModel, settings: BaseSettings) -> None:
        self._settings, self._dt = settings, settings.dt
        self._response, self._top = _response_of(model), model.max_speed
        self._near_m = response_of(model).near_m(settings.dt)
        self._tolerated = settings.contact_speed + ROUNDING_SPEED
        self._solver = make_solver("daqp")

    def look(self, scene: BatchedScene, statics: BatchedStatics | None) -> None:
        """Take in the scene, and the obstacles as seen from there."""
        self._scene, self._x, self._v = scene, scene.positions, scene.velocities
        self._statics, self._limits = statics, scene.partners
        self._flees = bool(scene.partners) and not self._settings.passive
        everyone = np.arange(len(self._x))
        self._bounds = [
            self._bound(_normals(self._x - scene.partner_positions[:, j]), everyone, j)
            for j in range(len(self._limits))
        ]

    def _bound(self, n: FloatArray, rows: Rows, j: int) -> Bound:
        """Return partner j along n at the worst that it was measured."""
        scene, limit = self._scene, self._limits[j]
        excess = dot(n, self._x[rows] - scene.partner_positions[rows, j]) - scene.contacts_m[j]
        speed = dot(n, scene.partner_velocities[rows, j]) + self._settings.velocity_error
        speed = np.minimum(speed, limit.max_speed)
        bound = Bound(n, excess, speed, limit.max_accel, limit.max_speed)
        return bound.later(scene.ages_s[rows, j])

    def _hopeful(self, n: FloatArray, rows: Rows, j: int) -> Bound:
        """Return partner j along n at the least that contradicts a plan; see `best_bound`."""
        scene, limit, settings = self._scene, self._limits[j], self._settings
        age, cap = scene.ages_s[rows, j], limit.max_speed
        since = np.minimum(age, settings.dt)
        fled_s = age - since
        excess = dot(n, self._x[rows] - scene.partner_positions[rows, j]) - scene.contacts_m[j]
        excess = excess + (2.0 * settings.position_error_m + cap * fled_s + DISPROVED_M)
        speed = dot(n, scene.partner_velocities[rows, j]) - settings.velocity_error
        old = fled_s > 0.0
        if old.any():
            speed = np.where(old, speed - limit.max_accel * np.where(old, fled_s, 1.0), speed)
        bound = Bound(n, excess, np.clip(speed, -cap, cap), limit.max_accel, cap)
        return bound.later(since)

    def still_holds(self, held: BatchedPlans) -> Flags:
        """Return where nothing measured in this step disproves the remembered plan."""
        holds = held.exists.copy()
        (rows,) = np.nonzero(holds)
        if not self._flees:
            rows = rows[norm(self._v[rows]) > self._tolerated]
        response, v = self._response, self._v[rows]
        for j in range(len(self._limits)):
            bound = self._hopeful(held.normals[rows, j], rows, j)
            left = (
                response.keeps(v, held.commands[rows], bound)
                if self._flees
                else response.rests(v, bound, self._tolerated)
            )
            holds[rows] &= left >= 0.0
        return holds

    def admissible(self, nominal: FloatArray) -> tuple[FloatArray, Flags]:
        """Return the commands, scaled to the top speed, and which were within it."""
        size = norm(nominal)
        within = size <= self._top
        return np.where(within[:, None], nominal, scaled(nominal, over(self._top, size))), within

    def static_clear(
        self, rows: Rows, actions: FloatArray, *, resting: bool
    ) -> tuple[Flags, Flags]:
        """Return which steps are clear of obstacles, and for which only the scalar base can say.

        Args:
            rows: The robots, shape (M,).
            actions: Shape (M, d).
            resting: Whether they are the robot's own command 0.
        """
        if self._statics is None:
            return np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        path = np.stack(self._stopping_path(rows, actions), axis=1)
        return self._statics.is_clear(rows, path, TOLERANCE_M if resting else 0.0)

    def _stopping_path(self, rows: Rows, actions: FloatArray) -> list[FloatArray]:
        response, x, v = self._response, self._x[rows], self._v[rows]
        path = response.path(x, v, actions, self._dt)
        return path + response.stop_path(path[-1], response.after(v, actions, self._dt))

    def partner_plan(self, rows: Rows, actions: FloatArray, held: BatchedPlans) -> BatchedPlans:
        """Return the plans that are still possible after one step, shape (M, ...)."""
        response, v, dt = self._response, self._v[rows], self._dt
        v1 = response.after(v, actions, dt)
        if not self._flees:
            return self._stop_plans(rows, actions, v1)
        bound = self._bounds[0].at(rows)
        command = response.escape(bound.normal, v1, bound.cap)
        exists = response.flees(v, actions, v1, command, bound, dt) >= -ROUNDING_M
        normals = bound.normal.copy()
        (other,) = np.nonzero(~exists & held.exists)
        if len(other):
            bound = self._bound(held.normals[other, 0], rows[other], 0)
            v, actions, v1, r = v[other], actions[other], v1[other], held.commands[other]
            exists[other] = response.flees(v, actions, v1, r, bound, dt) >= -ROUNDING_M
            normals[other], command[other] = bound.normal, r
        keep = exists[:, None]
        normals = np.where(keep, normals, 0.0)[:, None]
        return BatchedPlans(exists, normals, np.where(keep, command, 0.0))

    def _stop_plans(self, rows: Rows, actions: FloatArray, v1: FloatArray) -> BatchedPlans:
        """Return the plans to stop that are clear of every partner after one step."""
        normals = np.zeros((len(rows), len(self._bounds), actions.shape[1]))
        response, v, dt = self._response, self._v[rows], self._dt
        stop_s = response.stop_time(v1, self._tolerated)
        now = response.after(v, actions, 0.0)
        slow = norm(np.maximum(np.abs(now), np.abs(actions))) <= self._tolerated
        clear = np.ones(len(rows), dtype=np.bool_)
        (todo,) = np.nonzero((stop_s > 0.0) | ~slow)
        for j, bound in enumerate(self._bounds):
            normals[:, j] = bound.normal[rows]
            step = (v[todo], actions[todo], v1[todo])
            here = response.stops(*step, bound.at(rows[todo]), dt, stop_s[todo]) >= -ROUNDING_M
            left = todo[~here]
            if not len(left):
                continue
            end = self._stopping_path(rows[left], actions[left])[-1]
            n = _normals(end - self._scene.partner_positions[rows[left], j])
            normals[left, j] = n
            there, step = self._bound(n, rows[left], j), (v[left], actions[left], v1[left])
            clear[left] = response.stops(*step, there, dt, stop_s[left]) >= -ROUNDING_M
            todo = todo[clear[todo]]
        return BatchedPlans(clear, clear[:, None, None] * normals, np.zeros_like(actions))

    def candidates(
        self, rows: Rows, nominal: FloatArray, held: BatchedPlans
    ) -> Iterator[tuple[str, FloatArray, Flags]]:
        """Yield source, actions, and where they are offered."""
        (best, moves), everywhere = self._projected(rows, nominal), np.ones(len(rows), np.bool_)
        fast = norm(nominal) >= self._top * (1.0 - ROUNDING_SPEED)
        yield "rows", best, moves | fast
        backup = self._backup(rows, held)
        for share in (0.75, 0.5, 0.25):
            yield "blend", backup + share * (best - backup), everywhere
        if self._flees:
            yield "escape", backup, everywhere

    def _backup(self, rows: Rows, held: BatchedPlans) -> FloatArray:
        if not self._flees:
            return np.zeros_like(self._x[rows])
        bound = self._bounds[0]
        escape = self._response.escape(bound.normal[rows], self._v[rows], bound.cap)
        return np.where(held.exists[:, None], held.commands, escape)

    def _projected(self, rows: Rows, nominal: FloatArray) -> tuple[FloatArray, Flags]:
        """Return the commands nearest to ``nominal`` that meet the rows, and which are others."""
        response, v, dt = self._response, self._v[rows], self._dt
        wanted = response.target(v, nominal, dt)
        fastest = np.maximum(norm(v), norm(nominal))
        normals, levels = [b.normal[rows][:, None] for b in self._bounds], list[FloatArray]()
        for bound in (b.at(rows) for b in self._bounds):
            if self._flees:
                levels.append(response.escape_level(v, wanted, bound, dt)[:, None])
                continue
            time_s = dt + response.stop_time(scaled(bound.normal, fastest), self._tolerated)
            gap = bound.excess - np.maximum(0.0, bound.reach(time_s))
            along = dot(bound.normal, v)
            levels.append(response.line(along, gap, fastest, dt)[:, None])
        if self._statics is not None:
            gap, n, counts = self._statics.near(rows, self._near_m)
            gap = np.where(counts, gap, 0.0)
            level = response.line(dot(n, v[:, None]), gap, fastest[:, None], dt)
            normals.append(n)
            levels.append(np.where(counts, level, -math.inf))
        if not levels:
            return nominal, np.zeros(len(rows), dtype=np.bool_)
        rows_of = np.concatenate(normals, axis=1), np.concatenate(levels, axis=1)
        found, changed = nearest_each(wanted, *rows_of, self._solver)
        command = self.admissible(response.within(v, wanted, found, dt))[0]
        return np.where(changed[:, None], command, nominal), changed

    def separation(self, rows: Rows, actions: FloatArray) -> FloatArray:
        """Return how strongly actions lead away from the nearest partner."""
        if not self._limits:
            return np.zeros(len(rows))
        return dot(self._bounds[0].normal[rows], actions) if self._flees else -norm(actions)


def _normals(offset: FloatArray) -> FloatArray:
    """Return unit vectors, shape (M, d); the first axis where there is no direction."""
    distance = norm(offset)
    near = distance < COINCIDENT
    n = offset / np.where(near, 1.0, distance)[:, None]
    return np.where(near[:, None], np.eye(offset.shape[1])[0], n)

"""`reach`, `statics` and `nearest` for many robots at once: the same formulas, one entry per robot.

Rare:    whether a path that bends around a corner keeps clear of it is left to the scalar test:
         `BatchedStatics.is_clear` says where. Corners of two rows are solved one after the other.
Axes:    M robots (some of those of a batch), K parts of obstacles, Z control points, d dimensions.
Units:   m, m/s, m/s^2, s.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup.base import INSIDE, MET, nearest
from cadenza.safety.backup.reach import SLOWER
from cadenza.safety.backup.statics import LEAST_ROOM_M, MAX_ROWS, ROUNDING_M, TOLERANCE_M
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Obstacles
from cadenza.safety.solvers import QPSolver

Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
#: Duration of a piece, sigma at its begin and at its end, shape (M,) each; none where it is 0.
Pieces: TypeAlias = list[tuple[FloatArray, FloatArray, FloatArray]]
#: Smallest divisor: where it stands in for zero, the quotient is not used.
_TINY: Final = 1e-300


def dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return a @ b of each robot, summed as plain numbers are."""
    total: FloatArray = a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]
    return total + a[..., 2] * b[..., 2] if a.shape[-1] == 3 else total


def norm(a: FloatArray) -> FloatArray:
    """Return the length of each vector."""
    length: FloatArray = np.hypot(a[..., 0], a[..., 1])
    return np.hypot(length, a[..., 2]) if a.shape[-1] == 3 else length


def over(a: FloatArray | float, b: FloatArray) -> FloatArray:
    """Return a / b, and anything where b is zero."""
    return a / np.where(b == 0.0, _TINY, b)


def scaled(vectors: FloatArray, factors: FloatArray) -> FloatArray:
    """Return each vector times its factor."""
    return vectors * factors[:, None]


class Bound(NamedTuple):
    """A partner of each robot along one direction; see `reach.Bound`.

    Attributes:
        normal: n, shape (M, d).
        excess: e, shape (M,), m.
        speed: pi, shape (M,), m/s.
        accel: a_p, m/s^2.
        cap: v_p, m/s.
    """

    normal: FloatArray
    excess: FloatArray
    speed: FloatArray
    accel: float
    cap: float

    def at(self, rows: Rows | Flags) -> "Bound":
        """Return the same of some robots."""
        normal, excess, speed, accel, cap = self
        return Bound(normal[rows], excess[rows], speed[rows], accel, cap)

    def reach(self, time_s: FloatArray | float) -> FloatArray:
        """Return P(s), m."""
        _, _, speed, accel, cap = self
        rise = cap - speed
        if accel == math.inf:
            return np.where(np.asarray(time_s) > 0.0, cap * time_s, 0.0 * speed)
        late = cap * time_s - (0.5 * rise * rise / accel if accel > 0.0 else 0.0)
        return np.where(rise <= accel * time_s, late, (speed + 0.5 * accel * time_s) * time_s)

    def later(self, time_s: FloatArray | float) -> "Bound":
        """Return the partners after some times, at the worst."""
        _, excess, speed, accel, cap = self
        if not np.any(time_s):
            return self
        if accel == math.inf:
            speed = np.where(np.asarray(time_s) > 0.0, cap, speed)
        else:
            speed = np.minimum(speed + accel * time_s, cap)
        return self._replace(excess=excess - self.reach(time_s), speed=speed)


def escape_gap(bound: Bound, along: FloatArray, rate: FloatArray) -> FloatArray:
    """Return Psi, m; see `reach.escape_gap`."""
    _, _, speed, accel, cap = bound
    rate = np.maximum(rate, _TINY)
    if accel == math.inf:
        closing = np.maximum(cap - along, 0.0)
        return 0.5 * closing * closing / rate
    closing = speed - along
    rise_s = (cap - speed) / accel if accel > 0.0 else np.where(speed < cap, math.inf, 0.0)
    finite_s = np.where(rise_s < math.inf, rise_s, 0.0)
    early = (rate > accel) & (closing <= (rate - accel) * np.where(rate > accel, rise_s, 0.0))
    gap = np.where(closing > 0.0, over(0.5 * closing * closing, rate - accel), 0.0)
    more = np.where(rise_s > 0.0, accel - rate, 0.0)
    fastest = closing + more * finite_s
    way = closing * finite_s + 0.5 * more * finite_s * finite_s
    later = np.maximum(0.0, way + 0.5 * fastest * fastest / rate)
    gap = np.where(early, gap, np.where(fastest <= 0.0, 0.0, later))
    return np.where(along >= cap, 0.0, gap)


def min_sep(bound: Bound, pieces: Pieces, final: FloatArray | float) -> FloatArray:
    """Return the least separation over all times, m; see `reach.min_sep`."""
    _, excess, speed, accel, cap = bound
    if accel == math.inf:
        speed = np.full_like(speed, cap)
    least = excess
    for duration, begin, end in pieces:
        if accel == math.inf:
            least, excess = _fall(least, excess, duration, cap - begin, cap - end)
            continue
        rises = speed < cap
        rise_s = (cap - speed) / accel if accel > 0.0 else np.where(rises, math.inf, 0.0)
        split = rises & (rise_s < duration)
        first_s = np.where(rises, np.minimum(rise_s, duration), 0.0)
        middle = begin + (end - begin) * over(first_s, duration)
        faster = np.where(split, cap, np.minimum(speed + accel * first_s, cap))
        stop = np.where(split, middle, end)
        least, excess = _fall(least, excess, first_s, speed - begin, faster - stop)
        left = np.where(rises, np.where(split, duration - first_s, 0.0), duration)
        first = np.where(rises, middle, begin)
        least, excess = _fall(least, excess, left, cap - first, cap - end)
        speed = np.where(rises, faster, speed)
    return np.where(np.asarray(final) < cap - SLOWER, -math.inf, least)


def _fall(
    least: FloatArray,
    excess: FloatArray,
    duration: FloatArray,
    begin: FloatArray,
    end: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the least separation so far, and the one after a piece of linear closing speed, m."""
    after = excess - 0.5 * (begin + end) * duration
    inside = excess - over(0.5 * begin * begin * duration, begin - end)
    lowest = np.where((begin > 0.0) & (end < 0.0), inside, after)
    return np.where(duration > 0.0, np.minimum(least, lowest), least), after


class BatchedStatics:
    """Obstacles as seen from each robot; see `statics.StaticScene`.

    Args:
        groups: Obstacles, and the rows of the robots among them.
        x: Centers, shape (N, d), m.
        clearance_m: Distance of the centers from every obstacle that is kept, m.
    """

    def __init__(
        self, groups: Sequence[tuple[Obstacles, Rows]], x: FloatArray, clearance_m: float
    ) -> None:
        self._groups, self._x = groups, x
        self._group = np.zeros(len(x), dtype=np.intp)
        for index, (_, rows) in enumerate(groups):
            self._group[rows] = index
        self._parts = max(len(one) for one, _ in groups)
        distance, normal = self.gaps(np.arange(len(x)), x)
        self.normal: FloatArray = normal
        self.level: FloatArray = np.minimum(distance - LEAST_ROOM_M, clearance_m - ROUNDING_M)
        self.room: FloatArray = distance - self.level
        #: Distance of every part less the clearance, shape (N, K), m; infinite where there is none.
        self.excess: FloatArray = distance - clearance_m
        self.too_close: Flags = np.any(self.excess < -TOLERANCE_M, axis=1)

    def gaps(self, rows: Rows, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return distances (M, K) and normals (M, K, d) of one point for each of some robots."""
        if len(self._groups) == 1:
            return self._groups[0][0].gaps(points)
        distance = np.full((len(rows), self._parts), math.inf)
        normal = np.zeros((*distance.shape, points.shape[1]))
        group = self._group[rows]
        for index, (obstacles, _) in enumerate(self._groups):
            (mine,) = np.nonzero(group == index)
            if len(mine) and len(obstacles):
                found = obstacles.gaps(points[mine])
                distance[mine, : len(obstacles)], normal[mine, : len(obstacles)] = found
        return distance, normal

    def is_clear(
        self, rows: Rows, path: FloatArray, spare_m: FloatArray | float = 0.0
    ) -> tuple[Flags, Flags]:
        """Return which paths stay at every part's level, and for which this test cannot say.

        Args:
            rows: The robots, shape (M,).
            path: Control points, shape (M, Z, d), from the position to where it rests, m.
            spare_m: How far below its level each part is let, shape (M,), m.
        """
        x = self._x[rows]
        length = norm(path - x[:, None]).max(axis=1)
        spare = np.broadcast_to(spare_m, (len(rows),))
        clear, unsure = np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
        mine, part = np.nonzero(self.room[rows] + spare[:, None] < length[:, None])
        if not len(mine):
            return clear, unsure
        room = self.room[rows[mine], part] + spare[mine]
        along = np.einsum("qd,qzd->qz", self.normal[rows[mine], part], (path - x[:, None])[mine])
        left = room + along.min(axis=1) < 0.0
        if not left.any():
            return clear, unsure
        mine, part = mine[left], part[left]
        some, place = np.unique(mine, return_inverse=True)
        end = path[some, -1]
        distance, normal = self.gaps(rows[some], end)
        room = distance[place, part] - (self.level[rows[mine], part] - spare[mine])
        along = np.einsum("qd,qzd->qz", normal[place, part], path[mine] - end[place][:, None])
        clear[mine[room < 0.0]] = False
        unsure[mine[(room >= 0.0) & (room + along.min(axis=1) < 0.0)]] = True
        return clear, unsure & clear

    def near(self, rows: Rows, length_m: float) -> tuple[FloatArray, FloatArray, Flags]:
        """Return excess (M, R), normals (M, R, d) of the nearest parts, and which count.

        What counts has an excess below a length.
        """
        excess = self.excess[rows]
        if self._parts <= MAX_ROWS:
            return excess, self.normal[rows], excess < length_m
        found = np.argsort(excess, axis=1, kind="stable")[:, :MAX_ROWS]
        excess = np.take_along_axis(excess, found, axis=1)
        return excess, self.normal[rows[:, None], found], excess < length_m


class BatchedScene(NamedTuple):
    """What one decision depends on besides the nominal actions; see `base.Scene`.

    Attributes:
        positions: Of the robots, shape (N, d), m.
        velocities: Shape (N, d), m/s.
        headings: Shape (N,), rad; 0 for robots without.
        yaw_rates: Shape (N,), rad/s; 0 for robots without.
        partner_positions: Shape (N, J, d), m.
        partner_velocities: Shape (N, J, d), m/s.
        partners: Their bounds.
        contacts_m: D of each partner, shape (J,), m.
        ages_s: Shape (N, J), s.
        clearance_m: Distance of the robots' centers from obstacles that is kept, m.
    """

    positions: FloatArray
    velocities: FloatArray
    headings: FloatArray
    yaw_rates: FloatArray
    partner_positions: FloatArray
    partner_velocities: FloatArray
    partners: tuple[PartnerBound, ...]
    contacts_m: FloatArray
    ages_s: FloatArray
    clearance_m: float


class BatchedPlans(NamedTuple):
    """A plan of each robot, see `base.Plan`; zeros where there is none.

    Attributes:
        exists: Whether there is one, shape (N,).
        normals: Shape (N, J, d).
        commands: Shape (N, A).
    """

    exists: Flags
    normals: FloatArray
    commands: FloatArray

    def at(self, rows: Rows | Flags) -> "BatchedPlans":
        """Return the plans of some robots."""
        return BatchedPlans(self.exists[rows], self.normals[rows], self.commands[rows])

    def put(self, rows: Rows | Flags, plans: "BatchedPlans") -> None:
        """Remember plans of some robots."""
        self.exists[rows], self.normals[rows] = plans.exists, plans.normals
        self.commands[rows] = plans.commands


def nearest_each(
    target: FloatArray, normals: FloatArray, levels: FloatArray, solver: QPSolver
) -> tuple[FloatArray, Flags]:
    """Return the points nearest to targets that meet their rows, and which moved; see `nearest`.

    Args:
        target: Shape (M, d).
        normals: Shape (M, R, d).
        levels: Shape (M, R); minus infinity where a row does not count.
        solver: For corners of two rows, one after the other.
    """
    short = levels - dot(normals, target[:, None])
    worst = short.argmax(axis=1)
    everyone = np.arange(len(target))
    most = short[everyone, worst]
    moves = most > MET
    point = target + scaled(normals[everyone, worst], np.where(moves, most, 0.0) + INSIDE)
    left = (levels - dot(normals, point[:, None])).max(axis=1) > MET
    for row in np.flatnonzero(moves & left).tolist():
        some = zip(normals[row].tolist(), levels[row].tolist(), strict=True)
        lines = [(tuple(n), level) for n, level in some if level > -math.inf]
        found = nearest(tuple(target[row].tolist()), lines, solver)
        moves[row] = found is not None
        if found is not None:
            point[row] = found
    return point, moves

"""Paths that keep clear of obstacles, and the rows that propose them.

Path:     pieces one after another, each within the convex hull of some control points. A piece may
          be wider than a curve: whatever plant a step has lies in the hull.
Test:     for a convex K, any y, and n the unit vector from the closest point of K to y,
              dist(z, K) >= dist(y, K) + n @ (z - y) for all z,
          which is affine in z: where it is >= L at the control points, the whole piece is L away.
          Tried are y = the position, the end of the path, the ends of each piece, and points
          along straight edges, halving the interval that holds the closest one. Exact for
          half-spaces and straight pieces; sound for everything.
Skipped:  what is farther away than the path is long.
Level:    L = clearance. What is measured nearer than that may come no nearer (L = its distance),
          or measurement noise would freeze a robot beside a wall.
Theorem:  A in docs/safety.md.
Axes:     d Cartesian dimensions, K parts of the obstacles.
Units:    m.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.safety.geometry import Gap, Obstacles, Vector, ball_gap

#: Control points of one piece. Their first two are the ends of a straight edge of it, and so are
#: the third and the fourth where there are four.
Piece: TypeAlias = Sequence[Vector]
#: One part: room to its level, m; normal at the position; the level, m; its distance function.
Part: TypeAlias = tuple[float, Vector, float, Gap]
#: Distance that is rounding of positions, m.
ROUNDING_M: Final = 1e-9
#: How far below its distance the level of a part that is too close lies, m: with none, rounding
#: would decide whether a robot may leave it. Less than 0.1 mm in a million steps.
LEAST_ROOM_M: Final = 1e-11
#: How much nearer than its clearance a robot has to be measured for that to be reported, m.
TOLERANCE_M: Final = 1e-6
#: Halvings of an edge: to 1e-9 of its length.
_HALVINGS: Final = 30
#: Squared length below which an edge is one point, m^2.
_SHORTEST_SQUARED: Final = 1e-24
#: Most obstacles that propose rows: the nearest.
MAX_ROWS: Final = 8


class StaticScene:
    """Obstacles as seen from one position.

    Args:
        obstacles: The obstacles, of the position's dimension.
        position: Center of the robot's ball, d numbers, m.
        clearance_m: Distance of the center from every obstacle that is kept, m.
    """

    def __init__(self, obstacles: Obstacles, position: Vector, clearance_m: float) -> None:
        self._x = position
        lowest = clearance_m - ROUNDING_M
        #: Of each solid: room to its level, normal, excess over the clearance, level, distance.
        self._solids: list[tuple[float, Vector, float, float, Gap]] = []
        for gap in obstacles.solids:
            distance, normal = gap(position)
            level = min(lowest, distance - LEAST_ROOM_M)
            self._solids.append((distance - level, normal, distance - clearance_m, level, gap))
        self._balls = _Balls(obstacles, position, clearance_m) if len(obstacles.radii) else None

    @property
    def margins(self) -> tuple[float, ...]:
        """Distance of every part less the clearance, K numbers, m."""
        own = tuple([one[2] for one in self._solids])
        return own if self._balls is None else own + tuple(self._balls.excess.tolist())

    @property
    def excess(self) -> FloatArray:
        """The same as an array, shape (K,), without making numbers of a scan's."""
        own = np.array([one[2] for one in self._solids], dtype=np.float64)
        return own if self._balls is None else np.concatenate([own, self._balls.excess])

    @property
    def room(self) -> float:
        """Distance to the nearest level, m, >= 0: shorter paths are clear; inf without parts."""
        room = math.inf if self._balls is None else self._balls.room
        for one in self._solids:
            if one[0] < room:
                room = one[0]
        return room

    @property
    def too_close(self) -> bool:
        """Whether a part is nearer than the clearance, so that only "no nearer" is promised."""
        for one in self._solids:
            if one[2] < -TOLERANCE_M:
                return True
        return self._balls is not None and float(self._balls.excess.min()) < -TOLERANCE_M

    def is_clear(self, pieces: Sequence[Piece], length_m: float, spare_m: float = 0.0) -> bool:
        """Return whether a path stays at every part's level.

        Args:
            pieces: The path, from the position on.
            length_m: No point of it is farther from the position, m.
            spare_m: How far below its level each part is let, m.
        """
        x = self._x
        for room, normal, _, level, gap in self._solids:
            room += spare_m
            if room < length_m and not (
                _least(room, normal, x, pieces) >= 0.0 or _keeps(gap, level - spare_m, pieces)
            ):
                return False
        return self._balls is None or self._balls.keep(pieces, length_m, spare_m)

    def within(self, length_m: float) -> list[Part]:
        """Return the parts that a path of this length could bring below their level."""
        found = [
            (room, n, level, gap) for room, n, _, level, gap in self._solids if room < length_m
        ]
        return found if self._balls is None else found + self._balls.within(length_m)

    def near(self, length_m: float) -> list[tuple[float, Vector]]:
        """Return excess and normal of the nearest parts whose excess is below a length."""
        found = [(excess, normal) for _, normal, excess, _, _ in self._solids if excess < length_m]
        if self._balls is not None:
            found += self._balls.near(length_m)
        if len(found) > MAX_ROWS:
            found.sort()
        return found[:MAX_ROWS]


def _least(room: float, n: Vector, y: Vector, pieces: Sequence[Piece]) -> float:
    """Return the least room + n @ (z - y) over the control points z."""
    least = room
    if len(n) == 2:
        n_0, n_1 = n
        room -= n_0 * y[0] + n_1 * y[1]
        for piece in pieces:
            for z in piece:
                value = room + n_0 * z[0] + n_1 * z[1]
                if value < least:
                    least = value
        return least
    n_0, n_1, n_2 = n
    room -= n_0 * y[0] + n_1 * y[1] + n_2 * y[2]
    for piece in pieces:
        for z in piece:
            value = room + n_0 * z[0] + n_1 * z[1] + n_2 * z[2]
            if value < least:
                least = value
    return least


def _keeps(gap: Gap, level: float, pieces: Sequence[Piece]) -> bool:
    """Return whether all pieces stay at a level of one convex set."""
    end = pieces[-1][-1]
    distance, normal = gap(end)
    room = distance - level
    if room < 0.0:
        return False
    if _least(room, normal, end, pieces) >= 0.0:
        return True
    return all(_keeps_piece(gap, level, piece) for piece in pieces)


def _keeps_piece(gap: Gap, level: float, piece: Piece) -> bool:
    """Return whether one piece stays at a level of one convex set."""
    for y in (piece[0], piece[-1]):
        distance, normal = gap(y)
        room = distance - level
        if room < 0.0:
            return False
        if _least(room, normal, y, (piece,)) >= 0.0:
            return True
    for j, k in _edges(len(piece)):
        found = _closest_keeps(gap, level, piece, piece[j], piece[k])
        if found is not None:
            return found
    return False


def _edges(points: int) -> list[tuple[int, int]]:
    """Return the ends of the edges of a piece that are looked at, by index.

    The last one, from end to end, is for straight pieces: without it a robot that brakes past a
    corner would be judged by no plane at the point of its path that is nearest.
    """
    return [*((k, k + 1) for k in range(0, points - 1, 2)), (0, points - 1)]


def _closest_keeps(gap: Gap, level: float, piece: Piece, start: Vector, end: Vector) -> bool | None:
    """Return whether the plane at the closest point of an edge settles a piece; None if not."""
    low, high = 0.0, 1.0
    way = [b - a for a, b in zip(start, end, strict=True)]
    for _ in range(_HALVINGS):
        share = 0.5 * (low + high)
        y = tuple([a + share * w for a, w in zip(start, way, strict=True)])
        distance, normal = gap(y)
        room = distance - level
        if room < 0.0:
            return False
        if _least(room, normal, y, (piece,)) >= 0.0:
            return True
        slope = sum([n * w for n, w in zip(normal, way, strict=True)])
        if slope > 0.0:
            high = share
        else:
            low = share
    return None


class _Balls:
    """Balls around many points: the same tests, all balls in one call."""

    def __init__(self, obstacles: Obstacles, position: Vector, clearance_m: float) -> None:
        self._x = np.array(position)
        self._centers = obstacles.centers
        self._offset = self._x - self._centers
        self._distance = _lengths(self._offset)
        self._kept = obstacles.radii + clearance_m  # of the centers
        self.excess: FloatArray = self._distance - self._kept
        #: Distance of the centers that is kept, or measured where that is less.
        self._level = np.minimum(self._kept - ROUNDING_M, self._distance - LEAST_ROOM_M)
        self.room = float((self._distance - self._level).min())

    def near(self, length_m: float) -> list[tuple[float, Vector]]:
        """Return excess and normal of the nearest balls whose excess is below a length."""
        (found,) = np.nonzero(self.excess < length_m)
        found = found[np.argsort(self.excess[found], kind="stable")[:MAX_ROWS]]
        normals = self._offset[found] / np.maximum(self._distance[found], ROUNDING_M)[:, None]
        rows: list[list[float]] = normals.tolist()
        return [(excess, tuple(n)) for excess, n in zip(self.excess[found], rows, strict=True)]

    def within(self, length_m: float) -> list[Part]:
        """Return the balls that a path of this length could bring below their level."""
        room: FloatArray = self._distance - self._level
        (found,) = np.nonzero(room < length_m)
        x: Vector = tuple(self._x.tolist())
        parts: list[Part] = []
        for center, level in zip(self._centers[found].tolist(), self._level[found], strict=True):
            gap = ball_gap(tuple(center), 0.0)
            distance, normal = gap(x)
            parts.append((distance - float(level), normal, float(level), gap))
        return parts

    def keep(self, pieces: Sequence[Piece], length_m: float, spare_m: float) -> bool:
        """Return whether a path stays at every ball's level; see `StaticScene.is_clear`."""
        (left,) = np.nonzero(self._distance - self._level + spare_m < length_m)
        if not len(left):
            return True
        points = np.array([z for piece in pieces for z in piece])
        # The planes at the position, whose normals every candidate of a step shares.
        normal = self._offset[left] / np.maximum(self._distance[left], ROUNDING_M)[:, None]
        along = (normal @ (points - self._x).T).min(axis=1)
        left = left[self._distance[left] + along < self._level[left] - spare_m]
        if not len(left):
            return True
        end = points[-1]
        if bool((_lengths(end - self._centers[left]) < self._level[left] - spare_m).any()):
            return False
        left = self._unsettled(left, spare_m, points, end)
        return not len(left) or all(
            self._keep_piece(left, spare_m, np.array(piece)) for piece in pieces
        )

    def _keep_piece(self, left: NDArray[np.intp], spare_m: float, points: FloatArray) -> bool:
        """Return whether one piece stays at the level of the balls that are left."""
        for y in (points[0], points[-1]):
            left = self._unsettled(left, spare_m, points, y)
        for j, k in _edges(len(points)):
            start, way = points[j], points[k] - points[j]
            squared = max(float(way @ way), _SHORTEST_SQUARED)
            share = np.clip((self._centers[left] - start) @ way / squared, 0.0, 1.0)
            left = self._unsettled(left, spare_m, points, start + share[:, None] * way)
        return not len(left)

    def _unsettled(
        self, left: NDArray[np.intp], spare_m: float, points: FloatArray, y: FloatArray
    ) -> NDArray[np.intp]:
        """Return which balls the planes at their points nearest to ``y`` leave open.

        ``y`` is one point, shape (d,), or one for each ball.
        """
        offset = y - self._centers[left]
        distance = _lengths(offset)
        # Without a direction the plane says that distances are >= 0.
        normal = offset / np.where(distance > 0.0, distance, 1.0)[:, None]
        along = normal @ points.T - np.einsum("ij,ij->i", normal, y + 0.0 * normal)[:, None]
        return left[distance + along.min(axis=1) < self._level[left] - spare_m]


def _lengths(vectors: FloatArray) -> FloatArray:
    """Return the lengths of N vectors, shape (N, d)."""
    planar: FloatArray = np.hypot(vectors[:, 0], vectors[:, 1])
    return planar if vectors.shape[1] == 2 else np.hypot(planar, vectors[:, 2])

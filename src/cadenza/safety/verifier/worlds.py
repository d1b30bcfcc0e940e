"""Worlds that a robot is attacked in: shapes that stand still, and where robots may start.

Free:          nothing stands anywhere.
Corridor:      two parallel walls with 0.3 to 2 m of play for the robot's ball.
Corner:        two walls that meet at 40 to 150 degrees, turned anyhow.
Funnel:        two walls that meet at 9 to 34 degrees: braking rows conflict in it.
Room:          walls on all sides, 3 to 6 m apart.
Boxes, clutter: a room with boxes, or with balls and capsules, in it.
Axes:          d = 2 or 3 Cartesian dimensions; in 3-D walls are planes and a corner is an edge.
Units:         m, rad.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.geometry import Ball, Box, Capsule, HalfSpace, Obstacles, Shape
from cadenza.safety.maps import load_map, map_extent

#: Half the width of the region in which robots start where no wall ends it, m.
_REGION_M: Final = 3.0
#: How often a place is drawn before a world counts as full.
_TRIES: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What stands around the robots.

    Attributes:
        name: What it is called in reports.
        obstacles: Its shapes.
        low: Corner of the region in which robots start, shape (d,), m.
        high: The opposite corner, shape (d,), m.
    """

    name: str
    obstacles: Obstacles
    low: FloatArray
    high: FloatArray

    def gap(self, points: FloatArray) -> FloatArray:
        """Return the distances of ``points``, (N, d), to the nearest shape, (N,), m."""
        distances, _ = self.obstacles.gaps(points)
        return distances.min(axis=1, initial=math.inf)

    def nearest(self, point: FloatArray) -> FloatArray:
        """Return the unit vector from ``point``, (d,), to the nearest shape; zero without any."""
        distances, normals = self.obstacles.gaps(point)
        return -normals[distances.argmin()] if distances.size else np.zeros(len(point))

    def place(self, clearance_m: float, rng: np.random.Generator) -> FloatArray:
        """Return a point of the region that is ``clearance_m`` away from every shape, (d,).

        Raises:
            ConfigurationError: None was found.
        """
        for _ in range(_TRIES):
            point = rng.uniform(self.low, self.high)
            if self.gap(point[None])[0] >= clearance_m:
                return point
        raise ConfigurationError(
            f"world {self.name}: expected room for a ball of radius {clearance_m:g} m between "
            f"{self.low.tolist()} and {self.high.tolist()}, found none; is the map closed?"
        )


#: Kinds of worlds.
WORLDS: Final = ("free", "corridor", "corner", "funnel", "room", "boxes", "clutter")
#: Angles at which the walls of a corner and of a funnel meet, rad.
_ANGLES: Final = {"corner": (0.7, 2.6), "funnel": (0.16, 0.6)}


def draw_world(kind: str, dim: int, radius_m: float, rng: np.random.Generator) -> World:
    """Return a world of one of `WORLDS` in which a ball of ``radius_m`` finds room."""
    region = np.full(dim, _REGION_M)
    if kind == "free":
        return _world(kind, [], -region, region)
    if kind == "corridor":
        half = radius_m + 0.5 * rng.uniform(0.3, 2.0)
        normal = _rotation(dim, rng)[0]
        walls = [HalfSpace(normal, -half), HalfSpace(-normal, -half)]
        return _world(kind, walls, -region, region)
    if kind in _ANGLES:
        half = 0.5 * float(rng.uniform(*_ANGLES[kind]))
        along, across = _rotation(dim, rng)[:2]
        walls = [
            HalfSpace(math.sin(half) * along + side * math.cos(half) * across, 0.0)
            for side in (1.0, -1.0)
        ]
        # The ball is as wide as the wedge at radius / sin(half) from the edge.
        middle = along * (1.5 + 2.0 * radius_m / math.sin(half))
        return _world(kind, walls, middle - region, middle + region)
    size = rng.uniform(1.5 if kind == "room" else 1.8, 3.0, size=dim)
    walls = [
        HalfSpace(side * axis, -half)
        for axis, half in zip(np.eye(dim), size.tolist(), strict=True)
        for side in (1.0, -1.0)
    ]
    return _world(kind, [*walls, *_furniture(kind, size, rng)], -size, size)


def _furniture(kind: str, size: FloatArray, rng: np.random.Generator) -> list[Shape]:
    """Return what stands in a room of half widths ``size``."""
    dim = len(size)
    inside: list[Shape] = []
    for _ in range(int(rng.integers(2, 5)) if kind == "boxes" else 0):
        turn: dict[str, Any] = {"rotation": _rotation(3, rng)}
        if dim == 2:
            turn = {"angle": float(rng.uniform(-math.pi, math.pi))}
        inside.append(Box(rng.uniform(-size, size), rng.uniform(0.1, 0.5, size=dim), **turn))
    balls = int(rng.integers(2, 4)) if kind == "clutter" else 0
    inside += [Ball(rng.uniform(-size, size), float(rng.uniform(0.1, 0.5))) for _ in range(balls)]
    for _ in range(int(rng.integers(1, 3)) if kind == "clutter" else 0):
        start = rng.uniform(-size, size)
        end = start + rng.uniform(0.2, 1.2) * _rotation(dim, rng)[0]
        inside.append(Capsule(start, end, float(rng.uniform(0.05, 0.2))))
    return inside


def mapped(path: str) -> World:
    """Return the world of a map file, in which robots start anywhere that is not solid.

    Raises:
        ConfigurationError: The file cannot be read, or is no map.
    """
    obstacles = load_map(path)
    low, high = map_extent(obstacles)
    return World(Path(path).stem, obstacles, low, high)


def _world(name: str, shapes: Sequence[Shape], low: FloatArray, high: FloatArray) -> World:
    return World(name, Obstacles(tuple(shapes)), low, high)


def _rotation(dim: int, rng: np.random.Generator) -> FloatArray:
    """Return a random rotation, shape (d, d)."""
    axes, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    if np.linalg.det(axes) < 0.0:
        axes[:, 0] *= -1.0
    return axes

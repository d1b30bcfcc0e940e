"""Bodies made of spheres, their distances, and convex shapes that robots keep away from.

Distance:   signed, m: gap between the surfaces, negative on overlap.
Gradient:   of the distance with respect to the first body's position.
Shapes:     of a shape K, gap(y) is the signed distance of a point y, with the unit vector n from
            the closest point of K's surface to y (out of K if y is inside). For a convex K that
            is a subgradient of a convex function, inside and outside:
            gap(z) >= gap(y) + n @ (z - y) for all z (Rockafellar, Convex Analysis, section 23).
Coverage:   spheres of radius R, spaced s along a segment, contain the capsule of radius r around
            it iff s <= 2 sqrt(R^2 - r^2) and the outermost centres are its ends.
Axes:       N spheres of a cloud or points, K convex parts, d = 2 or 3 Cartesian components; world
            frame unless said otherwise.
Units:      m.
Limits:     what is not convex is covered by several shapes; `SphereCloud` and its functions are
            3-D, `Polygon` is 2-D.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Final, Protocol, TypeAlias, cast

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, real_array, shown
from cadenza.core.errors import InputError, refuse

#: Distance of two centres below which no direction leads from one to the other, m; the gradient
#: is then +x, and any fixed choice separates them.
COINCIDENT_TOL: Final = 1e-12
#: Largest coordinate, m: squares of differences stay far from overflow.
MAX_COORDINATE: Final = 1e12
#: How far R^T R may be from the identity, per entry; far above float64 rounding of a rotation
#: and far below what would change a radius by a micrometre.
_ROTATION_TOL: Final = 1e-6
#: A point or a direction as plain floats, d of them.
Vector: TypeAlias = tuple[float, ...]
#: Signed distance of a point to one shape, m, and the unit normal.
Gap: TypeAlias = Callable[[Vector], tuple[float, Vector]]


@dataclass(frozen=True, slots=True, eq=False)
class SphereCloud:
    """A body covered by balls; its length is their number, which may be zero.

    Attributes:
        centers: Shape (N, 3), m.
        radii: Shape (N,), m, > 0.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    centers: FloatArray
    radii: FloatArray

    def __post_init__(self) -> None:
        radii = _frozen("SphereCloud.radii", self.radii, (np.size(self.radii),))
        if not (radii > 0.0).all():
            raise InputError(f"SphereCloud.radii: expected > 0 m, got {float(radii.min())}.")
        centers = _frozen("SphereCloud.centers", self.centers, (len(radii), 3))
        object.__setattr__(self, "centers", centers)
        object.__setattr__(self, "radii", radii)

    def __len__(self) -> int:
        """Return the number of balls."""
        return len(self.radii)


class Shape(Protocol):
    """A convex set with a closest point, or a union of some."""

    @property
    def dim(self) -> int:
        """Number of Cartesian components, 2 or 3."""
        ...

    def gap_function(self) -> Gap:
        """Return `gap` in plain floats; of a union, that of the nearest part."""
        ...

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the signed distances of ``points``, shape (N, d), to every part, and normals.

        Shapes (N, K) and (N, K, d), with K parts: one, or each of `Points`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """One ball; `Sphere` is another name for it.

    Attributes:
        center: Shape (d,), m.
        radius: m, > 0.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    center: FloatArray
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", _point("Ball.center", self.center))
        object.__setattr__(self, "radius", _length("Ball.radius", self.radius))

    @property
    def dim(self) -> int:
        """Number of Cartesian components."""
        return len(self.center)

    def gap_function(self) -> Gap:
        """Return the signed distance and normal in plain floats."""
        return ball_gap(tuple(self.center.tolist()), self.radius)

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances (N, 1), m, and unit normals (N, 1, d)."""
        return _ball_gaps(points, self.center[None], self.radius)


Sphere = Ball


@dataclass(frozen=True, slots=True, eq=False)
class Capsule:
    """All points within ``radius`` of a segment.

    Attributes:
        start: One end of the axis, shape (d,), m.
        end: The other; may equal ``start``, and the capsule is then a ball.
        radius: m, > 0.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    start: FloatArray
    end: FloatArray
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _point("Capsule.start", self.start))
        object.__setattr__(self, "end", _frozen("Capsule.end", self.end, self.start.shape))
        object.__setattr__(self, "radius", _length("Capsule.radius", self.radius))

    @property
    def dim(self) -> int:
        """Number of Cartesian components."""
        return len(self.start)

    def gap_function(self) -> Gap:
        """Return the signed distance and normal in plain floats."""
        start, radius = tuple(self.start.tolist()), self.radius
        axis = tuple((self.end - self.start).tolist())
        squared = sum(one * one for one in axis)
        if squared < COINCIDENT_TOL**2:
            return ball_gap(start, radius)
        aside = _across(axis)
        if len(start) == 2:
            (ax, ay), (sx, sy) = axis, start

            def planar(y: Vector) -> tuple[float, Vector]:
                px, py = y[0] - sx, y[1] - sy
                share = (px * ax + py * ay) / squared
                share = 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
                px, py = px - share * ax, py - share * ay
                length = math.hypot(px, py)
                if length < COINCIDENT_TOL:
                    return length - radius, aside
                return length - radius, (px / length, py / length)

            return planar

        (ax, ay, az), (sx, sy, sz) = axis, start

        def gap(y: Vector) -> tuple[float, Vector]:
            px, py, pz = y[0] - sx, y[1] - sy, y[2] - sz
            share = (px * ax + py * ay + pz * az) / squared
            share = 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
            px, py, pz = px - share * ax, py - share * ay, pz - share * az
            length = math.hypot(px, py, pz)
            if length < COINCIDENT_TOL:
                return length - radius, aside
            return length - radius, (px / length, py / length, pz / length)

        return gap

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances (N, 1), m, and unit normals (N, 1, d)."""
        axis = self.end - self.start
        squared = float(axis @ axis)
        if squared < COINCIDENT_TOL**2:
            return _ball_gaps(points, self.start[None], self.radius)
        rel = points - self.start
        rel: FloatArray = rel - np.clip(rel @ axis / squared, 0.0, 1.0)[:, None] * axis
        length, normal = _directions(rel, _across(tuple(axis.tolist())))
        return (length - self.radius)[:, None], normal[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpace:
    """All points with ``normal @ x <= offset``, e.g. the solid below a table top.

    Attributes:
        normal: Outward direction, shape (d,); stored with unit length.
        offset: Position of the plane along the unit normal, m.

    Raises:
        InputError: Wrong shape, not finite, or a normal of no length.
    """

    normal: FloatArray
    offset: float

    def __post_init__(self) -> None:
        normal = _point("HalfSpace.normal", self.normal)
        length = float(np.linalg.norm(normal))
        if not length > COINCIDENT_TOL:
            raise InputError(f"HalfSpace.normal: expected a direction, got {normal.tolist()}.")
        if not (is_real(self.offset) and math.isfinite(self.offset)):
            got = _told(self.offset)
            raise InputError(f"HalfSpace.offset: expected a finite length, got {got}.")
        normal = _frozen("HalfSpace.normal", normal / length, normal.shape)
        object.__setattr__(self, "normal", normal)
        object.__setattr__(self, "offset", float(self.offset))

    @property
    def dim(self) -> int:
        """Number of Cartesian components."""
        return len(self.normal)

    def gap_function(self) -> Gap:
        """Return the signed distance and normal in plain floats."""
        normal, offset = tuple(self.normal.tolist()), self.offset
        if len(normal) == 2:
            nx, ny = normal
            return lambda y: (nx * y[0] + ny * y[1] - offset, normal)
        nx, ny, nz = normal
        return lambda y: (nx * y[0] + ny * y[1] + nz * y[2] - offset, normal)

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances (N, 1), m, and unit normals (N, 1, d)."""
        normals = np.broadcast_to(self.normal, (len(points), 1, self.dim))
        return (points @ self.normal - self.offset)[:, None], normals


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A rectangle (d = 2) or a cuboid (d = 3).

    Attributes:
        center: Shape (d,), m.
        half_sizes: Half of the edges, along the box's own axes, shape (d,), m, > 0.
        angle: d = 2: turn of the box's axes against the world's, counter-clockwise, rad.
        rotation: d = 3: the box's axes in the world frame as columns, shape (3, 3), orthonormal;
            None for the world's own axes.

    Raises:
        InputError: Wrong shape, not finite, a size <= 0, no rotation, or a turn given in the way
            of the other dimension.
    """

    center: FloatArray
    half_sizes: FloatArray
    angle: float = 0.0
    rotation: FloatArray | None = None

    def __post_init__(self) -> None:
        center = _point("Box.center", self.center)
        sizes = _frozen("Box.half_sizes", self.half_sizes, center.shape)
        if not (sizes > 0.0).all():
            raise InputError(f"Box.half_sizes: expected > 0 m, got {sizes.tolist()}.")
        if not (is_real(self.angle) and math.isfinite(self.angle)):
            got = _told(self.angle)
            raise InputError(f"Box.angle: expected a finite angle in rad, got {got}.")
        if len(center) == 2 and self.rotation is not None:
            raise InputError("Box.rotation: expected None in 2-D, got a matrix; give the angle.")
        if len(center) == 3 and self.angle != 0.0:
            raise InputError(f"Box.angle: expected 0 in 3-D, got {self.angle}; give the rotation.")
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "half_sizes", sizes)
        object.__setattr__(self, "angle", float(self.angle))
        if self.rotation is not None:
            _require_rotation("Box.rotation", self.rotation)
            object.__setattr__(self, "rotation", _frozen("Box.rotation", self.rotation, (3, 3)))

    @property
    def dim(self) -> int:
        """Number of Cartesian components."""
        return len(self.center)

    @property
    def axes(self) -> FloatArray:
        """The box's axes in the world frame as columns, shape (d, d)."""
        if self.rotation is not None:
            return self.rotation
        if self.dim == 3:
            return np.eye(3)
        cosine, sine = math.cos(self.angle), math.sin(self.angle)
        return np.array([[cosine, -sine], [sine, cosine]])

    def gap_function(self) -> Gap:
        """Return the signed distance and normal in plain floats."""
        columns: list[Vector] = [tuple(column) for column in self.axes.T.tolist()]
        center, sizes = tuple(self.center.tolist()), tuple(self.half_sizes.tolist())
        if len(center) == 2:
            (cx, cy), (hx, hy) = center, sizes
            cosine, sine = columns[0]

            def planar(y: Vector) -> tuple[float, Vector]:
                px, py = y[0] - cx, y[1] - cy
                px, py = cosine * px + sine * py, cosine * py - sine * px
                over_x, over_y = abs(px) - hx, abs(py) - hy
                if over_x > 0.0 and over_y > 0.0:
                    gap = math.hypot(over_x, over_y)
                    px, py = math.copysign(over_x / gap, px), math.copysign(over_y / gap, py)
                elif over_x >= over_y:
                    gap, px, py = over_x, math.copysign(1.0, px), 0.0
                else:
                    gap, px, py = over_y, 0.0, math.copysign(1.0, py)
                return gap, (cosine * px - sine * py, sine * px + cosine * py)

            return planar
        (cx, cy, cz), (hx, hy, hz) = center, sizes
        (ax, ay, az), (bx, by, bz), (dx, dy, dz) = columns

        def gap(y: Vector) -> tuple[float, Vector]:
            px, py, pz = y[0] - cx, y[1] - cy, y[2] - cz
            a = ax * px + ay * py + az * pz
            b = bx * px + by * py + bz * pz
            d = dx * px + dy * py + dz * pz
            over_a, over_b, over_d = abs(a) - hx, abs(b) - hy, abs(d) - hz
            out_a = over_a if over_a > 0.0 else 0.0
            out_b = over_b if over_b > 0.0 else 0.0
            out_d = over_d if over_d > 0.0 else 0.0
            length = divisor = math.hypot(out_a, out_b, out_d)
            if length == 0.0:  # inside: the nearest face
                length, divisor = max(over_a, over_b, over_d), 1.0
                out_a = 1.0 if length == over_a else 0.0
                out_b = 1.0 if length == over_b and not out_a else 0.0
                out_d = 1.0 - out_a - out_b
            a = math.copysign(out_a / divisor, a)
            b = math.copysign(out_b / divisor, b)
            d = math.copysign(out_d / divisor, d)
            normal = (a * ax + b * bx + d * dx, a * ay + b * by + d * dy, a * az + b * bz + d * dz)
            return length, normal

        return gap

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances (N, 1), m, and unit normals (N, 1, d)."""
        axes = self.axes
        local = (points - self.center) @ axes
        over: FloatArray = np.abs(local) - self.half_sizes
        out = np.maximum(over, 0.0)
        length: FloatArray = np.linalg.norm(out, axis=1)
        inside = length == 0.0
        deepest = over.argmax(axis=1)
        face = np.eye(self.dim)[deepest]
        out = np.where(inside[:, None], face, out / np.where(inside, 1.0, length)[:, None])
        normal = (np.copysign(1.0, local) * out) @ axes.T
        distance = np.where(inside, over.max(axis=1), length)
        return distance[:, None], normal[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Polygon:
    """A convex polygon in the plane.

    Attributes:
        vertices: Corners in order around it, either way, shape (M, 2), m, M >= 3; stored
            counter-clockwise.

    Raises:
        InputError: Wrong shape, not finite, repeated corners, or not convex.
    """

    vertices: FloatArray

    def __post_init__(self) -> None:
        vertices = np.asarray(real_array("Polygon.vertices", self.vertices), dtype=np.float64)
        require_shape("Polygon.vertices", vertices, ("corners", 2))
        vertices = _frozen("Polygon.vertices", vertices, vertices.shape)
        edges = np.roll(vertices, -1, axis=0) - vertices
        turns = np.roll(edges, -1, axis=0)
        cross = edges[:, 0] * turns[:, 1] - edges[:, 1] * turns[:, 0]
        lengths = np.linalg.norm(edges, axis=1)
        if len(vertices) < 3 or not (lengths > COINCIDENT_TOL).all():
            raise InputError("Polygon.vertices: expected at least three corners, none repeated.")
        if cross.sum() < 0.0:
            vertices, cross = vertices[::-1], -cross
        # A star turns the same way at every corner, but goes around more than once.
        around = np.arctan2(cross, (edges * turns).sum(axis=1)).sum()
        straight = COINCIDENT_TOL * lengths * np.roll(lengths, -1)
        if (cross < -straight).any() or not cross.max() > straight.max() or around > 6.5:
            raise InputError(
                "Polygon.vertices: expected the corners of a convex polygon in order around it, "
                f"got {shown(vertices.tolist())}; cover another shape by several convex ones."
            )
        vertices = _frozen("Polygon.vertices", np.ascontiguousarray(vertices), vertices.shape)
        object.__setattr__(self, "vertices", vertices)

    @property
    def dim(self) -> int:
        """Number of Cartesian components, 2."""
        return 2

    def _edges(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return unit directions, shape (M, 2), outward normals (M, 2), and lengths (M,), m."""
        edges = np.roll(self.vertices, -1, axis=0) - self.vertices
        lengths = np.linalg.norm(edges, axis=1)
        along = edges / lengths[:, None]
        return along, np.stack([along[:, 1], -along[:, 0]], axis=1), lengths

    def gap_function(self) -> Gap:
        """Return the signed distance and normal in plain floats."""
        along, _, lengths = self._edges()
        corners = self.vertices.tolist()
        edges = [
            (*corner, *direction, length)
            for corner, direction, length in zip(
                corners, along.tolist(), lengths.tolist(), strict=True
            )
        ]

        def gap(y: Vector) -> tuple[float, Vector]:
            px, py = y
            deepest, normal = -math.inf, (1.0, 0.0)
            nearest, at_x, at_y = math.inf, 0.0, 0.0
            for cx, cy, ax, ay, length in edges:
                rx, ry = px - cx, py - cy
                height = rx * ay - ry * ax
                if height > deepest:
                    deepest, normal = height, (ay, -ax)
                if height > 0.0:
                    share = rx * ax + ry * ay
                    if 0.0 <= share <= length:
                        return height, (ay, -ax)
                    share = 0.0 if share < 0.0 else length
                    rx, ry = rx - share * ax, ry - share * ay
                    squared = rx * rx + ry * ry
                    if squared < nearest:
                        nearest, at_x, at_y = squared, rx, ry
            if deepest <= COINCIDENT_TOL:
                return deepest, normal
            length = math.sqrt(nearest)
            return length, (at_x / length, at_y / length)

        return gap

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances (N, 1), m, and unit normals (N, 1, 2)."""
        along, outward, lengths = self._edges()
        rel = points[:, None] - self.vertices  # (N, M, 2)
        height = (rel * outward).sum(axis=2)
        share = np.clip((rel * along).sum(axis=2), 0.0, lengths)
        apart = rel - share[:, :, None] * along
        rows = np.arange(len(points))
        nearest: FloatArray = apart[rows, (apart * apart).sum(axis=2).argmin(axis=1)]
        deepest = height.argmax(axis=1)
        inside = height[rows, deepest] <= COINCIDENT_TOL
        length, normal = _directions(nearest, (1.0, 0.0))
        distance = np.where(inside, height[rows, deepest], length)
        return distance[:, None], np.where(inside[:, None], outward[deepest], normal)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Balls of one radius around many points, e.g. those that a laser scan returned.

    Attributes:
        centers: Shape (N, d), m; N may be 0.
        radius: m, > 0. It has to cover the surface between two rays and the error of their ranges:
            half the distance of neighboring returns plus the range noise. Rays that are an angle
            a apart meet a flat surface r sin(a) / cos(t) apart, r being the range of the nearer
            return and t the angle between the other ray and the normal of the surface:
                radius >= 0.5 * r * sin(a) / cos(t) + noise
            with the largest r and t at which something can be touched before the robot has
            stopped: 0.062 m at a = 1 degree, r = 3 m, t = 60 degrees and 0.01 m of noise. No
            radius covers what lies between two rays that both miss it, such as a thin post.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    centers: FloatArray
    radius: float

    def __post_init__(self) -> None:
        centers = np.asarray(real_array("Points.centers", self.centers), dtype=np.float64)
        if centers.ndim != 2 or centers.shape[1] not in (2, 3):
            raise InputError(f"Points.centers: expected shape (N, 2 or 3), got {centers.shape}.")
        object.__setattr__(self, "centers", _frozen("Points.centers", centers, centers.shape))
        object.__setattr__(self, "radius", _length("Points.radius", self.radius))

    @property
    def dim(self) -> int:
        """Number of Cartesian components."""
        return int(self.centers.shape[1])

    def gap_function(self) -> Gap:
        """Return the signed distance and normal of the nearest ball; infinitely far if none is."""
        if not len(self.centers):
            away = (1.0,) + (0.0,) * (self.dim - 1)
            return lambda _: (math.inf, away)

        def gap(y: Vector) -> tuple[float, Vector]:
            distances, normals = _ball_gaps(np.array([y]), self.centers, self.radius)
            k = int(distances[0].argmin())
            return float(distances[0, k]), tuple(normals[0, k].tolist())

        return gap

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return signed distances to each ball, shape (N, K), m, and unit normals (N, K, d)."""
        return _ball_gaps(points, self.centers, self.radius)


@dataclass(frozen=True, slots=True, eq=False)
class Obstacles:
    """Shapes that stand still, with their signed distances to points.

    Their parts are every shape but `Points`, in order, and then the balls of all `Points`.

    Attributes:
        shapes: All of one dimension; possibly none.
        dim: Their dimension; None if there is none.
        solids: `Shape.gap_function` of the parts that are no such balls.
        centers: Of the balls, shape (B, d), m.
        radii: Of the balls, shape (B,), m.

    Raises:
        InputError: An entry is no shape, or dimensions differ.
    """

    shapes: Sequence[Shape]
    dim: int | None = field(init=False)
    solids: tuple[Gap, ...] = field(init=False)
    centers: FloatArray = field(init=False)
    radii: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        shapes = _listed(self.shapes)
        for k, shape in enumerate(shapes):
            if not isinstance(shape, _SHAPES):
                known = ", ".join(kind.__name__ for kind in _SHAPES)
                refuse(InputError, f"Obstacles: shapes[{k}]", expected=f"one of {known}", got=shape)
            if shape.dim != shapes[0].dim:
                expected, got = f"{shapes[0].dim}-D as the first", f"{shape.dim}-D"
                refuse(InputError, f"Obstacles: shapes[{k}]", expected=expected, got=got)
        solids = [shape.gap_function() for shape in shapes if not isinstance(shape, Points)]
        scans = [shape for shape in shapes if isinstance(shape, Points)]
        dim = shapes[0].dim if shapes else None
        if len(scans) == 1:  # as in every step with a scan
            centers, radii = scans[0].centers, np.full(len(scans[0].centers), scans[0].radius)
        else:
            centers = np.concatenate([np.zeros((0, dim or 0)), *(scan.centers for scan in scans)])
            radii = np.repeat([s.radius for s in scans], [len(s.centers) for s in scans])
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "solids", tuple(solids))
        object.__setattr__(self, "centers", centers)
        object.__setattr__(self, "radii", np.asarray(radii, dtype=np.float64))

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.solids) + len(self.radii)

    def joined(self, others: "Iterable[Shape] | Obstacles") -> "Obstacles":
        """Return these and others; itself, or them, if the other side has none.

        Raises:
            InputError: One is no shape, or of another dimension.
        """
        if not self.shapes and isinstance(others, Obstacles):
            return others
        more = others.shapes if isinstance(others, Obstacles) else _listed(others)
        return Obstacles((*self.shapes, *more)) if more else self

    def gaps(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the signed distances to every part, m, and unit normals.

        Args:
            points: One point, shape (d,), or several, (N, d), m.

        Returns:
            Shapes (K,) and (K, d), or (N, K) and (N, K, d), with K parts.

        Raises:
            InputError: Wrong shape, not finite, or no dimension to check against.
        """
        points = np.asarray(real_array("Obstacles.gaps: points", points), dtype=np.float64)
        if points.ndim not in (1, 2) or points.shape[-1] != (self.dim or points.shape[-1]):
            expected = f"shape ({self.dim or 'd'},) or (N, {self.dim or 'd'})"
            refuse(InputError, "Obstacles.gaps: points", expected=expected, got=points.shape)
        require_finite("Obstacles.gaps: points", points)
        several = np.atleast_2d(points)
        parts = [shape.gaps(several) for shape in self.shapes if not isinstance(shape, Points)]
        centers = self.centers if self.shapes else np.zeros((0, points.shape[-1]))
        parts.append(_ball_gaps(several, centers, self.radii))
        distance = np.concatenate([part[0] for part in parts], axis=1)
        normal = np.concatenate([part[1] for part in parts], axis=1)
        return (distance, normal) if points.ndim == 2 else (distance[0], normal[0])


_SHAPES: Final = (HalfSpace, Ball, Capsule, Box, Polygon, Points)


def pair_distance(a: Sphere, b: Sphere) -> float:
    """Return the gap between two balls, m; symmetric."""
    return float(np.linalg.norm(a.center - b.center)) - (a.radius + b.radius)


def pair_distance_with_gradient(a: Sphere, b: Sphere) -> tuple[float, FloatArray]:
    """Return the gap, m, and the unit vector from ``b`` to ``a``; +x for coincident centres."""
    offset = a.center - b.center
    length = float(np.linalg.norm(offset))
    if length < COINCIDENT_TOL:
        return -(a.radius + b.radius), np.eye(a.dim)[0]
    return length - (a.radius + b.radius), offset / length


def min_pair_distance(cloud_a: SphereCloud, cloud_b: SphereCloud) -> tuple[float, int, int]:
    """Return the smallest gap, m, and the indices of its balls; the first in row-major order.

    No pair is left out, also if both clouds are one.

    Raises:
        InputError: A cloud is empty.
    """
    table = _distance_table(cloud_a, cloud_b)
    i, j = divmod(int(table.argmin()), len(cloud_b))
    return float(table[i, j]), i, j


def decompose_capsule(
    start: FloatArray, end: FloatArray, radius: float, n_spheres: int
) -> SphereCloud:
    """Return equal balls, evenly spaced from ``start`` to ``end``; one ball sits at ``start``.

    Balls as thick as the capsule leave notches between them; `covering_radius` says how thick
    they must be.

    Args:
        start: One end of the axis, shape (3,), m.
        end: The other, shape (3,), m.
        radius: Of every ball, m, > 0.
        n_spheres: Number of balls, >= 1.

    Raises:
        InputError: No ball, a radius <= 0, or malformed ends.
    """
    if n_spheres < 1:
        raise InputError(f"decompose_capsule: expected n_spheres >= 1, got {n_spheres}.")
    radius = _length("decompose_capsule: radius", radius)
    first = _frozen("decompose_capsule: start", start, (3,))
    last = _frozen("decompose_capsule: end", end, (3,))
    share = np.linspace(0.0, 1.0, n_spheres)
    centers = first + share[:, None] * (last - first)
    return SphereCloud(centers, np.full(n_spheres, radius))


def covering_radius(length: float, radius: float, n_spheres: int) -> float:
    """Return the ball radius with which `decompose_capsule` contains the whole capsule, m.

    Args:
        length: Of the capsule's axis, m, >= 0.
        radius: Of the capsule, m, > 0.
        n_spheres: Number of balls, >= 1.

    Raises:
        InputError: An argument is out of range.
    """
    if n_spheres < 1:
        raise InputError(f"covering_radius: expected n_spheres >= 1, got {n_spheres}.")
    if not (is_real(length) and 0.0 <= length < math.inf):
        raise InputError(f"covering_radius: expected a length >= 0 m, got {length}.")
    radius = _length("covering_radius: radius", radius)
    if n_spheres == 1:
        return radius + length
    return math.hypot(radius, 0.5 * length / (n_spheres - 1))


def transform_cloud(
    cloud: SphereCloud, rotation: FloatArray, translation: FloatArray
) -> SphereCloud:
    """Return the cloud moved by c' = R c + t; it shares the radii.

    Args:
        cloud: Balls in a body's frame.
        rotation: R, shape (3, 3), orthonormal.
        translation: t, shape (3,), m.

    Raises:
        InputError: Wrong shapes, or R is no rotation.
    """
    require_shape("transform_cloud: translation", translation, (3,))
    _require_rotation("transform_cloud: rotation", rotation)
    return SphereCloud(cloud.centers @ rotation.T + translation, cloud.radii)


def _distance_table(cloud_a: SphereCloud, cloud_b: SphereCloud) -> FloatArray:
    """Return all gaps, shape (N_a, N_b), m."""
    if not len(cloud_a) or not len(cloud_b):
        raise InputError(
            f"sphere clouds: expected at least one ball each, got {len(cloud_a)} and "
            f"{len(cloud_b)}; an empty cloud has no distance."
        )
    offset = cloud_a.centers[:, None, :] - cloud_b.centers[None, :, :]
    distance: FloatArray = np.sqrt(np.einsum("ijk,ijk->ij", offset, offset))
    distance -= cloud_a.radii[:, None] + cloud_b.radii[None, :]
    return distance


def ball_gap(center: Vector, radius: float) -> Gap:
    """Return the signed distance and normal of one ball in plain floats."""
    away = (1.0,) + (0.0,) * (len(center) - 1)
    if len(center) == 2:
        cx, cy = center

        def planar(y: Vector) -> tuple[float, Vector]:
            px, py = y[0] - cx, y[1] - cy
            length = math.hypot(px, py)
            if length < COINCIDENT_TOL:
                return length - radius, away
            return length - radius, (px / length, py / length)

        return planar
    cx, cy, cz = center

    def gap(y: Vector) -> tuple[float, Vector]:
        px, py, pz = y[0] - cx, y[1] - cy, y[2] - cz
        length = math.hypot(px, py, pz)
        if length < COINCIDENT_TOL:
            return length - radius, away
        return length - radius, (px / length, py / length, pz / length)

    return gap


def _ball_gaps(
    points: FloatArray, centers: FloatArray, radius: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return signed distances of N points to K balls, shape (N, K), and normals (N, K, d)."""
    away = (1.0,) + (0.0,) * (centers.shape[1] - 1)
    length, normal = _directions(points[:, None] - centers, away)
    return length - radius, normal


def _directions(vectors: FloatArray, instead: Vector) -> tuple[FloatArray, FloatArray]:
    """Return lengths, shape (...), and unit vectors (..., d); ``instead`` where there is none."""
    length: FloatArray = np.sqrt(np.einsum("...i,...i->...", vectors, vectors))
    some = length >= COINCIDENT_TOL
    if some.all():
        return length, vectors / length[..., None]
    unit = vectors / np.where(some, length, 1.0)[..., None]
    return length, np.where(some[..., None], unit, np.array(instead))


def _across(axis: Vector) -> Vector:
    """Return a unit vector at right angles to ``axis``."""
    if len(axis) == 2:
        length = math.hypot(*axis)
        return -axis[1] / length, axis[0] / length
    k = min(range(3), key=lambda i: abs(axis[i]))
    across = np.cross(axis, np.eye(3)[k])
    return tuple((across / np.linalg.norm(across)).tolist())


def _require_rotation(name: str, rotation: FloatArray) -> None:
    """Refuse anything but an orthonormal 3 x 3 matrix."""
    rotation = real_array(name, rotation)
    require_shape(name, rotation, (3, 3))
    require_finite(name, rotation)
    if np.abs(rotation.T @ rotation - np.eye(3)).max() > _ROTATION_TOL:
        raise InputError(
            f"{name}: expected an orthonormal matrix, which keeps the radii; "
            f"got {rotation.tolist()}."
        )


def _point(name: str, values: FloatArray) -> FloatArray:
    """Return a read-only float64 array of shape (2,) or (3,)."""
    array = real_array(name, values)
    if array.shape not in ((2,), (3,)):
        raise InputError(f"{name}: expected shape (2,) or (3,), got {array.shape}.")
    return _frozen(name, array, array.shape)


def _frozen(name: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Return a read-only float64 array of ``shape``; one that already is comes back itself."""
    array = np.asarray(real_array(name, values), dtype=np.float64)
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.flags.writeable = False
    require_shape(name, array, shape)
    require_finite(name, array)
    if array.size and float(np.abs(array).max()) > MAX_COORDINATE:
        raise InputError(f"{name}: expected at most {MAX_COORDINATE:.0e} m, got a larger number.")
    return array


def _length(name: str, value: float) -> float:
    if not (is_real(value) and 0.0 < value < math.inf):
        raise InputError(f"{name}: expected a finite length > 0 m, got {_told(value)}.")
    return float(value)


def _told(value: object) -> object:
    """Return a number as it is, a text as it was written, and of anything else what it is."""
    if isinstance(value, str):
        return shown(value)
    return value if is_real(value) else type(value).__name__


def _listed(shapes: object) -> tuple[Shape, ...]:
    """Return shapes as a tuple.

    Raises:
        InputError: They are no sequence, as a single one is not, or the path of a map file.
    """
    if isinstance(shapes, str | PathLike):
        got, do = repr(str(cast("object", shapes))), "use cadenza.safety.maps.load_map(path)"
        refuse(InputError, "obstacles", expected="a sequence of shapes", got=got, do=do)
    if not isinstance(shapes, Iterable):
        got, do = type(shapes).__name__, "put it in a list" if isinstance(shapes, _SHAPES) else ""
        refuse(InputError, "obstacles", expected="a sequence of shapes", got=got, do=do)
    return tuple(cast("Iterable[Shape]", shapes))

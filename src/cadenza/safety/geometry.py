"""Bodies made of spheres, their distances, and shapes that spheres keep away from.

Distance:   signed, m: gap between the surfaces, negative on overlap.
Gradient:   of the distance with respect to the first body's position.
Coverage:   spheres of radius R, spaced s along a segment, contain the capsule of radius r around
            it iff s <= 2 sqrt(R^2 - r^2) and the outermost centres are its ends.
Axes:       N spheres of a cloud, 3 Cartesian components; world frame unless said otherwise.
Units:      m.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, real_array
from cadenza.core.errors import InputError

#: Distance of two centres below which no direction leads from one to the other, m; the gradient
#: is then +x, and any fixed choice separates them.
COINCIDENT_TOL: Final = 1e-12
#: How far R^T R may be from the identity, per entry; far above float64 rounding of a rotation
#: and far below what would change a radius by a micrometre.
_ROTATION_TOL: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Sphere:
    """One ball.

    Attributes:
        center: Shape (3,), m.
        radius: m, > 0.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    center: FloatArray
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", _frozen("Sphere.center", self.center, (3,)))
        object.__setattr__(self, "radius", _length("Sphere.radius", self.radius))


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


@dataclass(frozen=True, slots=True, eq=False)
class Capsule:
    """All points within ``radius`` of a segment.

    Attributes:
        start: One end of the axis, shape (3,), m.
        end: The other; may equal ``start``, and the capsule is then a ball.
        radius: m, > 0.

    Raises:
        InputError: Wrong shape, not finite, or a radius <= 0.
    """

    start: FloatArray
    end: FloatArray
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _frozen("Capsule.start", self.start, (3,)))
        object.__setattr__(self, "end", _frozen("Capsule.end", self.end, (3,)))
        object.__setattr__(self, "radius", _length("Capsule.radius", self.radius))


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpace:
    """All points with ``normal @ x <= offset``, e.g. the solid below a table top.

    Attributes:
        normal: Outward direction, shape (3,); stored with unit length.
        offset: Position of the plane along the unit normal, m.

    Raises:
        InputError: Wrong shape, not finite, or a normal of no length.
    """

    normal: FloatArray
    offset: float

    def __post_init__(self) -> None:
        normal = _frozen("HalfSpace.normal", self.normal, (3,))
        length = float(np.linalg.norm(normal))
        if not length > COINCIDENT_TOL:
            raise InputError(f"HalfSpace.normal: expected a direction, got {normal.tolist()}.")
        if not math.isfinite(self.offset):
            raise InputError(f"HalfSpace.offset: expected a finite length, got {self.offset}.")
        object.__setattr__(self, "normal", _frozen("HalfSpace.normal", normal / length, (3,)))
        object.__setattr__(self, "offset", float(self.offset))


def pair_distance(a: Sphere, b: Sphere) -> float:
    """Return the gap between two balls, m; symmetric."""
    return float(np.linalg.norm(a.center - b.center)) - (a.radius + b.radius)


def pair_distance_with_gradient(a: Sphere, b: Sphere) -> tuple[float, FloatArray]:
    """Return the gap, m, and the unit vector from ``b`` to ``a``; +x for coincident centres."""
    offset = a.center - b.center
    length = float(np.linalg.norm(offset))
    if length < COINCIDENT_TOL:
        return -(a.radius + b.radius), np.array([1.0, 0.0, 0.0])
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
    require_shape("transform_cloud: rotation", rotation, (3, 3))
    require_shape("transform_cloud: translation", translation, (3,))
    require_finite("transform_cloud: rotation", rotation)
    if np.abs(rotation.T @ rotation - np.eye(3)).max() > _ROTATION_TOL:
        raise InputError(
            "transform_cloud: rotation: expected an orthonormal matrix, which keeps the radii; "
            f"got {rotation.tolist()}."
        )
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


def _frozen(name: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Return a read-only float64 array of ``shape``; one that already is comes back itself."""
    array = np.asarray(real_array(name, values), dtype=np.float64)
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.flags.writeable = False
    require_shape(name, array, shape)
    require_finite(name, array)
    return array


def _length(name: str, value: float) -> float:
    if not (is_real(value) and 0.0 < value < math.inf):
        raise InputError(f"{name}: expected a finite length > 0 m, got {value}.")
    return float(value)

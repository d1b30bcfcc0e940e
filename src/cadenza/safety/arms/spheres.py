"""Spheres that cover the links of an arm, and the pairs of them that may not touch.

A capsule of radius r is covered by spheres of radius R > r along its axis when neighbours are at
most 2 sqrt(R^2 - r^2) apart: at the midpoint between two centres the spheres still reach r
(`cadenza.safety.geometry.covering_radius`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.geometry import Capsule, SphereCloud, covering_radius, decompose_capsule


@dataclass(frozen=True, slots=True, eq=False)
class LinkSpheres:
    """Collision spheres fixed to the bodies of a model.

    Attributes:
        bodies: Body that carries each sphere, shape (S,).
        offsets: Centres in the frame of that body, shape (S, 3), m.
        radii: Radii, shape (S,), m.
        links: Names of the bodies, S names.
    """

    bodies: NDArray[np.intp]
    offsets: FloatArray
    radii: FloatArray
    links: tuple[str, ...]


def cover_capsule(capsule: Capsule, inflation: float) -> SphereCloud:
    """Return the fewest equal balls along the axis that contain the capsule.

    Args:
        capsule: The capsule.
        inflation: Largest allowed ball radius over the capsule's, > 1.
    """
    length = float(np.linalg.norm(capsule.end - capsule.start))
    spacing = 2.0 * capsule.radius * math.sqrt(inflation * inflation - 1.0)
    # One part in 1e12 keeps a length of exactly k spacings from asking for one ball more.
    count = max(2, 1 + math.ceil(length / spacing * (1.0 - 1e-12)))
    radius = covering_radius(length, capsule.radius, count)
    return decompose_capsule(capsule.start, capsule.end, radius, count)


def link_spheres(mujoco: Any, model: Any, inflation: float) -> LinkSpheres:
    """Return spheres that cover every geom of a MuJoCo model.

    Raises:
        ConfigurationError: ``inflation`` <= 1, a geom that is no capsule and no sphere, or no geom.
    """
    if not inflation > 1.0 or not math.isfinite(inflation):
        raise ConfigurationError(
            f"MujocoArm.inflation: expected > 1, got {inflation}; spheres of the capsule's own "
            "radius leave gaps between them."
        )
    bodies: list[int] = []
    clouds: list[SphereCloud] = []
    for geom in range(model.ngeom):
        cloud = _geom_cloud(mujoco, model, geom, inflation)
        clouds.append(cloud)
        bodies.extend([int(model.geom_bodyid[geom])] * len(cloud))
    if not bodies:
        raise ConfigurationError("MujocoArm: expected at least one capsule or sphere, got none.")
    return LinkSpheres(
        bodies=np.array(bodies, dtype=np.intp),
        offsets=np.concatenate([cloud.centers for cloud in clouds]),
        radii=np.concatenate([cloud.radii for cloud in clouds]),
        links=tuple(str(model.body(body).name) for body in bodies),
    )


def _geom_cloud(mujoco: Any, model: Any, geom: int, inflation: float) -> SphereCloud:
    """Return the balls that cover one geom, in the frame of its body."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    center, radius = np.array(model.geom_pos[geom]), float(size[0])
    if kind == int(mujoco.mjtGeom.mjGEOM_SPHERE):
        return SphereCloud(center[None, :], np.array([radius]))
    if kind == int(mujoco.mjtGeom.mjGEOM_CAPSULE):
        reach = float(size[1]) * _rotated_z(model.geom_quat[geom])
        return cover_capsule(Capsule(center - reach, center + reach, radius), inflation)
    raise ConfigurationError(
        f"MujocoArm: expected capsules and spheres only, got geom {model.geom(geom).name!r} of "
        f"type {kind}; keep tables and walls out of the arm's model and pass them to the filter."
    )


def _rotated_z(quaternion: FloatArray) -> FloatArray:
    """Return the z axis turned by a unit quaternion (w, x, y, z): the axis of a capsule."""
    w, x, y, z = (float(part) for part in quaternion)
    return np.array([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)])


def allowed_pairs(
    mujoco: Any, model: Any, bodies: NDArray[np.intp], exclude: tuple[tuple[str, str], ...]
) -> NDArray[np.intp]:
    """Return the pairs of spheres that must stay apart, shape (P, 2).

    Left out are pairs on one rigid part (bodies no joint lies between), pairs of a part and the one
    that carries it, and the exclusions of the model and of the caller.

    Raises:
        ConfigurationError: ``exclude`` names a body the model does not have.
    """
    weld = model.body_weldid
    ignored = {
        (int(signature) >> 16, int(signature) & 0xFFFF) for signature in model.exclude_signature
    }
    for first, second in exclude:
        ignored.add((_body_index(mujoco, model, first), _body_index(mujoco, model, second)))
    ignored_parts = {frozenset((int(weld[a]), int(weld[b]))) for a, b in ignored}
    for body in range(1, model.nbody):
        part = int(weld[body])
        ignored_parts.add(frozenset((part, int(weld[model.body_parentid[part]]))))
    parts = weld[bodies]
    pairs = [
        (i, j)
        for i in range(len(bodies))
        for j in range(i + 1, len(bodies))
        if parts[i] != parts[j] and frozenset((int(parts[i]), int(parts[j]))) not in ignored_parts
    ]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def _body_index(mujoco: Any, model: Any, name: str) -> int:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    if index < 0:
        known = [model.body(k).name for k in range(model.nbody)]
        raise ConfigurationError(
            f"MujocoArm.exclude: expected names of bodies, got {name!r}; known: {known}."
        )
    return int(index)

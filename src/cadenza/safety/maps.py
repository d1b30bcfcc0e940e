"""Maps: obstacles as a YAML file of shapes, and their picture.

File:     one key, ``obstacles``, with a list; each entry has one key, the shape, and its fields as
          in `cadenza.safety.geometry`:
              obstacles:
                - half_space: {normal: [1, 0], offset: -3.0}
                - box: {center: [1, 0], half_sizes: [0.4, 0.2], angle: 0.3}
          Shapes: half_space, ball, capsule, box, polygon, points.
Refused:  everything else, all mistakes at once, each with its place.
Picture:  what is solid where the signed distance is <= 0; a plane of constant z for maps in 3-D.
Units:    m, rad.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import shown
from cadenza.core.errors import ConfigurationError, InputError, did_you_mean
from cadenza.core.extras import load_extra
from cadenza.core.yaml_files import YamlDocument, read_yaml_document
from cadenza.safety.geometry import (
    Ball,
    Box,
    Capsule,
    HalfSpace,
    Obstacles,
    Points,
    Polygon,
    Shape,
)

#: Shapes by the key that stands for them in a file.
KINDS: Final[dict[str, type[Any]]] = {
    "half_space": HalfSpace,
    "ball": Ball,
    "capsule": Capsule,
    "box": Box,
    "polygon": Polygon,
    "points": Points,
}
#: Room around the shapes in a picture, m, and the extent where there is nothing but a point.
_AROUND_M: Final = 1.0
#: Points along the longer side of a picture; thinner shapes than its 600th part look broken.
_GRID: Final = 600
_SOLID: Final = "#94a3b8"
_EDGE: Final = "#334155"
_REACH: Final = "#1d4ed8"


def load_map(path: Path | str) -> Obstacles:
    """Return the obstacles of a map file.

    Raises:
        ConfigurationError: The file is missing, no YAML, or no map; the message has one line per
            mistake, with its place in the file.
    """
    document = read_yaml_document(Path(path))
    shapes: list[Shape] = []
    mistakes = _read_entries(document, shapes)
    dims = {shape.dim for shape in shapes}
    if len(dims) > 1:
        mistakes.append("obstacles: expected shapes of one dimension, got 2-D and 3-D ones.")
    if mistakes:
        lines = "".join(f"\n  {mistake}" for mistake in mistakes)
        raise ConfigurationError(f"{path}: expected a map of obstacles, got these problems:{lines}")
    return Obstacles(shapes)


def _read_entries(document: YamlDocument, shapes: list[Shape]) -> list[str]:
    """Append the shapes of a document; return its mistakes, each with its place."""
    content: Any = document.content
    if not isinstance(content, dict) or set(cast("dict[Any, Any]", content)) != {"obstacles"}:
        return [f"{document.place(())}: expected the one key 'obstacles' with a list of shapes."]
    entries = cast("dict[str, Any]", content)["obstacles"]
    if not isinstance(entries, list):
        return [f"{document.place(('obstacles',))}: obstacles: expected a list of shapes."]
    mistakes: list[str] = []
    for index, entry in enumerate(cast("list[Any]", entries)):
        path = ("obstacles", index)
        found = _misspelled(entry)
        if not found:
            ((name, values),) = entry.items()
            try:
                shapes.append(KINDS[name](**values))
            except InputError as error:
                found = [((name,), str(error))]
        for keys, mistake in found:
            place = document.place((*path, *keys), of_key=bool(keys))
            mistakes.append(f"{place}: obstacles[{index}]: {mistake}")
    return mistakes


def obstacles_of(entries: Sequence[Mapping[str, Any]], *, dim: int) -> Obstacles:
    """Return the obstacles that `describe_map` described.

    Raises:
        InputError: An entry is no shape of that dimension.
    """
    shapes: list[Shape] = []
    for entry in entries:
        for _, mistake in _misspelled(entry):
            raise InputError(mistake)
        ((name, values),) = entry.items()
        shapes.append(KINDS[name](**values))
        if shapes[-1].dim != dim:
            raise InputError(f"{name}: expected a shape in {dim}-D, got one in {shapes[-1].dim}-D.")
    return Obstacles(shapes)


def outlines(obstacles: Obstacles, window: Sequence[float]) -> list[FloatArray]:
    """Return what of each solid shape of the plane is in a window, as corners, (M, 2), m.

    Round shapes have 48 corners. ``window`` is (x lowest, y lowest, x highest, y highest), m.
    Shapes outside of it are left out.
    """
    x_low, y_low, x_high, y_high = window
    frame = np.array([(x_low, y_low), (x_high, y_low), (x_high, y_high), (x_low, y_high)])
    sides = ((-1.0, 0.0, -x_low), (0.0, -1.0, -y_low), (1.0, 0.0, x_high), (0.0, 1.0, y_high))
    turns = 2.0 * np.pi * np.arange(48) / 48
    circle = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    found: list[FloatArray] = []
    for shape in obstacles.shapes:
        if isinstance(shape, HalfSpace):
            found.append(_cut(frame, shape.normal, shape.offset))
        elif isinstance(shape, Ball):
            found.append(shape.center + shape.radius * circle)
        elif isinstance(shape, Capsule):
            axis = shape.end - shape.start
            ahead = (circle @ axis >= 0.0)[:, None]
            found.append(np.where(ahead, shape.end, shape.start) + shape.radius * circle)
        elif isinstance(shape, Box):
            corners = np.array([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
            found.append(shape.center + (corners * shape.half_sizes) @ shape.axes.T)
        elif isinstance(shape, Polygon):
            found.append(shape.vertices)
        elif isinstance(shape, Points):
            found += [center + shape.radius * circle for center in shape.centers]
    for normal_x, normal_y, offset in sides:
        found = [_cut(corners, np.array((normal_x, normal_y)), offset) for corners in found]
    return [corners for corners in found if len(corners)]


def _cut(corners: FloatArray, normal: FloatArray, offset: float) -> FloatArray:
    """Return the part of a convex polygon with ``normal @ x <= offset``; (0, 2) if none is."""
    kept: list[FloatArray] = []
    over = corners @ normal - offset
    for k in range(len(corners)):
        a, b, here, there = corners[k - 1], corners[k], over[k - 1], over[k]
        if (here <= 0.0) != (there <= 0.0):
            kept.append(a + here / (here - there) * (b - a))
        if there <= 0.0:
            kept.append(b)
    return np.array(kept).reshape(-1, 2)


def _misspelled(entry: Any) -> list[tuple[tuple[str, ...], str]]:
    """Return what is wrong with an entry before its numbers are looked at, each with its keys."""
    known = f"expected one shape of {', '.join(KINDS)} with its fields"
    if not isinstance(entry, dict) or len(cast("dict[Any, Any]", entry)) != 1:
        return [((), f"{known}, got {shown(cast('object', entry))}.")]
    ((name, values),) = cast("dict[Any, Any]", entry).items()
    if name not in KINDS:
        return [((str(name),), f"{known}, got {name!r}{did_you_mean(str(name), KINDS)}.")]
    if not isinstance(values, dict):
        return [((name,), f"{name}: expected its fields, got {shown(cast('object', values))}.")]
    given = cast("dict[Any, Any]", values)
    names = [field.name for field in fields(KINDS[name])]
    needed = [field.name for field in fields(KINDS[name]) if field.default is MISSING]
    return [
        ((name, str(key)), f"{name}: unknown field {key!r}{did_you_mean(str(key), names)}.")
        for key in given
        if key not in names
    ] + [((name,), f"{name}: field {key!r} is missing.") for key in needed if key not in given]


def describe_map(obstacles: Obstacles) -> list[dict[str, Any]]:
    """Return the entries of a map file for the obstacles; fields left at None are left out."""
    names = {kind: name for name, kind in KINDS.items()}
    entries: list[dict[str, Any]] = []
    for shape in obstacles.shapes:
        values = {field.name: getattr(shape, field.name) for field in fields(cast("Any", shape))}
        plain = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in values.items()
            if value is not None
        }
        entries.append({names[type(shape)]: plain})
    return entries


def map_extent(obstacles: Obstacles) -> FloatArray:
    """Return the corners of the part worth drawing, shape (2, d), m: lowest and highest."""
    dim = obstacles.dim or 2
    found: list[FloatArray] = []
    for shape in obstacles.shapes:
        if isinstance(shape, Ball):
            found += [shape.center - shape.radius, shape.center + shape.radius]
        elif isinstance(shape, Capsule):
            ends = np.stack([shape.start, shape.end])
            found += [ends.min(axis=0) - shape.radius, ends.max(axis=0) + shape.radius]
        elif isinstance(shape, Box):
            half = np.abs(shape.axes) @ shape.half_sizes
            found += [shape.center - half, shape.center + half]
        elif isinstance(shape, Polygon):
            found += list(shape.vertices)
        elif isinstance(shape, Points):
            found += [
                center + sign for center in shape.centers for sign in (-shape.radius, shape.radius)
            ]
    middle = np.mean(found, axis=0) if found else np.zeros(dim)
    for shape in obstacles.shapes:
        if isinstance(shape, HalfSpace):  # the point of its plane nearest to the middle
            found.append(middle - (middle @ shape.normal - shape.offset) * shape.normal)
    corners = np.array(found or [middle])
    return np.stack([corners.min(axis=0) - _AROUND_M, corners.max(axis=0) + _AROUND_M])


def draw_obstacles(
    axes: Any,
    obstacles: Obstacles,
    extent: FloatArray,
    *,
    at: Sequence[float] | FloatArray = (0.0, 0.0, 0.0),
    sides: Sequence[int] = (0, 1),
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fill what is solid in a plane.

    Args:
        axes: Of matplotlib.
        obstacles: The obstacles.
        extent: Lowest and highest corner of what is drawn, shape (2, 2), m.
        at: A point of the plane, m; of no meaning in 2-D.
        sides: The two axes that are drawn: 0, 1 and 2 for x, y and z.

    Returns:
        Where along the first, shape (X,), and the second, (Y,), and the signed distance to the
        nearest obstacle, (Y, X), m.
    """
    x, y, distance = _distances(obstacles, extent, at, sides)
    if len(obstacles):
        deepest = min(-1.0, float(distance.min()) - 1.0)
        axes.contourf(x, y, distance, levels=[deepest, 0.0], colors=[_SOLID])
        axes.contour(x, y, distance, levels=[0.0], colors=[_EDGE], linewidths=1.2)
    return x, y, distance


def _distances(
    obstacles: Obstacles, extent: FloatArray, at: Sequence[float] | FloatArray, sides: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what `draw_obstacles` returns."""
    cell = float((extent[1] - extent[0]).max()) / _GRID
    x, y = (np.arange(extent[0, k], extent[1, k] + cell, cell, dtype=np.float64) for k in (0, 1))
    distance: FloatArray = np.full((len(y), len(x)), np.inf)
    for row, y_row in enumerate(y):  # one at a time: a scan has many points
        points: FloatArray = np.tile(np.asarray(at, dtype=np.float64), (len(x), 1))
        points[:, sides[0]], points[:, sides[1]] = x, y_row
        if len(obstacles):
            distance[row] = obstacles.gaps(points[:, : obstacles.dim])[0].min(axis=1)
    return x, y, distance


def fits(obstacles: Obstacles, radius_m: float, *, height_m: float = 0.0) -> bool:
    """Return whether a robot's center may be anywhere in the picture, to a cell of its grid."""
    extent = map_extent(obstacles)[:, :2]
    x, _, distance = _distances(obstacles, extent, (0.0, 0.0, height_m), (0, 1))
    return bool(distance.max() + x[1] - x[0] >= radius_m)


def draw_map(
    obstacles: Obstacles, *, radius_m: float | None = None, height_m: float = 0.0
) -> bytes:
    """Return a PNG of the obstacles; equal ones give equal bytes on one machine.

    Args:
        obstacles: The obstacles.
        radius_m: Radius of a robot: where its center may be is outlined.
        height_m: z of the plane that is drawn, m; of no meaning in 2-D.
    """
    extent = map_extent(obstacles)[:, :2]
    width, high = extent[1] - extent[0]
    figure: Any = load_extra("matplotlib.figure").Figure(
        figsize=(8.0, float(np.clip(8.0 * high / width, 3.0, 12.0))), dpi=120, layout="constrained"
    )
    axes: Any = figure.add_subplot()
    x, y, distance = draw_obstacles(axes, obstacles, extent, at=(0.0, 0.0, height_m))
    plane = f", z = {height_m:g} m" if obstacles.dim == 3 else ""
    title = f"{len(obstacles)} obstacle{'' if len(obstacles) == 1 else 's'}{plane}"
    if radius_m is not None:
        levels, style = [radius_m], {"colors": [_REACH], "linestyles": "dashed"}
        if distance.min() < radius_m < distance.max():
            axes.contour(x, y, distance, levels=levels, linewidths=1.0, **style)
        title += f"; dashed: how near the center of a robot of {radius_m:g} m radius comes"
    axes.set_aspect("equal")
    axes.set(xlabel="x / m", ylabel="y / m", title=title)
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.25)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

"""Pictures of the planar tasks: discs with velocity arrows, goal rings, fading trails.

A scene is drawn three times too large and reduced, which smooths every edge.
Axes:   images are (H, W, 3) uint8, row 0 at the top; world y points up.
Units:  world lengths in m (cooperative push: arena units); line widths in pixels of the result.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra

_image: Any = load_extra("PIL.Image")
_image_draw: Any = load_extra("PIL.ImageDraw")
_image_font: Any = load_extra("PIL.ImageFont")

Color: TypeAlias = tuple[int, int, int]

#: Side of an image, pixels.
IMAGE_SIZE: Final = 480
#: Reduction that smooths edges.
OVERSAMPLING: Final = 3

_BACKGROUND: Final[Color] = (250, 250, 247)
_FLOOR: Final[Color] = (255, 255, 255)
_GRID: Final[Color] = (236, 237, 234)
_EDGE: Final[Color] = (205, 208, 205)
_INK: Final[Color] = (38, 43, 51)
_ALARM: Final[Color] = (214, 39, 40)
#: Ego first, then partners: told apart in the common forms of color blindness and by lightness
#: (Okabe and Ito, "Color universal design", 2008).
_ROBOT_COLORS: Final[tuple[Color, ...]] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (148, 130, 30),
    (110, 110, 110),
)

#: World half-width shown, m: the circle of starts plus room for a robot that overshoots.
_CROSSING_HALF_WIDTH: Final = 2.75
_CROSSING_CIRCLE: Final = 2.0
_CROSSING_ROBOT: Final = 0.2
_CROSSING_GOAL: Final = 0.15
#: Thickness of the room's outer walls in the picture, m.
_DOORWAY_WALL: Final = 0.06
_PUSH_HALF_WIDTH: Final = 1.15
_PUSH_ROBOT: Final = 0.06
_PUSH_LANDMARK: Final = 0.09
#: Seconds of travel one velocity arrow shows.
_ARROW_SECONDS: Final = 0.4


class Canvas:
    """A square picture of the world around the origin."""

    def __init__(self, half_width: float) -> None:
        """Open an empty canvas that shows [-half_width, half_width]^2."""
        side = IMAGE_SIZE * OVERSAMPLING
        self._image = _image.new("RGB", (side, side), _BACKGROUND)
        self._draw = _image_draw.Draw(self._image)
        self._scale = side / (2.0 * half_width)
        self._half_width = half_width

    def pixels(self) -> NDArray[np.uint8]:
        """Return the picture, shape (IMAGE_SIZE, IMAGE_SIZE, 3)."""
        small = self._image.resize((IMAGE_SIZE, IMAGE_SIZE), _image.Resampling.LANCZOS)
        return np.array(small, dtype=np.uint8)

    def floor(self, half_width: float, *, spacing: float) -> None:
        """Draw a bordered square floor with grid lines every ``spacing``."""
        corners = (self._point(-half_width, half_width), self._point(half_width, -half_width))
        self._draw.rectangle(corners, fill=_FLOOR)
        count = int(half_width / spacing + 1e-9)
        for k in range(-count, count + 1):
            at = k * spacing
            self.line(np.array([[at, -half_width], [at, half_width]]), _GRID, width=1.0)
            self.line(np.array([[-half_width, at], [half_width, at]]), _GRID, width=1.0)
        self._draw.rectangle(corners, outline=_EDGE, width=2 * OVERSAMPLING)

    def rectangle(self, low: FloatArray, high: FloatArray, fill: Color) -> None:
        """Fill the rectangle between two corners."""
        left, bottom = self._point(float(low[0]), float(low[1]))
        right, top = self._point(float(high[0]), float(high[1]))
        self._draw.rectangle((left, top, right, bottom), fill=fill)

    def disc(
        self, center: FloatArray, radius: float, fill: Color, *, outline: Color, width: float
    ) -> None:
        """Draw a filled disc with a border inside its radius."""
        self._draw.ellipse(
            self._box(center, radius), fill=fill, outline=outline, width=self._width(width)
        )

    def ring(self, center: FloatArray, radius: float, color: Color, *, width: float) -> None:
        """Draw a circle."""
        self._draw.ellipse(self._box(center, radius), outline=color, width=self._width(width))

    def dashed_ring(self, radius: float, color: Color, *, dashes: int, width: float) -> None:
        """Draw a dashed circle around the origin."""
        box, step = self._box(np.zeros(2), radius), 360.0 / dashes
        for k in range(dashes):
            self._draw.arc(box, k * step, (k + 0.5) * step, fill=color, width=self._width(width))

    def line(self, points: FloatArray, color: Color, *, width: float) -> None:
        """Draw a polyline with round joints, ``points`` of shape (K, 2)."""
        path = [self._point(float(x), float(y)) for x, y in points]
        self._draw.line(path, fill=color, width=self._width(width), joint="curve")

    def trail(self, points: FloatArray, color: Color, *, width: float) -> None:
        """Draw a path that fades towards its beginning, ``points`` of shape (T, 2)."""
        segments = len(points) - 1
        for k in range(segments):
            strength = 0.12 + 0.5 * (k + 1) / segments
            self.line(points[k : k + 2], blend(color, _FLOOR, strength), width=width)
            end = points[k + 1]
            x, y = self._point(float(end[0]), float(end[1]))
            half = self._width(width) / 2.0
            shade = blend(color, _FLOOR, strength)
            self._draw.ellipse((x - half, y - half, x + half, y + half), fill=shade)

    def arrow(self, tail: FloatArray, vector: FloatArray, color: Color, *, width: float) -> None:
        """Draw an arrow; nothing for a vector too short to have a direction on screen."""
        length = float(np.hypot(vector[0], vector[1]))
        head = 4.0 * width * OVERSAMPLING / self._scale
        if length < 0.5 * head:
            return
        along = vector / length
        across = np.array([-along[1], along[0]])
        tip = tail + vector
        neck = tip - head * along
        self.line(np.stack((tail, neck)), color, width=width)
        corners = (tip, neck + 0.55 * head * across, neck - 0.55 * head * across)
        self._draw.polygon([self._point(float(x), float(y)) for x, y in corners], fill=color)

    def label(self, text: str, center: FloatArray, color: Color, *, size: float) -> None:
        """Write ``text`` around ``center``."""
        font = _image_font.load_default(size * OVERSAMPLING)
        position = self._point(float(center[0]), float(center[1]))
        self._draw.text(position, text, fill=color, font=font, anchor="mm")

    def caption(self, text: str, color: Color, *, right: bool = False) -> None:
        """Write ``text`` in an upper corner."""
        font = _image_font.load_default(13.0 * OVERSAMPLING)
        margin = 12 * OVERSAMPLING
        x = self._image.width - margin if right else margin
        self._draw.text((x, margin), text, fill=color, font=font, anchor="ra" if right else "la")

    def _point(self, x: float, y: float) -> tuple[float, float]:
        return (x + self._half_width) * self._scale, (self._half_width - y) * self._scale

    def _box(self, center: FloatArray, radius: float) -> tuple[float, float, float, float]:
        x, y = self._point(float(center[0]), float(center[1]))
        reach = radius * self._scale
        return x - reach, y - reach, x + reach, y + reach

    def _width(self, width: float) -> int:
        return max(1, round(width * OVERSAMPLING))


def draw_crossing(
    *, goals: FloatArray, trail: FloatArray, velocity: FloatArray, contact: bool, time_s: float
) -> NDArray[np.uint8]:
    """Return a picture of crossing, (H, W, 3).

    ``goals`` (n, 2) and ``trail`` (T, n, 2), the last row current, in m; ``velocity`` (n, 2), m/s;
    ``contact`` of the last step; ``time_s`` since the start, s.
    """
    canvas = Canvas(_CROSSING_HALF_WIDTH)
    canvas.floor(_CROSSING_HALF_WIDTH * 0.97, spacing=0.5)
    canvas.dashed_ring(_CROSSING_CIRCLE, _EDGE, dashes=72, width=1.5)
    colors = _ROBOT_COLORS[: len(goals)]
    for goal, color in zip(goals, colors, strict=True):
        pale = blend(color, _FLOOR, 0.18)
        canvas.disc(goal, _CROSSING_GOAL, pale, outline=color, width=2.5)
    for robot in reversed(range(len(goals))):
        canvas.trail(trail[:, robot], colors[robot], width=3.0)
    for robot in reversed(range(len(goals))):
        center = trail[-1, robot]
        if contact and robot == 0:
            canvas.ring(center, _CROSSING_ROBOT * 1.45, _ALARM, width=4.0)
        _robot(canvas, center, _CROSSING_ROBOT, velocity[robot], colors[robot], robot)
    canvas.caption(f"{time_s:.1f} s", _INK)
    if contact:
        canvas.caption("contact", _ALARM, right=True)
    return canvas.pixels()


def draw_doorway(
    *,
    goals: FloatArray,
    trail: FloatArray,
    velocity: FloatArray,
    headings: FloatArray | None,
    room: tuple[float, float],
    door: tuple[float, float],
    contacts: Sequence[bool],
    time_s: float,
) -> NDArray[np.uint8]:
    """Return a picture of the door task, (H, W, 3).

    ``goals`` (2, 2) and ``trail`` (T, 2, 2), the last row current, in m; ``velocity`` (2, 2), m/s;
    ``headings`` as unit vectors (2, 2), or None; half sizes of the ``room``, half thickness of its
    wall and half width of the ``door`` in it, m; ``contacts`` of both robots in the last step;
    ``time_s`` since the start, s.
    """
    canvas = Canvas(_CROSSING_HALF_WIDTH)
    corner = np.array(room)
    canvas.rectangle(-corner - _DOORWAY_WALL, corner + _DOORWAY_WALL, _INK)
    canvas.rectangle(-corner, corner, _FLOOR)
    for sign in (-1.0, 1.0):
        ends = sorted((sign * door[1], sign * room[1]))
        canvas.rectangle(np.array([-door[0], ends[0]]), np.array([door[0], ends[1]]), _INK)
    for goal, color in zip(goals, _ROBOT_COLORS, strict=False):
        canvas.disc(goal, _CROSSING_ROBOT, blend(color, _FLOOR, 0.18), outline=color, width=2.5)
    for robot in (1, 0):
        canvas.trail(trail[:, robot], _ROBOT_COLORS[robot], width=3.0)
    for robot in (1, 0):
        center = trail[-1, robot]
        if contacts[robot]:
            canvas.ring(center, _CROSSING_ROBOT * 1.45, _ALARM, width=4.0)
        _robot(canvas, center, _CROSSING_ROBOT, velocity[robot], _ROBOT_COLORS[robot], robot)
        if headings is not None:
            rim = center + _CROSSING_ROBOT * headings[robot]
            canvas.line(np.stack((center + 0.6 * (rim - center), rim)), _FLOOR, width=3.0)
    canvas.caption(f"{time_s:.1f} s", _INK)
    if any(contacts):
        canvas.caption("contact", _ALARM, right=True)
    return canvas.pixels()


def draw_push(
    *, landmarks: FloatArray, trail: FloatArray, velocity: FloatArray, time_s: float
) -> NDArray[np.uint8]:
    """Return a picture of cooperative push, (H, W, 3).

    ``landmarks`` (2, 2), ``trail`` (T, 2, 2), the last row current, ``velocity`` (2, 2), ``time_s``
    since the start, s.
    """
    canvas = Canvas(_PUSH_HALF_WIDTH)
    canvas.floor(1.0, spacing=0.25)
    for landmark in landmarks:
        canvas.disc(landmark, _PUSH_LANDMARK, _GRID, outline=_INK, width=2.5)
        canvas.disc(landmark, _PUSH_LANDMARK * 0.2, _INK, outline=_INK, width=1.0)
    for robot in (1, 0):
        canvas.trail(trail[:, robot], _ROBOT_COLORS[robot], width=3.0)
    for robot in (1, 0):
        _robot(canvas, trail[-1, robot], _PUSH_ROBOT, velocity[robot], _ROBOT_COLORS[robot], robot)
    canvas.caption(f"{time_s:.1f} s", _INK)
    return canvas.pixels()


def blend(color: Color, ground: Color, strength: float) -> Color:
    """Return ``color`` at opacity ``strength`` over ``ground``."""
    red, green, blue = (
        round(strength * front + (1.0 - strength) * back)
        for front, back in zip(color, ground, strict=True)
    )
    return red, green, blue


def _robot(
    canvas: Canvas,
    center: FloatArray,
    radius: float,
    velocity: FloatArray,
    color: Color,
    number: int,
) -> None:
    """Draw one robot: disc, velocity arrow from its rim, and its letter or number."""
    speed = float(np.hypot(velocity[0], velocity[1]))
    dark = blend(color, (0, 0, 0), 0.65)
    if speed > 0.0:
        canvas.arrow(center + velocity / speed * radius, velocity * _ARROW_SECONDS, dark, width=2.5)
    canvas.disc(center, radius, color, outline=dark, width=2.0)
    size = radius * IMAGE_SIZE / (2.0 * _CROSSING_HALF_WIDTH)
    canvas.label("E" if number == 0 else str(number), center, (255, 255, 255), size=max(size, 9.0))

"""A small SVG writer: escaped text, classes instead of colours, two-decimal coordinates.

Colours come from the page's style sheet, so one drawing serves light, dark and print. Equal calls
give equal text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from markupsafe import Markup, escape

Anchor = Literal["start", "middle", "end"]

#: Steps of "nice" axis ticks within a decade.
_NICE_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Width a figure is drawn for; its text keeps one size on a desk and on a phone.

    Attributes:
        name: ``"wide"`` or ``"narrow"``; also its class in the style sheet.
        width: Width in drawing units, one unit being one pixel at natural size.
    """

    name: Literal["wide", "narrow"]
    width: float

    @property
    def narrow(self) -> bool:
        """Whether this is the phone variant."""
        return self.name == "narrow"


WIDE: Final = Layout(name="wide", width=840.0)
NARROW: Final = Layout(name="narrow", width=380.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Linear map from data to drawing units.

    Attributes:
        low: Data at ``start``.
        high: Data at ``end``, != ``low``.
        start: Drawing unit of ``low``.
        end: Drawing unit of ``high``.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the drawing unit of ``value``."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


@dataclass(slots=True, kw_only=True)
class Drawing:
    """Collects elements of one SVG.

    Attributes:
        width: Width in drawing units.
        height: Height in drawing units; may grow until `render`.
    """

    width: float
    height: float
    _parts: list[str] = field(default_factory=list[str])

    def text(
        self, x: float, y: float, value: str, css: str = "label", anchor: Anchor = "start"
    ) -> None:
        """Write ``value`` with its baseline at (x, y)."""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" class="{css}" text-anchor="{anchor}">'
            f"{escape(value)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        """Draw a straight line."""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{css}"/>'
        )

    def circle(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        """Draw a circle; ``tip`` shows on hovering."""
        self._element("circle", f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{css}"', tip)

    def diamond(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        """Draw a square standing on its corner."""
        corners = ((0, -radius), (radius, 0), (0, radius), (-radius, 0))
        self.polygon([(x + dx, y + dy) for dx, dy in corners], css, tip)

    def polygon(self, points: Sequence[tuple[float, float]], css: str, tip: str = "") -> None:
        """Draw a closed outline."""
        self._element("path", f'd="{_path(points)}Z" class="{css}"', tip)

    def polyline(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Draw an open line through ``points``; fewer than two draw nothing."""
        if len(points) > 1:
            self._parts.append(f'<path d="{_path(points)}" class="{css}"/>')

    def rect(self, x: float, y: float, width: float, height: float, css: str) -> None:
        """Draw a rectangle."""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'class="{css}"/>'
        )

    def render(self, *, identity: str, layout: Layout, title: str, description: str) -> Markup:
        """Return the SVG element.

        Args:
            identity: Unique prefix of the ids it defines.
            layout: Gives the class that shows it on the right screens.
            title: Name of the figure for screen readers.
            description: What a reader would see.
        """
        name = f"{identity}-{layout.name}"
        body = "".join(self._parts)
        return Markup(  # noqa: S704 -- every text above went through escape()
            f'<svg class="chart {layout.name}" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'role="img" aria-labelledby="{name}-t {name}-d" '
            f'width="{_n(self.width)}" height="{_n(self.height)}">'
            f'<title id="{name}-t">{escape(title)}</title>'
            f'<desc id="{name}-d">{escape(description)}</desc>{body}</svg>'
        )

    def _element(self, tag: str, attributes: str, tip: str) -> None:
        """Append an element, with a tooltip if there is one."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        end = f">{inside}</{tag}>" if inside else "/>"
        self._parts.append(f"<{tag} {attributes}{end}")


def nice_ticks(low: float, high: float, target: int) -> list[float]:
    """Return round numbers in [low, high], about ``target`` of them.

    Args:
        low: Start of the axis.
        high: End of the axis, > ``low``.
        target: Wanted number, >= 1.
    """
    raw = (high - low) / target
    decade = 10.0 ** math.floor(math.log10(raw))
    step = next(s * decade for s in _NICE_STEPS if s * decade >= raw * (1.0 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def shorten(label: str, *, limit: int = 31) -> str:
    """Return ``label``, cut to ``limit`` characters with an ellipsis; SVG text does not wrap."""
    return label if len(label) <= limit else f"{label[: limit - 1].rstrip()}…"


def tick_label(value: float) -> str:
    """Return a tick as short as it can be: ``"0.5"``, ``"100k"``, ``"−2"``."""
    value = round(value, 12) + 0.0  # multiples of a step carry rounding; + 0.0 drops the sign of 0
    if abs(value) >= 1e6:
        text = f"{value / 1e6:.6g}M"
    elif abs(value) >= 1e4:
        text = f"{value / 1e3:.6g}k"
    else:
        text = f"{value:.6g}"
    return text.replace("-", "−")


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return the path data through ``points``."""
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """Return a coordinate with at most two decimals and no negative zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text

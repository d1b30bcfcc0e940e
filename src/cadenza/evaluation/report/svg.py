"""A small SVG writer, and numbers as a reader wants them.

Text is escaped, classes stand instead of colours, coordinates have two decimals. Colours come from
the page's style sheet, so one drawing serves light, dark and print. Equal calls give equal text.
Numbers have few digits, honest ends and no negative zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from markupsafe import Markup, escape

from cadenza.evaluation.statistics.estimate import Estimate

Anchor = Literal["start", "middle", "end"]

#: Steps of "nice" axis ticks within a decade.
_NICE_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


#: Style sheets, templates and the player's script of the pages that drawings stand in.
ASSETS: Final = Path(__file__).with_name("templates")
#: Width of every figure, drawing units; one is one pixel at natural size.
WIDTH: Final = 840.0
#: Where plots of two axes begin and end in it.
LEFT, RIGHT = 54.0, WIDTH - 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Linear map from data, ``low`` to ``high``, to drawing units, ``start`` to ``end``."""

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
        height: Height in drawing units.
        width: Width in drawing units.
    """

    height: float
    width: float = WIDTH
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

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        css: str,
        opacity: float = 1.0,
        tip: str = "",
    ) -> None:
        """Draw a rectangle, filled with ``opacity`` in [0, 1]; ``tip`` shows on hovering."""
        filled = "" if opacity == 1.0 else f' fill-opacity="{opacity:.2f}"'
        self._element(
            "rect",
            f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'class="{css}"{filled}',
            tip,
        )

    def render(self, *, identity: str, title: str, description: str) -> Markup:
        """Return the SVG element; ``identity`` is the unique prefix of the ids it defines."""
        body = "".join(self._parts)
        return Markup(  # noqa: S704 -- every text above went through escape()
            f'<svg class="chart" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'role="img" aria-labelledby="{identity}-t {identity}-d" '
            f'width="{_n(self.width)}" height="{_n(self.height)}">'
            f'<title id="{identity}-t">{escape(title)}</title>'
            f'<desc id="{identity}-d">{escape(description)}</desc>{body}</svg>'
        )

    def _element(self, tag: str, attributes: str, tip: str) -> None:
        """Append an element, with a tooltip if there is one."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        end = f">{inside}</{tag}>" if inside else "/>"
        self._parts.append(f"<{tag} {attributes}{end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """One mark of a legend, by its class (``"on"``, ``"off"``, ...), and its meaning."""

    css: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the page; ``identity`` is its anchor, the caption says what to look at."""

    identity: str
    title: str
    caption: str
    svg: Markup
    legend: tuple[LegendEntry, ...] = ()


def make_figure(
    drawing: Drawing,
    *,
    identity: str,
    title: str,
    caption: str,
    description: str,
    legend: tuple[LegendEntry, ...] = (),
) -> Figure:
    """Return the figure of ``drawing``; ``description`` is for readers who cannot see it."""
    svg = drawing.render(identity=identity, title=title, description=description)
    return Figure(identity=identity, title=title, caption=caption, svg=svg, legend=legend)


def nice_ticks(low: float, high: float, target: int) -> list[float]:
    """Return round numbers in [low, high], about ``target`` >= 1 of them."""
    raw = (high - low) / target
    decade = 10.0 ** math.floor(math.log10(raw))
    step = next(s * decade for s in _NICE_STEPS if s * decade >= raw * (1.0 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def widened(values: Sequence[float], *, share: float = 0.06) -> tuple[float, float]:
    """Return ends that hold ``values``, with a margin of ``share`` of their range."""
    low, high = min(values), max(values)
    margin = share * (high - low) or 0.5
    return low - margin, high + margin


#: Ticks of an axis of shares.
SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw_grid(drawing: Drawing, x: Scale, y: Scale, shares: Sequence[float] = ()) -> None:
    """Draw the grid of a vertical axis, of numbers or, with these ticks, of ``shares``."""
    for tick in shares or nice_ticks(y.low, y.high, 5):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        text = f"{100 * tick:.0f}%" if shares else tick_label(tick)
        drawing.text(x.start - 7, y(tick) + 4, text, "tick", "end")


def draw_baseline(
    drawing: Drawing, x: Scale, bottom: float, label: str, ticks: Sequence[float] = ()
) -> None:
    """Draw a horizontal axis at ``bottom`` with its label; by default with round ticks."""
    drawing.line(x.start, bottom, x.end, bottom, "axis")
    for tick in ticks or nice_ticks(x.low, x.high, 8):
        drawing.text(x(tick), bottom + 18, tick_label(tick), "tick", "middle")
    drawing.text((x.start + x.end) / 2, bottom + 38, label, "axis-label", "middle")


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


#: Keeps a number and its unit on one line.
NBSP: Final = "\u00a0"

#: Shown where a statistic is undefined or was not recorded.
MISSING: Final = "–"
#: Stands for bounds that are undefined.
NO_INTERVAL: Final = "no interval"


def percent(rate: float | None, *, digits: int = 1) -> str:
    """Return ``0.975`` as ``"97.5 %"``.

    A rate that is not exactly 0 or 1 never prints as 0 % or 100 %: it keeps a sign of the rest.
    """
    return MISSING if rate is None else f"{_percentage(rate, digits)}{NBSP}%"


def percent_interval(estimate: Estimate) -> str:
    """Return the bounds of a rate as ``"[94.2, 99.2]"``."""
    if estimate.low is None or estimate.high is None:
        return NO_INTERVAL
    return f"[{_percentage(estimate.low, 1)}, {_percentage(estimate.high, 1)}]"


def points(difference: float | None) -> str:
    """Return a difference of rates as signed percentage points, ``"+3.5"``."""
    return MISSING if difference is None else signed(100.0 * difference)


def points_interval(estimate: Estimate) -> str:
    """Return the bounds of a difference of rates as ``"[+1.2, +5.8]"``."""
    if estimate.low is None or estimate.high is None:
        return NO_INTERVAL
    return f"[{points(estimate.low)}, {points(estimate.high)}]"


def score(value: float | None, is_rate: bool) -> str:
    """Return a rate in percent, or another score as a number."""
    return percent(value) if is_rate else number(value)


def score_interval(estimate: Estimate, is_rate: bool) -> str:
    """Return the bounds of a score."""
    return percent_interval(estimate) if is_rate else number_interval(estimate)


def score_text(estimate: Estimate | None, is_rate: bool) -> str:
    """Return a score with its bounds; without one a dash, or why there is none."""
    if estimate is None or estimate.value is None:
        return (estimate and estimate.undefined_reason) or MISSING
    return f"{score(estimate.value, is_rate)} {score_interval(estimate, is_rate)}"


def score_change(change: Estimate | None, is_rate: bool) -> str:
    """Return a difference of scores with its bounds, those of rates in percentage points."""
    if change is None or change.value is None:
        return MISSING
    if is_rate:
        return f"{points(change.value)} {points_interval(change)}"
    return f"{signed(change.value, digits=2)} {number_interval(change)}"


def signed(value: float, *, digits: int = 1) -> str:
    """Return ``value`` with its sign; zero has none, minus is the typographic one."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0.0:
        return f"{0.0:.{digits}f}"
    return text.replace("-", "−")


def number(value: float | None, *, digits: int = 2, unit: str = "") -> str:
    """Return ``value`` with ``digits`` decimals and its unit."""
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}"
    text = text.lstrip("-") if float(text) == 0.0 else text.replace("-", "−")
    return f"{text}{NBSP}{unit}" if unit else text


def number_interval(estimate: Estimate) -> str:
    """Return the bounds of a mean as ``"[1.20, 1.48]"``."""
    if estimate.low is None or estimate.high is None:
        return NO_INTERVAL
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def count(value: int | None) -> str:
    """Return ``12345`` as ``"12 345"``, with spaces that do not break."""
    return MISSING if value is None else f"{value:,}".replace(",", "\u202f")


def plural(value: int, noun: str) -> str:
    """Return ``"1 episode"`` or ``"12 episodes"``."""
    return f"{count(value)}{NBSP}{noun}" + ("" if value == 1 else "s")


def _percentage(rate: float, digits: int) -> str:
    """Return ``rate`` in percent without the sign; 99.97 stays below 100."""
    text = f"{100.0 * rate:.{digits}f}"
    step = 10.0**-digits
    if rate > 0.0 and float(text) == 0.0:
        return f"<{step:.{digits}f}"
    if rate < 1.0 and float(text) == 100.0:
        return f">{100.0 - step:.{digits}f}"
    return text

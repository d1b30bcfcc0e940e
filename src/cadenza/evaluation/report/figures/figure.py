"""A finished figure: the same drawing for wide and narrow screens, with words for both."""

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from cadenza.evaluation.report.svg import NARROW, WIDE, Drawing, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """One mark of a legend.

    Attributes:
        css: Class of the mark: ``"on"``, ``"off"``, ...
        label: Its meaning.
    """

    css: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the page.

    Attributes:
        identity: Its anchor on the page.
        title: Heading over it.
        caption: What to look at, in one or two sentences.
        wide: SVG for desks and paper.
        narrow: SVG for phones.
        legend: Marks and their meaning.
    """

    identity: str
    title: str
    caption: str
    wide: Markup
    narrow: Markup
    legend: tuple[LegendEntry, ...] = ()


def make_figure(
    draw: Callable[[Layout], Drawing],
    *,
    identity: str,
    title: str,
    caption: str,
    description: str,
    legend: tuple[LegendEntry, ...] = (),
) -> Figure:
    """Return the figure that ``draw`` makes at both widths.

    Args:
        draw: Makes the drawing for one layout.
        identity: Anchor on the page.
        title: Heading over it.
        caption: What to look at.
        description: What it shows, for readers who cannot see it.
        legend: Marks and their meaning.
    """
    wide, narrow = (
        draw(layout).render(identity=identity, layout=layout, title=title, description=description)
        for layout in (WIDE, NARROW)
    )
    return Figure(
        identity=identity, title=title, caption=caption, wide=wide, narrow=narrow, legend=legend
    )

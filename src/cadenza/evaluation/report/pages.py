"""A page about anything but one evaluation, in the look of a report: a search, a suite."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from cadenza.core.tables import LATEX_HEAD, markdown_text
from cadenza.evaluation.report.render import (
    Format,
    Tile,
    asset,
    policy_hash,
    template_environment,
)
from cadenza.evaluation.report.view import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryPage:
    """What such a page says.

    Attributes:
        kind: What it is, beside the name of the package, e.g. ``"sweep"``.
        title: Heading.
        task: Task, if it is about one.
        subtitle: One or two sentences below the heading.
        verdict: The result in a sentence.
        tiles: Headline numbers.
        measured: Sentences on what was measured.
        cautions: Sentences on how far that holds.
        sections: Figures and tables.
        facts: Value of what the provenance says, by label.
    """

    kind: str
    title: str
    task: str = ""
    subtitle: str = ""
    verdict: str = ""
    tiles: tuple[Tile, ...] = ()
    measured: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


def render_story(page: StoryPage, form: Format, record: Mapping[str, Any]) -> str:
    """Return the page in any format; ``record`` is what it says as JSON values."""
    if form == "html":
        return render_page(page)
    if form == "json":
        return json.dumps(record, indent=2, allow_nan=False) + "\n"
    tables = [table for section in page.sections for table in section.tables]
    if form == "latex":
        return "\n\n".join([LATEX_HEAD, *(table.to_latex() for table in tables)]) + "\n"
    told = "\n".join(f"- {markdown_text(text)}" for text in (*page.measured, *page.cautions))
    parts = [f"# {markdown_text(page.title)}", markdown_text(page.verdict), told]
    return "\n\n".join([*filter(None, parts), *(table.to_markdown() for table in tables)]) + "\n"


def render_page(page: StoryPage) -> str:
    """Return the page as one HTML file that needs nothing else; equal pages give equal text."""
    style = Markup("").join(asset(f"{name}.css") for name in ("palette", "figures", "style"))
    return (
        template_environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=style,
            policy=f"default-src 'none'; img-src data:; style-src '{policy_hash(style)}'; "
            "base-uri 'none'; form-action 'none'",
        )
    )
